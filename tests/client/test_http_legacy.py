"""Streamable HTTP before 2026-07-28: sessions, resumption, and the notification stream."""

import asyncio
from itertools import pairwise

import httpx
import pytest

from genmcp.client.errors import (
    ConnectError,
    OutcomeUnknown,
    SessionEnded,
)
from genmcp.client.transports.base import HttpResponse
from genmcp.client.transports.sse import SseCursor
from tests.client.scripted import ANSWER, NOTE, Asked, event, scripted
from tests.client.sinks import LEGACY, Recorder, notification, request

pytestmark = pytest.mark.slow


async def test_broken_legacy_stream_is_resumed() -> None:
    """Behind the last event, not before `retry`, and as often as it makes progress."""
    resumed: list[tuple[str, float]] = []
    loop = asyncio.get_running_loop()

    async def script(asked: Asked) -> None:
        if asked.method == "POST":
            await asked.stream(event(None, id="a", retry=50))
            return
        resumed.append((asked.headers["last-event-id"], loop.time()))
        if len(resumed) < 3:
            await asked.stream(event(NOTE, id=f"b{len(resumed)}"))
        else:
            await asked.stream(event(ANSWER, id="c"))

    async with scripted(script, resume_attempts=1) as (transport, recorder):
        await transport.send(request(1, revision=LEGACY))

    assert [cursor for cursor, _ in resumed] == ["a", "b1", "b2"]
    assert recorder.decoded == [NOTE, NOTE, ANSWER]
    assert recorder.request_ids == [1, 1, 1]
    assert all(later[1] - earlier[1] >= 0.05 for earlier, later in pairwise(resumed))


@pytest.mark.parametrize(
    ("status", "attempts"), [(200, 2), (503, 2), (404, 1), (405, 1), (0, 2)], ids=str
)
async def test_failed_resumption_ends_in_unknown_outcome(status: int, attempts: int) -> None:
    """A stream without events is tried again up to the limit; a rejected one is not."""
    gets = 0

    async def script(asked: Asked) -> None:
        nonlocal gets
        if asked.method == "POST":
            await asked.stream(event(None, id="a", retry=1))
            return
        gets += 1
        if status == 200:
            await asked.stream()
        elif status:
            await asked.reply(status)
        else:
            await asked.head(200, content_type="text/event-stream", content_length="9")
            raise ConnectionError

    async with scripted(script, resume_attempts=2) as (transport, recorder):
        await transport.send(request(1, revision=LEGACY))

    assert isinstance(recorder.failure, OutcomeUnknown)
    assert recorder.failure.sent
    assert attempts == gets


async def test_session_id_is_sent_and_the_session_ended() -> None:
    """The id is sent with every request, and with the DELETE at the end."""
    seen: list[tuple[str, str | None, str | None]] = []
    listening = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def script(asked: Asked) -> None:
        session = asked.headers.get("mcp-session-id")
        seen.append((asked.method, asked.rpc, session))
        if asked.rpc == "initialize":
            await asked.reply(200, ANSWER, mcp_session_id="s1")
        elif asked.method == "GET":
            await asked.stream(event(NOTE), more=True)
            loop.call_soon_threadsafe(listening.set)
            await asked.receive()
        elif asked.method == "POST":
            await asked.reply(202)
        else:
            await asked.reply(405)

    async with scripted(script) as (transport, recorder):
        await transport.send(request(1, "initialize", revision=None))
        await transport.send(notification("notifications/initialized"))
        await recorder.until(messages=2)

    assert seen == [
        ("POST", "initialize", None),
        ("POST", "notifications/initialized", "s1"),
        ("GET", None, "s1"),
        ("DELETE", None, "s1"),
    ]
    assert recorder.decoded == [ANSWER, NOTE]
    assert recorder.request_ids == [1, None]


async def test_404_in_a_session_is_session_ended() -> None:
    """A new session is begun without the id of the old one."""
    sessions: list[str | None] = []

    async def script(asked: Asked) -> None:
        sessions.append(asked.headers.get("mcp-session-id"))
        if asked.rpc == "initialize":
            await asked.reply(200, ANSWER, mcp_session_id=f"s{len(sessions)}")
        else:
            await asked.reply(404)

    async with scripted(script) as (transport, recorder):
        await transport.send(request(1, "initialize", revision=None))
        await transport.send(request(2, revision=LEGACY))
        await transport.send(request(1, "initialize", revision=None))

    assert isinstance(recorder.failure, SessionEnded)
    assert not recorder.failure.sent
    assert sessions == [None, "s1", None, "s3"]


def session_error(text: str, code: int = -32000) -> dict[str, object]:
    return {"jsonrpc": "2.0", "id": None, "error": {"code": code, "message": text}}


@pytest.mark.parametrize(
    ("code", "text", "lost"),
    [
        (-32000, "Bad Request: No valid session ID provided", True),
        (-32000, "Bad Request: Server not initialized", True),
        (-32000, "Bad Request: Mcp-Session-Id header is required", True),
        (-32600, "Bad Request: Missing session ID", True),
        (-32000, "Session quota exceeded", False),
        (-32000, "Bad Request: Unsupported protocol version", False),
        (-32602, "session id: No valid session ID of a show", False),
        (-32600, "Unknown Last-Event-ID: the stream is not of this session", False),
    ],
)
async def test_400_ends_the_session_only_for_session_errors(
    code: int, text: str, lost: bool
) -> None:
    """A request that was rejected for another reason is not repeated in a new session."""

    async def script(asked: Asked) -> None:
        if asked.rpc == "initialize":
            await asked.reply(200, ANSWER, mcp_session_id="s1")
        else:
            await asked.reply(400, session_error(text, code))

    async with scripted(script) as (transport, recorder):
        await transport.send(request(1, "initialize", revision=None))
        await transport.send(request(2, revision=LEGACY))

    assert lost == isinstance(recorder.failure, SessionEnded)
    assert text in str(recorder.failure)


async def test_400_to_a_resumed_stream_keeps_the_session() -> None:
    """It may be about the event: the stream is opened again without its id."""
    asked_for: list[str | None] = []

    async def script(asked: Asked) -> None:
        if asked.rpc == "initialize":
            await asked.reply(200, ANSWER, mcp_session_id="s1")
        elif asked.method == "GET":
            asked_for.append(last := asked.headers.get("last-event-id"))
            if last is None:
                await asked.stream(event(NOTE, id=len(asked_for), retry=1))
            else:
                await asked.reply(400, session_error("No valid session ID provided for this event"))
        else:
            await asked.reply(202)

    async with scripted(script) as (transport, recorder):
        await transport.send(request(1, "initialize", revision=None))
        await transport.send(notification("notifications/initialized"))
        await recorder.until(messages=3)

    assert asked_for[:3] == [None, "1", None]
    assert recorder.ended_sessions == []


async def test_late_404_of_an_old_session_keeps_the_new_one() -> None:
    """The request was not carried out, and can be repeated in the new session."""
    asked_old, begun_new = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    count = 0

    async def script(asked: Asked) -> None:
        nonlocal count
        if asked.rpc == "initialize":
            count += 1
            await asked.reply(200, ANSWER, mcp_session_id=f"s{count}")
            return
        if asked.method == "POST":
            loop.call_soon_threadsafe(asked_old.set)
            wait = asyncio.run_coroutine_threadsafe(begun_new.wait(), loop)
            await asyncio.wrap_future(wait)
        await asked.reply(404)

    async with scripted(script) as (transport, recorder):
        await transport.send(request(1, "initialize", revision=None))
        old = asyncio.ensure_future(transport.send(request(2, revision=LEGACY)))
        await asked_old.wait()
        await transport.send(request(1, "initialize", revision=None))
        begun_new.set()
        await old

    assert type(recorder.failure) is ConnectError
    assert not recorder.failure.sent


async def test_invalid_session_id_is_a_protocol_error() -> None:
    """A session id is visible ASCII (2025-11-25, transports, Session Management)."""

    async def script(asked: Asked) -> None:
        await asked.reply(200, ANSWER, mcp_session_id="a b")

    async with scripted(script) as (transport, recorder):
        await transport.send(request(1, "initialize", revision=None))

    assert "session id" in str(recorder.failure)


@pytest.mark.parametrize("status", [404, 405])
async def test_missing_notification_stream_is_not_retried(status: int) -> None:
    """405 means that the server has no such stream; 404 may mean it too."""
    gets = 0

    async def script(asked: Asked) -> None:
        nonlocal gets
        if asked.method == "GET":
            gets += 1
            await asked.reply(status)
        elif asked.rpc == "initialize":
            await asked.reply(200, ANSWER, mcp_session_id="s")
        else:
            await asked.reply(202)

    async with scripted(script, first_delay=0.001) as (transport, recorder):
        await transport.send(request(1, "initialize", revision=None))
        await transport.send(notification("notifications/initialized"))
        await transport.notifications_ready()
        await asyncio.gather(*(task for task in asyncio.all_tasks() if is_listening(task)))

    assert gets == 1
    assert recorder.failures == []
    assert recorder.ended_sessions == []
    assert recorder.gaps == 0


def is_listening(task: "asyncio.Task[object]") -> bool:
    return "NotificationStream" in getattr(task.get_coro(), "__qualname__", "")


async def test_unavailable_notification_stream_is_retried() -> None:
    """With growing pauses; notifications may have been lost until then."""
    gets = 0

    async def script(asked: Asked) -> None:
        nonlocal gets
        if asked.method != "GET":
            await asked.reply(202)
            return
        gets += 1
        if gets < 5:
            await asked.reply(503)
        else:
            await asked.stream(event(NOTE), more=True)
            await asked.receive()

    async with scripted(script, first_delay=0.01) as (transport, recorder):
        await transport.send(notification("notifications/initialized"))
        await transport.notifications_ready()
        await recorder.until(messages=1)

    assert gets == 5
    assert recorder.gaps == 1
    assert recorder.decoded == [NOTE]
    assert recorder.failures == []


async def test_notification_stream_is_resumed() -> None:
    """Across as many connections as the server uses."""
    cursors: list[str | None] = []

    async def script(asked: Asked) -> None:
        if asked.method == "GET":
            cursors.append(asked.headers.get("last-event-id"))
            await asked.stream(event(NOTE, id=f"e{len(cursors)}", retry=1))
        else:
            await asked.reply(202)

    async with scripted(script) as (transport, recorder):
        await transport.send(notification("notifications/initialized"))
        await recorder.until(messages=3)

    assert cursors[:3] == [None, "e1", "e2"]
    assert recorder.gaps == 0


async def test_rejected_resumption_opens_a_new_stream() -> None:
    """A server that lost its events has another stream; notifications in between are lost."""
    cursors: list[str | None] = []

    async def script(asked: Asked) -> None:
        if asked.method != "GET":
            await asked.reply(202)
            return
        cursors.append(asked.headers.get("last-event-id"))
        if len(cursors) == 2:
            await asked.reply(400)
        else:
            await asked.stream(event(NOTE, id=f"e{len(cursors)}", retry=1))

    async with scripted(script) as (transport, recorder):
        await transport.send(notification("notifications/initialized"))
        await recorder.until(messages=2, gaps=1)

    assert cursors[:3] == [None, "e1", None]


@pytest.mark.parametrize("by_httpx", [False, True])
async def test_what_requests_depend_on_takes_no_slot(by_httpx: bool) -> None:
    """With one slot, neither the notification stream nor a notification waits for a call."""
    released = asyncio.Event()

    async def script(asked: Asked) -> None:
        if asked.method == "GET":
            await asked.stream(event(NOTE), more=True)
            await asked.receive()
        elif asked.rpc == "tools/call":
            await asked.stream(event(NOTE), more=True)
            await released.wait()
            await asked.write(event(ANSWER), more=False)
        else:
            if asked.rpc == "notifications/progress":
                released.set()
            await asked.reply(202)

    async with httpx.AsyncClient() as client:
        own = client if by_httpx else None
        async with scripted(script, max_connections=1, http_client=own) as (transport, recorder):
            await transport.send(notification("notifications/initialized"))
            await recorder.until(messages=1)
            async with asyncio.TaskGroup() as group:
                group.create_task(transport.send(request(1, revision=LEGACY)))
                await recorder.until(messages=2)
                await transport.send(notification("notifications/progress"))

    assert recorder.decoded == [NOTE, NOTE, ANSWER]


class CannedResponse(HttpResponse):
    """A response with a given body."""

    def __init__(self, body: bytes) -> None:
        super().__init__("here")
        self._pieces = iter([body])

    async def _chunk(self) -> bytes:
        return next(self._pieces, b"")

    async def _release(self) -> None:
        pass


@pytest.mark.parametrize(
    ("retry", "delay"), [(0, 0.1), (1, 0.1), (250, 0.25), (300_001, 300), (10**8, 300)]
)
async def test_retry_of_the_server_is_bounded(retry: int, delay: float) -> None:
    """A server can cause neither a busy loop nor an endless wait."""
    cursor = SseCursor()
    await cursor.follow(CannedResponse(b"retry: %d\ndata:\n\n" % retry), Recorder(), None)

    assert delay == cursor.delay(0)
