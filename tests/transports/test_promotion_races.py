"""Races at the moment when a call is handed to the store."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from genmcp import Channel, Continue, Done, Endpoint, MemoryStore, Mux, Run, Suite, Tool, job
from genmcp.core.outcome import Outcome
from genmcp.core.request import TaskUse
from genmcp.errors import StoreUnavailable
from genmcp.stores.store import Op, Put
from tests.support.asgi import PATIENCE, TASKS, Client, until
from tests.support.stores import stored_keys

OPEN: list[Mux] = []


class Gate(MemoryStore):
    """A store in which a new task is not written until that is let happen."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = asyncio.Event()
        self.go = asyncio.Event()
        self.created: list[str] = []

    async def apply(self, *ops: Op) -> None:
        for op in ops:
            if isinstance(op, Put) and "/task:" in op.key and op.expect == 0:
                self.asked.set()
                await self.go.wait()
                self.created.append(op.key)
                break
        await super().apply(*ops)

    @property
    def left(self) -> list[str]:
        """The tasks that are there."""
        return [key for key in self.created if key in stored_keys(self)]


class Stage:
    """The events for which jobs of a test wait, and the recorded runs."""

    go: asyncio.Event
    did: list[str]


@job
async def staged(run: Run) -> str:
    Stage.did.append("began")
    try:
        await Stage.go.wait()
    finally:
        Stage.did.append("ended")
    return "worked"


class Works(Tool):
    """Lets a job do its work."""

    name = "works"

    def __init__(self, **attributes: Any) -> None:
        for name, value in attributes.items():
            setattr(self, name, value)

    def call(self, request: Any, channel: Channel) -> Continue:
        return Continue("worked", staged.job())

    def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> str:
        assert isinstance(outcome, Done)
        return f"{outcome.value} well"

    def on_cancel(self, channel: Channel) -> None:
        Stage.did.append(f"cancelled {channel.request.arguments}")


@pytest.fixture(autouse=True)
async def _staged(_tasks_end: None) -> AsyncIterator[None]:
    Stage.go, Stage.did = asyncio.Event(), []
    yield
    while OPEN:
        await OPEN.pop().aclose()


def serving(tool: Tool, store: MemoryStore) -> Endpoint:
    OPEN.append(Mux(Suite(name="test", version="1", tools=[tool]), store=store))
    return Endpoint(OPEN[-1])


async def over(client: Client, id: str) -> dict[str, Any]:
    """Return how a task ends."""
    async with asyncio.timeout(PATIENCE):
        while True:
            answer = await client.send(client.request("tasks/get", {"taskId": id}))
            task: dict[str, Any] = answer.json["result"]
            if task["status"] not in ("working", "input_required"):
                return task
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("patience", [0.001, 0.05])
async def test_timeout_while_a_job_is_written_makes_no_second_task(
    patience: float,
) -> None:
    """The client gets the one handle, and the job's result is there."""
    gate = Gate()
    client = Client(serving(Works(promote_after=patience), gate), capabilities=TASKS)
    async with client.open(client.call("works")) as connection:
        await gate.asked.wait()
        await asyncio.sleep(2 * patience)  # by then the patience has run out
        gate.go.set()
        await connection.over()
    Stage.go.set()

    task = await over(client, connection.json["result"]["taskId"])
    assert task["result"]["content"][0]["text"] == "worked well"
    assert len(gate.created) == 1


async def test_call_that_needs_a_job_while_it_is_written_is_one_task() -> None:
    """Its promotion is waited for, and the job is that of the task it has become."""
    gate, goes_on = Gate(), asyncio.Event()

    async def first() -> str:
        await goes_on.wait()
        return "first"

    class Then(Works):
        def call(self, request: Any, channel: Channel) -> Continue:
            return Continue("first", first())

        def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> Any:
            if tag == "first":
                return Continue("worked", staged.job())
            return super().continue_(tag, outcome, channel)

    client = Client(serving(Then(promote_after=0.001), gate), capabilities=TASKS)
    Stage.go.set()
    async with client.open(client.call("works")) as connection:
        await gate.asked.wait()
        goes_on.set()
        await asyncio.sleep(0.01)  # leaves time for an unwanted second run
        gate.go.set()
        await connection.over()

    task = await over(client, connection.json["result"]["taskId"])
    assert task["result"]["content"][0]["text"] == "worked well"
    assert len(gate.created) == 1


async def test_disconnect_while_a_job_is_written_cancels_the_job() -> None:
    """The job, if it began at all, is stopped; `on_cancel` runs, and knows the arguments."""
    gate = Gate()
    client = Client(serving(Works(), gate), capabilities=TASKS)
    async with client.open(client.call("works", {"n": 1})) as connection:
        await gate.asked.wait()
        connection.disconnect()
        gate.go.set()
        await connection.over()
        await until(lambda: "cancelled {'n': 1}" in Stage.did, pause=0.001)
    await until(lambda: Stage.did.count("began") == Stage.did.count("ended"), pause=0.001)
    for key in gate.left:
        assert (await over(client, key.partition("task:")[2]))["status"] == "cancelled"


class Always(Tool):
    """Is a task before it runs."""

    name = "always"
    task: TaskUse = "always"
    promote_after = 0.005

    def __init__(self) -> None:
        self.runs = 0
        self.channel: Channel

    async def call(self, request: Any, channel: Channel) -> str:
        self.runs += 1
        self.channel = channel
        await Stage.go.wait()
        return "done"


async def test_always_a_task_is_not_made_one_twice() -> None:
    """Its patience has nothing more to do."""
    gate, always = Gate(), Always()
    gate.go.set()
    client = Client(serving(always, gate), capabilities=TASKS)
    async with client.open(client.call("always")) as connection:
        await until(lambda: connection.complete)
        await asyncio.sleep(5 * always.promote_after)  # leaves time for an unwanted second run
        Stage.go.set()
        await connection.over()
    assert (await over(client, connection.json["result"]["taskId"]))["status"] == "completed"
    assert (always.runs, len(gate.created)) == (1, 1)


async def test_always_a_task_leaves_no_record_after_early_disconnect() -> None:
    """The call has not run, and no record stays behind that would be `working`."""
    gate, always = Gate(), Always()
    client = Client(serving(always, gate), capabilities=TASKS)
    async with client.open(client.call("always")) as connection:
        await gate.asked.wait()
        connection.disconnect()
        gate.go.set()
        await connection.over()
    assert (always.runs, gate.left) == (0, [])


async def test_host_that_cancels_during_a_promotion_leaves_no_record() -> None:
    """After any number of failures: the record is deleted by its writer."""
    gate = Gate()

    class Plain(Always):
        name = "plain"
        task = "auto"

    client = Client(serving(Plain(), gate), capabilities=TASKS)
    async with client.open(client.call("plain")) as connection:
        await gate.asked.wait()
        while not connection.task.done():
            connection.task.cancel()
            await asyncio.sleep(0)
        gate.go.set()
        await until(lambda: gate.created)
    await until(lambda: not gate.left, pause=0.001)


async def test_channel_of_a_cancelled_task_is_closed() -> None:
    """A `def` hook that looks at it can stop."""
    gate, always = Gate(), Always()
    gate.go.set()
    client = Client(serving(always, gate), capabilities=TASKS)
    async with client.open(client.call("always")) as connection:
        await until(lambda: connection.complete and always.runs)
        assert not always.channel.closed
        id = connection.json["result"]["taskId"]
        await client.send(client.request("tasks/cancel", {"taskId": id}, id=2))
        await connection.over()
    assert always.channel.closed


async def test_continue_that_cancels_itself_fails_like_any_other() -> None:
    """A CancelledError without a cancellation is a failure of the hook, and runs once."""

    class Cancels(Works):
        name = "cancels"

        async def continue_(  # type: ignore[override]
            self, tag: str, outcome: Outcome, channel: Channel
        ) -> str:
            Stage.did.append("continued")
            future: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            future.cancel()
            return await future

    client = Client(serving(Cancels(), MemoryStore()), capabilities=TASKS)
    Stage.go.set()
    begun = await client.send(client.call("cancels"))
    task = await over(client, begun.json["result"]["taskId"])

    assert (task["status"], task["result"]["isError"]) == ("completed", True)
    assert Stage.did == ["began", "ended", "continued"]


async def test_batch_disconnect_keeps_calls_that_were_held_over() -> None:
    """2025-03-26: a call that was held over continues, the others are cancelled by their policy."""

    class Slow(Always):
        task = "auto"
        on_disconnect = "cancel"

        def __init__(self, name: str, hold: float | None) -> None:
            super().__init__()
            self.name = name
            self.max_hold = hold

        async def call(self, request: Any, channel: Channel) -> str:
            channel.start_stream()
            try:
                return await super().call(request, channel)
            except asyncio.CancelledError:
                Stage.did.append(f"{self.name} cancelled")
                raise
            finally:
                Stage.did.append(f"{self.name} ended")

    store = MemoryStore()
    mux = Mux(
        Suite(name="test", version="1", tools=[Slow("held", 0.001), Slow("other", None)]),
        store=store,
    )
    OPEN.append(mux)
    client = await Client.begin(Endpoint(mux), "2025-03-26")
    batch = [client.call("held", id=1), client.call("other", id=2)]
    async with client.open(batch) as connection:
        assert "It continues" in str(await connection.message())
        connection.disconnect()
        await until(lambda: "other cancelled" in Stage.did)
        assert "held ended" not in Stage.did
        Stage.go.set()
        await connection.over()
    assert "held cancelled" not in Stage.did


class Doubtful(Gate):
    """A store that writes the record of a task, and then reports a failure."""

    def __init__(self, faults: int) -> None:
        super().__init__()
        self.faults = faults
        self.go.set()

    async def apply(self, *ops: Op) -> None:
        task = any(isinstance(op, Put) and "/task:" in op.key for op in ops)
        await super().apply(*ops)
        if task and self.faults:
            self.faults -= 1
            raise StoreUnavailable("database is locked")


class Refusing(Doubtful):
    """A store that is locked: it does not write the record."""

    async def apply(self, *ops: Op) -> None:
        if self.faults and any(isinstance(op, Put) and "/task:" in op.key for op in ops):
            self.faults -= 1
            raise StoreUnavailable("database is locked")
        await super().apply(*ops)


class Waits(Tool):
    """Waits until it may end."""

    name = "waits"
    promote_after = 0.01

    async def call(self, request: Any, channel: Channel) -> str:
        await Stage.go.wait()
        return "waited"


@pytest.mark.parametrize("kind", [Doubtful, Refusing])
async def test_promotion_that_failed_is_tried_again(kind: type[Doubtful]) -> None:
    """A store that is locked for a while does not hold the client to the end of its call."""
    client = Client(serving(Waits(), store := kind(2)), capabilities=TASKS)
    async with client.open(client.call("waits")) as connection:
        await until(lambda: connection.complete, pause=0.01)
        id = connection.json["result"]["taskId"]
        Stage.go.set()
        await connection.over()

    assert (await over(client, id))["result"]["content"][0]["text"] == "waited"
    assert len({*store.left}) == 1


@pytest.mark.parametrize("kind", [Doubtful, Refusing])
async def test_call_that_ends_before_its_promotion_leaves_no_record(kind: type[Doubtful]) -> None:
    """It gets a plain response; a record that may exist is deleted."""
    client = Client(serving(Waits(), store := kind(1)), capabilities=TASKS)
    async with client.open(client.call("waits")) as connection:
        await until(lambda: not store.faults)
        Stage.go.set()
        await connection.over()

    assert connection.json["result"]["content"][0]["text"] == "waited"
    assert store.left == []


async def test_cancellation_during_the_write_sends_no_handle() -> None:
    """The client has cancelled the call before its promotion, so that the record is not needed."""
    gate, cancelled, cleaned = Gate(), asyncio.Event(), asyncio.Event()

    class Holds(Tool):
        """Cleans up for a while when it is cancelled."""

        name = "holds"
        max_hold = 0.001

        async def call(self, request: Any, channel: Channel) -> str:
            try:
                await asyncio.Event().wait()
            finally:
                cancelled.set()
                await cleaned.wait()
            return "unreachable"

    app = serving(Holds(), gate)
    client = await Client.begin(app, "2025-11-25")
    async with client.open(client.call("holds", id=7)) as connection:
        await gate.asked.wait()
        await client.send(client.notification("notifications/cancelled", requestId=7))
        await cancelled.wait()
        gate.go.set()
        await until(lambda: bool(gate.created))
        cleaned.set()
        await connection.over()

    assert connection.body == b""
    assert not gate.left


async def test_handle_is_sent_although_the_result_arrives_meanwhile() -> None:
    """The client reads slowly, so that the call ends before its handle is written."""
    app = serving(Works(max_hold=0.001), MemoryStore())
    blocked, reads = asyncio.Event(), asyncio.Event()

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        async def send_later(event: Any) -> None:
            blocked.set()
            await reads.wait()
            await send(event)

        await app(scope, receive, send_later)

    client = Client(slow)
    async with client.open(client.call("works")) as connection:
        await blocked.wait()
        Stage.go.set()
        await until(lambda: not len(app.mux.waiting_calls))  # the hook has ended
        reads.set()
        await connection.over()

    assert connection.status == 200
    assert "longer than a call is held" in connection.json["result"]["content"][0]["text"]
