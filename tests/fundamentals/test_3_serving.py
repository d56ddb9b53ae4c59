"""The third chapter: serving, middleware, and writing a server."""

import httpx
from starlette.applications import Starlette

from genmcp import Channel, Continue, Endpoint, Suite, tool
from genmcp.core.request import Request
from genmcp.protocol.capabilities import Implementation, ServerCapabilities, ToolsCapability
from genmcp.protocol.content import TextContent
from genmcp.protocol.tools import CallToolResult, ListToolsResult, ToolDefinition
from genmcp.protocol.value import PaginatedResult, Result
from genmcp.server import Middleware, Route, Server
from genmcp.testing import connect


@tool
async def ping() -> str:
    """Returns pong."""
    return "pong"


async def test_suite_is_mounted_in_an_application() -> None:
    """An endpoint is an ASGI application; `route` mounts it at a path."""
    suite = Suite(name="tutorial", version="1.0", tools=[ping])
    app = Starlette(routes=[Endpoint(suite).route("/mcp")])

    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        response = await http.post(
            "/mcp",
            headers={"accept": "application/json, text/event-stream"},
            json={
                "jsonrpc": "2.0",
                "id": 1,
                "method": "initialize",
                "params": {
                    "protocolVersion": "2025-11-25",
                    "capabilities": {},
                    "clientInfo": {"name": "curl", "version": "8"},
                },
            },
        )

    assert response.json()["result"]["serverInfo"]["name"] == "tutorial"


async def test_middleware_sees_each_call() -> None:
    """Middleware forwards every request that it does not handle."""
    seen: list[str] = []

    class Recording(Middleware):
        async def handle(self, request: Request, channel: Channel) -> Result | Continue:
            seen.append(request.method)
            return await self.inner.handle(request, channel)

    suite = Suite(name="tutorial", version="1.0", tools=[ping])
    async with connect(Recording(suite)) as client:
        answer = await client.call("ping")

    assert (seen, answer.content) == (["tools/call"], [TextContent("pong")])


async def test_server_is_written_by_hand() -> None:
    """A Suite is one implementation of Server: find, list and handle."""

    class Parrot(Server):
        info = Implementation(name="parrot", version="1.0")
        capabilities = ServerCapabilities(tools=ToolsCapability())
        methods = frozenset({"tools/list", "tools/call"})

        def find(self, method: str, key: str) -> Route | None:
            return Route() if key == "repeat" else None

        async def handle(self, request: Request, channel: Channel) -> Result:
            return CallToolResult(content=[TextContent("Repeat!")])

        async def listed(
            self, method: str, cursor: str | None, channel: Channel
        ) -> PaginatedResult:
            tools = [ToolDefinition("repeat", {"type": "object"})]
            return ListToolsResult(tools=tools, ttl_ms=0, cache_scope="public")

    async with connect(Parrot()) as client:
        listed = await client.tools()
        answer = await client.call("repeat")

    assert [each.name for each in listed] == ["repeat"]
    assert answer.content == [TextContent("Repeat!")]
