"""Waiting for a task whose server is temporarily unreachable."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from typing import Any

import pytest

from genmcp import Accepted
from genmcp.client.client import Client
from genmcp.client.errors import (
    AuthorizationFailed,
    ClientClosed,
    ClientError,
    HttpStatusError,
    OutcomeUnknown,
    ProtocolError,
    RequestTimeout,
    ServerError,
    Unauthorized,
)
from genmcp.client.handler import ClientHandler
from genmcp.client.options import ClientOptions
from genmcp.client.sync import SyncClient
from tests.client.scripted import Asked, served
from tests.support.client_bounds import bounds

pytestmark = pytest.mark.slow

COMPLETE = {"resultType": "complete"}
DISCOVERED = COMPLETE | {
    "ttlMs": 60_000,
    "cacheScope": "private",
    "supportedVersions": ["2026-07-28"],
    "capabilities": {"tools": {}, "extensions": {"io.modelcontextprotocol/tasks": {}}},
}
TASK = {
    "taskId": "k",
    "createdAt": "2026-01-01T00:00:00Z",
    "lastUpdatedAt": "2026-01-01T00:00:00Z",
    "ttlMs": None,
    "pollIntervalMs": 10,
}
WORKING = COMPLETE | TASK | {"status": "working"}
DONE = COMPLETE | TASK | {
    "status": "completed",
    "result": COMPLETE | {"content": [{"type": "text", "text": "bread"}]},
}  # fmt: skip
FORM = {"mode": "form", "message": "Salt?", "requestedSchema": {"type": "object", "properties": {}}}
ASKING = COMPLETE | TASK | {
    "status": "input_required",
    "inputRequests": {"salt": {"method": "elicitation/create", "params": FORM}},
}  # fmt: skip

Answer = dict[str, Any] | Callable[[Asked], Awaitable[None]]


class Oven:
    """A server whose only call is a task; *polls* has the responses to polls, the last repeated."""

    def __init__(self, *polls: Answer, update: Answer | None = None) -> None:
        self.polls = [*polls]
        self.updates: list[Answer] = [*([update] if update else []), COMPLETE]
        self.methods: list[str] = []

    async def __call__(self, asked: Asked) -> None:
        method = asked.rpc
        self.methods.append(method)
        answer: Answer
        match method:
            case "server/discover":
                answer = DISCOVERED
            case "tools/call":
                answer = TASK | {"resultType": "task", "status": "working"}
            case "tasks/get":
                answer = next_of(self.polls)
            case "tasks/update":
                answer = next_of(self.updates)
            case "tasks/cancel":
                answer = COMPLETE
            case _:
                answer = unknown
        if callable(answer):
            await answer(asked)
        else:
            await answered(asked, answer)


async def answered(asked: Asked, result: dict[str, Any]) -> None:
    id = json.loads(asked.body)["id"]
    await asked.reply(200, {"jsonrpc": "2.0", "id": id, "result": result})


def next_of(answers: list[Answer]) -> Answer:
    return answers.pop(0) if len(answers) > 1 else answers[0]


async def unknown(asked: Asked) -> None:
    await refuse(asked, 404, {"code": -32601, "message": "no"})


async def refuse(asked: Asked, status: int, error: dict[str, Any]) -> None:
    id = json.loads(asked.body)["id"]
    await asked.reply(status, {"jsonrpc": "2.0", "id": id, "error": error})


async def busy(asked: Asked) -> None:
    await refuse(asked, 429, {"code": -32603, "message": "later", "data": {"retryAfter": 1}})


async def unavailable(asked: Asked) -> None:
    await asked.reply(503, retry_after="1")


async def broken(asked: Asked) -> None:
    await asked.reply(500)


async def silent(asked: Asked) -> None:
    await asked.receive()


async def cut(asked: Asked) -> None:
    await asked.head(200, content_type="application/json", content_length="9")
    raise ConnectionError


async def stranger(asked: Asked) -> None:
    await asked.reply(401, www_authenticate="Bearer")


async def maintenance(asked: Asked) -> None:
    await asked.reply(200, "back soon", content_type="text/html")


async def defective(asked: Asked) -> None:
    await refuse(asked, 200, {"code": -32603, "message": "the store is down"})


async def expired(asked: Asked) -> None:
    """Answer with the result if the token is the new one."""
    if asked.headers["authorization"] == "Bearer new":
        await answered(asked, DONE)
    else:
        await stranger(asked)


class Agreeing(ClientHandler):
    """Accepts, and counts the questions."""

    asked = 0

    async def handle_elicitation_create(self, *_: Any) -> Any:
        self.asked += 1
        return Accepted({})


@asynccontextmanager
async def client_of(oven: Oven, **options: Any) -> AsyncIterator[Client]:
    given = {name: options.pop(name, None) for name in ("handler", "auth")}
    async with (
        asyncio.timeout(20),
        served(oven) as url,
        Client(url, **given, options=ClientOptions(**options)) as client,
    ):
        yield client


def slowly(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the *answer* of a server with an interval of a minute."""
    return answer | {"pollIntervalMs": 60_000}


async def test_short_task_does_not_take_a_poll_interval() -> None:
    """The first pauses are short: 20 ms, then twice as long each, up to the server's interval."""
    oven = Oven(*[slowly(WORKING)] * 3, DONE)
    async with client_of(oven) as client:  # it has 20 s, and the server's interval is a minute
        assert (await client.call("bake")).text == "bread"
    assert oven.methods.count("tasks/get") == 4


async def test_answered_task_is_asked_about_soon_again() -> None:
    """After answering a question the client waits for the result, however late the question was."""
    oven = Oven(*[WORKING] * 3, slowly(ASKING), *[slowly(WORKING)] * 3, DONE)
    async with client_of(oven, handler=Agreeing()) as client:
        assert (await client.call("bake")).text == "bread"


async def test_poll_outlives_a_server_that_dies_and_comes_back(free_port: int) -> None:
    """A call gets its result from the server that is reachable in the end."""
    oven = Oven(WORKING, WORKING, DONE)
    polled, met = asyncio.Event(), asyncio.Semaphore(0)

    async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
        await oven(Asked({"method": "POST", "path": "/", "headers": []}, None, send := Said(writer),
                         await reader.readexactly(length)))  # fmt: skip
        if send.ended and oven.methods[-1] == "tasks/get":
            polled.set()

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        met.release()
        writer.close()

    async with asyncio.timeout(20):
        first = await listening(speak, free_port)
        async with Client(f"http://127.0.0.1:{free_port}/mcp") as client:
            call = asyncio.create_task(client.call("bake"))
            async with first:
                await polled.wait()
            async with await listening(hang_up, free_port):
                await met.acquire()
            async with await listening(speak, free_port):
                assert (await call).data == "bread"
    assert "tasks/cancel" not in oven.methods


async def listening(speak: Any, port: int) -> asyncio.Server:
    return await asyncio.start_server(speak, "127.0.0.1", port, reuse_address=True)


class Said:
    """Writes the response of an ASGI application, and closes the connection."""

    def __init__(self, writer: asyncio.StreamWriter) -> None:
        self._writer = writer
        self.ended = False

    async def __call__(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            lines = b"".join(b"%b: %b\r\n" % pair for pair in message["headers"])
            head = b"HTTP/1.1 %d x\r\n%bconnection: close\r\n\r\n"
            self._writer.write(head % (message["status"], lines))
        else:
            self._writer.write(message["body"])
            self._writer.close()
            self.ended = True


@pytest.mark.parametrize("failure", [busy, unavailable, broken, silent, cut])
async def test_poll_that_fails_is_repeated(failure: Answer) -> None:
    """Whatever network and server do, one failed poll of many costs no result."""
    oven = Oven(failure, DONE)
    async with client_of(oven) as client:
        assert (await client.call("bake", idle_timeout=0.5)).data == "bread"
    assert oven.methods.count("tasks/get") == 2


@pytest.mark.parametrize(
    ("failure", "kind", "polls"),
    [
        (unavailable, HttpStatusError, 2),
        (busy, ServerError, 2),
        (cut, OutcomeUnknown, 2),
        (silent, OutcomeUnknown, 2),
        (stranger, Unauthorized, 1),
        (maintenance, ProtocolError, 1),
        (defective, ServerError, 1),
    ],
)
async def test_poll_in_vain_leaves_the_task_to_be_taken_up(
    failure: Answer, kind: type[ClientError], polls: int
) -> None:
    """The error has the id of the task, which is not cancelled, and continues."""
    with bounds(max_poll_failures=2):
        oven = Oven(failure)
        async with client_of(oven) as client:
            with pytest.raises(kind) as found:
                await client.call("bake", idle_timeout=0.2)
            assert found.value.task == "k"
            assert found.value.sent
            assert "tasks/cancel" not in oven.methods
            assert polls == oven.methods.count("tasks/get")
            oven.polls = [DONE]
            assert (await client.task(found.value.task or "").wait()).data == "bread"


def failing_once_used(*errors: BaseException) -> Callable[[], Awaitable[str]]:
    """Return a function whose first token expires, and which raises *errors* before a new one."""
    given: list[str | BaseException] = ["old", *errors, "new"]

    async def token() -> str:
        found = given.pop(0)
        if isinstance(found, BaseException):
            raise found
        return found

    return token


async def test_poll_outlives_a_short_fault_of_the_login() -> None:
    """A task of hours outlives its access token, and an identity provider that restarts."""
    oven = Oven(WORKING, expired)
    token = failing_once_used(OSError("HTTP 503"), TimeoutError("no response"))
    async with client_of(oven, auth=token) as client:
        assert (await client.call("bake")).data == "bread"
    assert "tasks/cancel" not in oven.methods


@pytest.mark.parametrize("fault", [ValueError("no such user"), asyncio.CancelledError()])
async def test_poll_without_a_token_leaves_the_task(fault: BaseException) -> None:
    """The call may have had effects, and the user can wait for its task after another login."""
    oven = Oven(WORKING, expired)
    async with client_of(oven, auth=failing_once_used(fault)) as client:
        with pytest.raises(OutcomeUnknown, match="authorization") as found:
            await client.call("bake")
        assert isinstance(found.value.__cause__, AuthorizationFailed)
        assert (found.value.sent, found.value.task) == (True, "k")
        assert "tasks/cancel" not in oven.methods
        assert (await client.task("k").wait()).data == "bread"


async def test_poll_of_a_client_that_is_closed_names_the_task() -> None:
    """Another client can continue with it."""
    polled = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def working(asked: Asked) -> None:
        loop.call_soon_threadsafe(polled.set)
        await asked.receive()

    async with client_of(Oven(working)) as client:
        call = asyncio.create_task(client.call("bake"))
        await polled.wait()
        await client.aclose()
        with pytest.raises(ClientClosed) as found:
            await call
        assert (found.value.task, found.value.sent) == ("k", True)


async def test_closing_a_client_ends_the_pause_between_polls() -> None:
    """A call of another thread ends at once, and its error has the task."""
    polled = threading.Event()

    async def working(asked: Asked) -> None:
        await answered(asked, slowly(WORKING))
        if oven.methods.count("tasks/get") == 5:  # the next comes 0.3 s later
            polled.set()

    def close_during_a_call(url: str) -> ClientClosed:
        with SyncClient(url) as client, ThreadPoolExecutor(1) as pool:
            call = pool.submit(client.call, "bake")
            assert polled.wait(20)
            client.close()
            with pytest.raises(ClientClosed) as found:
                call.result(20)
        return found.value

    oven = Oven(working)
    async with served(oven) as url:
        error = await asyncio.to_thread(close_during_a_call, url)
    assert (error.task, error.sent) == ("k", True)
    assert "tasks/cancel" not in oven.methods


async def test_poll_is_not_repeated_past_the_time_of_its_call() -> None:
    """A call takes as long as it may, and its task is cancelled then."""
    oven = Oven(broken)
    async with client_of(oven) as client:
        with pytest.raises(RequestTimeout, match=r"the task k took longer than 0\.7 s") as found:
            await client.call("bake", timeout=0.7)
    assert found.value.task is None
    assert oven.methods.count("tasks/get") == 2
    assert "tasks/cancel" in oven.methods


async def test_poll_does_not_wait_for_a_silent_subscription() -> None:
    """A server that neither acknowledges the stream nor ends it is polled after a second."""

    class Mute(Oven):
        async def __call__(self, asked: Asked) -> None:
            if asked.rpc == "subscriptions/listen":
                await asked.stream(": hello\n\n", more=True)
                await asked.receive()
            else:
                await super().__call__(asked)

    async with client_of(Mute(WORKING, DONE)) as client, asyncio.timeout(10):
        assert (await client.call("bake")).data == "bread"


async def test_poll_that_is_answered_with_an_error_is_over() -> None:
    """An error about the task itself is not polled again."""

    async def forgotten(asked: Asked) -> None:
        await refuse(asked, 200, {"code": -32602, "message": "Unknown task"})

    oven = Oven(forgotten)
    async with client_of(oven) as client:
        with pytest.raises(ServerError, match="Unknown task") as found:
            await client.call("bake")
    assert found.value.task is None
    assert oven.methods.count("tasks/get") == 1
    assert "tasks/cancel" not in oven.methods


async def test_poll_answers_are_sent_again_and_asked_for_once() -> None:
    """A user need not answer twice because the network broke."""
    handler = Agreeing()
    oven = Oven(ASKING, DONE, update=unavailable)
    async with client_of(oven, handler=handler) as client:
        assert (await client.call("bake")).data == "bread"
    assert oven.methods.count("tasks/update") == 2
    assert handler.asked == 1


async def test_poll_asks_again_after_a_failed_update() -> None:
    """An update that failed has answered nothing."""
    handler = Agreeing()
    oven = Oven(ASKING, DONE, update=unavailable)
    async with client_of(oven, handler=handler) as client:
        task = client.task("k")
        with pytest.raises(HttpStatusError):
            await task.update({"salt": {"action": "decline"}})
        assert (await task.wait()).data == "bread"
    assert handler.asked == 1
