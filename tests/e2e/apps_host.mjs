// A host of MCP Apps: the reference library's bridge, with a page at its other end. Arguments: the
// modules folder and the URL of a server. It prints what the host and the page have got as JSON.
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [modules, url] = process.argv.slice(2);
const require = createRequire(`${modules}/`);
const load = (name) => import(pathToFileURL(require.resolve(name)).href);
const { Client, InMemoryTransport, StreamableHTTPClientTransport } = await load(
    '@modelcontextprotocol/client'
);
const { App, McpUiResourceMetaSchema } = await load('@modelcontextprotocol/ext-apps');
const { AppBridge, getToolUiResourceUri, isToolVisibilityAppOnly } = await load(
    '@modelcontextprotocol/ext-apps/app-bridge'
);

const ui = { mimeTypes: ['text/html;profile=mcp-app'] };
const capabilities = { extensions: { 'io.modelcontextprotocol/ui': ui } };
const client = new Client({ name: 'host', version: '1' }, { capabilities });
await client.connect(new StreamableHTTPClientTransport(new URL(url)));
const { tools } = await client.listTools();
const shown = tools.map((tool) => [
    tool.name,
    getToolUiResourceUri(tool),
    isToolVisibilityAppOnly(tool),
]);
const { contents } = await client.readResource({ uri: shown[0][1] });
const meta = McpUiResourceMetaSchema.parse(contents[0]._meta.ui);

const [atPage, atHost] = InMemoryTransport.createLinkedPair();
const bridge = new AppBridge(client, { name: 'host', version: '1' }, { serverTools: {} });
const page = new App({ name: 'page', version: '1' }, {}, { autoResize: false });
await Promise.all([bridge.connect(atHost), page.connect(atPage)]);
const called = await page.callServerTool({ name: 'reorder', arguments: { part: 'bolt' } });
console.log(JSON.stringify({ shown, html: contents[0].text, meta, called: called.content[0].text }));
process.exit(0);
