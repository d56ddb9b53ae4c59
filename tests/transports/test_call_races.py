"""Calls for which two things happen at once: a promotion, and an end, a copy or a departure."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from genmcp import (
    Access,
    Channel,
    Continue,
    Endpoint,
    JobOptions,
    MemoryStore,
    Mux,
    Provider,
    Run,
    SQLiteStore,
    Store,
    Suite,
    Tool,
    job,
)
from genmcp._mux.telemetry import Telemetry
from genmcp.core.request import RESULT_TOOL, Request
from genmcp.core.task import Task
from genmcp.errors import StoreUnavailable
from genmcp.protocol.value import Result
from genmcp.stores.store import Op, Put
from tests.support.asgi import TASKS, Client, until
from tests.support.keyed import HeldMemory, begin, keyed, over, said
from tests.support.pipes import modern, piped, request
from tests.transports.test_promotion_races import Doubtful
from tests.transports.test_sse_pair import app_of, connected

OPEN: list[Mux] = []
LOST = StoreUnavailable("the connection was lost")


class Stage:
    """Controls the jobs of a test. go: lets them end; began: the number of those that began."""

    go: asyncio.Event
    began: int


@job(name="call_races.work")
async def work(run: Run) -> str:
    Stage.began += 1
    await Stage.go.wait()
    return "worked"


class Staged(Tool):
    """A tool that waits for `go`, then returns the value that the test sets.

    gives: that value; None: the number of the call. channel: that of the last call, from its start.
    """

    name = "counts"

    def __init__(self, gives: Callable[[], Any] | None = None, **attributes: Any) -> None:
        self.gives = gives
        self.calls = 0
        self.channel: Any = None
        self.go = asyncio.Event()
        for name, value in attributes.items():
            setattr(self, name, value)

    async def call(self, request: Any, channel: Channel) -> Any:
        self.calls += 1
        self.channel = channel
        await self.go.wait()
        return f"call {self.calls}" if self.gives is None else self.gives()

    async def continue_(self, tag: str, outcome: Any, channel: Channel) -> str:
        return f"{outcome.value} well"

    async def promoted(self) -> None:
        """Wait until the promotion of the last call has succeeded or failed."""
        await self.channel.context.promotion_decided()


class Cleans(Staged):
    """A tool that cleans up until `cleaned` when it is cancelled, and then has a result."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.cancelled = asyncio.Event()
        self.cleaned = asyncio.Event()

    async def call(self, request: Any, channel: Channel) -> Any:
        if self.calls:  # it should not run twice, nor should that take long
            self.go.set()
        try:
            return await super().call(request, channel)
        except asyncio.CancelledError:
            self.cancelled.set()
            await self.cleaned.wait()
            return "kept"


def works() -> Continue:
    """Let a job do the work."""
    return Continue("worked", work.job())


def at_once(**attributes: Any) -> Staged:
    """Return a tool that lets a job do its work from the start."""
    tool = Staged(works, **attributes)
    tool.go.set()
    return tool


@pytest.fixture(autouse=True)
async def _staged(_tasks_end: None) -> AsyncIterator[None]:
    Stage.go, Stage.began = asyncio.Event(), 0
    yield
    while OPEN:
        await OPEN.pop().aclose()


def serving(
    *tools: Tool, store: Store | None = None, jobs: JobOptions | None = None, grace: float = 5.0
) -> Endpoint:
    """Return an endpoint that takes the client from its scope. *grace*: that of its shutdown."""
    suite = Suite(name="test", version="1", tools=tools)
    OPEN.append(
        Mux(
            suite,
            store=store or MemoryStore(),
            jobs=jobs or JobOptions(shutdown_grace=0.0),
            secret="a secret of 16 bytes",
        )
    )
    return Endpoint(OPEN[-1], principal=lambda scope: scope.get("who"), grace=grace)


def reads_held(app: Endpoint) -> tuple[asyncio.Event, asyncio.Event]:
    """Hold back the next read of a task; return the events "begun" and "released"."""
    service, requested, gate = app.mux.tasks.service, asyncio.Event(), asyncio.Event()
    get = service.get

    async def held(id: str, owner: str | None) -> Task:
        service.get = get  # type: ignore[method-assign]
        requested.set()
        await gate.wait()
        return await get(id, owner)

    service.get = held  # type: ignore[method-assign]
    return requested, gate


def steps(op: Op) -> bool:
    """Whether *op* writes the record of an ordinary task that exists already."""
    return isinstance(op, Put) and "/task:" in op.key and "#" not in op.key and bool(op.expect)


def text_of(task: dict[str, Any]) -> str:
    """Return the text of the result of a task."""
    found: str = task["result"]["content"][0]["text"]
    return found


def outcome_of(client: Client, id: str) -> Any:
    """Return the call of the tool that gives the result of call *id*."""
    return client.call(RESULT_TOOL, {"id": id})


# Calls with an idempotency key.


async def test_copy_of_a_keyed_task_is_held_over() -> None:
    """A copy has no task of its own: the call that it follows has one, and continues."""
    app = serving(at_once(max_hold=0.01))
    owner, copy = await begin(app, capabilities=TASKS), await begin(app)
    task = (await owner.send(keyed(owner))).json["result"]

    async with copy.open(keyed(copy)) as connection:
        await connection.over()  # raises the exception of the app
    assert f"It continues as call {task['taskId']}" in said(connection)
    Stage.go.set()
    assert text_of(await over(owner, task["taskId"])) == "worked well"
    assert not len(app.mux.waiting_calls)


async def test_shutdown_gives_the_result_of_a_keyed_call(tmp_path: Path) -> None:
    """The hook returns one in spite of its cancellation."""
    tool = Cleans()
    app = serving(tool, store=SQLiteStore(tmp_path / "a.db"))
    client = await begin(app)
    async with client.open(keyed(client)) as connection:
        await until(lambda: tool.calls)
        closing = asyncio.create_task(app.aclose())
        await tool.cancelled.wait()
        tool.cleaned.set()
        await connection.over()
    await closing

    assert (said(connection), tool.calls) == ("kept", 1)


async def test_job_of_keyed_call_ends_before_the_handle() -> None:
    """The record for the handle is read while the result comes: either is a response."""
    app = serving(tool := at_once(max_hold=0.01))
    client = await begin(app)
    requested, gate = reads_held(app)
    async with client.open(keyed(client)) as connection:
        await requested.wait()
        Stage.go.set()
        await until(lambda: not len(app.mux.waiting_calls))
        gate.set()
        await connection.over()

    text = said(connection)
    assert text == "worked well" or "It continues" in text
    assert (said(await client.send(keyed(client))), tool.calls) == ("worked well", 1)


async def test_host_cancels_keyed_call_before_the_handle() -> None:
    """Its CancelledError propagates while the record is read: the request has ended."""
    app = serving(tool := at_once(max_hold=0.01))
    client = await begin(app)
    requested, gate = reads_held(app)
    async with client.open(keyed(client)) as connection:
        await requested.wait()
        connection.task.cancel()
        await until(lambda: not len(app.mux.waiting_calls))
        gate.set()
        await asyncio.wait([connection.task])
        assert connection.task.cancelled()
    Stage.go.set()
    assert (said(await client.send(keyed(client))), tool.calls) == ("worked well", 1)


# Promotions that were written, and reported as failed.


async def test_host_cancels_after_a_doubtful_promotion() -> None:
    """The record may have been written: it is deleted, since no client has its id."""
    store, tool = Doubtful(1), Staged(promote_after=0.01)
    client = await begin(serving(tool, store=store), capabilities=TASKS)
    async with client.open(client.call("counts")) as connection:
        await until(lambda: not store.faults)
        await tool.promoted()
        assert store.left
        connection.task.cancel()
        await asyncio.wait([connection.task])

    await until(lambda: not store.left, bound=1)


async def test_job_after_a_doubtful_promotion_has_one_record() -> None:
    """The id of the job's task. The first one would stay `working`."""
    store, tool = Doubtful(1), Staged(works, max_hold=0.01)
    client = await begin(serving(tool, store=store))
    async with client.open(client.call("counts")) as connection:
        await until(lambda: not store.faults)
        await tool.promoted()
        tool.go.set()
        await connection.over()
    await until(lambda: len(store.left) == 1, bound=1)

    id = store.left[0].partition("task:")[2]
    assert f"It continues as call {id}" in said(connection)
    Stage.go.set()
    async with asyncio.timeout(1):
        while "has no result yet" in (text := said(await client.send(outcome_of(client, id)))):
            pass
    assert text == "worked well"


# Handles that are sent.


class Slow(asyncio.Event):
    """The `reading` of a connection; requested: set once a message is sent to its client."""

    def __init__(self) -> None:
        super().__init__()
        self.requested = asyncio.Event()

    async def wait(self) -> Any:
        self.requested.set()
        return await super().wait()


class Counting(HeldMemory):
    """A store that counts the writes of the records of tasks that exist."""

    written = 0

    async def apply(self, *ops: Op) -> None:
        self.written += any(map(steps, ops))
        await super().apply(*ops)


async def test_step_reached_while_the_handle_is_sent() -> None:
    """The hook writes it, and the promotion does not: the second write would be out of turn."""
    store, gate, ends = Counting(), asyncio.Event(), asyncio.Event()

    async def named() -> str:
        await ends.wait()
        return "named"

    tool = Staged(lambda: Continue("named", named()), promote_after=0.01)
    client = await begin(serving(tool, store=store), capabilities=TASKS)
    async with client.open(client.call("counts")) as connection:
        connection.reading = reading = Slow()
        await reading.requested.wait()
        store.next(steps, before=gate)
        tool.go.set()
        await store.reached.wait()
        reading.set()
        await tool.promoted()  # with all that it writes
        gate.set()
        ends.set()
        await connection.over()

    assert text_of(await over(client, connection.json["result"]["taskId"])) == "named well"
    assert store.written == 2  # the step and the result


async def test_sse_pair_closes_after_a_call_was_held_over() -> None:
    """2024-11-05: its client fetches the result by the id, with any `on_disconnect`."""
    ended = asyncio.Event()

    def gives() -> str:
        ended.set()
        return "done"

    tool = Staged(gives, max_hold=0.01, on_disconnect="cancel")
    async with AsyncExitStack() as stack:
        async with connected(app_of(serving(tool))) as pair:
            post = await stack.enter_async_context(pair.open(pair.call("counts", id=3)))
            assert "It continues" in str(await pair.stream.message())
        tool.go.set()
        await asyncio.wait([post.task])
    assert ended.is_set()


async def test_batch_on_a_pipe_is_held_over() -> None:
    """2025-03-26: the responses are sent once each member has one, and the hook continues."""
    tool = Staged(max_hold=0.01)
    async with piped(tool) as wires:
        await wires.initialize("2025-03-26")
        wires.send([request("tools/call", {"name": "counts", "arguments": {}}, id=1)])
        try:
            async with asyncio.timeout(0.5):
                (response,) = await wires.receive()
        finally:
            tool.go.set()
    assert response["id"] == 1
    assert "It continues" in str(response["result"])


# Ends.


async def test_pipe_closes_and_its_client_reads_on() -> None:
    """Its calls are cancelled after the grace; a result that a hook then has is sent."""
    tool = Cleans()
    tool.cleaned.set()
    async with piped(tool, grace=0.01) as wires:
        wires.send(modern("tools/call", {"name": "counts", "arguments": {}}, id=5))
        await until(lambda: tool.calls)
        wires.hang_up()
        async with asyncio.timeout(0.5):
            response = await wires.receive()
    assert (response["id"], text_of(response)) == (5, "kept")


class Routes(Telemetry):
    """Records of each call that ends whether its route is pending."""

    def __init__(self) -> None:
        self.pending: list[bool] = []

    def request_ended(self, request: Request, result: Result, mark: Any) -> None:
        if request.method == "tools/call":
            assert request.route is not None
            self.pending.append(request.route.pending)


class Deferred(Provider):
    """Has its tools only when a call asks for one."""

    async def tools(self, access: Access | None, assigns: Mapping[str, Any]) -> Any:
        return [at_once()]


class Guarded(Staged):
    """A tool that everybody may see, which is found out for each call."""

    def visible(self, access: Access | None) -> bool:
        return True


@pytest.mark.parametrize("capabilities", [{}, TASKS], ids=["plain", "tasks"])
@pytest.mark.parametrize("deferred", [True, False], ids=["provider", "visible"])
async def test_telemetry_sees_the_resolved_route(
    capabilities: dict[str, Any], deferred: bool
) -> None:
    """The policy of the tool counts, not that of the route which the request came with."""
    (guarded := Guarded(works)).go.set()
    routes = Routes()
    has: dict[str, Any] = {"providers": [Deferred()]} if deferred else {"tools": [guarded]}
    OPEN.append(Mux(Suite(name="test", version="1", **has), telemetry=routes))
    client = await begin(Endpoint(OPEN[-1]), capabilities=capabilities)
    Stage.go.set()
    await client.send(client.call("counts"))

    await until(lambda: routes.pending)
    assert routes.pending == [False]
