"""Hosts with one event loop after the other, and hosts that fork: over every store, no warnings."""

import asyncio
import gc
import logging
import os
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from secrets import token_hex
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from genmcp import Continue, Endpoint, Mux, Run, Security, Store, Suite, SyncClient, job, tool
from genmcp.stores import open_store
from genmcp.stores.store import Append, Op, Put
from tests.support.asgi import Client
from tests.support.postgres_server import fresh_schema, in_schema, shared_postgres
from tests.support.serving import serve

pytestmark = pytest.mark.filterwarnings("error")

BOUND = 30.0
ROOT = Path(__file__).parents[2]
SHARED = ("sqlite", "redis", "postgres")
KINDS = ("memory", *SHARED)

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


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


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of an empty store."""
    kind: str = request.param
    if kind == "redis":
        return f"{request.getfixturevalue('redis_url')}?prefix={token_hex(8)}"
    if kind == "postgres":
        schema = in_schema(shared_postgres(), fresh_schema())
        asyncio.run(migrate(schema))
        return schema
    return "memory://" if kind == "memory" else f"sqlite:///{tmp_path}/store.db"


async def migrate(url: str) -> None:
    store = open_store(url)
    await store.migrate()
    await store.aclose()


@pytest.fixture
def store(url: str, caplog: pytest.LogCaptureFixture) -> Iterator[Store]:
    """A store. At the end nothing was logged, and nothing that is collected warns."""
    caplog.set_level(logging.WARNING)
    yield open_store(url)
    gc.collect()
    # The servers of the tests do not wait for the disk, as a server at its start reports.
    assert [each for each in caplog.messages if "fsync=off" not in each] == []


def endpoint(store: Store) -> Endpoint:
    mux = Mux(Suite(name="test", version="1", tools=[add]), store=store, secret="s" * 16)
    return Endpoint(mux, security=Security(allowed_hosts=["test", "127.0.0.1"]))


def call_add(http: TestClient, **arguments: int) -> str:
    """Call the tool, and return the text of the result."""
    messages = Client(None)
    call = messages.call("add", dict(arguments))
    response = http.post("/mcp", json=call, headers=messages._headers(call))
    text: str = response.json()["result"]["content"][0]["text"]
    return text


@contextmanager
def without_lifespan(app: Any) -> Iterator[TestClient]:
    """Yield a client with a new event loop for each request, and no lifespan."""
    yield TestClient(app)


@pytest.mark.parametrize("run", [TestClient, without_lifespan])
def test_client_of_starlette_runs_jobs(
    run: Callable[[Any], AbstractContextManager[TestClient]], store: Store
) -> None:
    """With a lifespan, and with an event loop for each request."""
    app = endpoint(store)
    with run(Starlette(routes=[app.route("/mcp")])) as http:
        for number in range(3):
            assert call_add(http, number=number) == f"it is {number + 1}"
    asyncio.run(app.mux.aclose())
    asyncio.run(store.aclose())


def test_store_is_used_by_one_loop_after_the_other(store: Store) -> None:
    """As with one event loop for each test. A follower may be left behind."""

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


async def use_once(store: Store) -> None:
    """Write an event and follow it; close nothing."""
    await store.apply(Append("log", b"1", ttl=60))
    followed = store.follow("log")
    async with asyncio.timeout(BOUND):
        await anext(followed)
    await followed.aclose()


def test_store_serves_another_loop_at_the_same_time(store: Store) -> None:
    """A change that is announced in a thread is written by an event loop of that thread."""

    async def use_two() -> bytes:
        followed = store.follow("log")
        following = asyncio.ensure_future(anext(followed))
        await store.get("")
        await asyncio.to_thread(asyncio.run, use_once(store))
        async with asyncio.timeout(BOUND):
            event = await following
        await followed.aclose()
        await store.aclose()
        return event.data

    assert asyncio.run(use_two()) == b"1"


def test_blocking_client_is_used_beside_a_server(store: Store) -> None:
    """Each of the two has an event loop in a thread of its own."""
    app = endpoint(store)

    async def run() -> list[str | None]:
        def call(url: str) -> list[str | None]:
            with SyncClient(url) as client:
                return [client.call("add", {"number": number}).text for number in range(3)]

        async with serve(app) as url:
            texts = await asyncio.to_thread(call, url)
        await app.mux.aclose()
        await store.aclose()
        return texts

    assert asyncio.run(run()) == ["it is 1", "it is 2", "it is 3"]


def test_blocking_client_in_memory_runs_jobs(store: Store) -> None:
    """The server runs on the event loop of the client."""
    app = endpoint(store)
    for number in range(2):
        with SyncClient(app.mux) as client:
            assert client.call("add", {"number": number}).text == f"it is {number + 1}"
    asyncio.run(app.mux.aclose())
    asyncio.run(store.aclose())


@pytest.mark.parametrize("run", [TestClient, without_lifespan])
def test_client_of_starlette_may_end_early(
    run: Callable[[Any], AbstractContextManager[TestClient]],
    store: Store,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is logged if the process still prepared to run jobs."""
    write, is_first = store.apply, [True]

    async def slow(*ops: Op) -> None:
        if is_first:
            is_first.clear()
            await asyncio.Event().wait()  # until the caller is cancelled
        await write(*ops)

    monkeypatch.setattr(store, "apply", slow)
    app = endpoint(store)
    with run(Starlette(routes=[app.route("/mcp")])) as http:
        assert "missing required property" in call_add(http)
    asyncio.run(app.mux.aclose())
    asyncio.run(store.aclose())


PREFORKED = """
import os, sys
from contextlib import asynccontextmanager
from starlette.applications import Starlette
from starlette.testclient import TestClient
from genmcp.stores import open_store
from tests.stores.test_hosts import call_add, endpoint

app = endpoint(open_store(sys.argv[1]))

@asynccontextmanager
async def lifespan(host):
    app.start()
    yield

host = Starlette(routes=[app.route("/mcp")], lifespan=lifespan)
for number in range(2):
    child = os.fork()
    if not child:
        with TestClient(host) as http:
            text = call_add(http, number=number)
        os._exit(text != f"it is {number + 1}")
    # One after the other: a process that ends without a lifespan may keep a claim for a lease.
    if os.waitpid(child, 0)[1]:
        sys.exit(1)
"""
FORKED = """
import asyncio, os, sys
from genmcp.errors import ConfigurationError
from genmcp.stores import open_store
from tests.stores.test_hosts import use_once

store = open_store(sys.argv[1])

async def rejected():
    for operation in (store.get("k"), use_once(store)):
        try:
            await operation
        except ConfigurationError as error:
            assert "before this process was forked" in str(error), error
        else:
            raise AssertionError("the child has used the store")
    await store.aclose()

async def main():
    await use_once(store)
    child = os.fork()
    if not child:
        asyncio.run(rejected())
        os._exit(0)
    assert (await asyncio.to_thread(os.waitpid, child, 0))[1] == 0
    await use_once(store)
    await store.aclose()

asyncio.run(main())
"""


async def run_script(script: str, url: str) -> tuple[int | None, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", "-c", script, url), cwd=ROOT, stdout=PIPE, stderr=STDOUT
    )
    async with asyncio.timeout(BOUND):
        output, _ = await process.communicate()
    return process.returncode, output.decode()


@needs_fork
def test_application_is_imported_before_a_fork(url: str) -> None:
    """As by a server that loads the application once and then forks its workers."""
    assert asyncio.run(run_script(PREFORKED, url)) == (0, "")


@needs_fork
@pytest.mark.parametrize("url", SHARED, indirect=True)
def test_child_of_a_process_that_uses_the_store_is_rejected(url: str) -> None:
    """It shares the connections of its parent, which continues. The error names the remedy."""
    assert asyncio.run(run_script(FORKED, url)) == (0, "")
