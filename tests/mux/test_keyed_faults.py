"""Calls with an idempotency key run once, at whichever write the store or the process fails."""

import asyncio
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from genmcp import Continue, MemoryStore, SQLiteStore, ToolError
from genmcp.core.task import Task
from genmcp.errors import OverShare, StoreFull, StoreUnavailable
from genmcp.stores.store import Delete, Op, Put, StoreEntry
from tests.support.asgi import PATIENCE, TASKS, Client, Connection, until
from tests.support.keyed import (
    ASKS,
    Counts,
    HeldFile,
    HeldMemory,
    Stage,
    answered,
    asks,
    begin,
    call,
    changes_record,
    close_all,
    is_record,
    keyed,
    over,
    said,
    serving,
    works,
)

LOST = StoreUnavailable("the connection was lost")


@pytest.fixture(autouse=True)
async def _closed(_tasks_end: None) -> AsyncIterator[None]:
    Stage.reset()
    yield
    await close_all()


@pytest.fixture(params=["memory", "file"])
async def store(request: Any, tmp_path: Path) -> AsyncIterator[Any]:
    made = HeldMemory() if request.param == "memory" else HeldFile(tmp_path / "a.db")
    yield made
    await close_all()
    await made.aclose()


class FailsAt(MemoryStore):
    """Fails at the write with *number* of those to tasks, before or after it takes effect."""

    number = 0
    when = "before"

    async def apply(self, *ops: Op) -> None:
        fails = False
        if any(isinstance(op, Put | Delete) and "/task:" in op.key for op in ops):
            self.number -= 1
            fails = self.number == 0
        if fails and self.when == "before":
            raise LOST
        await super().apply(*ops)
        if fails:
            raise LOST


async def no_beat() -> None:
    """Do nothing, as a suspended process does."""


async def later() -> str:
    return "later"


RESULTS = {
    "plain": "call 1",
    "awaitable": "done later of 1",
    "job": "done worked of 1",
    "question": "named Bob of 1",
}
MAKES: dict[str, Any] = {
    "plain": lambda: None,
    "awaitable": lambda: Continue("done", later()),
    "job": works,
    "question": asks,
}


async def persistent(client: Client, request: Any) -> Connection:
    """Send *request* again for as long as the server asks for that."""
    async with asyncio.timeout(PATIENCE):
        while True:
            answer = await client.send(request)
            error = answer.json.get("error")
            if error is None or "retryAfter" not in (error.get("data") or {}):
                return answer


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("number", range(1, 8))
@pytest.mark.parametrize("kind", MAKES)
async def test_store_that_fails_at_one_write(kind: str, number: int, when: str) -> None:
    """Its client gets an error at most, and the result when it sends the call again."""
    store = FailsAt()
    counts = Counts(MAKES[kind])
    client = await begin(serving(counts, store=store), capabilities=ASKS)
    store.number, store.when = number, when
    Stage.go.set()

    answer = await persistent(client, keyed(client))
    if kind == "question" and "inputRequests" in answer.json["result"]:
        answer = await persistent(client, answered(client, answer))

    assert said(answer) == RESULTS[kind]
    assert await call(client) == RESULTS[kind]
    assert (counts.calls, counts.continued) == (1, int(kind != "plain"))


@pytest.mark.parametrize("on_worker_lost", ["rerun", "fail"])
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("kind", "number"), [("plain", 1), ("plain", 2), ("job", 2), ("job", 3), ("question", 2)]
)
async def test_process_that_is_killed_at_a_write(
    tmp_path: Path, kind: str, number: int, when: str, on_worker_lost: str
) -> None:
    """Another process has the result, runs the call as if it were new, or reports it as lost.

    It is lost if the process was killed between the record and the end of `call`, or of the job,
    unless the tool permits a repetition.
    """
    path = str(tmp_path / "a.db")
    arguments = path, kind, str(number), when, on_worker_lost
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.support.killed_call", *arguments
    )
    assert await asyncio.wait_for(process.wait(), 60) == -9
    Stage.go.set()
    counts = Counts(MAKES[kind], on_worker_lost=on_worker_lost)
    client = await begin(serving(counts, store=SQLiteStore(path), lease=0.3), capabilities=ASKS)
    answer = await client.send(keyed(client))
    if "error" in answer.json:
        assert "process that worked on it is gone" in answer.json["error"]["message"]
        if on_worker_lost == "rerun":  # a client that waits is told; the key is free now
            answer = await client.send(keyed(client))
    if "inputRequests" in answer.json.get("result", {}):
        answer = await client.send(answered(client, answer))

    failed = "error" in answer.json or answer.json["result"].get("isError")
    assert not failed or on_worker_lost == "fail"
    copy = (await client.send(keyed(client))).json
    assert {**copy, "id": 0} == {**answer.json, "id": 0}
    assert counts.calls <= 1 - bool(failed and kind == "plain")


async def test_outage_while_the_call_ends(store: Any) -> None:
    """The hook ends while the store is away: its result is written when the store is back."""
    go, away = asyncio.Event(), False
    apply = store.apply

    async def fails(*ops: Op) -> None:
        if away:
            tried.set()
            raise LOST
        await apply(*ops)

    store.apply, tried = fails, asyncio.Event()
    app = serving(counts := Counts(lambda: go), store=store)
    client = await begin(app)
    async with client.open(keyed(client)) as connection:
        await until(lambda: counts.calls)
        away = True
        go.set()
        await tried.wait()
        assert not connection.complete  # a response follows its write
        away = False
        await connection.over()

    assert (said(connection), counts.calls) == ("call 1", 1)


@pytest.mark.parametrize("error", [OverShare("no share"), StoreFull("no room")], ids=repr)
async def test_key_is_free_if_its_task_is_refused(store: Any, error: Exception) -> None:
    """The client gets the error of the store, and the next call runs."""
    counts = Counts()
    client = await begin(serving(counts, store=store))
    store.next(is_record, before=error)
    assert "error" in (await client.send(keyed(client))).json

    assert await call(client) == "call 1"
    assert counts.calls == 1


@pytest.mark.parametrize("what", ["calls", "cancellations"])
async def test_pending_writes_are_bounded(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """While reads work and writes fail, as on a full disk: clients repeat what fails."""
    monkeypatch.setattr("genmcp.tasks.retrying._MAX_PENDING", 3)
    store = HeldMemory()
    app = serving(counts := Counts(works), store=store, lease=0.3)
    client = await begin(app, capabilities=TASKS)
    task = (await client.send(keyed(client, "first"))).json["result"]["taskId"]
    apply = store.apply

    async def fails(*ops: Op) -> None:
        raise LOST

    store.apply = fails  # type: ignore[method-assign]
    before = len(asyncio.all_tasks())
    for number in range(20):
        request = client.request("tasks/cancel", {"taskId": task}, id=number)
        if what == "calls":
            request = keyed(client, f"k{number}")
        assert "error" in (await client.send(request)).json
    assert len(asyncio.all_tasks()) - before <= 3

    store.apply = apply  # type: ignore[method-assign]
    await until(lambda: len(asyncio.all_tasks()) <= before)
    assert "taskId" in (await client.send(keyed(client, "k0"))).json["result"]
    assert counts.calls == 2


async def test_late_failure_spares_the_call_of_a_copy(store: Any) -> None:
    """A copy creates the task while the failure of the first write is still handled."""
    go, ended = asyncio.Event(), asyncio.Event()
    app = serving(counts := Counts(lambda: go), store=store)
    client = await begin(app)
    finish = app.mux.tasks.service.writer.finish

    async def late(*arguments: Any) -> Any:
        await until(lambda: counts.calls)
        try:
            return await finish(*arguments)
        finally:
            ended.set()

    writer: Any = app.mux.tasks.service.writer
    writer.finish = late
    store.next(is_record, before=LOST)
    assert "error" in (await client.send(keyed(client))).json
    async with client.open(keyed(client)) as copy:
        await ended.wait()
        go.set()
        await copy.over()

    assert (said(copy), counts.calls) == ("call 1", 1)


@pytest.mark.parametrize("kind", ["plain", "job"])
async def test_repeated_cancellation_spares_the_next_call(store: Any, kind: str) -> None:
    """The store reports a failure of the first one, which frees the key all the same."""
    go, next_runs = asyncio.Event(), asyncio.Event()
    app = serving(counts := Counts(works if kind == "job" else lambda: go), store=store)
    client, owner = await begin(app), await begin(app, capabilities=TASKS)
    apply = store.apply

    async def unclear(*ops: Op) -> None:
        await apply(*ops)
        record = ops[0]
        if isinstance(record, Put) and is_record(record) and Task.unpack(record.value).ended:
            store.apply = apply
            await next_runs.wait()
            raise LOST

    async with client.open(keyed(client)) as first:
        followed = app.mux.tasks.service.records.followed
        await until(lambda: followed and (Stage.runs if kind == "job" else counts.calls))
        (id,) = followed
        store.apply = unclear
        async with owner.open(owner.request("tasks/cancel", {"taskId": id})) as cancelling:
            await first.over()
            async with client.open(keyed(client)) as second:
                await until(lambda: counts.calls == 2)
                next_runs.set()
                await cancelling.over()
                go.set()
                Stage.go.set()
                await second.over()

    assert "cancelled" in first.json["error"]["message"]
    assert said(second) == ("done worked of 2" if kind == "job" else "call 2")
    await until(lambda: counts.cancels == (kind == "plain"))


async def test_client_that_leaves_while_the_task_is_written(store: Any) -> None:
    """The record and its hook are not separated: a copy gets the result."""
    gate = asyncio.Event()
    app = serving(counts := Counts(), store=store)
    client = await begin(app)
    store.next(is_record, before=gate)
    async with client.open(keyed(client)) as leaving:
        await store.reached.wait()
        leaving.disconnect()
        await until(lambda: leaving.task.done() or app.mux.waiting_calls)
        gate.set()
        await leaving.over()

    assert (await call(client), counts.calls, counts.cancels) == ("call 1", 1, 0)


async def test_copies_that_meet_at_the_first_write() -> None:
    """Of two that find the key free, one creates the task."""

    class Late(MemoryStore):
        async def get(self, key: str) -> StoreEntry | None:
            found = await super().get(key)
            await asyncio.sleep(0)
            return found

    app = serving(counts := Counts(), store=Late())
    clients = [await begin(app) for _ in range(3)]

    assert await asyncio.gather(*map(call, clients)) == ["call 1"] * 3
    assert counts.calls == 1


async def test_copies_that_meet_at_a_free_key() -> None:
    """The key was freed by an error; one of the copies replaces the record."""
    counts = Counts(lambda: ToolError("no", retry=True) if counts.calls == 1 else None)
    app = serving(counts, store=HeldMemory())
    clients = [await begin(app) for _ in range(3)]
    await call(clients[0])

    assert await asyncio.gather(*map(call, clients)) == ["call 2"] * 3
    assert counts.calls == 2


async def test_suspended_process_writes_no_result_of_its_own(tmp_path: Path) -> None:
    """Another process took the key over meanwhile: both clients get the result of that one."""
    go = asyncio.Event()
    ghost, taker = Counts(lambda: go, on_worker_lost="rerun"), Counts()
    taker.calls = 6
    first, second = [
        serving(each, store=SQLiteStore(tmp_path / "a.db"), lease=0.3) for each in (ghost, taker)
    ]
    one, two = await begin(first), await begin(second)
    async with one.open(keyed(one)) as frozen:
        await until(lambda: ghost.calls == 1)
        beats: Any = first.mux.tasks.service.heartbeats
        beats.beat = no_beat
        lost = await two.send(keyed(two))
        assert "is gone" in lost.json["error"]["message"]
        assert await call(two) == "call 7"
        go.set()
        del beats.beat
        await frozen.over()

    assert await call(one) == "call 7"
    assert (ghost.calls, taker.calls) == (1, 7)


async def test_result_above_the_share_of_its_client(tmp_path: Path) -> None:
    """A response follows its write: both clients get the error of a full store."""
    for own in (MemoryStore(max_bytes=400_000), SQLiteStore(tmp_path / "b.db", max_bytes=400_000)):
        counts = Counts(lambda: "x" * 150_000)
        client = await begin(serving(counts, store=own))
        errors = [(await client.send(keyed(client))).json["error"] for _ in range(2)]

        assert "could not be stored" in errors[0]["message"]
        assert errors[0] == errors[1]
        assert counts.calls == 1
        await close_all()


async def test_record_that_another_release_wrote_is_an_error(store: Any) -> None:
    """It may hold a result: the call must not run again."""
    app = serving(counts := Counts(), store=store)
    client = await begin(app)
    await call(client)
    ids: list[str] = []
    find = app.mux.tasks.service.records.find

    async def found(id: str) -> Any:
        ids.append(id)
        return await find(id)

    app.mux.tasks.service.records.find = found  # type: ignore[method-assign]
    await call(client)
    await store.apply(Put(app.mux.tasks.service.records.key(ids[0]), b"\xff", ttl=60.0))

    assert "another release" in (await client.send(keyed(client))).json["error"]["message"]
    assert counts.calls == 1


async def test_handle_resolves_after_a_write_of_the_job_fails(store: Any) -> None:
    """The task waits for its job as soon as the store accepts that."""
    app = serving(Counts(works), store=store)
    client = await begin(app, capabilities=TASKS)
    store.next(changes_record, after=LOST)
    handle = (await client.send(keyed(client))).json["result"]
    Stage.go.set()

    assert (await over(client, handle["taskId"]))["result"]["content"][0]["text"] == (
        "done worked of 1"
    )
