"""`io.genmcp/idempotencyKey`: copies, failures and departures never run a call twice."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from genmcp import Continue, MemoryStore, Run, SQLiteStore, Store, Tool, elicit, job
from genmcp.errors import StoreFull, StoreUnavailable
from genmcp.stores.store import Append, Op, Put, StoreEntry
from tests.mux.test_idempotency import ASKS, BOB, NAME, begin, call, keyed, said, serving
from tests.mux.test_keyed_failures import end_of
from tests.support.asgi import PATIENCE, TASKS, Client, until


class Held(Store):
    """A store of which a test holds back a write, or lets it fail, once.

    which: the writes concerned; None: none any more. before, after: callbacks around the next of
    them. reached: set once it begins.
    """

    which: Callable[[Op], bool] | None = None
    before: Any = None
    after: Any = None
    reached: asyncio.Event

    def next(self, which: Callable[[Op], bool], before: Any = None, after: Any = None) -> None:
        self.which, self.before, self.after = which, before, after
        self.reached = asyncio.Event()

    async def apply(self, *ops: Op) -> None:
        if self.which is None or not any(map(self.which, ops)):
            await super().apply(*ops)  # type: ignore[safe-super]
            return
        self.which = None
        self.reached.set()
        await _happens(self.before)
        await super().apply(*ops)  # type: ignore[safe-super]
        await _happens(self.after)


async def _happens(what: Any) -> None:
    if isinstance(what, asyncio.Event):
        await what.wait()
    elif what is not None:
        raise what


class HeldMemory(Held, MemoryStore):
    """Yields in each read, so that copies meet."""

    async def get(self, key: str) -> StoreEntry | None:
        found = await super().get(key)
        await asyncio.sleep(0)
        return found


class HeldFile(Held, SQLiteStore):
    pass


@pytest.fixture(params=["memory", "file"])
async def store(request: Any, tmp_path: Path) -> AsyncGenerator[Any, None]:
    made = HeldMemory() if request.param == "memory" else HeldFile(tmp_path / "a.db")
    yield made
    await made.aclose()


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncGenerator[tuple[HeldFile, HeldFile], None]:
    """The stores of two processes that share a file."""
    made = HeldFile(tmp_path / "a.db"), HeldFile(tmp_path / "a.db")
    yield made
    for each in made:
        await each.aclose()


def writes_record(op: Op) -> bool:
    """Whether *op* writes the record of a keyed call that exists already."""
    return isinstance(op, Put) and "/task:k" in op.key and "#" not in op.key and bool(op.expect)


class Asks(Tool):
    """Asks for a name; `continue_` waits for `go`."""

    name = "counts"

    def __init__(self, go: asyncio.Event) -> None:
        self.go = go
        self.calls = 0
        self.resumed = 0

    async def call(self, request: Any, channel: Any) -> Any:
        self.calls += 1
        return Continue("named", elicit("Who?", NAME))

    async def continue_(self, tag: str, outcome: Any, channel: Any) -> Any:
        self.resumed += 1
        await self.go.wait()
        return "continued"


async def answer_of(client: Client) -> Any:
    """Call, and return the answer to the question that this gets."""
    asked = (await client.send(keyed(client))).json["result"]
    again = keyed(client)
    (key,) = asked["inputRequests"]
    again["params"] |= {"requestState": asked["requestState"], "inputResponses": {key: BOB}}
    return again


async def settled(app: Any) -> None:
    """Wait until no write is pending in the background."""
    await until(lambda: not app.mux.tasks.service._retry._pending, pause=0.01)


async def test_copies_of_an_answer_run_once(store: Any) -> None:
    """A slower copy must not delete the record of the copy that runs."""
    tool = Asks(asyncio.Event())
    app = serving(tool, store=store)
    client = await begin(app, capabilities=ASKS)
    again = await answer_of(client)
    gate = asyncio.Event()
    store.next(writes_record, before=gate)
    first = asyncio.create_task(client.send(again))
    await store.reached.wait()
    others = [asyncio.create_task(client.send(again)) for _ in range(3)]
    await until(lambda: tool.resumed)
    gate.set()  # its write is too late
    await until(lambda: len(app.mux.waiting_calls) == 4)
    reads = await asyncio.gather(*(app.mux.tasks.service.keyed.find("none") for _ in range(50)))
    assert not any(reads)  # by now each copy has looked at the record again
    tool.go.set()

    answers = [said(each) for each in await asyncio.gather(first, *others)]
    assert (answers, tool.resumed) == (["continued"] * 4, 1)
    await app.mux.aclose()


@pytest.mark.parametrize("how", ["leaves", "fails"])
async def test_copy_that_ends_while_it_resumes_frees_nothing(
    stores: tuple[HeldFile, HeldFile], how: str
) -> None:
    """Its own write did not take place: the record is that of the copy that runs elsewhere."""
    a, b = stores
    go = asyncio.Event()
    one, other = Asks(go), Asks(go)
    app_a, app_b = serving(one, store=a), serving(other, store=b)
    at_a, at_b = await begin(app_a, capabilities=ASKS), await begin(app_b, capabilities=ASKS)
    again = await answer_of(at_a)
    gate = asyncio.Event()
    b.next(writes_record, before=gate)
    if how == "fails":

        async def fails(*ops: Op, apply: Any = b.apply) -> None:
            if any(map(writes_record, ops)) and b.which is not None:
                b.which = None
                b.reached.set()
                await gate.wait()
                raise StoreUnavailable("the connection was lost")
            await apply(*ops)

        b.apply = fails  # type: ignore[method-assign]
    async with at_b.open(again) as left:
        await b.reached.wait()
        first = asyncio.create_task(at_a.send(again))
        await until(lambda: one.resumed)
        if how == "leaves":
            left.disconnect()
        else:
            gate.set()
            await left.over()
        await settled_after(app_b)
    copy = asyncio.create_task(at_b.send(again))
    await until(lambda: len(app_b.mux.waiting_calls) == 1)
    for _ in range(20):
        await app_b.mux.tasks.service.keyed.find("none")
    go.set()

    assert "continued" == said(await first) == said(await copy)
    assert one.resumed + other.resumed == 1
    for app in app_a, app_b:
        await app.mux.aclose()


async def settled_after(app: Any) -> None:
    """Wait until the call that has ended has nothing to write any more."""
    await until(lambda: not len(app.mux.waiting_calls), pause=0.01)
    await settled(app)


@pytest.mark.parametrize("error", [StoreUnavailable("the connection was lost"), None], ids=repr)
async def test_resumption_that_may_be_written_asks_again(store: Any, error: Any) -> None:
    """It was written, and never ran. The call has run: a copy gets its question, not a new call."""
    tool = Asks(asyncio.Event())
    tool.go.set()
    app = serving(tool, store=store)
    client = await begin(app, capabilities=ASKS)
    again = await answer_of(client)
    store.next(writes_record, after=error or asyncio.Event())
    async with client.open(again) as left:
        await store.reached.wait()
        if error is None:
            left.disconnect()
        else:
            assert "error" in (await left.over()).json
        await settled_after(app)

    assert "inputRequests" in (await client.send(keyed(client))).json["result"]
    assert said(await client.send(again)) == "continued"
    assert (tool.calls, tool.resumed) == (1, 1)
    await app.mux.aclose()


class Works(Tool):
    """Waits for `go`, then returns."""

    name = "counts"
    task = "auto"
    result_ttl = 60.0

    def __init__(self, go: asyncio.Event, gives: Any = "done") -> None:
        self.go = go
        self.gives = gives
        self.calls = 0

    async def call(self, request: Any, channel: Any) -> Any:
        self.calls += 1
        await self.go.wait()
        return self.gives

    async def continue_(self, tag: str, outcome: Any, channel: Any) -> Any:
        return f"{tag} continued"


async def test_client_that_leaves_late_frees_no_key(store: Any) -> None:
    """The call has ended, and its result is being written: the retry gets that."""
    tool = Works(asyncio.Event())
    app = serving(tool, store=store)
    client = await begin(app)
    gate = asyncio.Event()
    async with client.open(keyed(client)) as leaving:
        await until(lambda: tool.calls)
        store.next(writes_record, before=gate)
        tool.go.set()
        await store.reached.wait()
        leaving.disconnect()
        await until(lambda: not len(app.mux.waiting_calls), pause=0.01)
    gate.set()

    assert await call(client) == "done"
    assert tool.calls == 1
    await app.mux.aclose()


@job(name="races.work")
async def work(run: Run) -> str:
    return "worked"


async def test_job_begins_when_its_worker_starts_late(stores: tuple[HeldFile, HeldFile]) -> None:
    """The store failed when the worker was started: the job begins later, and the hook runs once.

    A copy at another process gets its result, and does not wait for an orphaned record.
    """
    a, b = stores
    go = asyncio.Event()
    go.set()
    one, other = (Works(go, Continue("named", work.job())) for _ in range(2))
    app_a, app_b = serving(one, store=a, lease=1.0), serving(other, store=b, lease=1.0)
    at_a, at_b = await begin(app_a), await begin(app_b)
    service = app_a.mux.tasks.service
    start, failed = service.worker.start, asyncio.Event()

    async def fails() -> None:
        if one.calls and not failed.is_set():
            failed.set()
            raise StoreUnavailable("the store could not be reached")
        await start()

    service.worker.start = fails  # type: ignore[method-assign]
    async with asyncio.timeout(PATIENCE):
        first = asyncio.create_task(at_a.send(keyed(at_a)))
        await failed.wait()
        answers = [said(await first), said(await at_b.send(keyed(at_b)))]

    assert (answers, one.calls + other.calls) == (["named continued"] * 2, 1)
    for app in app_a, app_b:
        await app.mux.aclose()


async def test_rejected_late_task_frees_the_key_elsewhere(
    stores: tuple[HeldFile, HeldFile],
) -> None:
    """Its client has got 503; the store is back, and has no room for the task."""
    a, b = stores
    go = asyncio.Event()
    go.set()
    one, other = Works(go, Continue("named", work.job())), Works(go)
    app_a, app_b = serving(one, store=a, lease=0.3), serving(other, store=b, lease=0.3)
    at_a, at_b = await begin(app_a), await begin(app_b)
    errors: list[Exception] = [StoreUnavailable("locked")]
    apply = a.apply

    async def fails(*ops: Op) -> None:
        if any(isinstance(op, Put) and op.key.endswith("#call") for op in ops):
            raise errors[0]
        await apply(*ops)

    a.apply = fails  # type: ignore[method-assign]
    assert "error" in (await at_a.send(keyed(at_a))).json  # after a lease
    errors[0] = StoreFull("no room")

    assert said(await asyncio.wait_for(at_b.send(keyed(at_b)), PATIENCE)) == "done"
    for app in app_a, app_b:
        await app.mux.aclose()


@pytest.mark.parametrize("capabilities", [ASKS, {**ASKS, **TASKS}], ids=["plain", "tasks"])
async def test_question_after_a_failed_promotion_is_answered(
    capabilities: dict[str, Any],
) -> None:
    """The promotion took place although it was reported as failed: the task asks."""
    store, failing = HeldMemory(), asyncio.Event()
    tool = Works(asyncio.Event(), Continue("named", elicit("Who?", NAME)))
    tool.promote_after, tool.max_hold = 0.01, 0.01
    app = serving(tool, store=store)
    client = await begin(app, capabilities=capabilities)
    apply = store.apply

    async def fails(*ops: Op) -> None:
        promotes = any(map(writes_record, ops)) and not tool.go.is_set()
        if promotes and failing.is_set():
            raise StoreUnavailable("the connection was lost")
        await apply(*ops)
        if promotes:
            failing.set()
            raise StoreUnavailable("the connection was lost")

    store.apply = fails  # type: ignore[method-assign]
    async with client.open(keyed(client)) as asking:
        await failing.wait()
        await settled(app)
        tool.go.set()
        asked = (await asking.over()).json["result"]
    if asked["resultType"] == "task":
        get = client.request("tasks/get", {"taskId": asked["taskId"]})
        found = (await client.send(get)).json["result"]
        assert found["status"] == "input_required"
        answers = {"taskId": asked["taskId"], "inputResponses": {_key(found): BOB}}
        await client.send(client.request("tasks/update", answers))
        assert await end_of(client, asked["taskId"]) == "completed"
        found = (await client.send(get)).json["result"]
        assert found["result"]["content"][0]["text"] == "named continued"
    else:
        again = keyed(client)
        state = {"requestState": asked["requestState"], "inputResponses": {_key(asked): BOB}}
        again["params"] |= state
        assert said(await client.send(again)) == "named continued"
    assert tool.calls == 1
    await app.mux.aclose()


def _key(asked: Any) -> str:
    (key,) = asked["inputRequests"]
    return str(key)


async def test_key_is_free_after_the_restart_of_a_durable_store() -> None:
    """One process at a time has the store, which outlives it: the record names a dead one."""

    class Disk(MemoryStore):
        durable = True

    store, go = Disk(), asyncio.Event()
    tool, restarted = Works(go), Works(go)
    app = serving(tool, store=store, lease=0.3)
    client = await begin(app)
    async with client.open(keyed(client)) as left:
        await until(lambda: tool.calls)
        await app.mux.tasks.service.worker.aclose()  # no heartbeat any more: as if killed
        again = serving(restarted, store=store, lease=0.3)
        retry = await begin(again)
        async with retry.open(keyed(retry)) as copy:
            await until(lambda: restarted.calls)
            go.set()
            assert said(await copy.over()) == "done"
        await left.over()
    for each in app, again:
        await each.mux.aclose()


async def test_key_is_freed_in_a_store_that_is_full(store: Any) -> None:
    """A record is deleted without room for an event about that."""
    tool = Works(asyncio.Event())
    tool.go.set()
    app = serving(tool, store=store)
    client = await begin(app)
    store.next(
        lambda op: isinstance(op, Put) and "/task:k" in op.key,
        after=StoreUnavailable("the connection was lost"),
    )
    apply = store.apply

    async def full(*ops: Op) -> None:
        if any(isinstance(op, Append) for op in ops):
            raise StoreFull("no room")
        await apply(*ops)

    store.apply = full
    assert "error" in (await client.send(keyed(client))).json
    await settled(app)
    store.apply = apply

    assert await call(client) == "done"
    await app.mux.aclose()
