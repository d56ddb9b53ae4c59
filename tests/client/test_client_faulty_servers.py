"""The client with faulty servers, and late responses."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from genmcp.client.client import Client
from genmcp.client.errors import (
    ClientClosed,
    OutcomeUnknown,
    ProcessExited,
    ProtocolError,
    RequestTimeout,
    ServerError,
    UnsupportedRevision,
)
from genmcp.client.handler import ClientHandler
from genmcp.client.options import ClientOptions
from genmcp.client.transports.base import Transport, TransportSink
from genmcp.core.client.events import SendMessage
from genmcp.errors import McpError
from tests.support.client_bounds import bounds

TASK = {
    "taskId": "t",
    "createdAt": "2026-01-01T00:00:00Z",
    "lastUpdatedAt": "2026-01-01T00:00:00Z",
    "ttlMs": None,
    "pollIntervalMs": 1,
}
DISCOVERED = {
    "supportedVersions": ["2026-07-28"],
    "capabilities": {"tools": {}},
    "ttlMs": 0,
    "cacheScope": "private",
}
ANSWERED = {"content": [], "resultType": "complete"}


class Scripted(Transport):
    """A server whose responses are made by *answer* from a method and its params.

    A dict is the result, an McpError the error, bytes are sent unchanged, None is silence.
    """

    server_name = "the script"

    def __init__(self, answer: Callable[[str, dict[str, Any]], Any]) -> None:
        self.answer = answer
        self.asked: list[str] = []
        self.called = asyncio.Event()
        self.sink: TransportSink

    async def open(self, sink: TransportSink) -> None:
        self.sink = sink

    async def send(self, message: SendMessage) -> None:
        said = msgspec.json.decode(message.message)
        method = said.get("method", "")
        self.asked.append(method)
        if method == "tools/call":
            self.called.set()
        if "id" not in said:
            return
        answer = self.answer(method, said.get("params", {}))
        if answer is None and method == "server/discover":
            answer = DISCOVERED
        self.say(said["id"], answer)

    def say(self, id: Any, answer: Any) -> None:
        match answer:
            case bytes():
                self.sink.on_message(answer)
            case McpError():
                error = {"code": answer.code, "message": answer.message}
                self.tell({"id": id, "error": error})
            case dict():
                self.tell({"id": id, "result": answer})

    def tell(self, message: dict[str, Any]) -> None:
        self.sink.on_message(msgspec.json.encode({"jsonrpc": "2.0", **message}))

    async def close(self) -> None:
        pass


@asynccontextmanager
async def scripted(
    answer: Callable[[str, dict[str, Any]], Any],
    handler: ClientHandler | None = None,
    **options: Any,
) -> AsyncIterator[tuple[Client, Scripted]]:
    server = Scripted(answer)
    async with asyncio.timeout(10):
        async with Client(server, handler=handler, options=ClientOptions(**options)) as client:
            yield client, server


def page(*names: str, **more: Any) -> dict[str, Any]:
    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in names]
    return {"tools": tools, "ttlMs": 0, "cacheScope": "private", "resultType": "complete", **more}


@pytest.mark.parametrize("cursors", ["same", "endless"])
async def test_client_ends_a_list_that_does_not(cursors: str) -> None:
    """A cursor that comes twice, or too many pages, are a fault of the server."""

    def answer(method: str, params: dict[str, Any]) -> Any:
        if method == "tools/list":
            given = params.get("cursor", "")
            return page("a", nextCursor="x" if cursors == "same" else given + "x")
        return None

    with bounds(max_pages=5):
        async with scripted(answer) as (client, _):
            with pytest.raises(ProtocolError, match="does not end after"):
                await client.tools()


async def test_client_raises_the_error_of_a_list_that_is_not_kept() -> None:
    """An error of the first page is the server's."""
    async with scripted(lambda method, _: McpError("no") if method == "tools/list" else None) as (
        client,
        _,
    ):
        with pytest.raises(ServerError, match="no"):
            await client.tools()


async def test_client_refuses_a_number_that_is_too_large() -> None:
    """Of milliseconds: arithmetic with it would overflow. The largest of 64 bits is for ever."""
    given = [2**63 - 1, 10**400]

    def answer(method: str, params: dict[str, Any]) -> Any:
        return page(ttlMs=given.pop(0)) if method == "tools/list" else None

    async with scripted(answer, cache_size=0) as (client, _):
        assert await client.tools() == []
        with pytest.raises(ProtocolError, match="ttlMs"):
            await client.tools()


async def test_client_drops_progress_that_is_too_large() -> None:
    """The call goes on, and its callback gets numbers that it can format."""
    reports: list[Any] = []

    def answer(method: str, params: dict[str, Any]) -> Any:
        if method != "tools/call":
            return None
        token = params["_meta"]["progressToken"]
        for progress in (10**400, 1):
            notification = {"progressToken": token, "progress": progress}
            said = {"jsonrpc": "2.0", "method": "notifications/progress", "params": notification}
            server.sink.on_message(json.dumps(said).encode())
        return ANSWERED

    async with scripted(answer) as (client, server):
        await client.call("t", progress=lambda *given: reports.append(given))
    assert reports == [(1, None, None)]


async def test_client_keeps_what_a_resource_holds() -> None:
    """A resource is read again when its time is over, or it depends on answers; not before."""
    held = {"contents": [{"uri": "a:", "text": "b"}], "ttlMs": 60_000, "cacheScope": "private"}

    def answer(method: str, params: dict[str, Any]) -> Any:
        if method != "resources/read":
            return None
        if params["uri"] == "asks:" and "requestState" not in params:
            return {"resultType": "input_required", "requestState": "s"}
        return {**held, "resultType": "complete"}

    async with scripted(answer) as (client, server):
        for _ in range(2):
            await client.read("a:")
        assert server.asked.count("resources/read") == 1
        for _ in range(2):
            await client.read("asks:")
        assert server.asked.count("resources/read") == 5


async def test_client_takes_no_question_for_a_list() -> None:
    """Only calls, reads and prompts may be answered with questions."""
    asks = {"resultType": "input_required", "requestState": "s"}
    async with scripted(lambda method, _: asks if method == "tools/list" else None) as (client, _):
        with pytest.raises(ProtocolError):
            await client.tools()


async def test_client_sends_the_state_as_it_came() -> None:
    """`requestState` is echoed, absent if there was none, and each request has a new id."""
    seen: list[dict[str, Any]] = []
    answers = iter(
        [
            {"resultType": "input_required", "requestState": 'a"b\u00fc'},
            {"resultType": "input_required", "inputRequests": {}},
            ANSWERED,
        ]
    )

    def answer(method: str, params: dict[str, Any]) -> Any:
        if method == "tools/call":
            seen.append(params)
            return next(answers)
        return None

    async with scripted(answer) as (client, _):
        await client.call("t")
    assert [params.get("requestState") for params in seen] == [None, 'a"b\u00fc', None]


async def test_client_gives_up_on_a_person_who_does_not_answer() -> None:
    """The time of a call runs while its questions are answered."""

    class Slow(ClientHandler):
        async def handle_elicitation_create(self, *_: Any) -> Any:
            await asyncio.Event().wait()

    question = {
        "method": "elicitation/create",
        "params": {"message": "?", "requestedSchema": {"type": "object", "properties": {}}},
    }
    asks = {"resultType": "input_required", "inputRequests": {"q": question}}
    async with scripted(lambda method, _: asks if method == "tools/call" else None, Slow()) as (
        client,
        _,
    ):
        with pytest.raises(RequestTimeout, match="including its input requests"):
            await client.call("t", timeout=0.05)


async def test_client_drops_what_it_does_not_wait_for() -> None:
    """Answers to unknown ids, late ones, doubles and garbage change nothing."""

    def answer(method: str, params: dict[str, Any]) -> Any:
        return ANSWERED if method == "tools/call" else None

    async with scripted(answer) as (client, server):
        for id in (1, 2, 99, "x"):
            server.tell({"id": id, "result": {}})
        server.sink.on_message(b"\xff\xfe garbage")
        server.sink.on_message(b"[]")
        assert (await client.call("t")).content == []


async def test_client_fails_what_is_under_way_when_the_process_ends() -> None:
    """Its outcome is unknown, and the error names the cause; later requests were not sent."""
    async with scripted(lambda *_: None) as (client, server):
        call = asyncio.create_task(client.call("t"))
        await server.called.wait()
        server.sink.on_failure(None, ProcessExited("the script", 3, "oh no"))
        with pytest.raises(OutcomeUnknown, match="exit status 3; last line of stderr: oh no"):
            await call
        with pytest.raises(ProcessExited):
            await client.tools()
        await client.open()
        assert client.revision == "2026-07-28"


async def test_client_fails_a_call_whose_answer_is_too_long() -> None:
    """Only that call fails; the connection lives on."""
    async with scripted(lambda *_: None) as (client, server):
        call = asyncio.create_task(client.call("t"))
        await server.called.wait()
        server.sink.on_oversized(10**9, b'{"jsonrpc":"2.0","id":2,"result":{"content":[')
        with pytest.raises(ProtocolError, match="1000000000 bytes"):
            await call
        await client.ping()


async def test_client_that_cannot_connect_says_so() -> None:
    """A server that is silent, or speaks nothing we do, is an error within its time."""
    with bounds(probe_timeout=0.05), pytest.raises(RequestTimeout, match="connecting"):
        async with scripted(lambda *_: b"", open_timeout=0.2):
            pass
    none = {**DISCOVERED, "supportedVersions": ["1999-01-01"]}
    with pytest.raises(UnsupportedRevision, match="1999-01-01"):
        async with scripted(lambda *_: none):
            pass


async def test_client_ends_a_stream_that_floods() -> None:
    """Pending changes are bounded."""

    def answer(method: str, params: dict[str, Any]) -> Any:
        if method == "subscriptions/listen":
            notify("notifications/subscriptions/acknowledged", notifications={})
        return None

    def notify(method: str, **params: Any) -> None:
        meta = {"io.modelcontextprotocol/subscriptionId": 2}
        server.tell({"method": method, "params": {**params, "_meta": meta}})

    async with scripted(answer) as (client, server), client.subscribe("a:") as changes:
        for n in range(10_002):
            notify("notifications/resources/updated", uri=f"a:{n}")
        seen = 0
        with pytest.raises(ProtocolError, match="more than 10000 unread changes"):
            async for _ in changes:
                seen += 1
        assert seen <= 10_002


async def test_client_waits_for_ever_if_it_is_told_to() -> None:
    """None is unlimited."""
    async with scripted(lambda method, _: ANSWERED if method == "tools/call" else None) as (
        client,
        _,
    ):
        assert (await client.call("t", timeout=None, idle_timeout=None)).content == []


async def test_client_that_was_never_opened_is_closed() -> None:
    """It accepts no request."""
    with pytest.raises(ClientClosed):
        await Client(Scripted(lambda *_: None)).ping()


def tasks(*statuses: dict[str, Any]) -> Callable[[str, dict[str, Any]], Any]:
    """A server whose call is a task with *statuses*, one after the other."""
    coming = iter(statuses)

    def answer(method: str, params: dict[str, Any]) -> Any:
        match method:
            case "tools/call":
                return {"resultType": "task", "status": "working", **TASK}
            case "tasks/get":
                return {"resultType": "complete", **TASK, **next(coming)}
            case "server/discover":
                return None
            case "subscriptions/listen":
                return McpError("no", code=-32601)
        return {"resultType": "complete"}

    return answer


async def test_client_polls_a_task() -> None:
    """A server without notifications of tasks is polled, at its interval."""
    done = {"status": "completed", "result": ANSWERED}
    async with scripted(tasks({"status": "working"}, {"status": "working"}, done)) as (client, _):
        assert (await client.call("t")).content == []


@pytest.mark.parametrize(
    ("status", "fault"),
    [
        ({"status": "working", "pollIntervalMs": 10**400}, "pollIntervalMs"),
        ({"status": "completed"}, "the result of a task"),
        ({"status": "completed", "result": {"content": 1}}, "the result of a task"),
        ({"status": "failed", "error": "oh"}, "the error of a task"),
        ({"status": "input_required", "inputRequests": {"a": {"method": "x"}}}, "an input request"),
    ],
)
async def test_client_finds_the_faults_of_a_task(status: dict[str, Any], fault: str) -> None:
    """A task with malformed members is a fault of the server."""
    async with scripted(tasks(status)) as (client, _):
        with pytest.raises(ProtocolError, match=fault):
            await client.call("t")


async def test_client_asks_nobody_twice() -> None:
    """A question that is still in the status when it is answered is not put again."""
    question = {
        "method": "elicitation/create",
        "params": {"message": "?", "requestedSchema": {"type": "object", "properties": {}}},
    }
    asked = 0

    class Counting(ClientHandler):
        async def handle_elicitation_create(self, *_: Any) -> Any:
            nonlocal asked
            asked += 1
            return {"action": "decline"}

    asks = {"status": "input_required", "inputRequests": {"q": question}}
    done = {"status": "completed", "result": ANSWERED}
    async with scripted(tasks(asks, asks, asks, done), Counting()) as (client, _):
        await client.call("t")
    assert asked == 1
