"""Skills and methods of extensions with the TypeScript SDK 2.4: server, client, a hub between."""

import asyncio
import json
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette

from genmcp import Channel, Client, ClientHandler, Command, Endpoint, Hub, ServerConfig, Suite
from genmcp.extensions import (
    Extension,
    Method,
    NotificationParams,
    RequestParams,
    Result,
    Skills,
)
from genmcp.server import Request
from tests.support.npm import npm_package
from tests.support.peers import SDK_2_CLIENT, SDK_2_SERVER
from tests.support.serving import serve

# The first run installs them.
pytestmark = [
    pytest.mark.peers,
    pytest.mark.e2e,
    pytest.mark.timeout(300),
]
SCRIPT = str(Path(__file__).with_name("typescript_extensions.mjs"))
SKILL = """\
---
name: bolts
description: >-
  About
  bolts.
tags: [a, b]
metadata:
  version: "1.0"
---

# Bolts
"""
MATTER = {
    "name": "bolts",
    "description": "About bolts.",
    "tags": ["a", "b"],
    "metadata": {"version": "1.0"},
}


class LevelParams(RequestParams):
    part: str


class LevelResult(Result):
    in_stock: int


class LowParams(NotificationParams):
    part: str


class Stock(Extension):
    name = "com.example/stock"
    settings = {"unit": "piece"}
    methods = (
        Method("stock/level", LevelParams, LevelResult),
        Method("notifications/stock/low", LowParams, sender="server"),
    )

    async def handle(self, request: Request, channel: Channel) -> Result:
        assert isinstance(request.params, LevelParams)
        await channel.notify("notifications/stock/low", LowParams(request.params.part))
        return LevelResult(in_stock=len(request.params.part), meta={"com.example/by": "genmcp"})


class Buyer(ClientHandler):
    def __init__(self) -> None:
        self.lows: list[Any] = []

    async def handle_notification(self, method: str, params: Any) -> None:
        self.lows.append(params)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with one skill."""
    (tmp_path / "bolts" / "sizes").mkdir(parents=True)
    (tmp_path / "bolts" / "SKILL.md").write_text(SKILL)
    (tmp_path / "bolts" / "sizes" / "metric.md").write_bytes(b"M3\r\n")
    return tmp_path


def server_of(folder: Path) -> list[str]:
    node, modules = npm_package(*SDK_2_SERVER)
    return [node, SCRIPT, "serve", str(modules), str(folder)]


async def loaded_from(url: str) -> dict[str, Any]:
    """Return what the client of the SDK loads."""
    node, modules = npm_package(*SDK_2_CLIENT)
    command = (node, SCRIPT, "load", str(modules), f"{url}/mcp")
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE)
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    found: dict[str, Any] = json.loads(output)
    return found


def expected(by: str) -> dict[str, Any]:
    return {
        "verified": True,
        "frontmatter": MATTER,
        "text": SKILL,
        "sizes": "M3\r\n",
        "folder": ["skill://bolts/SKILL.md", "skill://bolts/sizes"],
        "stock": {"unit": "piece", "inStock": 4, "by": by, "lows": ["bolt"]},
    }


async def test_skills_of_typescript_are_loaded(folder: Path) -> None:
    """Its entries and files agree with what this client checks."""
    command, *args = server_of(folder)
    buyer = Buyer()
    async with Client(Command(command, args), handler=buyer, extensions=[Stock()]) as client:
        (skill,) = await client.skills()
        assert await skill.load() == SKILL
        assert await skill.read("sizes/metric.md") == b"M3\r\n"
        assert [each.name for each in await skill.folder("sizes")] == ["metric.md"]
        level = await client.request("stock/level", LevelParams(part="bolt"))

    assert skill.entry.frontmatter == MATTER
    assert isinstance(level, LevelResult)
    assert level.in_stock == 4
    assert buyer.lows == [LowParams("bolt")]


async def test_typescript_loads_skills(folder: Path) -> None:
    """Its client checks every digest, size and front matter by rules of its own."""
    suite = Suite("s", extensions=[Skills(folder), Stock()])
    async with serve(Starlette(routes=[Endpoint(suite).route("/mcp")])) as url:
        assert await loaded_from(url) == expected("genmcp")


async def test_hub_between_typescript_loses_nothing(folder: Path) -> None:
    """The server, the hub and the client are of three processes and two implementations."""
    command, *args = server_of(folder)
    hub = Hub()
    endpoint = Endpoint(hub.server())

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with hub:
            await hub.add(ServerConfig("peer", command, args))
            yield

    async with serve(Starlette(routes=[endpoint.route("/mcp")], lifespan=lifespan)) as url:
        assert await loaded_from(url) == expected("typescript")
