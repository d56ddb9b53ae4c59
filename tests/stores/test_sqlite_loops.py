"""A SQLite file under one event loop after the other, as in tests and scripts: no warnings."""

import asyncio
import gc
import logging
import os
import sys
from asyncio.subprocess import PIPE, STDOUT
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.testclient import TestClient

from genmcp import Continue, Endpoint, Mux, Run, Security, SQLiteStore, Suite, SyncClient, job, tool
from genmcp.stores.store import Append, Op, Put
from tests.support.asgi import Client
from tests.support.serving import serve

pytestmark = pytest.mark.filterwarnings("error")

BOUND = 5.0
ROOT = Path(__file__).parents[2]


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
    assert caplog.get_records("call") == []


def endpoint(store: SQLiteStore) -> Endpoint:
    mux = Mux(Suite(name="test", version="1", tools=[add]), store=store, secret="s" * 16)
    return Endpoint(mux, security=Security(allowed_hosts=["test", "127.0.0.1"]))


def call_add(http: TestClient, **arguments: int) -> str:
    """Call the tool, and return the text of the result."""
    messages = Client(None)
    call = messages.call("add", dict(arguments))
    answer = http.post("/mcp", json=call, headers=messages._headers(call))
    text: str = answer.json()["result"]["content"][0]["text"]
    return text


@contextmanager
def without_lifespan(app: Any) -> Iterator[TestClient]:
    """Yield a client with a new event loop for each request, and no lifespan."""
    yield TestClient(app)


@pytest.mark.parametrize("run", [TestClient, without_lifespan])
def test_client_of_starlette_runs_jobs(
    run: Callable[[Any], AbstractContextManager[TestClient]], store: SQLiteStore
) -> None:
    """With a lifespan, and with an event loop for each request."""
    app = endpoint(store)
    with run(Starlette(routes=[app.route("/mcp")])) as http:
        for number in range(3):
            assert call_add(http, number=number) == f"it is {number + 1}"
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


class SlowStore(SQLiteStore):
    """A store whose first write takes until its caller is cancelled."""

    slow = True

    async def apply(self, *ops: Op) -> None:
        if self.slow:
            self.slow = False
            await asyncio.Event().wait()
        await super().apply(*ops)


@pytest.mark.parametrize("run", [TestClient, without_lifespan])
def test_client_of_starlette_may_end_early(
    run: Callable[[Any], AbstractContextManager[TestClient]],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Nothing is logged if the process was still preparing to run jobs."""
    app = endpoint(SlowStore(tmp_path / "slow.db"))
    with run(Starlette(routes=[app.route("/mcp")])) as http:
        assert "missing required property" in call_add(http)
    asyncio.run(app.mux.aclose())

    assert caplog.records == []


PREFORKED = """
import os, sys
from pathlib import Path
from starlette.applications import Starlette
from starlette.testclient import TestClient
from tests.stores.test_sqlite_loops import SQLiteStore, call_add, endpoint

app = endpoint(SQLiteStore(Path(sys.argv[1])))
host = Starlette(routes=[app.route("/mcp")])
children = []
for number in range(2):
    child = os.fork()
    if not child:
        with TestClient(host) as http:
            text = call_add(http, number=number)
        os._exit(text != f"it is {number + 1}")
    children.append(child)
sys.exit(any(os.waitpid(child, 0)[1] for child in children))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
async def test_application_is_imported_before_a_fork(tmp_path: Path) -> None:
    """As by a server that loads the application once and then forks its workers."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "error", "-c", PREFORKED, str(tmp_path / "store.db")),
        cwd=ROOT,
        stdout=PIPE,
        stderr=STDOUT,
    )
    output, _ = await process.communicate()

    assert (process.returncode, output.decode()) == (0, "")
