"""FastMCP's skills, and methods of extensions of the official SDK: as clients and as servers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import fastmcp
import pytest
from fastmcp.server.providers.skills import SkillsDirectoryProvider
from fastmcp.skills.client import SkillsClientExtension
from fastmcp.skills.extension import SkillsExtension
from mcp.client import Client as OfficialClient
from mcp.client.extension import ClientExtension
from mcp.server.apps import Apps, ResourceCsp
from mcp.server.extension import Extension as OfficialExtension
from mcp.server.extension import MethodBinding
from mcp.server.mcpserver import MCPServer
from mcp.types import Request as OfficialRequest
from mcp.types import RequestParams as OfficialParams
from mcp.types import Result as OfficialResult
from starlette.applications import Starlette

from genmcp import Channel, Client, Endpoint, Hub, ServerConfig, Suite, tool
from genmcp.extensions import (
    App,
    Csp,
    Extension,
    Method,
    RequestParams,
    Result,
    SkillRejected,
    Skills,
)
from genmcp.server import Request
from tests.support.serving import serve

pytestmark = pytest.mark.peers

SKILL = "---\nname: bolts\ndescription: >-\n  About\n  bolts.\ntags: [a, b]\n---\n\n# Bolts\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one skill."""
    (tmp_path / "bolts" / "sizes").mkdir(parents=True)
    (tmp_path / "bolts" / "SKILL.md").write_text(SKILL)
    (tmp_path / "bolts" / "sizes" / "metric.md").write_bytes(b"M3\r\n")
    return tmp_path


@asynccontextmanager
async def fastmcp_server(folder: Path) -> AsyncIterator[str]:
    server: Any = fastmcp.FastMCP("peer")
    provider = SkillsDirectoryProvider(folder, experimental_skills=True)
    server.add_provider(provider)
    server.add_extension(SkillsExtension(providers=[provider]))
    async with serve(server.http_app()) as url:
        yield f"{url}/mcp"


async def test_skills_of_fastmcp_are_loaded(folder: Path) -> None:
    """Its entries and files agree with what this client checks."""
    async with fastmcp_server(folder) as url, Client(url) as client:
        (skill,) = await client.skills()
        assert await skill.load() == SKILL
        assert await skill.read("sizes/metric.md") == b"M3\r\n"
        (folder / "bolts" / "sizes" / "metric.md").write_bytes(b"M4\r\n")
        with pytest.raises(SkillRejected):
            await skill.read("sizes/metric.md")
        assert await skill.refresh()

    assert skill.entry.frontmatter == {
        "name": "bolts",
        "description": "About bolts.",
        "tags": ["a", "b"],
    }


async def test_fastmcp_lists_skills(folder: Path) -> None:
    """Its client accepts the entries, and reads the files."""
    app = Starlette(routes=[Endpoint(Suite("s", extensions=[Skills(folder)])).route("/mcp")])
    async with (
        serve(app) as url,
        fastmcp.Client(f"{url}/mcp", extensions=[SkillsClientExtension()]) as client,
    ):
        (skill,) = await client.list_skills()
        (content,) = await client.read_resource(skill.uri)
        got: Any = await client.get_skill(skill.uri)

    assert str(skill.uri) == "skill://bolts/SKILL.md"
    assert content.text == SKILL
    assert got == skill


NAME = "com.example/stock"


class LevelParams(RequestParams):
    part: str


class LevelResult(Result):
    in_stock: int


LEVEL = Method("stock/level", LevelParams, LevelResult)


class Stock(Extension):
    name = NAME
    settings = {"unit": "piece"}
    methods = (LEVEL,)

    async def handle(self, request: Request, channel: Channel) -> Result:
        assert isinstance(request.params, LevelParams)
        return LevelResult(in_stock=len(request.params.part))


class OfficialLevelParams(OfficialParams):
    part: str


class OfficialLevelResult(OfficialResult):
    inStock: int  # noqa: N815  # the name on the wire


class OfficialStock(OfficialExtension):
    identifier = NAME

    def settings(self) -> dict[str, Any]:
        return {"unit": "piece"}

    def methods(self) -> list[MethodBinding]:
        async def level(context: Any, params: OfficialLevelParams) -> OfficialLevelResult:
            return OfficialLevelResult(inStock=len(params.part))

        return [MethodBinding("stock/level", OfficialLevelParams, level)]


async def test_extension_of_the_official_sdk_is_typed() -> None:
    """Its method, by the types of this client."""
    server = MCPServer("peer", extensions=[OfficialStock()])
    async with (
        serve(server.streamable_http_app()) as url,
        Client(f"{url}/mcp", extensions=[Stock()]) as client,
    ):
        assert (client.capabilities.extensions or {})[NAME] == {"unit": "piece"}
        result = await client.request("stock/level", LevelParams(part="bolt"))

    assert isinstance(result, LevelResult)
    assert result.in_stock == 4


class OfficialLevel(OfficialRequest[OfficialLevelParams, str]):
    method: str = "stock/level"


async def test_official_client_uses_an_extension() -> None:
    """Its typed request of a method that it does not know."""
    app = Starlette(routes=[Endpoint(Suite("s", extensions=[Stock()])).route("/mcp")])
    async with serve(app) as url, OfficialClient(f"{url}/mcp") as client:
        params = OfficialLevelParams(part="bolt")
        request: Any = OfficialLevel(params=params)
        result = await client.session.send_request(request, OfficialLevelResult)

    assert result.inStock == 4


UI = "io.modelcontextprotocol/ui"
MIME_TYPE = "text/html;profile=mcp-app"
HTML = "<!doctype html><title>Stock</title>"
HOST = Extension(UI, settings={"mimeTypes": [MIME_TYPE]})


@pytest.mark.parametrize("through_hub", [False, True])
async def test_app_of_the_official_sdk_is_a_page(through_hub: bool) -> None:
    """`mcp.server.apps`: its tool names the page, whose rules are those of this library's apps."""
    apps = Apps()

    @apps.tool(resource_uri="ui://shop/stock")
    def show_stock() -> str:
        """Shows the stock."""
        return "3 bolts"

    csp = ResourceCsp(connect_domains=["https://api.example.com"])
    apps.add_html_resource("ui://shop/stock", HTML, csp=csp, prefers_border=True)
    server = MCPServer("peer", extensions=[apps])
    async with serve(server.streamable_http_app()) as url, Hub() as hub:
        target: Any = f"{url}/mcp"
        if through_hub:
            target = hub.server()
            await hub.add(ServerConfig("peer", url=f"{url}/mcp"))
        async with Client(target, extensions=[HOST]) as client:
            assert UI in (client.capabilities.extensions or {})
            (shown,) = await client.tools()
            (page,) = (await client.read("ui://shop/stock")).contents
            result = await client.call(shown.name)

    assert shown.meta == {"ui": {"resourceUri": "ui://shop/stock"}}
    assert (page.text, page.mime_type) == (HTML, MIME_TYPE)
    rules = {"csp": {"connectDomains": ["https://api.example.com"]}, "prefersBorder": True}
    assert page.meta == {"ui": rules}
    assert result.text == "3 bolts"


class OfficialHost(ClientExtension):
    identifier = UI

    def settings(self) -> dict[str, Any]:
        return {"mimeTypes": [MIME_TYPE]}


@tool
async def show_stock() -> str:
    """Shows the stock."""
    return "3 bolts"


@tool
async def reorder(part: str) -> str:
    """Orders more."""
    return f"Ordered: {part}"


async def test_official_client_has_the_tools_of_an_app() -> None:
    """Those of the page only where it declares that it shows pages."""
    csp = Csp(connect_domains=["https://api.example.com"])
    app = App("ui://shop/stock", HTML, tools=[show_stock], app_tools=[reorder], csp=csp)
    route = Endpoint(Suite("s", extensions=[app])).route("/mcp")
    async with serve(Starlette(routes=[route])) as url:
        async with OfficialClient(f"{url}/mcp", extensions=[OfficialHost()]) as host:
            tools = {each.name: each.meta for each in (await host.list_tools()).tools}
            page = (await host.read_resource("ui://shop/stock")).contents[0]
        async with OfficialClient(f"{url}/mcp") as other:
            names = [each.name for each in (await other.list_tools()).tools]

    ui = {"resourceUri": "ui://shop/stock"}
    assert tools == {"show_stock": {"ui": ui}, "reorder": {"ui": {**ui, "visibility": ["app"]}}}
    assert page.mime_type == MIME_TYPE
    assert page.meta == {"ui": {"csp": {"connectDomains": ["https://api.example.com"]}}}
    assert names == ["show_stock"]
