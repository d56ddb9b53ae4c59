"""Events that end a call before its hook, and the effect on the hook."""

import asyncio
import logging
import threading
from typing import Any

import pytest

from genmcp import Channel, Continue, Limits, Mux, Suite, Tool, ToolRequest, elicit, tool
from genmcp._transports.endpoint import Endpoint
from genmcp.channel import SendStatus
from tests.support.asgi import LEGACIES, MODERN, PATIENCE, Client, serving, until


class Held(Tool):
    """Waits until it is released, and records its end."""

    name = "held"

    def __init__(self) -> None:
        self.waits = asyncio.Event()
        self.go = asyncio.Event()
        self.ended = asyncio.Event()
        self.channel: Channel
        self.saw: list[Any] = []

    async def call(self, request: ToolRequest, channel: Channel) -> str:
        self.channel = channel
        self.waits.set()
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.saw.append("cancelled")
            raise
        finally:
            self.saw += [channel.closed, await channel.progress(99)]
            self.ended.set()
        return "done"


async def cancel(client: Client, id: Any) -> None:
    told = await client.send(client.notification("notifications/cancelled", requestId=id))
    assert (told.status, told.body) == (202, b"")


async def test_cancel_modern_disconnect_cancels_the_hook() -> None:
    """The hook is cancelled, its `finally` runs, and its channel is closed."""
    held = Held()
    client = Client(serving(held))
    async with client.open(client.call("held", progressToken=1)) as connection:
        await held.waits.wait()
        connection.disconnect()
        await connection.over()

    assert held.saw == ["cancelled", True, SendStatus.CLOSED]
    assert held.channel.closed
    # Messages that a thread sends just before its end are sent before the end.
    held.channel.context.sink.begin_stream()
    assert not await held.channel.log("error", "x")  # a value, no exception
    assert not await held.channel.notify("notifications/message")
    held.channel.start_stream()
    held.channel.release()
    assert (connection.status, connection.body) == (499, b"")


async def test_cancel_modern_disconnect_of_a_stream() -> None:
    """After messages were sent, too: nothing more is written."""
    held = Held()
    client = Client(serving(held))
    async with client.open(client.call("held", progressToken=1)) as connection:
        await held.waits.wait()
        assert await held.channel.progress(1)
        await connection.message()
        connection.disconnect()
        await connection.over()

    assert held.saw == ["cancelled", True, SendStatus.CLOSED]
    assert len(connection.messages) == 1


async def test_cancel_modern_disconnect_reported_by_send() -> None:
    """A server that raises OSError from `send` reports a disconnect that way."""
    held = Held()
    client = Client(serving(held, heartbeat=60))
    async with client.open(client.call("held", progressToken=1)) as connection:
        await held.waits.wait()
        connection.fails = ConnectionResetError()
        await held.channel.progress(1)
        await connection.over()

    assert held.saw == ["cancelled", True, SendStatus.CLOSED]


async def test_cancel_during_validate() -> None:
    """A client that leaves while `validate` waits: `call` never runs."""
    waits = asyncio.Event()
    ran: list[str] = []

    class Slow(Tool):
        name = "slow"

        async def validate(self, request: ToolRequest, channel: Channel) -> ToolRequest:
            waits.set()
            try:
                await asyncio.Event().wait()
            finally:
                ran.append("finally")
            return request

        async def call(self, request: ToolRequest, channel: Channel) -> str:
            ran.append("call")
            return ""

    client = Client(serving(Slow))
    async with client.open(client.call("slow")) as connection:
        await waits.wait()
        connection.disconnect()
        await connection.over()

    assert ran == ["finally"]


async def test_cancel_drops_the_result_of_a_thread() -> None:
    """A `def` hook cannot be cancelled; its result is dropped, its thread comes back."""
    begun, go, ended = threading.Event(), threading.Event(), threading.Event()

    @tool
    def block(channel: Channel) -> str:
        begun.set()
        go.wait(PATIENCE)
        channel.start_stream()
        assert channel.closed
        ended.set()
        return "late"

    client = Client(serving(block))
    async with client.open(client.call("block")) as connection:
        await asyncio.to_thread(begun.wait, PATIENCE)
        connection.disconnect()
        await connection.over()
    go.set()

    assert await asyncio.to_thread(ended.wait, PATIENCE)
    assert connection.body == b""


@pytest.mark.parametrize("swallows", [False, True])
async def test_cancel_by_the_host_leaves_no_hook(swallows: bool) -> None:
    """A host that cancels the request itself: hooks are cancelled and awaited first."""
    waits, over = asyncio.Event(), asyncio.Event()

    @tool
    async def slow() -> str:
        waits.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            over.set()
            if not swallows:
                raise
        return "late"

    client = Client(serving(slow))
    connection = client.open(client.call("slow"))
    async with connection:
        await waits.wait()
        connection.task.cancel()
        await connection.over()

    assert over.is_set()
    # Who swallows it has not been cancelled, here as anywhere else.
    assert connection.task.cancelled() is not swallows


async def test_cancel_by_the_host_before_a_hook_has_run() -> None:
    """Nothing is left behind either."""
    held = Held()
    client = Client(serving(held))
    async with client.open(client.call("held")) as connection:
        await until(lambda: len(asyncio.all_tasks()) > 2)
        connection.task.cancel()
        await connection.over()

    assert connection.task.cancelled()


async def test_cancel_by_the_host_of_a_legacy_call_ends_its_stream() -> None:
    """Who resumes it is not kept waiting for an answer that never comes."""
    held = Held()
    client = await Client.begin(serving(held), "2025-11-25")
    async with client.open(client.call("held", progressToken=1)) as connection:
        await held.waits.wait()
        await held.channel.progress(1)
        await connection.message()
        connection.task.cancel()
        await connection.over()

    async with client.listen(after=connection.ids[-1]) as resumed:
        await resumed.over()

    assert resumed.complete
    assert resumed.messages == []


@pytest.mark.parametrize("version", LEGACIES)
@pytest.mark.parametrize("id", [7, "seven"])
async def test_cancel_notification_ends_a_call_without_a_response(version: str, id: Any) -> None:
    """202, the hook is cancelled, and no response has that id."""
    held = Held()
    client = await Client.begin(serving(held), version)
    async with client.open(client.call("held", id=id)) as connection:
        await held.waits.wait()
        await cancel(client, id)
        await connection.over()

    assert held.saw[0] == "cancelled"
    assert (connection.status, connection.body) == (202, b"")
    assert len(client.app.mux.calls) == 0


async def test_cancel_notification_ends_a_stream_without_an_answer() -> None:
    """On a stream as well, and for a client that resumes it."""
    held = Held()
    client = await Client.begin(serving(held), "2025-11-25")
    async with client.open(client.call("held", progressToken=1)) as connection:
        await held.waits.wait()
        await held.channel.progress(1)
        await connection.message()
        await cancel(client, 1)
        await connection.over()

    async with client.listen(after=connection.ids[-1]) as resumed:
        await resumed.over()

    assert connection.complete
    assert all("result" not in m and "error" not in m for m in connection.messages)
    assert all("result" not in m and "error" not in m for m in resumed.messages)


async def test_cancel_notification_cancels_the_question_of_the_call() -> None:
    """A question of a cancelled call is withdrawn."""

    class Asks(Tool):
        name = "ask"

        async def call(self, request: ToolRequest, channel: Channel) -> Any:
            return Continue("asked", elicit("Go on?", {"type": "object", "properties": {}}))

        async def continue_(self, tag: str, outcome: Any, channel: Channel) -> str:
            return "went on"

    client = await Client.begin(serving(Asks), "2025-11-25", capabilities={"elicitation": {}})
    async with client.open(client.call("ask")) as connection:
        asked = await connection.message()
        await cancel(client, 1)
        told = await connection.message()
        await connection.over()

    assert told["method"] == "notifications/cancelled"
    assert asked["id"] == told["params"]["requestId"]
    assert connection.complete


async def test_cancelled_request_gets_no_response_from_any_hook() -> None:
    """A hook that swallows its cancellation and returns, or fails, is not answered either."""
    waits = asyncio.Event()

    @tool
    async def stubborn(raises: bool) -> str:
        waits.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if raises:
                raise ValueError from None
        return "partial"

    client = await Client.begin(serving(stubborn), "2025-11-25")
    for raises in (False, True):
        waits.clear()
        async with client.open(client.call("stubborn", {"raises": raises})) as connection:
            await waits.wait()
            await cancel(client, 1)
            await connection.over()

        assert (connection.status, connection.body) == (202, b"")


@pytest.mark.parametrize(
    ("params", "status"),
    [
        ({"requestId": 99}, 202),
        ({"requestId": "1"}, 202),
        ({}, 202),
        ({"requestId": None}, 202),
        ({"requestId": [1]}, 400),
    ],
)
async def test_cancel_notification_with_an_unknown_id_is_ignored(
    params: dict[str, Any], status: int
) -> None:
    """2025-11-25, cancellation, "Error Handling": the call continues.

    A malformed notification has the error status of the transport ("Sending Messages", point 4).
    """
    held = Held()
    client = await Client.begin(serving(held), "2025-11-25")
    async with client.open(client.call("held")) as connection:
        await held.waits.wait()
        told = await client.send(client.notification("notifications/cancelled", **params))
        held.go.set()
        await connection.over()

    assert told.status == status
    assert connection.json["result"]["content"][0]["text"] == "done"


async def test_cancel_notification_from_another_session_is_ignored() -> None:
    """Ids are of one session."""
    held = Held()
    endpoint = serving(held)
    client, other = [await Client.begin(endpoint, "2025-11-25") for _ in range(2)]
    async with client.open(client.call("held")) as connection:
        await held.waits.wait()
        await cancel(other, 1)
        held.go.set()
        await connection.over()

    assert connection.json["result"]["content"][0]["text"] == "done"


async def test_cancel_means_all_calls_of_one_id() -> None:
    """A client that uses an id twice at a time, which it must not, is served; both are meant."""
    waits = asyncio.Semaphore(0)
    go = asyncio.Event()

    @tool
    async def wait(name: str) -> str:
        waits.release()
        await go.wait()
        return name

    client = await Client.begin(serving(wait), "2025-11-25")

    async def both() -> list[Any]:
        async with (
            client.open(client.call("wait", {"name": "a"})) as one,
            client.open(client.call("wait", {"name": "b"})) as two,
        ):
            await waits.acquire()
            await waits.acquire()
            if not go.is_set():
                await cancel(client, 1)
            await one.over()
            await two.over()
        return [one, two]

    assert [each.body for each in await both()] == [b"", b""]
    go.set()
    one, two = await both()
    assert [c.json["result"]["content"][0]["text"] for c in (one, two)] == ["a", "b"]
    assert len(client.app.mux.calls) == 0


@pytest.mark.parametrize("version", [MODERN, "2025-11-25"])
async def test_cancellation_without_a_request_for_it_is_a_failure(
    version: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A hook that awaits a task cancelled elsewhere fails, with a reference."""

    @tool
    async def unlucky() -> str:
        work = asyncio.create_task(asyncio.Event().wait())
        work.cancel()
        await work
        return ""

    client = await Client.begin(serving(unlucky), version)

    answer = await client.send(client.call("unlucky"))

    assert answer.json["result"]["isError"] is True
    assert "reference" in answer.json["result"]["content"][0]["text"]
    assert "CancelledError" in caplog.text


@pytest.mark.parametrize("kind", ["async", "thread"])
async def test_hooks_cannot_end_the_server(kind: str) -> None:
    """SystemExit costs one call, as does StopIteration, which no future carries."""

    @tool
    async def leave() -> str:
        raise SystemExit(3)

    @tool(name="leave")
    def stop() -> str:
        return next(iter([]))

    client = Client(serving(leave if kind == "async" else stop))

    answer = await client.send(client.call("leave"))

    assert answer.json["result"]["isError"] is True


async def test_threads_that_are_all_taken_let_further_calls_wait() -> None:
    """`Limits.max_threads` run at once; a call that is cancelled while it waits never runs."""
    begun, go = threading.Event(), threading.Event()
    ran: list[str] = []

    @tool
    def block(name: str) -> str:
        ran.append(name)
        begun.set()
        go.wait(PATIENCE)
        return name

    suite = Suite(name="test", version="1", tools=[block])
    client = Client(Endpoint(Mux(suite, limits=Limits(max_threads=1))))
    async with client.open(client.call("block", {"name": "a"})) as first:
        await asyncio.to_thread(begun.wait, PATIENCE)
        async with client.open(client.call("block", {"name": "b"})) as second:
            await until(lambda: client.app.mux.threads.waiting)
            second.disconnect()
            await second.over()
        go.set()
        await first.over()

    assert ran == ["a"]
    assert first.json["result"]["content"][0]["text"] == "a"


async def test_host_that_gives_the_body_again_does_not_spin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A middleware that replays the body at each `receive` delays nothing."""
    held = Held()
    endpoint = serving(held)
    asked = 0

    async def replaying(scope: Any, receive: Any, send: Any) -> None:
        first = await receive()

        async def again() -> Any:
            nonlocal asked
            asked += 1
            return first

        await endpoint(scope, again, send)

    client = Client(replaying)
    async with client.open(client.call("held")) as connection:
        async with asyncio.timeout(PATIENCE):
            await held.waits.wait()
            held.go.set()
        await connection.over()

    assert connection.json["result"]["content"][0]["text"] == "done"
    assert asked <= 3


async def test_error_of_the_host_in_receive_is_raised_to_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A defect of the host is logged and raised to it; the hook is cancelled."""
    held = Held()
    endpoint = serving(held)

    async def broken(scope: Any, receive: Any, send: Any) -> None:
        asked = [await receive()]

        async def fails() -> Any:
            if asked:
                return asked.pop()
            raise LookupError("the host is broken")

        await endpoint(scope, fails, send)

    client = Client(broken)
    answer = await client.send(client.call("held"))

    assert (answer.status, answer.json["error"]["code"]) == (500, -32603)
    assert held.saw[0] == "cancelled" if held.saw else True
    assert "the host is broken" in caplog.text


async def test_error_of_the_host_in_send_is_raised_to_it(caplog: pytest.LogCaptureFixture) -> None:
    """After the head no error can be sent: the host gets its own exception."""
    held = Held()
    client = Client(serving(held))
    connection = client.open(client.call("held", progressToken=1))
    with pytest.raises(LookupError):
        async with connection:
            await held.waits.wait()
            await held.channel.progress(1)
            await connection.message()
            connection.fails = LookupError("the host is broken")
            await held.channel.progress(2)
            await connection.over()

    assert held.saw == ["cancelled", True, SendStatus.CLOSED]
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


async def test_host_that_goes_away_before_an_answer_is_no_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An OSError from `send` is a client that left: nothing is logged."""

    @tool
    async def quick() -> str:
        return "done"

    client = Client(serving(quick))
    for message in (client.call("quick"), client.call("unknown"), client.notification("x")):
        async with client.open(message) as connection:
            connection.fails = BrokenPipeError()
            await connection.over()

    assert not caplog.records
