"""Tools for the pages of apps (SEP-1865) are none for models, which search and call."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from genmcp import Access, Client, Hub, Registry, ServerConfig, Suite, tool
from genmcp.catalogue import SearchTools
from genmcp.extensions import App, Extension
from genmcp.extensions.apps import MIME_TYPE, UI
from genmcp.server import Server
from genmcp.testing import connect

CALLED: list[str] = []


@pytest.fixture(autouse=True)
def _fresh() -> None:
    CALLED.clear()


def part_tool(name: str, **options: Any) -> object:
    """Return a tool that notes its call."""

    def run() -> str:
        """Shows or orders a part."""
        CALLED.append(name)
        return "done"

    return tool(name=name, **options)(run)


def anyone(access: Access | None) -> bool:
    """Let everyone see a tool, which only the request shows."""
    return True


def shop() -> Suite:
    """Return a suite with tools for models and for pages, some of which declare it badly."""
    hidden = [
        part_tool("page_only", meta={"ui": {"visibility": ["app"]}}),
        part_tool("guarded", meta={"ui": {"visibility": ["app"]}}, visible=anyone),
        part_tool("odd", meta={"ui": {"visibility": 7}}),
        part_tool("nobody", meta={"ui": {"visibility": []}}),
    ]
    seen = [part_tool("both", meta={"ui": {"visibility": ["app", "model"]}}), part_tool("plain")]
    page = App("ui://shop/stock", "<p>", tools=[seen.pop()], app_tools=[part_tool("reorder")])
    return Suite("shop", tools=[*hidden, *seen], extensions=[page])


@asynccontextmanager
async def alone() -> AsyncIterator[tuple[Server, str]]:
    """The suite."""
    yield shop(), ""


@asynccontextmanager
async def behind_a_hub() -> AsyncIterator[tuple[Server, str]]:
    """The suite behind a hub."""
    async with Hub() as hub:
        await hub.add(ServerConfig("shop", target=shop()))
        yield hub.server(name="all"), "shop/"


@asynccontextmanager
async def in_a_registry() -> AsyncIterator[tuple[Server, str]]:
    """The suite in a registry."""
    yield Registry([shop()]).server(), "shop/"


@pytest.mark.parametrize("shows_apps", [False, True])
@pytest.mark.parametrize("served", [alone, behind_a_hub, in_a_registry])
async def test_model_neither_finds_nor_calls_tools_of_pages(served: Any, shows_apps: bool) -> None:
    """Whether its client shows apps or not: they are as unknown as tools that do not exist."""
    extensions = [Extension(UI, settings={"mimeTypes": [MIME_TYPE]})] if shows_apps else []
    async with (
        served() as (server, prefix),
        Client(SearchTools(server), extensions=extensions) as client,
    ):
        found = (await client.call("search_tools", {"query": "orders a part"})).structured["tools"]
        for name in ("page_only", "guarded", "odd", "nobody", "reorder"):
            result = await client.call("call_tool", {"name": prefix + name})
            assert result.is_error
            assert "There is no tool" in result.text
        assert CALLED == []
        for name in ("both", "plain"):
            await client.call("call_tool", {"name": prefix + name})

    assert {each["name"] for each in found} == {f"{prefix}both", f"{prefix}plain"}
    assert CALLED == ["both", "plain"]


async def test_page_may_not_call_by_search() -> None:
    """Hosts refuse tools that are for models only; otherwise a page could call those by a name."""
    async with connect(SearchTools(shop(), pinned=["reorder"])) as client:
        tools = {each.name: (each.meta or {}).get("ui") for each in await client.tools()}

    for_models = {"visibility": ["model"]}
    assert (tools["search_tools"], tools["call_tool"]) == (for_models, for_models)
