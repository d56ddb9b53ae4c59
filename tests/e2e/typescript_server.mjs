// A server of the TypeScript SDK with sessions, as the examples of the SDK have it: a request with
// an unknown session is answered with HTTP 400. Its port is the argument.
import { randomUUID } from 'node:crypto';
import { createServer } from 'node:http';
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

// Packages are found by the modules folder that the second argument names.
const require = createRequire(`${process.argv[3]}/`);
const load = (name) => import(pathToFileURL(require.resolve(name)).href);
const { McpServer } = await load('@modelcontextprotocol/sdk/server/mcp.js');
const { StreamableHTTPServerTransport } = await load(
    '@modelcontextprotocol/sdk/server/streamableHttp.js'
);
const { isInitializeRequest } = await load('@modelcontextprotocol/sdk/types.js');

const sessions = {};

async function transportOf(session, body) {
    if (session && sessions[session]) return sessions[session];
    if (session || !isInitializeRequest(body)) return undefined;
    const transport = new StreamableHTTPServerTransport({
        sessionIdGenerator: () => randomUUID(),
        onsessioninitialized: (id) => { sessions[id] = transport; },
    });
    const server = new McpServer({ name: 'typescript', version: '1.0.0' });
    server.registerTool('pid', { description: 'Returns the process id.' }, async () => ({
        content: [{ type: 'text', text: String(process.pid) }],
    }));
    await server.connect(transport);
    return transport;
}

const http = createServer(async (request, response) => {
    let text = '';
    for await (const chunk of request) text += chunk;
    const body = text ? JSON.parse(text) : undefined;
    const transport = await transportOf(request.headers['mcp-session-id'], body);
    if (transport) {
        await transport.handleRequest(request, response, body);
        return;
    }
    const message = 'Bad Request: No valid session ID provided';
    response.writeHead(400, { 'Content-Type': 'application/json' });
    response.end(JSON.stringify({ jsonrpc: '2.0', error: { code: -32000, message }, id: null }));
});
http.listen(Number(process.argv[2]), '127.0.0.1');
