"""The cost of one call: Python calls, memory, and the reads and writes of the record of a job."""

import gc
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any
from weakref import ref

import pytest
from msgspec import Struct

import genmcp
from genmcp import (
    Channel,
    ClientLogHandler,
    Continue,
    Done,
    Endpoint,
    MemoryStore,
    Mux,
    Run,
    Suite,
    Tool,
    ToolRequest,
    job,
)
from genmcp.stores.store import Delete, Op, Put, StoreEntry
from tests.support.asgi import Client, until
from tests.support.serving import serve
from tests.support.sockets import Connection, called

pytestmark = pytest.mark.usefixtures("no_log_handler")

PACKAGE = str(Path(genmcp.__file__).parent)
JOB_CALLS = 436
PLAIN_CALLS, PLAIN_MODULES = 26, 16


@pytest.fixture
def no_log_handler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another test of this process may have created one, which costs each call."""
    monkeypatch.setattr(ClientLogHandler, "created", False)


@job(name="costs.work")
async def work(run: Run) -> str:
    return "worked"


class Works(Tool):
    """Has a job done."""

    name = "works"

    async def call(self, request: Any, channel: Any) -> Any:
        return Continue("done", work.job())

    async def continue_(self, tag: str, outcome: Any, channel: Any) -> Any:
        match outcome:
            case Done(value):
                return value
        raise AssertionError(outcome)


class Plain(Tool):
    """Returns at once."""

    name = "plain"

    async def call(self, request: Any, channel: Any) -> str:
        return "done"


class Counting(MemoryStore):
    """Counts the reads and writes of the records of tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []
        self.writes: list[str] = []

    async def get(self, key: str) -> StoreEntry | None:
        if "/task:" in key:
            self.reads.append(key)
        return await super().get(key)

    async def apply(self, *ops: Op) -> None:
        self.writes += [
            each.key
            for each in ops
            if isinstance(each, Put | Delete) and "/task:" in each.key and "#" not in each.key
        ]
        await super().apply(*ops)


def serving(store: MemoryStore) -> Endpoint:
    suite = Suite(name="test", version="1", tools=[Works()])
    return Endpoint(Mux(suite, store=store, secret="a secret of 16 bytes"))


async def test_job_reads_its_record_three_times_at_most() -> None:
    """Written at its creation, claim, settlement and end; the request beside it is read once."""
    app = serving(store := Counting())
    client = Client(app)
    await client.send(client.call("works"))  # starts the worker
    store.reads.clear()
    store.writes.clear()

    answer = await client.send(client.call("works"))

    assert answer.messages[-1]["result"]["content"][0]["text"] == "worked"
    assert len(store.reads) <= 3
    assert len(store.writes) == 4
    await app.mux.aclose()


async def calls_of(client: Client, name: str) -> Counter[str]:
    """Return the Python calls of a call of the tool *name* in each module of the package."""
    for _ in range(3):
        await client.send(client.call(name))
    counted = Counter[str]()

    def count(frame: FrameType, event: str, argument: object) -> None:
        module = frame.f_code.co_filename
        if event == "call" and module.startswith(PACKAGE):
            counted[module] += 1

    request = client.call(name)
    sys.setprofile(count)
    try:
        await client.send(request)
    finally:
        sys.setprofile(None)
    return counted


async def test_job_takes_few_python_calls() -> None:
    """From the request to the response, in the whole package; each resumption counts."""
    app = serving(MemoryStore())

    assert (await calls_of(Client(app), "works")).total() <= JOB_CALLS
    await app.mux.aclose()


async def test_plain_call_takes_few_python_calls() -> None:
    """A call that returns at once has no task, no timer and no record."""
    app = Endpoint(Suite(name="test", version="1", tools=[Plain()]))
    counted = await calls_of(Client(app), "plain")

    assert counted.total() <= PLAIN_CALLS
    assert len(counted) <= PLAIN_MODULES
    await app.aclose()


class Large(Struct, weakref=True):
    """Arguments that a weak reference can watch."""

    text: str = ""


async def test_rejected_call_is_freed_at_once() -> None:
    """The traceback of an error would keep the call until the next collection of garbage."""
    seen: list[ref[Large]] = []

    class Refused(Tool[Large]):
        name = "refused"

        async def call(self, request: ToolRequest[Large], channel: Channel) -> Any:
            seen.append(ref(request.arguments))
            return Continue("done", work.job())

        async def continue_(self, tag: str, outcome: Any, channel: Channel) -> str:
            return "done"

    suite = Suite(name="test", version="1", tools=[Refused()])
    store = MemoryStore(max_bytes=2000)
    gc.disable()
    try:
        async with (
            serve(Endpoint(Mux(suite, store=store))) as url,
            await Connection.open(url) as connection,
        ):
            response = await connection.ask(called("refused", {}, id=1))
            assert response.status == 429
            await response.body()
            await until(lambda: seen[0]() is None)
    finally:
        gc.enable()
