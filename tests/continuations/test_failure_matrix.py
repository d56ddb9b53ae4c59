"""The failures of a call, as rows of one table. Rows that are tested elsewhere are only named.

 1, 3, 5   a hook raises, or returns no result      here (`continue_`), test_modern_http,
                                                     test_legacy_sessions, test_mux
 2         (of another framework)
 4         `continue_` raises                        here
 6, 7      the awaitable raises                      test_awaitables
 8         its future can never be completed         test_awaitables
 9         it was done before `call` returned        test_awaitables
10, 11     it is completed twice                     test_awaitables, test_questions_legacy
12, 13, 14 one tag or one future for two             test_awaitables
15         not an awaitable                          test_awaitables
16         it is never completed                     here; a question: test_questions_legacy
17, 18     cancelled by its client                   here, test_cancellation; late: test_awaitables
19, 20     its client disconnects                    here, test_cancellation, test_legacy_streams
21         a message after the response              here, test_cancellation
22         `continue_` after the response            here, test_awaitables
23 to 26   unknown tool, invalid arguments             test_modern_http, test_legacy_sessions
27, 28, 29 errors and results after progress        here, test_modern_http
30         a slow call                               test_modern_http, test_promotion
31         another call of the same session          here, test_legacy_sessions
32         the session ends                          here, test_legacy_sessions
33         the tool is removed while its call waits  here, test_suite_changes
34         two tools of one name                     test_suite
35, 36, 37 notifications, responses, batches         test_legacy_sessions, test_modern_http,
                                                     test_batches, test_questions_legacy
"""

import asyncio
from typing import Any

import pytest

from genmcp import (
    Channel,
    Continue,
    Endpoint,
    Failed,
    InvalidParams,
    McpError,
    Outcome,
    Suite,
    Tool,
    ToolError,
    ToolRequest,
    WorkRaised,
    elicit,
)
from tests.support.asgi import ALL, LEGACIES, MODERN, Client, Connection, serving, until
from tests.support.asking import YES, AnsweringClient, Waits, failure_of, text_of


@pytest.fixture(params=LEGACIES)
def legacy(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(params=ALL)
def version(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


class Fails(Tool):
    """Reports progress after its wait, and fails as requested."""

    name = "fail"

    async def call(self, request: ToolRequest, channel: Channel) -> Any:
        return Continue("waited", asyncio.sleep(0))

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> Any:
        await channel.progress(1)
        match channel.request.arguments["how"]:
            case "tool":
                raise ToolError("out of paper")
            case "params":
                raise InvalidParams("not these")
            case "mcp":
                raise McpError("odd", {"why": 1}, code=-32000, status=418)
            case "result":
                Failed(WorkRaised("f00", "ToolError", "out of ink")).result()
            case "raise":
                raise KeyError("secret")
        return object()


async def failing(version: str, how: str, **meta: Any) -> Connection:
    client = await Client.begin(serving(Fails), version)
    return await client.send(client.call("fail", {"how": how}, **meta))


@pytest.mark.parametrize("streams", [False, True])
async def test_row_1_continue_that_returns_no_result_is_an_error(
    streams: bool, version: str, caplog: Any
) -> None:
    """The call fails with -32603, as an event if there is a stream. The log has tool and type."""
    answer = await failing(version, "wrong", **({"progressToken": 1} if streams else {}))

    assert answer.messages[-1]["error"]["code"] == -32603
    assert answer.is_stream is streams
    assert answer.complete
    assert (500 if version == MODERN and not streams else 200) == answer.status
    assert "Fails.continue_ (tool 'fail') returned object" in caplog.text


@pytest.mark.parametrize("streams", [False, True])
async def test_row_4_continue_that_raises_is_an_error(
    streams: bool, version: str, caplog: Any
) -> None:
    """The client gets only a reference to the log. If there is a stream, it ends."""
    answer = await failing(version, "raise", **({"progressToken": 1} if streams else {}))

    assert "secret" not in answer.body.decode()
    assert answer.is_stream is streams
    assert answer.complete
    reference = failure_of(answer).rpartition(" ")[2].rstrip(").")
    assert f"[{reference}]" in caplog.text
    assert "KeyError: 'secret'" in caplog.text


async def test_wait_error_that_leaves_continue_is_a_result(version: str, caplog: Any) -> None:
    """Its text is written for the client. The exception of the work was logged before."""
    answer = await failing(version, "result")

    assert failure_of(answer) == "out of ink"
    assert "failed [" not in caplog.text


@pytest.mark.parametrize(("how", "code"), [("params", -32602), ("mcp", -32000)])
@pytest.mark.parametrize("streams", [False, True])
async def test_row_27_continue_may_end_its_call_with_an_error(
    streams: bool, how: str, code: int
) -> None:
    """An McpError is sent with its code and data, also after progress."""
    answer = await failing(MODERN, how, **({"progressToken": 1} if streams else {}))

    *progress, error = answer.messages
    assert code == error["error"]["code"]
    assert ["notifications/progress"] * streams == [each["method"] for each in progress]


async def test_row_4_continue_may_raise_a_tool_error(version: str) -> None:
    """A ToolError is a result for the model, as when `call` raises it."""
    assert failure_of(await failing(version, "tool")) == "out of paper"


async def test_row_16_endless_wait_is_given_up_after_max_hold(legacy: str) -> None:
    """The client then gets the id of the call instead of a result."""
    never: asyncio.Future[None] = asyncio.Future()
    waits = Waits(lambda arguments: never, max_hold=0.01)
    endpoint = serving(waits)
    client = await Client.begin(endpoint, legacy)
    async with client.open(client.call("wait")) as call:
        await until(lambda: call.complete)
        assert "continues as call " in failure_of(call)
        assert not waits.outcomes
        never.set_result(None)
        await call.over()

    await endpoint.aclose()
    assert len(waits.outcomes) == 1


class Cancellable(Waits):
    """Waits for a coroutine; records its cancellation and the run of `on_cancel`."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(lambda arguments: self.work(), **attributes)
        self.go = asyncio.Event()
        self.saw: list[Any] = []
        self.channel: Channel

    async def call(self, request: ToolRequest, channel: Channel) -> Any:
        self.channel = channel
        return await super().call(request, channel)

    async def work(self) -> str:
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.saw.append("cancelled")
            raise
        return "worked"

    def on_cancel(self, channel: Channel) -> None:
        self.saw.append("on_cancel")


@pytest.mark.parametrize("ends", ["notification", "delete"])
async def test_rows_17_18_22_32_cancelled_call_does_not_continue(ends: str, legacy: str) -> None:
    """Its work is cancelled and `on_cancel` runs, once. `continue_` does not run. No response."""
    waits = Cancellable()
    client = await Client.begin(serving(waits), legacy)
    async with client.open(client.call("wait", id=7)) as call:
        await waits.started.acquire()
        if ends == "delete":
            await client.send(method="DELETE")
        else:
            await client.send(client.notification("notifications/cancelled", requestId=7))
        await call.over()
    waits.go.set()

    assert (call.status, call.body) == (202, b"")
    assert waits.saw == ["cancelled", "on_cancel"]
    assert waits.outcomes == []


async def test_rows_19_21_22_disconnect_cancels_on_2026_07_28() -> None:
    """2026-07-28: a disconnect MUST cancel. Later messages are dropped without an error."""
    waits = Cancellable()
    client = Client(serving(waits))
    async with client.open(client.call("wait", progressToken=1)) as call:
        await waits.started.acquire()
        call.disconnect()
        await call.over()

    assert waits.saw == ["cancelled", "on_cancel"]
    assert waits.outcomes == []
    assert waits.channel.closed
    assert not await waits.channel.progress(1)


async def test_row_19_disconnect_does_not_cancel_before_2026_07_28(legacy: str) -> None:
    """Before 2026-07-28: a disconnect SHOULD NOT cancel, so `continue_` gets the value."""
    waits = Cancellable()
    client = await Client.begin(serving(waits), legacy)
    async with client.open(client.call("wait")) as call:
        await waits.started.acquire()
        call.disconnect()
        for _ in range(10):  # until the app has seen the disconnect
            await asyncio.sleep(0)
        waits.go.set()
        await call.over()

    assert waits.saw == []
    assert len(waits.outcomes) == 1


async def test_row_19_response_is_kept_for_a_resumed_stream() -> None:
    """2025-11-25, transports, "Resumability and Redelivery"."""
    waits = Cancellable()
    client = await Client.begin(serving(waits), "2025-11-25")
    async with client.open(client.call("wait")) as call:
        await waits.started.acquire()
        waits.channel.start_stream()
        primed = await call.event()
        call.disconnect()
        async with client.listen(after=primed.id) as resumed:
            waits.go.set()
            await resumed.over()

    assert text_of(resumed) == "worked"


async def test_row_19_tool_option_cancels_on_disconnect(legacy: str) -> None:
    """With `on_disconnect = "cancel"` the tool overrides the rule."""
    waits = Cancellable(on_disconnect="cancel")
    client = await Client.begin(serving(waits), legacy)
    async with client.open(client.call("wait")) as call:
        await waits.started.acquire()
        call.disconnect()
        await call.over()

    assert waits.saw == ["cancelled", "on_cancel"]
    assert waits.outcomes == []


async def test_row_31_other_calls_of_a_session_do_not_wait(legacy: str) -> None:
    """A waiting call does not block the session."""
    waits, soon = Cancellable(), Waits(lambda arguments: asyncio.sleep(0, "soon"), name="soon")
    client = await Client.begin(serving(waits, soon), legacy)
    async with client.open(client.call("wait", id=1)) as call:
        await waits.started.acquire()
        other = await client.send(client.call("soon", id=2))
        assert call.status == 0
        waits.go.set()
        await call.over()

    assert (text_of(other), text_of(call)) == ("soon", "worked")


async def test_row_33_waiting_call_outlives_the_removal_of_its_tool(
    version: str,
) -> None:
    """The next call gets -32602, but the waiting one completes."""
    waits = Cancellable()
    suite = Suite(name="test", version="1", tools=[waits])
    client = await Client.begin(Endpoint(suite), version)
    async with client.open(client.call("wait", id=1)) as call:
        await waits.started.acquire()
        suite.remove("wait")
        next_one = await client.send(client.call("wait", id=2))
        waits.go.set()
        await call.over()

    assert text_of(call) == "worked"
    assert next_one.json["error"]["code"] == -32602


async def test_row_33_retry_with_state_of_a_removed_tool_fails() -> None:
    """A retry is a request of its own, for an unknown tool."""
    waits = Waits(lambda arguments: elicit("Sure?"))
    suite = Suite(name="test", version="1", tools=[waits])
    client = AnsweringClient(Endpoint(suite))
    pending = await client.send(client.call("wait"))

    suite.remove("wait")
    answer = await client.send(client.retry(pending, waited=YES))

    assert answer.json["error"]["code"] == -32602
    assert waits.outcomes == []
