"""Writes of tasks that the store has carried out, and reports as failed or never answers."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from genmcp import (
    Continue,
    Done,
    Endpoint,
    JobOptions,
    MemoryStore,
    Mux,
    Run,
    SQLiteStore,
    Suite,
    Tool,
    job,
)
from genmcp.errors import StoreUnavailable
from genmcp.stores.store import LogEvent, Op, Put
from tests.support.asgi import PATIENCE, TASKS, Client, until
from tests.support.keyed import over
from tests.support.stores import stored_keys

begun: asyncio.Event
go: asyncio.Event


@pytest.fixture(autouse=True)
def _events() -> None:
    global begun, go
    begun, go = asyncio.Event(), asyncio.Event()


@job(name="faults.work")
async def work(run: Run) -> str:
    begun.set()
    await go.wait()
    return "worked"


class Works(Tool):
    """Has a job done."""

    name = "works"
    result_ttl = 60.0
    on_worker_lost = "fail"

    def __init__(self) -> None:
        self.calls = 0
        self.cancels = 0

    async def call(self, request: Any, channel: Any) -> Any:
        self.calls += 1
        return Continue("done", work.job())

    async def continue_(self, tag: str, outcome: Any, channel: Any) -> Any:
        assert isinstance(outcome, Done)
        return f"{outcome.value} by {self.calls}"

    def on_cancel(self, channel: Any) -> None:
        self.cancels += 1


def serving(tool: Tool, store: Any, lease: float = 30.0) -> Endpoint:
    suite = Suite(name="test", version="1", tools=[tool])
    mux = Mux(
        suite,
        store=store,
        jobs=JobOptions(lease=lease, shutdown_grace=0.0),
        secret="a secret of 16 bytes",
    )
    return Endpoint(mux, principal=lambda scope: scope.get("who"))


def is_record(op: Op) -> bool:
    return isinstance(op, Put) and "/task:" in op.key and "#" not in op.key


def is_claim(op: Op) -> bool:
    return is_record(op) and isinstance(op, Put) and bool(op.expect)


class FailsOnce(MemoryStore):
    """The next write of a task's record is carried out, and reported as failed."""

    armed = False

    async def apply(self, *ops: Op) -> None:
        await super().apply(*ops)
        if self.armed and any(map(is_record, ops)):
            self.armed = False
            raise StoreUnavailable("the connection was lost")


class Refuses(MemoryStore):
    """While it is locked, records of tasks that exist cannot be changed."""

    locked = False

    async def apply(self, *ops: Op) -> None:
        if self.locked and any(map(is_claim, ops)):
            raise StoreUnavailable("locked")
        await super().apply(*ops)


async def test_cancel_that_was_written_stops_the_work() -> None:
    """The client's retry finds the task cancelled."""
    app = serving(tool := Works(), store := FailsOnce())
    client = await Client.begin(app, who="ann", capabilities=TASKS)
    made = await client.send(client.call("works", {}))
    id = made.json["result"]["taskId"]
    await begun.wait()
    store.armed = True
    for _ in range(2):
        await client.send(client.request("tasks/cancel", {"taskId": id}))

    await until(lambda: not app.mux.tasks.service.runner._steps)
    assert tool.cancels == 1
    await app.mux.aclose()


async def test_held_call_gets_its_result_after_an_outage() -> None:
    """Its client gets no handle, and would have to repeat the call after an error."""
    failed = asyncio.Event()

    class Restarted(MemoryStore):
        async def follow(
            self, log: str, after: str | None = None
        ) -> AsyncGenerator[LogEvent, None]:
            if "task:" in log and not failed.is_set():
                failed.set()
                raise StoreUnavailable("the connection was lost")
            async with aclosing(super().follow(log, after)) as events:
                async for event in events:
                    yield event

    app = serving(Works(), Restarted())
    client = await Client.begin(app, "2025-11-25", who="ann")
    async with client.open(client.call("works", {})) as call:
        await asyncio.wait_for(failed.wait(), PATIENCE)
        go.set()
        await call.over()

    assert call.messages[-1]["result"]["content"][0]["text"] == "worked by 1"
    await app.mux.aclose()


@pytest.mark.parametrize("failing", [True, False], ids=["unavailable", "cut"])
async def test_job_claimed_during_a_shutdown_runs_elsewhere(tmp_path: Path, failing: bool) -> None:
    """An orderly shutdown loses no job, also one that must not run twice: it has not begun."""
    reached = asyncio.Event()

    class File(SQLiteStore):
        async def apply(self, *ops: Op) -> None:
            await super().apply(*ops)
            if not reached.is_set() and any(map(is_claim, ops)):
                reached.set()
                if failing:
                    raise StoreUnavailable("the connection was lost")
                await asyncio.Event().wait()

    go.set()
    app = serving(Works(), store := File(tmp_path / "a.db"))
    client = await Client.begin(app, who="ann", capabilities=TASKS)
    made = await client.send(client.call("works", {}))
    id = made.json["result"]["taskId"]
    await reached.wait()
    await app.mux.aclose()
    other = serving(Works(), second := SQLiteStore(tmp_path / "a.db"))
    client = await Client.begin(other, who="ann", capabilities=TASKS)

    assert (await over(client, id))["status"] == "completed"  # so is a result with `isError`
    task = (await client.send(client.request("tasks/get", {"taskId": id}))).json["result"]
    assert task["result"]["content"][0]["text"] == "worked by 0"
    await other.mux.aclose()
    await store.aclose()
    await second.aclose()


async def test_unknown_format_is_named_and_not_retried() -> None:
    """No retry helps: the record was written by another release of genmcp."""
    app = serving(Works(), store := MemoryStore())
    client = await Client.begin(app, who="ann", capabilities=TASKS)
    made = await client.send(client.call("works", {}))
    id = made.json["result"]["taskId"]
    await begun.wait()
    (key,) = [each for each in stored_keys(store) if each.endswith(f"/task:{id}")]
    entry = await store.get(key)
    assert entry is not None
    await store.apply(Put(key, b"\x01" + entry.value[1:]))

    error = (await client.send(client.request("tasks/get", {"taskId": id}))).json["error"]

    assert "format 01" in error["message"]
    assert "retryAfter" not in error["data"]
    await store.apply(Put(key, entry.value))
    go.set()
    await over(client, id)
    await app.mux.aclose()


@job(name="faults.slash", queue="b/x")
async def slash(run: Run) -> str:
    return "worked"


class Slash(Works):
    async def call(self, request: Any, channel: Any) -> Any:
        return Continue("done", slash.job())


async def test_queues_of_two_audiences_are_distinct() -> None:
    """The other mux would find no record under its audience, and drop the delivery."""

    def endpoint(audience: str, tool: Tool, queue: str) -> Endpoint:
        suite = Suite(name="test", version="1", tools=[tool])
        return Endpoint(
            Mux(
                suite,
                store=store,
                jobs=JobOptions(queues=(queue,), shutdown_grace=0.0),
                secret="a secret of 16 bytes",
                audience=audience,
            )
        )

    store = MemoryStore()
    other = endpoint("a/b", Works(), "x")
    await other.mux.tasks.service.start()
    app = endpoint("a", Slash(), "y")
    client = await Client.begin(app, capabilities=TASKS)
    made = await client.send(client.call("works", {}))
    id = made.json["result"]["taskId"]
    worker = endpoint("a", Slash(), "b/x")
    client = await Client.begin(worker, capabilities=TASKS)

    assert (await over(client, id))["status"] == "completed"
    for each in (worker, app, other):
        await each.mux.aclose()


async def test_tool_is_notified_if_the_store_cannot_cancel_its_task(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The client has left, and the store fails: `on_cancel` is called, and the host unaffected."""
    app = serving(tool := Works(), store := Refuses())
    client = await Client.begin(app, who="ann")
    async with client.open(client.call("works")) as call:
        await begun.wait()
        store.locked = True
        call.disconnect()
        await until(lambda: tool.cancels == 1, pause=0.01)
        await call.over()  # raises the exception of the app

    assert "is not cancelled: locked" in caplog.text
    store.locked = False
    go.set()
    await app.mux.aclose()


async def test_failing_store_at_the_end_of_a_task_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The client has its handle: the error has no response to go to, and the host none to log."""

    class Waits(Works):
        promote_after = 0.01

        async def call(self, request: Any, channel: Any) -> Any:
            await go.wait()
            return "done"

    app = serving(Waits(), store := Refuses(), lease=0.2)
    client = await Client.begin(app, who="ann", capabilities=TASKS)
    async with client.open(client.call("works")) as call:
        await until(lambda: call.complete, pause=0.01)
        store.locked = True
        go.set()
        await call.task

    assert "is not written yet" in caplog.text
    store.locked = False
    assert (await over(client, call.json["result"]["taskId"]))["status"] == "completed"
    await app.mux.aclose()
