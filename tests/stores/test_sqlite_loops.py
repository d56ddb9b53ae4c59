"""A SQLite file under one event loop after the other, as in tests and scripts: no warnings."""

import asyncio
import gc
import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from genmcp import Continue, Endpoint, Mux, Run, SQLiteStore, Suite, SyncClient, job, tool
from genmcp.stores.store import Append, Put
from tests.support.asgi import Client
from tests.support.serving import serve

pytestmark = pytest.mark.filterwarnings("error")

BOUND = 5.0
LOCAL = "http://127.0.0.1"


@job
async def add_one(run: Run, number: int) -> int:
    return number + 1


@tool
async def add(number: int) -> Continue:
    """Adds one to a number, in a job."""
    return add_one.job(number).then(added)


@add.step
async def added(total: int) -> str:
    return f"it is {total}"


@pytest.fixture
def store(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> Iterator[SQLiteStore]:
    """Return a store; at the end nothing was logged, and nothing that is collected warns."""
    caplog.set_level(logging.WARNING)
    yield SQLiteStore(tmp_path / "store.db")
    gc.collect()
    assert caplog.records == []


def endpoint(store: SQLiteStore) -> Endpoint:
    return Endpoint(Mux(Suite(name="test", version="1", tools=[add]), store=store, secret="s" * 16))


@contextmanager
def without_lifespan(app: Any) -> Iterator[TestClient]:
    """Yield a client with a new event loop for each request, and no lifespan."""
    yield TestClient(app, base_url=LOCAL)


@pytest.mark.parametrize("run", [partial(TestClient, base_url=LOCAL), without_lifespan])
def test_client_of_starlette_runs_jobs(
    run: Callable[[Any], AbstractContextManager[TestClient]], store: SQLiteStore
) -> None:
    """With a lifespan, and with an event loop for each request."""
    app = endpoint(store)
    messages = Client(app)
    with run(Starlette(routes=[app.route("/mcp")])) as http:
        for number in range(3):
            call = messages.call("add", {"number": number})
            answer = http.post("/mcp", json=call, headers=messages._headers(call))
            assert answer.json()["result"]["content"][0]["text"] == f"it is {number + 1}"
    asyncio.run(app.mux.aclose())


def test_store_is_used_by_one_loop_after_the_other(store: SQLiteStore) -> None:
    """As with one event loop for each test; a follower may be left behind."""

    async def use(number: int) -> bytes:
        followed = store.follow("log", after)
        await store.apply(Put("log#key", b"%d" % number), Append("log", b"%d" % number, ttl=60.0))
        async with asyncio.timeout(BOUND):
            event = await anext(followed)
        positions.append(event.id)
        return event.data

    positions: list[str] = []
    after: str | None = None
    for number in range(3):
        assert asyncio.run(use(number)) == b"%d" % number
        after = positions[-1]
    asyncio.run(store.aclose())


async def test_blocking_client_is_used_beside_a_server(store: SQLiteStore) -> None:
    """Each of the two has an event loop in a thread of its own."""
    app = endpoint(store)

    def call(url: str) -> list[str | None]:
        with SyncClient(url) as client:
            return [client.call("add", {"number": number}).text for number in range(3)]

    async with serve(app) as url:
        assert await asyncio.to_thread(call, url) == ["it is 1", "it is 2", "it is 3"]
    await app.mux.aclose()


def test_blocking_client_in_memory_runs_jobs(store: SQLiteStore) -> None:
    """The server runs on the event loop of the client."""
    app = endpoint(store)
    for number in range(2):
        with SyncClient(app.mux) as client:
            assert client.call("add", {"number": number}).text == f"it is {number + 1}"
    asyncio.run(app.mux.aclose())
