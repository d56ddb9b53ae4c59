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
from mcp.server.extension import Extension as OfficialExtension
from mcp.server.extension import MethodBinding
from mcp.server.mcpserver import MCPServer
from mcp.types import Request as OfficialRequest
from mcp.types import RequestParams as OfficialParams
from mcp.types import Result as OfficialResult
from starlette.applications import Starlette

from genmcp import Channel, Client, Endpoint, Suite
from genmcp.extensions import Extension, Method, RequestParams, Result, SkillRejected, Skills
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
