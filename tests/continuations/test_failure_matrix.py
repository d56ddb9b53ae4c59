"""What may go wrong with a call, row by row of one table; rows tested elsewhere are only named.

 1, 3, 5   a hook returns nonsense or raises        here (`continue_`), test_modern_http,
                                                     test_legacy_sessions, test_mux
 2         (of another framework)
 4         `continue_` raises                        here
 6, 7      what is waited for raises                 test_awaitables
 8         nobody is left who could end it           test_awaitables
 9         it was done before `call` returned        test_awaitables
10, 11     it ends twice                             test_awaitables, test_questions_legacy
12, 13, 14 one tag or one future for two             test_awaitables
15         what cannot be waited for                 test_awaitables
16         it never ends                             here; a question: test_questions_legacy
17, 18     cancelled by its client                   here, test_cancellation; late: test_awaitables
19, 20     its client leaves                         here, test_cancellation, test_legacy_streams
21         something is said behind the end          here, test_cancellation
22         `continue_` behind the end                here, test_awaitables
23 to 26   no such tool, wrong arguments             test_modern_http, test_legacy_sessions
27, 28, 29 errors and results behind progress        here, test_modern_http
30         a call takes long                         test_modern_http, test_promotion
31         another call of the same session          here, test_legacy_sessions
32         the session ends                          here, test_legacy_sessions
33         the tool is gone when its call goes on    here, test_suite_changes
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
from tests.continuations.asking import YES, Asked, Waits, failure_of, text_of
from tests.support.asgi import ALL, LEGACIES, MODERN, Client, Connection, serving, until


@pytest.fixture(params=LEGACIES)
def legacy(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture(params=ALL)
def version(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


class Fails(Tool):
    """Fails after it has waited, as requested, optionally after a progress report."""

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
async def test_row_1_continue_that_returns_nonsense_costs_its_call(
    streams: bool, version: str, caplog: Any
) -> None:
    """-32603, as an event if there is a stream; the log has the tool's name and the type."""
    answer = await failing(version, "wrong", **({"progressToken": 1} if streams else {}))

    assert answer.messages[-1]["error"]["code"] == -32603
    assert answer.is_stream is streams
    assert answer.complete
    assert (500 if version == MODERN and not streams else 200) == answer.status
    assert "Fails.continue_ (tool 'fail') returned object" in caplog.text


@pytest.mark.parametrize("streams", [False, True])
async def test_row_4_continue_that_raises_costs_its_call(
    streams: bool, version: str, caplog: Any
) -> None:
    """Nothing of the exception leaves but a reference to the log; a stream ends with it."""
    answer = await failing(version, "raise", **({"progressToken": 1} if streams else {}))

    assert "secret" not in answer.body.decode()
    assert answer.is_stream is streams
    assert answer.complete
    reference = failure_of(answer).rpartition(" ")[2].rstrip(").")
    assert f"[{reference}]" in caplog.text
    assert "KeyError: 'secret'" in caplog.text


async def test_wait_error_that_leaves_continue_is_a_result(version: str, caplog: Any) -> None:
    """Its own text, which may be shown; the work that failed was logged where it failed."""
    answer = await failing(version, "result")

    assert failure_of(answer) == "out of ink"
    assert "failed [" not in caplog.text


@pytest.mark.parametrize(("how", "code"), [("params", -32602), ("mcp", -32000)])
@pytest.mark.parametrize("streams", [False, True])
async def test_row_27_continue_may_end_its_call_with_an_error(
    streams: bool, how: str, code: int
) -> None:
    """One that was raised to be shown, behind progress as well."""
    answer = await failing(MODERN, how, **({"progressToken": 1} if streams else {}))

    *progress, error = answer.messages
    assert code == error["error"]["code"]
    assert ["notifications/progress"] * streams == [each["method"] for each in progress]


async def test_row_4_continue_may_say_what_the_model_should_read(version: str) -> None:
    """ToolError, as from `call`."""
    assert failure_of(await failing(version, "tool")) == "out of paper"


async def test_row_16_endless_wait_is_given_up_after_max_hold(legacy: str) -> None:
    """After `max_hold` seconds the client gets the call's id, and no answer that was made up."""
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
    """Waits for a coroutine, and records its end and its cancellation."""

    def __init__(self, **said: Any) -> None:
        super().__init__(lambda arguments: self.work(), **said)
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
        self.saw.append("told")


@pytest.mark.parametrize("ends", ["notification", "delete"])
async def test_rows_17_18_22_32_call_that_is_cancelled_goes_on_no_more(
    ends: str, legacy: str
) -> None:
    """Its work and `on_cancel` are cancelled once; `continue_` does not run; no response."""
    waits = Cancellable()
    client = await Client.begin(serving(waits), legacy)
    async with client.open(client.call("wait", id=7)) as call:
        await waits.begun.acquire()
        if ends == "delete":
            await client.send(method="DELETE")
        else:
            await client.send(client.notification("notifications/cancelled", requestId=7))
        await call.over()
    waits.go.set()

    assert (call.status, call.body) == (202, b"")
    assert waits.saw == ["cancelled", "told"]
    assert waits.outcomes == []


async def test_rows_19_21_22_client_of_2026_that_leaves_cancels() -> None:
    """2026-07-28: it MUST be; later messages are dropped without an error."""
    waits = Cancellable()
    client = Client(serving(waits))
    async with client.open(client.call("wait", progressToken=1)) as call:
        await waits.begun.acquire()
        call.disconnect()
        await call.over()

    assert waits.saw == ["cancelled", "told"]
    assert waits.outcomes == []
    assert waits.channel.closed
    assert not await waits.channel.progress(1)


async def test_row_19_client_before_that_leaves_does_not_cancel(legacy: str) -> None:
    """It should not count as a cancellation: `continue_` gets the value."""
    waits = Cancellable()
    client = await Client.begin(serving(waits), legacy)
    async with client.open(client.call("wait")) as call:
        await waits.begun.acquire()
        call.disconnect()
        for _ in range(10):  # until it is known
            await asyncio.sleep(0)
        waits.go.set()
        await call.over()

    assert waits.saw == []
    assert len(waits.outcomes) == 1


async def test_row_19_answer_waits_for_a_client_that_comes_back() -> None:
    """2025-11-25, transports, "Resumability and Redelivery"."""
    waits = Cancellable()
    client = await Client.begin(serving(waits), "2025-11-25")
    async with client.open(client.call("wait")) as call:
        await waits.begun.acquire()
        waits.channel.start_stream()
        primed = await call.event()
        call.disconnect()
        async with client.listen(after=primed.id) as resumed:
            waits.go.set()
            await resumed.over()

    assert text_of(resumed) == "worked"


async def test_row_19_tool_may_want_a_disconnect_to_cancel(legacy: str) -> None:
    """`on_disconnect = "cancel"`."""
    waits = Cancellable(on_disconnect="cancel")
    client = await Client.begin(serving(waits), legacy)
    async with client.open(client.call("wait")) as call:
        await waits.begun.acquire()
        call.disconnect()
        await call.over()

    assert waits.saw == ["cancelled", "told"]
    assert waits.outcomes == []


async def test_row_31_other_calls_of_a_session_do_not_wait(legacy: str) -> None:
    """However long one of them waits."""
    waits, soon = Cancellable(), Waits(lambda arguments: asyncio.sleep(0, "soon"), name="soon")
    client = await Client.begin(serving(waits, soon), legacy)
    async with client.open(client.call("wait", id=1)) as call:
        await waits.begun.acquire()
        other = await client.send(client.call("soon", id=2))
        assert call.status == 0
        waits.go.set()
        await call.over()

    assert (text_of(other), text_of(call)) == ("soon", "worked")


async def test_row_33_waiting_call_outlives_the_removal_of_its_tool(
    version: str,
) -> None:
    """The next request does not find it; the one before does not notice."""
    waits = Cancellable()
    suite = Suite(name="test", version="1", tools=[waits])
    client = await Client.begin(Endpoint(suite), version)
    async with client.open(client.call("wait", id=1)) as call:
        await waits.begun.acquire()
        suite.remove("wait")
        next_one = await client.send(client.call("wait", id=2))
        waits.go.set()
        await call.over()

    assert text_of(call) == "worked"
    assert next_one.json["error"]["code"] == -32602


async def test_row_33_retry_with_state_of_a_removed_tool_fails() -> None:
    """An answer is a request like any other: the tool does not exist."""
    waits = Waits(lambda arguments: elicit("Sure?"))
    suite = Suite(name="test", version="1", tools=[waits])
    client = Asked(Endpoint(suite))
    asked = await client.send(client.call("wait"))

    suite.remove("wait")
    answer = await client.send(client.again(asked, waited=YES))

    assert answer.json["error"]["code"] == -32602
    assert waits.outcomes == []
