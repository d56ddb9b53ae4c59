// A client of the TypeScript SDK that logs in and calls `whoami`. Arguments: the URL of the server
// and the modules folder. It prints the URL that its user has to visit, reads a line with the URL
// that the browser ended at, and prints the result.
import { createInterface } from 'node:readline/promises';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [url, modules] = process.argv.slice(2);
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
        grant_types: ['authorization_code', 'refresh_token'],
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
const lines = createInterface({ input: process.stdin });
let client = new Client({ name: 'typescript', version: '1.0.0' });
const first = newTransport();
try {
    await client.connect(first);
    throw new Error('connected without a login');
} catch (error) {
    if (!(error instanceof UnauthorizedError)) throw error;
}
const ended = new URL((await lines[Symbol.asyncIterator]().next()).value);
await first.finishAuth(ended.searchParams.get('code'));
client = new Client({ name: 'typescript', version: '1.0.0' });
await client.connect(newTransport());
const result = await client.callTool({ name: 'whoami', arguments: {} });
console.log(result.content[0].text);
await client.close();
lines.close();
