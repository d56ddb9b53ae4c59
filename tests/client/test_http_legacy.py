"""What Streamable HTTP has besides before 2026-07-28: sessions, and streams that are resumed."""

import asyncio
from itertools import pairwise

import httpx
import pytest

from genmcp.client.errors import (
    ConnectError,
    OutcomeUnknown,
    SessionEnded,
)
from genmcp.client.options import HttpOptions
from genmcp.client.transports.base import HttpResponse
from genmcp.client.transports.sse import SseCursor
from tests.client.scripted import ANSWER, NOTE, Asked, event, scripted
from tests.client.sinks import LEGACY, Recorder, notification, request


async def test_http_broken_stream_of_a_legacy_revision_is_resumed() -> None:
    """It is taken up behind the last event, not before `retry` is over, as often as it moves on."""
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

    options = HttpOptions(max_resume_attempts=1)
    async with scripted(script, options) as (transport, recorder):
        await transport.send(request(1, revision=LEGACY))

    assert ["a", "b1", "b2"] == [place for place, _ in resumed]
    assert [NOTE, NOTE, ANSWER] == recorder.said
    assert [1, 1, 1] == recorder.abouts
    assert all(later[1] - sooner[1] >= 0.05 for sooner, later in pairwise(resumed))


@pytest.mark.parametrize(
    ("status", "attempts"), [(200, 2), (503, 2), (404, 1), (405, 1), (0, 2)], ids=str
)
async def test_http_resumption_in_vain_is_given_up(status: int, attempts: int) -> None:
    """A stream that brings nothing is tried again a few times, one that is refused is not."""
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

    options = HttpOptions(max_resume_attempts=2)
    async with scripted(script, options) as (transport, recorder):
        await transport.send(request(1, revision=LEGACY))

    assert isinstance(recorder.failure, OutcomeUnknown)
    assert recorder.failure.sent
    assert attempts == gets


async def test_http_session_is_kept_and_ended() -> None:
    """The id of the session goes with every request from its beginning to the DELETE at the end."""
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

    assert [
        ("POST", "initialize", None),
        ("POST", "notifications/initialized", "s1"),
        ("GET", None, "s1"),
        ("DELETE", None, "s1"),
    ] == seen
    assert [ANSWER, NOTE] == recorder.said
    assert [1, None] == recorder.abouts


async def test_http_session_that_ended_is_told_as_such() -> None:
    """404 in a session says that it is over; a new one is begun without its id."""
    sessions: list[str | None] = []

    async def script(asked: Asked) -> None:
        sessions.append(asked.headers.get("mcp-session-id"))
        if asked.rpc == "initialize":
            await asked.reply(200, ANSWER, mcp_session_id=f"s{len(sessions)}")
        else:
            await asked.reply(404)

    options = HttpOptions(listen=False)
    async with scripted(script, options) as (transport, recorder):
        await transport.send(request(1, "initialize", revision=None))
        await transport.send(request(2, revision=LEGACY))
        await transport.send(request(1, "initialize", revision=None))

    assert isinstance(recorder.failure, SessionEnded)
    assert not recorder.failure.sent
    assert [None, "s1", None, "s3"] == sessions


def refusal(text: str, code: int = -32000) -> dict[str, object]:
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
async def test_http_400_ends_the_session_only_if_it_says_so(
    code: int, text: str, lost: bool
) -> None:
    """A request that was rejected for another reason is not repeated in a new session."""

    async def script(asked: Asked) -> None:
        if asked.rpc == "initialize":
            await asked.reply(200, ANSWER, mcp_session_id="s1")
        else:
            await asked.reply(400, refusal(text, code))

    async with scripted(script, HttpOptions(listen=False)) as (transport, recorder):
        await transport.send(request(1, "initialize", revision=None))
        await transport.send(request(2, revision=LEGACY))

    assert lost == isinstance(recorder.failure, SessionEnded)
    assert text in str(recorder.failure)


async def test_http_400_to_a_resumed_stream_keeps_the_session() -> None:
    """It may be about the event: the stream is opened anew, without its id."""
    asked_for: list[str | None] = []

    async def script(asked: Asked) -> None:
        if asked.rpc == "initialize":
            await asked.reply(200, ANSWER, mcp_session_id="s1")
        elif asked.method == "GET":
            asked_for.append(last := asked.headers.get("last-event-id"))
            if last is None:
                await asked.stream(event(NOTE, id=len(asked_for), retry=1))
            else:
                await asked.reply(400, refusal("No valid session ID provided for this event"))
        else:
            await asked.reply(202)

    async with scripted(script) as (transport, recorder):
        await transport.send(request(1, "initialize", revision=None))
        await transport.send(notification("notifications/initialized"))
        await recorder.until(messages=3)

    assert [None, "1", None] == asked_for[:3]
    assert [] == recorder.ended_sessions


async def test_http_late_404_of_an_older_session_ends_no_newer_one() -> None:
    """A request of a session that another one has taken the place of was just not carried out."""
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


async def test_http_session_id_with_wrong_characters_is_a_fault() -> None:
    """A session id is visible ASCII, or could not be sent back."""

    async def script(asked: Asked) -> None:
        await asked.reply(200, ANSWER, mcp_session_id="a b")

    async with scripted(script) as (transport, recorder):
        await transport.send(request(1, "initialize", revision=None))

    assert "session id" in str(recorder.failure)


@pytest.mark.parametrize("status", [404, 405])
async def test_http_server_without_a_stream_of_its_own_is_left_alone(status: int) -> None:
    """405 is how a server says that it has none; one without such a path may say 404."""
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

    async with scripted(script, HttpOptions(listen_retry_interval=0.001)) as (transport, recorder):
        await transport.send(request(1, "initialize", revision=None))
        await transport.send(notification("notifications/initialized"))
        await transport.notifications_ready()
        await asyncio.gather(*(task for task in asyncio.all_tasks() if is_listening(task)))

    assert 1 == gets
    assert [] == recorder.failures
    assert [] == recorder.ended_sessions
    assert 0 == recorder.gaps


def is_listening(task: "asyncio.Task[object]") -> bool:
    return "ServerStream" in getattr(task.get_coro(), "__qualname__", "")


async def test_http_stream_that_cannot_be_had_is_asked_for_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Now and then, each time with word that something is missed; and it is heard in the end."""
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

    options = HttpOptions(max_resume_attempts=1, listen_retry_interval=0.01)
    async with scripted(script, options) as (transport, recorder):
        await transport.send(notification("notifications/initialized"))
        await transport.notifications_ready()
        await recorder.until(messages=1)

    assert 5 == gets
    assert 4 == recorder.gaps  # the second attempt, and those after it
    assert [NOTE] == recorder.said
    assert [] == recorder.failures
    assert 1 == caplog.text.count("are not received: its event stream cannot be opened")


async def test_http_stream_of_a_server_is_taken_up_where_it_ended() -> None:
    """What a server says unasked comes over as many connections as it likes."""
    places: list[str | None] = []

    async def script(asked: Asked) -> None:
        if asked.method == "GET":
            places.append(asked.headers.get("last-event-id"))
            await asked.stream(event(NOTE, id=f"e{len(places)}", retry=1))
        else:
            await asked.reply(202)

    async with scripted(script) as (transport, recorder):
        await transport.send(notification("notifications/initialized"))
        await recorder.until(messages=3)

    assert [None, "e1", "e2"] == places[:3]
    assert 0 == recorder.gaps


async def test_http_stream_that_is_refused_where_it_ended_is_begun_anew() -> None:
    """A server that lost its events has another stream, and what was between is missed."""
    places: list[str | None] = []

    async def script(asked: Asked) -> None:
        if asked.method != "GET":
            await asked.reply(202)
            return
        places.append(asked.headers.get("last-event-id"))
        if len(places) == 2:
            await asked.reply(400)
        else:
            await asked.stream(event(NOTE, id=f"e{len(places)}", retry=1))

    async with scripted(script) as (transport, recorder):
        await transport.send(notification("notifications/initialized"))
        await recorder.until(messages=2, gaps=1)

    assert [None, "e1", None] == places[:3]


@pytest.mark.parametrize("by_httpx", [False, True])
async def test_http_what_requests_wait_for_takes_no_place(by_httpx: bool) -> None:
    """Of one place neither the stream of the server takes any, nor what a call waits for."""
    told = asyncio.Event()

    async def script(asked: Asked) -> None:
        if asked.method == "GET":
            await asked.stream(event(NOTE), more=True)
            await asked.receive()
        elif asked.rpc == "tools/call":
            await asked.stream(event(NOTE), more=True)
            await told.wait()
            await asked.write(event(ANSWER), more=False)
        else:
            if asked.rpc == "notifications/progress":
                told.set()
            await asked.reply(202)

    async with httpx.AsyncClient() as client:
        options = HttpOptions(max_connections=1, client=client if by_httpx else None)
        async with scripted(script, options) as (transport, recorder):
            await transport.send(notification("notifications/initialized"))
            await recorder.until(messages=1)
            async with asyncio.TaskGroup() as group:
                group.create_task(transport.send(request(1, revision=LEGACY)))
                await recorder.until(messages=2)
                await transport.send(notification("notifications/progress"))

    assert [NOTE, NOTE, ANSWER] == recorder.said


class Told(HttpResponse):
    """A response with this body."""

    def __init__(self, body: bytes) -> None:
        super().__init__("here")
        self._pieces = iter([body])

    async def chunk(self) -> bytes:
        return next(self._pieces, b"")

    async def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("retry", "delay"), [(0, 0.1), (1, 0.1), (250, 0.25), (300_001, 300), (10**8, 300)]
)
async def test_http_retry_of_a_server_is_bounded(retry: int, delay: float) -> None:
    """A server makes its client neither run in circles nor wait for ever."""
    place = SseCursor(1000)
    await place.follow(Told(b"retry: %d\ndata:\n\n" % retry), Recorder(), None)

    assert delay == place.delay(0)
