"""Notifications of changes, and requests that they cause."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from genmcp import Resource, Suite, tool
from genmcp.client.client import Client
from genmcp.client.errors import ClientClosed
from genmcp.client.handler import ClientHandler
from genmcp.client.options import ClientOptions
from genmcp.client.subscriptions import ChangeStream
from tests.support.asgi import MODERN

BOTH = [MODERN, "2025-11-25"]


@tool
async def one() -> str:
    """One."""
    return "1"


@tool
async def two() -> str:
    """Two."""
    return "2"


@asynccontextmanager
async def board(revision: str) -> AsyncIterator[tuple[Client, Suite]]:
    """A client of a suite with one tool and two resources."""
    suite = Suite(
        name="board",
        version="1",
        tools=[one],
        resources=[Resource(f"note://{name}", name, name=name) for name in ("a", "b", "ab")],
    )
    async with asyncio.timeout(20):
        async with Client(suite, options=ClientOptions(revision=revision)) as client:
            yield client, suite


async def told(listening: ChangeStream) -> Any:
    async with asyncio.timeout(5):
        change = await anext(listening)
    return change.method, getattr(change.params, "uri", None)


@pytest.mark.parametrize("revision", BOTH)
async def test_listening_hears_of_changes_of_a_list(revision: str) -> None:
    """A change of the tools is sent to its subscribers, in either era."""
    async with board(revision) as (client, suite), client.listen(tools=True) as changes:
        assert changes.honored.tools_list_changed
        suite.add(two)
        assert await told(changes) == ("notifications/tools/list_changed", None)
        assert [each.name for each in await client.tools()] == ["one", "two"]


@pytest.mark.parametrize("revision", BOTH)
async def test_subscribing_hears_of_changes_of_a_resource(revision: str) -> None:
    """Only subscribed resources are announced."""
    async with board(revision) as (client, suite), client.subscribe("note://a") as changes:
        assert changes.honored.resource_subscriptions == ["note://a"]
        suite.add(two)
        suite.resource_updated("note://b")
        suite.resource_updated("note://a")
        assert await told(changes) == ("notifications/resources/updated", "note://a")


@pytest.mark.parametrize("revision", BOTH)
async def test_listening_of_several_is_kept_apart(revision: str) -> None:
    """Each gets its own subscriptions; one that leaves does not end the others."""
    async with board(revision) as (client, suite), client.subscribe("note://a") as first:
        async with client.subscribe("note://a", "note://b") as second:
            suite.resource_updated("note://b")
            assert await told(second) == ("notifications/resources/updated", "note://b")
        suite.resource_updated("note://b")
        suite.resource_updated("note://a")
        assert await told(first) == ("notifications/resources/updated", "note://a")


@pytest.mark.parametrize("revision", BOTH)
async def test_listening_tells_resources_of_one_beginning_apart(revision: str) -> None:
    """`note://ab` is no part of `note://a`; before 2026-07-28, one session gets both."""
    async with (
        board(revision) as (client, suite),
        client.subscribe("note://a") as first,
        client.subscribe("note://ab") as second,
    ):
        suite.resource_updated("note://ab")
        assert await told(second) == ("notifications/resources/updated", "note://ab")
        suite.resource_updated("note://a")
        assert await told(first) == ("notifications/resources/updated", "note://a")


@pytest.mark.parametrize("revision", BOTH)
async def test_listening_tells_of_one_thing_once(revision: str) -> None:
    """Several changes of one thing that wait to be looked at are one."""
    async with (
        board(revision) as (client, suite),
        client.subscribe("note://a", "note://b") as told_,
    ):
        for _ in range(3):
            suite.resource_updated("note://a")
        suite.resource_updated("note://b")
        seen = {(await told(told_))[1]}
        while "note://b" not in seen:
            uri = (await told(told_))[1]
            assert uri not in seen or uri == "note://a"
            seen.add(uri)


async def test_acknowledgement_of_a_stream_reaches_no_hook() -> None:
    """It is the reply to `listen`; only notifications of the server's own reach the handler."""
    received: list[str] = []
    done = asyncio.Event()

    class Reader(ClientHandler):
        async def handle_notification(self, method: str, params: Any) -> None:
            received.append(method)
            done.set()

    suite = Suite(name="board", version="1", tools=[one])
    client = Client(suite, handler=Reader())
    async with asyncio.timeout(20), client, client.listen(tools=True):
        suite.add(two)
        await done.wait()

    assert received == ["notifications/tools/list_changed"]


async def test_listening_ends_when_it_is_left() -> None:
    """A closed subscription yields no more."""
    async with board(MODERN) as (client, _):
        async with client.listen(tools=True) as changes:
            pass
        assert [change async for change in changes] == []


@pytest.mark.parametrize("revision", BOTH)
async def test_listening_ends_with_its_connection(revision: str) -> None:
    """A waiting subscriber gets ClientClosed when the client is closed."""
    async with board(revision) as (client, _), client.listen(tools=True) as changes:
        waiting = asyncio.create_task(anext(changes))
        await asyncio.sleep(0)
        await client.aclose()
        with pytest.raises((ClientClosed, StopAsyncIteration)):
            await waiting


async def test_cache_is_emptied_by_what_is_heard() -> None:
    """A cacheable list is requested once, and again after a change."""
    asked = 0

    class Counting(Suite):
        async def listed(self, *given: Any, **more: Any) -> Any:
            nonlocal asked
            asked += 1
            return await super().listed(*given, **more)

    suite = Counting(name="board", version="1", tools=[one])
    async with asyncio.timeout(20), Client(suite) as client, client.listen(tools=True) as changes:
        await client.tools()
        await client.tools()
        suite.add(two)
        await told(changes)
        assert len(await client.tools()) == 2
