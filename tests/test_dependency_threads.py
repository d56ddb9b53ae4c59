"""Blocking dependencies of an `async def` hook run in the threads of `def` hooks."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Annotated

import pytest

from genmcp import Client, Depends, Limits, Mux, Suite, tool
from genmcp.client.errors import ServerError
from genmcp.testing import connect
from tests.support.asgi import until

BOUND = 10.0

LOG: list[str] = []
go = threading.Event()
used = asyncio.Event()


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    global used
    LOG.clear()
    go.clear()
    used = asyncio.Event()
    yield
    go.set()


def blocking() -> str:
    LOG.append("begun")
    go.wait(BOUND)
    return "done"


def connection() -> Iterator[str]:
    LOG.append("open")
    yield "done"
    LOG.append("closed")


@tool
async def use(value: Annotated[str, Depends(blocking)]) -> str:
    return value


@tool
async def keep(value: Annotated[str, Depends(connection)]) -> str:
    await used.wait()
    return value


@tool
def block() -> str:
    return blocking()


@asynccontextmanager
async def connected(**limits: int) -> AsyncIterator[tuple[Client, Mux]]:
    suite = Suite(name="test", version="1", tools=[use, keep, block])
    mux = Mux(suite, limits=Limits(max_threads=1, **limits))
    async with connect(mux) as client:
        yield client, mux
    await mux.aclose()


async def test_blocking_dependencies_count_as_def_hooks() -> None:
    """Beyond `max_threads` they wait in the queue, and beyond that the call is refused."""
    async with connected(max_thread_queue=1) as (client, mux):
        first = asyncio.create_task(client.call("use"))
        await until(lambda: LOG, bound=BOUND)
        second = asyncio.create_task(client.call("use"))
        await until(lambda: mux.threads.waiting, bound=BOUND)
        with pytest.raises(ServerError, match="limit: max_thread_queue"):
            await client.call("use")
        begun = [*LOG]
        go.set()
        results = [await first, await second]

    assert begun == ["begun"]
    assert [each.text for each in results] == ["done", "done"]


async def test_open_dependency_is_closed_in_a_full_queue() -> None:
    """What is open must be closed: it waits, but is never refused."""
    async with connected(max_thread_queue=1) as (client, mux):
        keeping = asyncio.create_task(client.call("keep"))
        await until(lambda: LOG == ["open"], bound=BOUND)
        blocks = [asyncio.create_task(client.call("block")) for _ in range(2)]
        await until(lambda: mux.threads.waiting == 1, bound=BOUND)
        used.set()
        await until(lambda: mux.threads.waiting == 2, bound=BOUND)
        go.set()
        results = [await each for each in (keeping, *blocks)]

    assert [each.text for each in results] == ["done"] * 3
    assert LOG.count("closed") == 1
