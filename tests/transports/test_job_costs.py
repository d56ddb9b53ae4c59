"""The cost of one job: reads and writes of its record, and Python calls."""

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import genmcp
from genmcp import Continue, Done, Endpoint, MemoryStore, Mux, Run, Suite, Tool, job
from genmcp.stores.store import Delete, Op, Put, StoreEntry
from tests.support.asgi import Client

PACKAGE = str(Path(genmcp.__file__).parent)
CALLS = 660


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
