"""`continue_` without a request: its channel is that of a task."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from genmcp import (
    CapabilityMissing,
    Channel,
    Continue,
    Done,
    Endpoint,
    MemoryStore,
    Middleware,
    Mux,
    Run,
    Server,
    Suite,
    Tool,
    job,
)
from genmcp.channel import SendStatus
from genmcp.core.client_key import ClientKey
from genmcp.core.outcome import Outcome
from genmcp.errors import ContractError, StoreUnavailable
from genmcp.protocol.client_features import ElicitRequestParams
from genmcp.server import Route
from genmcp.stores.store import Append, Op
from tests.support.asgi import PATIENCE, TASKS, Client, until
from tests.support.channels import promote


class Stage:
    """The events for which jobs of a test wait, and the recorded calls."""

    go: asyncio.Event
    saw: list[Any]


@job
async def resumed(run: Run) -> str:
    await Stage.go.wait()
    return "worked"


class Goes(Tool):
    """Waits for a job, and continues."""

    name = "goes"

    def call(self, request: Any, channel: Channel) -> Any:
        return Continue("worked", resumed.job())

    def on_cancel(self, channel: Channel) -> None:
        Stage.saw.append("cancelled")


OPEN: list[Mux] = []


@pytest.fixture(autouse=True)
async def _staged(_tasks_end: None) -> AsyncIterator[None]:
    Stage.go, Stage.saw = asyncio.Event(), []
    yield
    while OPEN:
        await OPEN.pop().aclose()


def serving(tool: Tool) -> Endpoint:
    OPEN.append(Mux(Suite(name="test", version="1", tools=[tool])))
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


async def begun(client: Client) -> str:
    answer = await client.send(client.call("goes"))
    id: str = answer.json["result"]["taskId"]
    return id


async def test_resumed_channel_works_without_a_request() -> None:
    """Threads, changes of the server and its level are there; a stream and its client are not."""

    class Uses(Goes):
        async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> str:
            channel.start_stream()
            channel.release()
            await promote(channel)
            channel.changes.tools_list_changed()
            Stage.saw += [await channel.in_thread(lambda: "in a thread"), channel.closed]
            Stage.saw.append(await channel.log("info", "nobody asked for it"))
            with pytest.raises(CapabilityMissing):
                await channel.context.sink.ask(
                    channel.request, "elicitation/create", ElicitRequestParams("?", {}, mode="form")
                )
            return "done"

    client = Client(serving(Uses()), capabilities=TASKS)
    Stage.go.set()
    task = await over(client, await begun(client))

    assert task["result"]["content"][0]["text"] == "done"
    assert Stage.saw == ["in a thread", False, SendStatus.UNWANTED]


async def test_resumed_channel_speaks_to_who_holds_the_response() -> None:
    """Log messages, and notifications of any name, reach a client that waits for the answer."""

    class Speaks(Goes):
        async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> str:
            Stage.saw.append(await channel.log("warning", {"half": 1}))
            Stage.saw.append(await channel.notify("notifications/x-test"))
            return "done"

    client = await Client.begin(serving(Speaks()), "2025-11-25")
    client.check = lambda message: None  # type: ignore[method-assign]  # it has a name of its own
    async with client.open(client.call("goes")) as connection:
        Stage.go.set()
        await connection.over()

    methods = [each.get("method") for each in connection.messages]
    assert methods == ["notifications/message", "notifications/x-test", None]
    assert connection.messages[0]["params"]["data"] == {"half": 1}
    assert Stage.saw == [SendStatus.SENT] * 2


async def test_resumed_call_of_a_tool_that_is_gone_fails() -> None:
    """A removed component cannot continue: the task fails, and does not wait without end."""

    class Gone(Goes):
        def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> str:
            return "never said"

    class Stays(Gone):
        name = "stays"

    suite = Suite(name="test", version="1", tools=[Gone, Stays])
    OPEN.append(Mux(suite))
    client = Client(Endpoint(OPEN[-1]), capabilities=TASKS)
    id = await begun(client)
    suite.remove("goes")
    Stage.go.set()

    task = await over(client, id)
    assert (task["status"], task["error"]["code"]) == ("failed", -32603)


BY = pytest.mark.parametrize("by", ["its client", "a disconnect"])


@asynccontextmanager
async def cancelled(tool: Tool, by: str, running: asyncio.Event) -> AsyncIterator[None]:
    """Call *tool*, and cancel the call once it is *running* in a worker."""
    client = Client(serving(tool), capabilities=TASKS if by == "its client" else {})
    Stage.go.set()
    async with client.open(client.call("goes")) as connection:
        async with asyncio.timeout(PATIENCE):
            await running.wait()
        if by == "its client":
            id = connection.json["result"]["taskId"]
            await client.send(client.request("tasks/cancel", {"taskId": id}, id=2))
        else:
            connection.disconnect()
            await connection.over()
        yield
    if by == "its client":
        assert (await over(client, id))["status"] == "cancelled"


@BY
async def test_resumed_call_that_awaits_is_cancelled_where_it_runs(by: str) -> None:
    """The wait of `continue_` is cancelled, and `on_cancel` runs once, after that."""
    waits, cleaned = asyncio.Event(), asyncio.Event()

    async def endless() -> None:
        waits.set()
        try:
            await asyncio.Event().wait()
        finally:
            await cleaned.wait()
            Stage.saw.append("stopped")

    class Awaits(Goes):
        def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> Continue:
            return Continue("waited", endless())

    async with cancelled(Awaits(), by, waits):
        cleaned.set()
        await until(lambda: len(Stage.saw) == 2, pause=0.001)

    assert Stage.saw == ["stopped", "cancelled"]


async def test_step_that_was_taken_over_is_no_cancelled_call() -> None:
    """Others have considered this process dead: `continue_` decides, and `on_cancel` never runs."""
    waits = asyncio.Event()

    async def endless() -> None:
        waits.set()
        await asyncio.Event().wait()

    class Awaits(Goes):
        def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> Any:
            return type(outcome).__name__ if tag == "waited" else Continue("waited", endless())

    client = Client(serving(Awaits()), capabilities=TASKS)
    Stage.go.set()
    id = await begun(client)
    async with asyncio.timeout(PATIENCE):
        await waits.wait()
    service = OPEN[-1].tasks.service
    await service.writer.take_from_dead(await service.records.get(id))
    await service.runner.check()
    task = await over(client, id)

    assert task["result"]["content"][0]["text"] == "Failed"
    assert Stage.saw == []


class Cleans(Goes):
    """Continues until it is cancelled, and then cleans up until *cleaned*."""

    def __init__(self) -> None:
        self.continues, self.cleaned = asyncio.Event(), asyncio.Event()

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> str:
        channel.assigns["left"] = "a file"
        self.continues.set()
        try:
            await asyncio.Event().wait()
        finally:
            await self.cleaned.wait()
            Stage.saw.append("stopped")
        return "never"

    def on_cancel(self, channel: Channel) -> None:
        Stage.saw.append(channel.assigns["left"])


@BY
async def test_on_cancel_runs_after_the_method_has_ended(by: str) -> None:
    """A method that continues a call after its job runs in a worker. It may clean up for long."""
    tool = Cleans()
    async with cancelled(tool, by, tool.continues):
        tool.cleaned.set()
        await until(lambda: len(Stage.saw) == 2, pause=0.001)

    assert Stage.saw == ["stopped", "a file"]


async def test_error_of_on_cancel_is_logged_as_such(caplog: pytest.LogCaptureFixture) -> None:
    """The log does not state that the hook has failed, which was cancelled."""
    waits = asyncio.Event()

    async def endless() -> None:
        waits.set()
        await asyncio.Event().wait()

    class Fails(Goes):
        def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> Continue:
            return Continue("waited", endless())

        def on_cancel(self, channel: Channel) -> None:
            raise ValueError("in on_cancel")

    async with cancelled(Fails(), "its client", waits):
        await until(lambda: caplog.records, pause=0.001)

    assert [each.getMessage() for each in caplog.records] == ["on_cancel failed"]


class Knows(Goes):
    """Knows the id of its job, in each of its hooks."""

    def call(self, request: Any, channel: Channel) -> Any:
        Stage.saw.append(channel.run_id)
        return Continue("worked", tells_its_id.job())

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> Any:
        Stage.saw.append(channel.run_id)
        if tag == "worked":
            return Continue("slept", asyncio.sleep(0))
        return "done"

    def on_cancel(self, channel: Channel) -> None:
        Stage.saw.append(channel.run_id)


@job
async def tells_its_id(run: Run) -> None:
    Stage.saw.append(run.id)
    await Stage.go.wait()


@BY
async def test_cancelled_tool_is_given_the_id_of_its_job(by: str) -> None:
    """With it, `on_cancel` finds the job's work elsewhere."""
    client = Client(serving(Knows()), capabilities=TASKS if by == "its client" else {})
    async with client.open(client.call("goes")) as connection:
        await until(lambda: len(Stage.saw) == 2, pause=0.001)
        if by == "a disconnect":
            connection.disconnect()
        await connection.over()
    if by == "its client":
        id = connection.json["result"]["taskId"]
        await client.send(client.request("tasks/cancel", {"taskId": id}, id=2))
    await until(lambda: len(Stage.saw) == 3, pause=0.001)

    in_call, of_job, in_hook = Stage.saw
    assert in_call is None
    assert of_job
    assert of_job == in_hook


async def test_continued_tool_is_given_the_id_of_its_job() -> None:
    """Only in the step after the job: the next wait has another id."""
    client = Client(serving(Knows()), capabilities=TASKS)
    Stage.go.set()
    await over(client, await begun(client))

    in_call, of_job, *after = Stage.saw
    assert in_call is None
    assert [of_job, None] == after


async def test_wrapped_server_resumes_calls_and_gets_cancellations() -> None:
    """Middleware that changes nothing does not affect a resumed call."""

    class Quiet(Goes):
        def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> str:
            return "done"

    class Nothing(Middleware):
        """Changes nothing."""

    OPEN.append(Mux(Nothing(Suite(name="test", version="1", tools=[Quiet]))))
    client = Client(Endpoint(OPEN[-1]), capabilities=TASKS)
    cancelled = await begun(client)
    await client.send(client.request("tasks/cancel", {"taskId": cancelled}, id=2))
    Stage.go.set()
    task = await over(client, await begun(client))

    assert task["result"]["content"][0]["text"] == "done"
    assert Stage.saw == ["cancelled"]


async def test_server_of_ones_own_that_cannot_go_on_says_so() -> None:
    """A server that returns Continue has to implement `resume`, itself or in its routes."""

    class Inner(Suite):
        """Has lost its `continue_`."""

        resume = Server.resume

    class Quick(Tool):
        """Waits for nothing."""

        name = "quick"

        async def work(self) -> str:
            return "done"

        def call(self, request: Any, channel: Channel) -> Any:
            return Continue("worked", self.work())

        def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> str:
            return "never"

    OPEN.append(Mux(Inner(name="test", version="1", tools=[Quick])))
    client = Client(Endpoint(OPEN[-1]))
    answer = await client.send(client.call("quick"))
    assert (answer.status, answer.json["error"]["code"]) == (500, -32603)

    channel: Any = None
    with pytest.raises(ContractError, match="Route has no resume"):
        await Route().resume(channel, Done(1), channel)
    await Route().cancelled(channel)
    assert await Route().resolve(channel) == Route()


async def test_server_that_cannot_go_on_says_so() -> None:
    """A tool without `continue_` fails at once; its coroutine is closed."""

    async def work() -> str:
        return "never"

    class Stops(Tool):
        """Has no `continue_`."""

        name = "goes"

        def call(self, request: Any, channel: Channel) -> Any:
            return Continue("worked", work())

    client = Client(serving(Stops()), capabilities=TASKS)
    answer = await client.send(client.call("goes"))

    assert (answer.status, answer.json["error"]["code"]) == (500, -32603)


class Dumb(MemoryStore):
    """A store that keeps records, and no words."""

    async def apply(self, *ops: Op) -> None:
        if all(isinstance(op, Append) for op in ops):
            raise StoreUnavailable("no room for words")
        await super().apply(*ops)


async def test_lost_messages_of_a_resumed_call_cost_no_result() -> None:
    """Messages that cannot be stored are reported as not sent; the last progress is always kept."""

    class Talks(Goes):
        async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> str:
            Stage.saw.append(await channel.log("warning", "unheard"))
            for number in range(1, 50):
                await channel.progress(number, 49)
            return "done"

    OPEN.append(Mux(Suite(name="test", version="1", tools=[Talks]), store=Dumb()))
    client = Client(Endpoint(OPEN[-1]), capabilities=TASKS)
    Stage.go.set()
    meta: Any = {"progressToken": 1, "io.modelcontextprotocol/logLevel": "debug"}
    answer = await client.send(client.call("goes", **meta))
    task = await over(client, answer.json["result"]["taskId"])

    assert task["result"]["content"][0]["text"] == "done"
    assert task["_meta"]["io.genmcp/progress"] == {"progress": 49, "total": 49}
    assert Stage.saw == [SendStatus.UNWANTED]


async def test_resumed_call_counts_for_the_client_that_made_it() -> None:
    """Bounds hold where no request is: its `def` hooks, for example, take turns as that client."""

    class Looks(Goes):
        async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> str:
            Stage.saw.append(channel.context.caller.client_key)
            return "done"

    client = Client(serving(Looks()), capabilities=TASKS, client=("192.0.2.7", 1))
    Stage.go.set()
    await over(client, await begun(client))

    assert Stage.saw == [ClientKey(None, None, "192.0.2.7")]
