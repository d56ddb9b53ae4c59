"""`io.genmcp/idempotencyKey` with a store that rejects writes: no key stays taken for good."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from genmcp import (
    Continue,
    Done,
    Endpoint,
    JobOptions,
    Limits,
    MemoryStore,
    Mux,
    Run,
    SQLiteStore,
    Store,
    Suite,
    Tool,
    job,
)
from genmcp._core.task import Task
from genmcp.errors import OverShare, StoreFull, StoreUnavailable
from genmcp.stores.store import Delete, Op, Put
from tests.support.asgi import PATIENCE, TASKS, Client, Connection, until
from tests.support.stores import stored_keys

KEY = "io.genmcp/idempotencyKey"
NOT_KEPT = "its result was not stored"

Refuses = Callable[[Op], BaseException | None]


class Refusing(Store):
    """A store whose writes *refuses* may reject; *gate* holds back a write after it is done."""

    refuses: Refuses | None = None
    holds: Callable[[Op], bool] | None = None
    gate: asyncio.Event

    async def apply(self, *ops: Op) -> None:
        for op in ops:
            if self.refuses is not None and (error := self.refuses(op)):
                raise error
        await super().apply(*ops)  # type: ignore[safe-super]
        if self.holds is not None and any(map(self.holds, ops)):
            await self.gate.wait()


class RefusingMemory(Refusing, MemoryStore):
    pass


class RefusingFile(Refusing, SQLiteStore):
    pass


@pytest.fixture(params=["memory", "file"])
async def store(request: Any, tmp_path: Path) -> AsyncGenerator[Any, None]:
    made = RefusingMemory() if request.param == "memory" else RefusingFile(tmp_path / "a.db")
    made.gate = asyncio.Event()
    yield made
    await made.aclose()


@job(name="keyed.work")
async def work(run: Run) -> str:
    await go.wait()
    return "worked"


go: asyncio.Event


@pytest.fixture(autouse=True)
def _go() -> None:
    global go
    go = asyncio.Event()


class Works(Tool):
    """Has a job done, or returns *text*."""

    name = "works"
    result_ttl = 60.0

    def __init__(self, text: str | None = None) -> None:
        self.text = text
        self.calls = 0
        self.cancels = 0

    async def call(self, request: Any, channel: Any) -> Any:
        self.calls += 1
        return self.text or Continue("done", work.job())

    async def continue_(self, tag: str, outcome: Any, channel: Any) -> Any:
        match outcome:
            case Done(value):
                return f"{value} by {self.calls}"
        raise AssertionError(outcome)

    def on_cancel(self, channel: Any) -> None:
        self.cancels += 1


def serving(tool: Tool, store: Any, *, lease: float = 30.0, **options: Any) -> Endpoint:
    jobs = JobOptions(
        lease=lease, shutdown_grace=0.0, write_retry_delays=(0.01,), **options.pop("jobs", {})
    )
    suite = Suite(name="test", version="1", tools=[tool])
    mux = Mux(suite, store=store, jobs=jobs, secret="a secret of 16 bytes", **options)
    return Endpoint(mux, principal=lambda scope: scope.get("who"))


async def begin(app: Endpoint, **options: Any) -> Client:
    return await Client.begin(app, who="ann", **options)


def keyed(client: Client, key: str = "k") -> Any:
    return client.call("works", {}, **{KEY: key})


def said(answer: Connection) -> str:
    found: str = answer.messages[-1]["result"]["content"][0]["text"]
    return found


def error_of(answer: Connection) -> str:
    found: str = answer.json["error"]["message"]
    return found


async def end_of(client: Client, id: str) -> str:
    """Return the status in which a task ends."""
    async with asyncio.timeout(PATIENCE):
        while True:
            answer = await client.send(client.request("tasks/get", {"taskId": id}))
            status: str = answer.json["result"]["status"]
            if status != "working":
                return status
            await asyncio.sleep(0.01)


def is_task(op: Op) -> bool:
    """Whether *op* makes a call an ordinary task: its request is stored."""
    return isinstance(op, Put) and op.key.endswith("#call")


def is_end(op: Op) -> bool:
    """Whether *op* writes the end of a call, or deletes its record."""
    if isinstance(op, Put) and "/task:" in op.key and op.expect:
        return Task.unpack(op.value).ended
    return isinstance(op, Delete) and bool(op.expect)


def refusing(error: BaseException, which: Callable[[Op], bool]) -> Refuses:
    return lambda op: error if which(op) else None


def is_large_end(op: Op) -> bool:
    return is_end(op) and isinstance(op, Put) and len(op.value) > 900


@pytest.mark.parametrize("error", [OverShare("no share"), StoreFull("no room")], ids=repr)
async def test_key_is_freed_when_its_task_is_refused(store: Any, error: BaseException) -> None:
    """A retry with the key would otherwise wait for a task that is never written."""
    app = serving(tool := Works(), store)
    client = await begin(app)
    store.refuses = refusing(error, is_task)
    assert "error" in (await client.send(keyed(client))).json
    store.refuses = None
    go.set()

    assert said(await client.send(keyed(client))) == "worked by 2"
    assert tool.calls == 2
    await app.mux.aclose()


async def test_job_of_a_keyed_call_begins_when_the_store_is_back(store: Any) -> None:
    """The hook has run: the key stays taken, and a copy gets the result of the first call."""
    app = serving(tool := Works(), store, lease=0.2)
    client = await begin(app)
    store.refuses = refusing(StoreUnavailable("locked"), is_task)
    assert "error" in (await client.send(keyed(client))).json  # after a lease
    async with client.open(keyed(client)) as copy:
        await until(lambda: len(app.mux.waiting_calls) == 1)
        store.refuses = None
        go.set()
        await copy.over()

    assert said(copy) == "worked by 1"
    assert tool.calls == 1
    await app.mux.aclose()


async def test_key_is_freed_when_its_client_has_too_many_tasks(store: Any) -> None:
    """The setting is named, and the retry succeeds once another task has ended."""
    app = serving(Works(), store, jobs={"tasks_of_client": 1})
    client = await begin(app, capabilities=TASKS)
    first = (await client.send(client.call("works"))).json["result"]["taskId"]
    assert "JobOptions.tasks_of_client" in error_of(await client.send(keyed(client)))
    await client.send(client.request("tasks/cancel", {"taskId": first}))

    handle = (await client.send(keyed(client))).json["result"]
    go.set()
    assert await end_of(client, handle["taskId"]) == "completed"
    await app.mux.aclose()


async def test_late_free_spares_the_key_of_another_call(store: Any) -> None:
    """A call whose record may exist is freed later: no other record may be deleted then."""
    freeing, free = asyncio.Event(), asyncio.Event()
    apply = store.apply

    async def late(*ops: Op) -> None:
        op = ops[0]
        if store.refuses is None and isinstance(op, Delete) and op.key.endswith("#mark"):
            freeing.set()
            await free.wait()
        await apply(*ops)

    def refuses(op: Op) -> BaseException | None:
        if isinstance(op, Put) and "/task:" in op.key:
            store.refuses = None
            return StoreUnavailable("the disk is full")
        return None

    class Waits(Works):
        async def call(self, request: Any, channel: Any) -> Any:
            self.calls += 1
            await go.wait()
            return f"call {self.calls}"

    store.refuses, store.apply = refuses, late
    app = serving(tool := Waits(), store)
    client = await begin(app)
    async with client.open(keyed(client)) as refused:
        await freeing.wait()
        async with client.open(keyed(client)) as one:
            await until(lambda: tool.calls)
            free.set()
            await refused.over()
            async with client.open(keyed(client)) as copy:
                await until(lambda: len(app.mux.waiting_calls) == 2)
                go.set()
                await asyncio.gather(one.over(), copy.over())

    assert (refused.status, said(one), said(copy)) == (503, "call 1", "call 1")
    await app.mux.aclose()


async def test_key_is_freed_when_its_claim_may_be_written(store: Any) -> None:
    """`StoreUnavailable` leaves open whether it was written: another process would wait for it."""
    app = serving(tool := Works("done"), store)
    client = await begin(app)

    class Lost(type(store)):  # type: ignore[misc]
        async def apply(self, *ops: Op) -> None:
            await super().apply(*ops)
            if any(isinstance(op, Put) for op in ops):
                raise StoreUnavailable("the connection was lost")

    was, store.__class__ = store.__class__, Lost
    assert "error" in (await client.send(keyed(client))).json
    store.__class__ = was

    assert said(await client.send(keyed(client))) == "done"
    assert tool.calls == 1
    await app.mux.aclose()


async def test_result_past_the_share_of_its_client_is_not_kept(tmp_path: Path) -> None:
    """A real store and a real share: the call is answered, and its copy gets an error."""
    for own in (MemoryStore(max_bytes=400_000), SQLiteStore(tmp_path / "b.db", max_bytes=400_000)):
        app = serving(tool := Works("x" * 150_000), own)
        client = await begin(app)

        assert said(await client.send(keyed(client))) == "x" * 150_000
        copy = await asyncio.wait_for(client.send(keyed(client)), PATIENCE)
        assert NOT_KEPT in error_of(copy)
        assert tool.calls == 1
        await app.mux.aclose()
        await own.aclose()


async def test_result_is_not_kept_when_the_store_stays_full(store: Any) -> None:
    """It waits for a lease, since a full disk may be cleared, and not in memory for good."""
    app = serving(tool := Works("x" * 1000), store, lease=0.2)
    client = await begin(app)
    store.refuses = refusing(StoreFull("no room"), is_large_end)

    assert said(await client.send(keyed(client))) == "x" * 1000
    assert NOT_KEPT in error_of(await client.send(keyed(client)))
    assert tool.calls == 1
    await app.mux.aclose()


async def test_results_that_wait_for_the_store_are_bounded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Past `Limits.late_results_bytes` only the record waits that the call has ended."""
    store = RefusingMemory()
    app = serving(Works("x" * 1000), store, limits=Limits(late_results_bytes=1500))
    client = await begin(app)
    store.refuses = refusing(StoreUnavailable("locked"), is_end)
    for key in ("first", "second"):
        await client.send(keyed(client, key))
    store.refuses = None

    assert said(await client.send(keyed(client, "first"))) == "x" * 1000
    assert NOT_KEPT in error_of(await client.send(keyed(client, "second")))
    await app.mux.aclose()


async def test_call_is_answered_when_its_end_is_not_written() -> None:
    """A defect of the store does not hold the response, and the key is free again."""
    store = RefusingMemory()
    app = serving(tool := Works("done"), store)
    client = await begin(app)
    store.refuses = refusing(ValueError("a defect"), is_end)

    assert [said(await client.send(keyed(client))) for _ in range(2)] == ["done", "done"]
    assert tool.calls == 2
    await app.mux.aclose()


@pytest.mark.parametrize("stopped", [False, True])
async def test_mux_closes_while_another_loop_has_writes_pending(stopped: bool) -> None:
    """They are cancelled there, if that loop runs, and never awaited from this one."""
    store = RefusingMemory()
    app = serving(Works("done"), store)
    store.refuses = refusing(StoreUnavailable("locked"), is_end)
    answered, other = threading.Event(), asyncio.new_event_loop()

    async def ask() -> None:
        client = await begin(app)
        await client.send(keyed(client))

    def run() -> None:
        asyncio.set_event_loop(other)
        other.run_until_complete(ask())
        answered.set()
        if not stopped:
            other.run_forever()

    thread = threading.Thread(target=run)
    thread.start()
    await asyncio.to_thread(answered.wait, PATIENCE)
    pending = [each for each in asyncio.all_tasks(other) if "retry_until_written" in repr(each)]
    assert pending

    await app.mux.tasks.aclose()

    if not stopped:
        await until(lambda: all(each.done() for each in pending), pause=0.01)
        other.call_soon_threadsafe(other.stop)
    await asyncio.to_thread(thread.join)
    for each in asyncio.all_tasks(other):
        each.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.to_thread(other.run_until_complete, each)
    other.close()
    await app.mux.aclose()


async def test_tool_is_notified_when_the_store_cannot_cancel_its_task(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The client has left, and the store fails: `on_cancel` is called, and the host unaffected."""
    store = RefusingMemory()
    app = serving(tool := Works(), store)
    client = await begin(app)

    def changes_task(op: Op) -> bool:
        return isinstance(op, Put) and "/task:" in op.key and bool(op.expect)

    async with client.open(client.call("works")) as call:
        await until(lambda: _has_task(store), pause=0.01)
        store.refuses = refusing(StoreUnavailable("locked"), changes_task)
        call.disconnect()
        await until(lambda: tool.cancels == 1, pause=0.01)
        await call.over()  # raises the exception of the app

    assert "is not cancelled: locked" in caplog.text
    store.refuses = None
    go.set()
    await app.mux.aclose()


def _has_task(store: MemoryStore) -> bool:
    return any("/task:" in key for key in stored_keys(store))


async def test_failing_store_at_the_end_of_a_task_stays_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The client has its handle: the error has no response to go to, and the host none to log."""

    class Waits(Tool):
        name = "works"
        task = "auto"
        promote_after = 0.01

        async def call(self, request: Any, channel: Any) -> Any:
            await go.wait()
            return "done"

    store = RefusingMemory()
    app = serving(Waits(), store, lease=0.2)
    client = await begin(app, capabilities=TASKS)
    async with client.open(client.call("works")) as call:
        await until(lambda: call.complete, pause=0.01)
        store.refuses = lambda op: (
            StoreUnavailable("locked") if isinstance(op, Put) and "/task:" in op.key else None
        )
        go.set()
        await call.task

    assert "is not written yet" in caplog.text
    store.refuses = None
    id = call.json["result"]["taskId"]
    assert await end_of(client, id) == "completed"
    await app.mux.aclose()
