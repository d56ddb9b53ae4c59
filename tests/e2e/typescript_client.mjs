// A client of the TypeScript SDK that logs in and calls tools. Arguments: the URL of the server,
// the modules folder, and the names of the tools. It prints each URL that its user has to visit,
// reads a line with the URL that the browser ended at, and prints each result after `=`.
import { createInterface } from 'node:readline/promises';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [url, modules, ...tools] = process.argv.slice(2);
const require = createRequire(`${modules}/`);
const load = (name) => import(pathToFileURL(require.resolve(name)).href);
const { Client } = await load('@modelcontextprotocol/sdk/client/index.js');
const { StreamableHTTPClientTransport } = await load(
    '@modelcontextprotocol/sdk/client/streamableHttp.js'
);
const { UnauthorizedError } = await load('@modelcontextprotocol/sdk/client/auth.js');

const kept = {};
const provider = {
    redirectUrl: 'http://127.0.0.1:9999/callback',
    clientMetadata: {
        client_name: 'typescript',
        redirect_uris: ['http://127.0.0.1:9999/callback'],
        // With a refresh token it would answer a challenge for further scopes by a refresh, which
        // cannot widen them (1.32.2).
        grant_types: ['authorization_code'],
        application_type: 'native',
    },
    state: () => 'of-typescript',
    clientInformation: () => kept.client,
    saveClientInformation: (client) => { kept.client = client; },
    tokens: () => kept.tokens,
    saveTokens: (tokens) => { kept.tokens = tokens; },
    codeVerifier: () => kept.verifier,
    saveCodeVerifier: (verifier) => { kept.verifier = verifier; },
    redirectToAuthorization: (target) => { console.log(target.href); },
};

const newTransport = () => new StreamableHTTPClientTransport(new URL(url), {
    authProvider: provider,
});
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

async function finishLogin(transport, error) {
    if (!(error instanceof UnauthorizedError)) throw error;
    const ended = new URL((await lines.next()).value);
    await transport.finishAuth(ended.searchParams.get('code'));
}

const first = newTransport();
try {
    await new Client({ name: 'typescript', version: '1.0.0' }).connect(first);
    throw new Error('connected without a login');
} catch (error) {
    await finishLogin(first, error);
}
const client = new Client({ name: 'typescript', version: '1.0.0' });
const transport = newTransport();
await client.connect(transport);
for (const name of tools) {
    const call = () => client.callTool({ name, arguments: {} });
    const result = await call().catch(async (error) => {
        await finishLogin(transport, error);
        return call();
    });
    console.log(`=${result.content[0].text}`);
}
process.exit(0);
