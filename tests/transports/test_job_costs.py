"""The cost of one job: reads and writes of its record, Python calls, and memory."""

import gc
import sys
from pathlib import Path
from types import FrameType
from typing import Any
from weakref import ref

from msgspec import Struct

import genmcp
from genmcp import (
    Channel,
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

PACKAGE = str(Path(genmcp.__file__).parent)
CALLS = 650


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


async def test_job_takes_few_python_calls() -> None:
    """From the request to the answer, in the whole package; each resumption counts."""
    app = serving(MemoryStore())
    client = Client(app)
    for _ in range(3):
        await client.send(client.call("works"))
    counted = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal counted
        counted += event == "call" and frame.f_code.co_filename.startswith(PACKAGE)

    request = client.call("works")
    sys.setprofile(count)
    try:
        await client.send(request)
    finally:
        sys.setprofile(None)

    assert counted <= CALLS
    await app.mux.aclose()


class Large(Struct, weakref=True):
    """Arguments whose life can be watched."""

    text: str = ""


async def test_rejected_call_is_freed_at_once() -> None:
    """An error whose traceback has the call would keep it until the next collection of garbage."""
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
