// An authorization server that is not ours. Arguments: its port, the modules folder, and the URL
// of the resource that tokens are issued for, their format (jwt or opaque), and the public key of
// the client `signer`.
import { generateKeyPairSync, randomBytes } from 'node:crypto';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [port, modules, resource, accessTokenFormat, publicKey] = process.argv.slice(2);
const require = createRequire(`${modules}/`);
const { Provider, errors } = await import(pathToFileURL(require.resolve('oidc-provider')).href);

const { privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' });
const key = { ...privateKey.export({ format: 'jwk' }), kid: 'one', alg: 'ES256', use: 'sig' };

const provider = new Provider(`http://127.0.0.1:${port}`, {
    jwks: { keys: [key] },
    cookies: { keys: ['of a test'] },
    scopes: ['openid', 'offline_access', 'read', 'write'],
    clients: [
        {
            client_id: 'rs',
            client_secret: 'of-a-resource-server',
            grant_types: ['client_credentials'],
            redirect_uris: [],
            response_types: [],
        },
        {
            client_id: 'signer',
            token_endpoint_auth_method: 'private_key_jwt',
            token_endpoint_auth_signing_alg: 'ES256',
            jwks: { keys: [JSON.parse(publicKey)] },
            grant_types: ['client_credentials'],
            redirect_uris: [],
            response_types: [],
        },
        {
            client_id: 'app',
            application_type: 'native',
            token_endpoint_auth_method: 'none',
            redirect_uris: ['http://127.0.0.1:9999/callback'],
            grant_types: ['authorization_code', 'refresh_token'],
        },
    ],
    clientDefaults: { id_token_signed_response_alg: 'ES256' },
    enabledJWA: { idTokenSigningAlgValues: ['ES256'] },
    findAccount: (context, id) => ({ accountId: id, claims: () => ({ sub: id }) }),
    pkce: { required: () => true },
    rotateRefreshToken: true,
    issueRefreshToken: async (context, client) => client.grantTypeAllowed('refresh_token'),
    features: {
        registration: { enabled: true },
        introspection: { enabled: true, allowedPolicy: () => true },
        revocation: { enabled: true },
        clientCredentials: { enabled: true },
        dPoP: { enabled: true, nonceSecret: randomBytes(32), requireNonce: () => true },
        resourceIndicators: {
            enabled: true,
            defaultResource: () => undefined,
            useGrantedResource: () => true,
            getResourceServerInfo: (context, indicator) => {
                if (indicator !== resource) throw new errors.InvalidTarget();
                return {
                    scope: 'read write',
                    audience: resource,
                    accessTokenFormat,
                    jwt: { sign: { alg: 'ES256' } },
                };
            },
        },
    },
});
provider.on('server_error', (context, error) => console.error(error));
provider.listen(Number(port), '127.0.0.1');
