"""The events that telemetry gets, and the effect of a failure in it."""

import asyncio
import logging
from contextvars import ContextVar
from typing import Any

import pytest

from genmcp import (
    CallToolResult,
    Channel,
    ConfigurationError,
    Continue,
    Endpoint,
    InvalidParams,
    Limits,
    Mux,
    Run,
    Suite,
    Tool,
    ToolError,
    elicit,
    job,
    tool,
)
from genmcp._mux.telemetry import Rejection, RequestFailure, Resumed, Telemetry
from genmcp.core.request import Request
from genmcp.protocol.content import TextContent
from genmcp.protocol.tasks import CreateTaskResult
from genmcp.protocol.value import Result
from tests.support.asgi import ALL, PATIENCE, TASKS, Client, until
from tests.support.channels import promote

_heard_in: ContextVar[str] = ContextVar("_heard_in", default="nowhere")


@tool
async def echo(text: str) -> str:
    """Returns its argument."""
    return text


@tool
async def fail(how: str) -> Any:
    """Fails."""
    if how == "tool error":
        raise ToolError("out of stock")
    if how == "returned":
        return CallToolResult(content=[TextContent("out of order")], is_error=True)
    if how == "params":
        raise InvalidParams("no such part")
    raise RuntimeError("a secret")


class Recorder(Telemetry):
    """Records its events."""

    def __init__(self, name: str = "", log: list[tuple[Any, ...]] | None = None) -> None:
        self.name = name
        self.log = [] if log is None else log
        self.failures: list[RequestFailure] = []
        self.rejections: list[Rejection] = []
        self.results: list[Result] = []
        self.resumed: list[Resumed] = []

    def request_began(self, request: Request, channel: Channel) -> str:
        self.log.append((self.name, "began", request.method))
        return f"mark of {self.name}"

    def request_ended(self, request: Request, result: Result, mark: Any) -> None:
        assert isinstance(result, Result)
        self.log.append((self.name, "ended", mark))
        self.results.append(result)

    def request_failed(self, request: Request, failure: RequestFailure, mark: Any) -> None:
        self.log.append((self.name, "failed", mark))
        self.failures.append(failure)

    def request_resumed(self, resumed: Resumed) -> None:
        self.resumed.append(resumed)

    def request_rejected(self, rejection: Rejection) -> None:
        self.log.append((self.name, "rejected", rejection.method))
        self.rejections.append(rejection)


def serving(*telemetry: Telemetry, tools: Any = (echo, fail), **options: Any) -> Endpoint:
    suite = Suite(name="test", version="1", tools=tools)
    return Endpoint(Mux(suite, telemetry=telemetry, **options))


@pytest.mark.parametrize("version", ALL)
async def test_telemetry_observes_start_and_end(version: str) -> None:
    """On every revision; of several observers, the first to begin is the last to end."""
    log: list[tuple[Any, ...]] = []
    client = await Client.begin(serving(Recorder("a", log), Recorder("b", log)), version)

    await client.send(client.call("echo", {"text": "hi"}))

    assert log == [
        ("a", "began", "tools/call"),
        ("b", "began", "tools/call"),
        ("b", "ended", "mark of b"),
        ("a", "ended", "mark of a"),
    ]


@pytest.mark.parametrize(
    ("how", "kind", "code", "message", "raised"),
    [
        ("tool error", "tool_error", None, "out of stock", ToolError),
        ("returned", "tool_error", None, "out of order", type(None)),
        ("params", "error", -32602, "no such part", InvalidParams),
    ],
)
async def test_telemetry_observes_failures(
    how: str, kind: str, code: int | None, message: str, raised: type
) -> None:
    """An error, and a result with `isError`, are reported as the client gets them."""
    recorder = Recorder()
    client = Client(serving(recorder))

    await client.send(client.call("fail", {"how": how}))

    (failure,) = recorder.failures
    assert (kind, code, message) == (failure.kind, failure.code, failure.message)
    assert isinstance(failure.raised, raised)


async def test_telemetry_gets_hidden_exceptions() -> None:
    """The message is the client's, the exception is the hook's own."""
    recorder = Recorder()
    client = Client(serving(recorder))

    await client.send(client.call("fail", {"how": "unexpectedly"}))

    (failure,) = recorder.failures
    assert "secret" not in failure.message
    assert str(failure.raised) == "a secret"


async def test_telemetry_observes_disconnects() -> None:
    """A cancelled call has failed; the client gets no message."""
    begun = asyncio.Event()

    @tool
    async def wait() -> None:
        """Waits."""
        begun.set()
        await asyncio.Event().wait()

    recorder = Recorder()
    client = Client(serving(recorder, tools=[wait]))

    async with client.open(client.call("wait")) as connection, asyncio.timeout(5):
        await begun.wait()
        connection.disconnect()
        await connection.over()

    (failure,) = recorder.failures
    assert (failure.kind, failure.code) == ("cancelled", None)


async def test_telemetry_observes_builtin_methods() -> None:
    """A request counts once, whichever part responds to it."""
    recorder = Recorder()
    client = await Client.begin(serving(recorder), "2025-11-25")

    await client.send(client.request("tools/list"))
    await client.send(client.request("ping"))

    assert [each[2] for each in recorder.log if each[1] == "began"] == ["tools/list", "ping"]


async def test_telemetry_runs_in_the_context_of_the_hook() -> None:
    """A context variable set at the beginning is visible in each hook, and not after."""

    class Sets(Telemetry):
        def request_began(self, request: Request, channel: Channel) -> Any:
            return _heard_in.set(f"{request.method} {request.id}")

        def request_ended(self, request: Request, result: Result, mark: Any) -> None:
            _heard_in.reset(mark)

    @tool
    async def here() -> str:
        """Returns the context variable."""
        await asyncio.sleep(0)
        return _heard_in.get()

    @tool
    def there() -> str:
        """Returns the context variable, from a thread."""
        return _heard_in.get()

    client = Client(serving(Sets(), tools=[here, there]))

    answers = [await client.send(client.call(name, id=name)) for name in ("here", "there")]

    found = [answer.json["result"]["content"][0]["text"] for answer in answers]
    assert found == ["tools/call here", "tools/call there"]
    assert _heard_in.get() == "nowhere"


async def test_telemetry_observes_rejected_messages() -> None:
    """A rejected head, wrong params, an unknown tool or method, and a malformed body."""
    recorder = Recorder()
    client = Client(serving(recorder))

    await client.send(client.call("nothing", id="a"))
    await client.send(client.request("tools/call", {"name": 1}, id="b"), headers={"mcp-name": "1"})
    await client.send(client.call("echo"), headers={"origin": "https://evil.example"})
    await client.send(body=[b"{"], headers={"mcp-method": "tools/call"})
    await client.send(body=[b"{"])

    assert [(each.error.code, each.id, each.method) for each in recorder.rejections] == [
        (-32602, "a", "tools/call"),
        (-32602, "b", "tools/call"),
        (-32600, None, None),
        (-32700, None, "tools/call"),
        (-32700, None, None),
    ]
    assert [each for each in recorder.log if each[1] != "rejected"] == []


async def test_telemetry_observes_invalid_requests_of_sessions() -> None:
    """Such a response is not an HTTP error, alone or in a batch, and yet a rejection."""
    recorder = Recorder()
    client = await Client.begin(serving(recorder), "2025-03-26")

    await client.send(client.call("nothing", id="a"))
    await client.send([client.call("nothing", id="b"), client.call("echo", {"text": "x"}, id="c")])
    await client.send([{"jsonrpc": "2.0", "id": "d", "method": 1}])

    assert [each.id for each in recorder.rejections] == ["a", "b", "d"]
    assert len({each.session for each in recorder.rejections}) == 1
    assert all(each.session for each in recorder.rejections)
    assert [each for each in recorder.log if each[1] == "ended"] == [("", "ended", "mark of ")]


async def test_telemetry_observes_calls_beyond_limits() -> None:
    """A request rejected by a limit has never begun."""
    begun, go = asyncio.Event(), asyncio.Event()

    class Waits(Tool):
        """Waits."""

        name = "waits"

        async def call(self, request: Any, channel: Channel) -> str:
            begun.set()
            await go.wait()
            return "done"

    recorder = Recorder()
    client = Client(serving(recorder, tools=[Waits], limits=Limits(max_waiting_calls=1)))

    async with client.open(client.call("waits", id="first")) as connection:
        await asyncio.wait_for(begun.wait(), 5)
        await client.send(client.call("waits", id="second"))
        go.set()
        await connection.over()

    assert [each.id for each in recorder.rejections] == ["second"]
    assert [each[1] for each in recorder.log] == ["began", "rejected", "ended"]


async def test_telemetry_that_raises_costs_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    """The call is answered, and the other observers get their events."""

    class Broken(Telemetry):
        def request_began(self, request: Request, channel: Channel) -> Any:
            raise RuntimeError("began")

        def request_ended(self, request: Request, result: Result, mark: Any) -> None:
            raise RuntimeError("ended")

        def request_rejected(self, rejection: Rejection) -> None:
            raise RuntimeError("rejected")

    recorder = Recorder()
    client = Client(serving(Broken(), recorder))

    with caplog.at_level(logging.ERROR, "genmcp"):
        answer = await client.send(client.call("echo", {"text": "hi"}))
        await client.send(client.call("nothing"))

    assert answer.json["result"]["content"][0]["text"] == "hi"
    assert [each[1] for each in recorder.log] == ["began", "ended", "rejected"]
    found = [str(record.exc_info[1]) for record in caplog.records if record.exc_info]
    assert found == ["began", "ended", "rejected"]


async def test_base_class_of_telemetry_does_nothing() -> None:
    """The base class accepts every event and does nothing."""
    client = Client(serving(Telemetry()))

    await client.send(client.call("echo", {"text": "hi"}))
    await client.send(client.call("fail", {"how": "tool error"}))
    rejected = await client.send(client.call("nothing"))

    assert rejected.json["error"]["code"] == -32602


async def test_calls_without_telemetry_skip_it() -> None:
    """The choice is made once for a mux: calls without telemetry do not pay for it."""
    suite = Suite(name="test", version="1", tools=[echo])

    plain, empty = Mux(suite).handle, Mux(suite, telemetry=[]).handle
    observed = Mux(suite, telemetry=Recorder()).handle

    assert plain.__name__ == empty.__name__ != observed.__name__


def test_telemetry_must_be_an_instance() -> None:
    """A class instead of an instance is refused when the mux is made."""
    suite = Suite(name="test", version="1", tools=[echo])

    with pytest.raises(ConfigurationError, match="instances of Telemetry"):
        Mux(suite, telemetry=[Recorder])  # type: ignore[list-item]


@job(name="telemetry.work")
async def work(run: Run) -> None:
    await asyncio.wait_for(_end.wait(), PATIENCE)


_end: asyncio.Event


class Long(Tool):
    """Waits for a job, then for a future; fails as requested. Or asks."""

    name = "long"
    max_hold = 0.02
    waits = False

    def __init__(self) -> None:
        global _end
        _end = asyncio.Event()

    async def call(self, request: Any, channel: Channel) -> Any:
        if request.arguments["how"] == "asks":
            await promote(channel)
            return Continue("sure", elicit("Sure?"))
        return Continue("worked", work.job())

    async def continue_(self, tag: str, outcome: Any, channel: Channel) -> Any:
        match channel.request.arguments["how"]:
            case "asks again" if tag == "worked":
                return Continue("sure", elicit("Sure?"))
            case "fails":
                raise RuntimeError("a secret")
            case "waits":
                self.waits = True
                await asyncio.Event().wait()
        return "done"


async def test_telemetry_observes_calls_that_wait_elsewhere() -> None:
    """It has ended with the handle; it was not cancelled."""
    app = serving(recorder := Recorder(), tools=[Long()])
    client = Client(app, capabilities={**TASKS, "elicitation": {"form": {}}})

    await client.send(client.call("long", {"how": "asks"}))
    await app.mux.aclose()

    (result,) = recorder.results
    assert isinstance(result, CreateTaskResult)
    assert recorder.failures == []


async def test_telemetry_observes_calls_beyond_max_hold() -> None:
    """A result with `isError`; the end of the call is reported when it is resumed."""
    app = serving(recorder := Recorder(), tools=[Long()])
    client = Client(app)

    await client.send(client.call("long", {"how": "ends"}))
    (failure,) = recorder.failures
    _end.set()
    await until(lambda: recorder.resumed, pause=0.005)
    await app.mux.aclose()

    assert (failure.kind, failure.raised) == ("tool_error", None)
    assert "held" in failure.message


@pytest.mark.parametrize("how", ["ends", "asks again", "fails", "waits"])
async def test_telemetry_observes_resumed_calls(how: str) -> None:
    """Once it has continued, with its outcome."""
    app = serving(recorder := Recorder(), Recorder(), tools=[long := Long()])
    client = Client(app, capabilities={**TASKS, "elicitation": {"form": {}}})
    _end.set()
    begun = await client.send(client.call("long", {"how": how}))
    if how == "waits":
        await until(lambda: long.waits, pause=0.005)
        id = begun.json["result"]["taskId"]
        await client.send(client.request("tasks/cancel", {"taskId": id}))
        await app.mux.aclose()
    await until(lambda: recorder.resumed, pause=0.005)
    await app.mux.aclose()

    (resumed,) = recorder.resumed
    assert (
        resumed.request.method,
        resumed.tag,
        resumed.principal,
    ) == ("tools/call", "worked", None)
    assert 0 < resumed.seconds < PATIENCE
    assert resumed.began > 0
    assert (resumed.result is not None) is (how == "ends")
    failure = resumed.failure
    assert (failure and failure.kind) == {"fails": "tool_error", "waits": "cancelled"}.get(how)
    if how == "fails":
        assert failure and str(failure.raised) == "a secret"
