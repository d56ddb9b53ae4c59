// Skills and methods of extensions with the TypeScript SDK 2. As a server over stdio: `serve`, the
// modules folder, and the folder of the skills. As a client: `load`, the modules folder, and a URL;
// it prints what it has loaded as JSON.
import { createRequire } from 'node:module';
import { pathToFileURL } from 'node:url';

const [role, modules, target] = process.argv.slice(2);
const require = createRequire(`${modules}/`);
const load = (name) => import(pathToFileURL(require.resolve(name)).href);
const { z } = await load('zod');
const schemas = {
    params: z.object({ part: z.string() }),
    result: z.looseObject({ inStock: z.number() }),
};
const low = 'notifications/stock/low';

if (role === 'serve') {
    const { McpServer } = await load('@modelcontextprotocol/server');
    const { serveStdio } = await load('@modelcontextprotocol/server/stdio');
    const { loadSkills } = await load('@modelcontextprotocol/server/ext/skills/node');
    const skills = await loadSkills(target);
    serveStdio(() => {
        const server = new McpServer({ name: 'peer', version: '1' });
        skills.attach(server);
        server.server.registerCapabilities({
            extensions: { 'com.example/stock': { unit: 'piece' } },
        });
        server.server.setRequestHandler('stock/level', schemas, async ({ part }, { mcpReq }) => {
            await mcpReq.notify({ method: low, params: { part } });
            return { inStock: part.length, _meta: { 'com.example/by': 'typescript' } };
        });
        return server;
    });
} else {
    const { Client, StreamableHTTPClientTransport } = await load('@modelcontextprotocol/client');
    const { SkillsClient } = await load('@modelcontextprotocol/client/ext/skills');
    const client = new Client({ name: 'peer', version: '1' });
    const lows = [];
    client.setNotificationHandler(low, { params: schemas.params }, ({ part }) => lows.push(part));
    await client.connect(new StreamableHTTPClientTransport(new URL(target)));
    const skills = new SkillsClient(client);
    const [skill] = (await skills.list()).skills;
    const { verified, frontmatter, text } = await skills.read(skill);
    const sizes = (await skills.read(skill, 'sizes/metric.md')).text;
    const { resources } = await skills.readDirectory('skill://bolts');
    const folder = resources.map((each) => each.uri);
    const { unit } = client.getServerCapabilities().extensions['com.example/stock'];
    const request = { method: 'stock/level', params: { part: 'bolt' } };
    const { inStock, _meta } = await client.request(request, schemas.result);
    const stock = { unit, inStock, by: _meta['com.example/by'], lows };
    console.log(JSON.stringify({ verified, frontmatter, text, sizes, folder, stock }));
    await client.close();
}
