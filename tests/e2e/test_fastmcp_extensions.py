"""Skills and methods of extensions with FastMCP 4.2: a server, a client, and a hub between them."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette

from genmcp import Channel, Client, Command, Endpoint, Hub, ServerConfig, Suite
from genmcp.extensions import Extension, Method, RequestParams, Result, Skills
from genmcp.server import Request
from tests.e2e.pip import pip_environment
from tests.support.peers import FASTMCP
from tests.support.serving import serve

# The first run installs it.
pytestmark = [
    pytest.mark.peers,
    pytest.mark.e2e,
    pytest.mark.timeout(300),
]
SCRIPT = str(Path(__file__).with_name("fastmcp_extensions.py"))
SKILL = "---\nname: bolts\ndescription: >-\n  About\n  bolts.\ntags: [a, b]\n---\n\n# Bolts\n"
VERSION = FASTMCP[0].partition("==")[2]


class LevelParams(RequestParams):
    part: str


class LevelResult(Result):
    in_stock: int


class Stock(Extension):
    name = "com.example/stock"
    methods = (Method("stock/level", LevelParams, LevelResult),)

    async def handle(self, request: Request, channel: Channel) -> Result:
        assert isinstance(request.params, LevelParams)
        return LevelResult(in_stock=4, meta={"com.example/by": "genmcp"})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one skill."""
    (tmp_path / "bolts" / "sizes").mkdir(parents=True)
    (tmp_path / "bolts" / "SKILL.md").write_text(SKILL)
    (tmp_path / "bolts" / "sizes" / "metric.md").write_bytes(b"M3\r\n")
    return tmp_path


@pytest.fixture(scope="module")
def environment() -> Mapping[str, str]:
    # Its dependencies are those of the FastMCP that the other tests use.
    return pip_environment(*FASTMCP, complete=False)


async def loaded_from(url: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return what the client of FastMCP loads."""
    command = (sys.executable, SCRIPT, "load", f"{url}/mcp")
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, env=environment)
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    found: dict[str, Any] = json.loads(output)
    return found


def expected(by: str) -> dict[str, Any]:
    return {
        "version": VERSION,
        "uri": "skill://bolts/SKILL.md",
        "same": True,
        "text": SKILL,
        "in_stock": 4,
        "by": by,
    }


async def test_fastmcp_server_has_its_extensions_here(
    folder: Path, environment: Mapping[str, str]
) -> None:
    """Its skills agree with what this client checks, and its method has a type."""
    command = Command(sys.executable, [SCRIPT, "serve", str(folder)], environment)
    async with Client(command, extensions=[Stock()]) as client:
        (skill,) = await client.skills()
        assert await skill.load() == SKILL
        assert await skill.read("sizes/metric.md") == b"M3\r\n"
        level = await client.request("stock/level", LevelParams(part="bolt"))
        declared = (client.capabilities.extensions or {})["com.example/stock"]

    assert declared == {"unit": "piece"}
    assert isinstance(level, LevelResult)
    assert level.in_stock == 4


async def test_fastmcp_client_has_extensions_of_a_suite(
    folder: Path, environment: Mapping[str, str]
) -> None:
    """Its typed requests, of methods that it knows and one that it does not."""
    suite = Suite("s", extensions=[Skills(folder), Stock()])
    async with serve(Starlette(routes=[Endpoint(suite).route("/mcp")])) as url:
        assert await loaded_from(url, environment) == expected("genmcp")


async def test_hub_between_fastmcp_loses_nothing(
    folder: Path, environment: Mapping[str, str]
) -> None:
    """The server, the hub and the client are three processes."""
    hub = Hub()
    endpoint = Endpoint(hub.server())
    config = ServerConfig(
        "peer", sys.executable, [SCRIPT, "serve", str(folder)], env={**environment}
    )

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with hub:
            await hub.add(config)
            yield

    async with serve(Starlette(routes=[endpoint.route("/mcp")], lifespan=lifespan)) as url:
        assert await loaded_from(url, environment) == expected("fastmcp")
