"""Streamable HTTP, over real servers on loopback ports."""

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from starlette.applications import Starlette

from genmcp._transports.endpoint import Endpoint
from genmcp.channel import Channel
from genmcp.client.errors import (
    ClientClosed,
    ConnectError,
    ConnectionLost,
    Forbidden,
    HttpStatusError,
    NotFound,
    OutcomeUnknown,
    ProtocolError,
    Unauthorized,
)
from genmcp.client.transports.http_messages import request_path, resolve_on_origin
from genmcp.core.client.events import SendMessage
from genmcp.suite.suite import Suite
from genmcp.tools import Tool
from tests.client.scripted import ANSWER, NOTE, Asked, event, opened, scripted
from tests.client.sinks import MODERN, notification, request
from tests.support.serving import serve

pytestmark = pytest.mark.slow

META = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Count(Tool):
    """Counts, saying so."""

    name = "count"

    async def call(self, request: Any, channel: Channel) -> str:
        for number in range(3):
            await channel.progress(number, 3)
        return "done"


def call(id: int, name: str, **options: Any) -> SendMessage:
    meta = {**META, "progressToken": id}
    return request(id, name=name, arguments=options, _meta=meta)


async def test_response_is_json_or_an_event_stream() -> None:
    """Each message is passed on as it is received, with the id of its request."""
    app = Starlette(routes=[Endpoint(Suite(name="s", version="1", tools=[Count])).route("/mcp")])
    async with serve(app) as url, opened(url + "/mcp") as (transport, recorder):
        await transport.send(request(1, "tools/list", _meta=META))
        await transport.send(call(2, "count"))

    assert recorder.request_ids == [1, 2, 2, 2, 2]
    listed, *progress, answer = recorder.decoded
    assert listed["result"]["tools"][0]["name"] == "count"
    assert [each["method"] for each in progress] == ["notifications/progress"] * 3
    assert answer["result"]["content"][0]["text"] == "done"
    assert recorder.failures == []


async def test_headers_mirror_the_message() -> None:
    """The headers of the revision, of the options, and of the mirrored arguments."""
    seen: list[Asked] = []

    async def script(asked: Asked) -> None:
        seen.append(asked)
        await asked.reply(200, ANSWER)

    async with scripted(script, {"Authorization": "Bearer t"}) as (transport, _):
        plain = request(1, name="grüße")
        await transport.send(
            SendMessage(plain.message, 1, "tools/call", "grüße", MODERN, ((b"mcp-param-a", b"b"),))
        )

    [asked] = seen
    assert {
        "accept": "application/json, text/event-stream",
        "content-type": "application/json",
        "authorization": "Bearer t",
        "mcp-protocol-version": MODERN,
        "mcp-method": "tools/call",
        "mcp-name": "=?base64?Z3LDvMOfZQ==?=",
        "mcp-param-a": "b",
    }.items() <= asked.headers.items()
    assert plain.message == asked.body


async def test_connection_is_reused() -> None:
    """Also after an event stream."""
    clients = set()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            clients.add(scope["client"])
            asked = Asked(scope, receive, send, b"")
            id = int(asked.headers["mcp-name"])
            answer = {**ANSWER, "id": id}
            await (asked.stream(event(answer)) if id % 2 else asked.reply(200, answer))

    async with serve(app) as url, opened(url) as (transport, recorder):
        for id in range(6):
            await transport.send(request(id, name=str(id)))
            await asyncio.sleep(0)  # the end of a stream is read beside
        assert len(recorder.messages) == 6
    assert len(clients) <= 2


async def test_stream_is_closed_once_the_request_is_answered() -> None:
    """A server that does not end the stream does not block the client."""
    left = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def script(asked: Asked) -> None:
        await asked.stream(event(NOTE), event(ANSWER), more=True)
        while (await asked.receive())["type"] != "http.disconnect":
            pass
        loop.call_soon_threadsafe(left.set)

    async with scripted(script) as (transport, recorder):
        await transport.send(request(1))
        assert recorder.decoded == [NOTE, ANSWER]
        await transport.close()
        async with asyncio.timeout(5):
            await left.wait()


async def test_cancelled_send_closes_the_response() -> None:
    """2026-07-28: closing the response is how a request is cancelled."""
    left = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def script(asked: Asked) -> None:
        await asked.stream(event(NOTE), more=True)
        while (await asked.receive())["type"] != "http.disconnect":
            pass
        loop.call_soon_threadsafe(left.set)

    async with scripted(script) as (transport, recorder):
        sending = asyncio.ensure_future(transport.send(request(1)))
        await recorder.until(messages=1)
        sending.cancel()
        async with asyncio.timeout(5):
            await left.wait()

    assert sending.cancelled()
    assert recorder.failures == []


@pytest.mark.parametrize(
    ("status", "kind", "sent"),
    [
        (400, HttpStatusError, True),
        (401, Unauthorized, False),
        (403, Forbidden, False),
        (404, NotFound, True),
        (503, HttpStatusError, True),
        (302, HttpStatusError, True),
    ],
)
async def test_error_status_has_headers_and_body(
    status: int, kind: type[HttpStatusError], sent: bool
) -> None:
    """A request fails, and a notification raises."""

    async def script(asked: Asked) -> None:
        await asked.reply(status, {"why": "no"}, www_authenticate="Bearer", retry_after="3")

    async with scripted(script) as (transport, recorder):
        await transport.send(request(1))
        with pytest.raises(kind):
            await transport.send(notification("notifications/progress"))

    [(id, error)] = recorder.failures
    assert isinstance(error, kind)
    assert (1, status, sent) == (id, error.status, error.sent)
    assert error.content == b'{"why": "no"}'
    assert error.headers["retry-after"] == "3"
    assert f"HTTP {status}" in str(error)
    if isinstance(error, Unauthorized):
        assert error.challenge == "Bearer"


@pytest.mark.parametrize(
    ("media", "body", "fault"),
    [
        ("text/html", "hello", "text/html"),
        ("application/json", '{"id":2}', "does not answer"),
        ("application/json", "\x00", "does not answer"),
        ("application/json", "", "does not answer"),
    ],
)
async def test_response_without_the_answer_is_a_protocol_error(
    media: str, body: str, fault: str
) -> None:

    async def script(asked: Asked) -> None:
        await asked.head(200, content_type=media)
        await asked.write(body, more=False)

    async with scripted(script) as (transport, recorder):
        await transport.send(request(1))

    assert isinstance(recorder.failure, ProtocolError)
    assert fault in str(recorder.failure)


@pytest.mark.parametrize("streamed", [False, True])
async def test_oversized_message_fails_only_its_request(streamed: bool) -> None:

    async def script(asked: Asked) -> None:
        id = json.loads(asked.body)["id"]
        answer = {**ANSWER, "id": id, "result": "x" * (5000 if id == 1 else 1)}
        if streamed:
            text = json.dumps(answer, separators=(",", ":"))
            await asked.stream(f"data: {text}\n\n")
        else:
            await asked.reply(200, answer)

    async with scripted(script, max_message=1000) as (transport, recorder):
        await transport.send(request(1))
        await transport.send(request(2))

    assert [each["id"] for each in recorder.decoded] == [2]
    if streamed:
        [(size, _)] = recorder.oversized
        assert size > 5000
    else:
        assert isinstance(recorder.failure, ProtocolError)


async def test_broken_modern_stream_is_an_unknown_outcome() -> None:
    """Streams of 2026-07-28 cannot be resumed."""
    methods = []

    async def script(asked: Asked) -> None:
        methods.append(asked.method)
        await asked.stream(event(NOTE, id="a"))

    async with scripted(script) as (transport, recorder):
        await transport.send(request(1))

    assert isinstance(recorder.failure, OutcomeUnknown)
    assert isinstance(recorder.failure.__cause__, ConnectionLost)
    assert "tools/call may or may not have been carried out" in str(recorder.failure)
    assert methods == ["POST"]


async def test_response_to_a_notification_is_ignored() -> None:
    """Even an event stream without end."""

    async def script(asked: Asked) -> None:
        if asked.rpc == "notifications/progress":
            await asked.reply(200, {"jsonrpc": "2.0", "result": {}})
        else:
            await asked.stream(": hello\n\n", more=True)
            await asked.receive()

    async with scripted(script) as (transport, recorder):
        await transport.send(notification("notifications/progress"))
        await transport.send(notification("notifications/cancelled"))

    assert recorder.messages == []


@pytest.mark.parametrize("statuses", [(308,), (307,), (308, 307)])
async def test_redirect_on_the_same_origin_is_followed(statuses: tuple[int, ...]) -> None:
    """Each request begins at the URL of the user: none is remembered."""
    paths: list[str] = []
    moves = iter(statuses)

    async def script(asked: Asked) -> None:
        paths.append(asked.path)
        if (status := next(moves, None)) is not None:
            await asked.reply(status, location=f"/{len(paths)}")
        else:
            await asked.reply(200, {**ANSWER, "id": json.loads(asked.body)["id"]})

    async with scripted(script) as (transport, recorder):
        await transport.send(request(1))
        await transport.send(request(2))

    assert paths == ["/mcp", *(f"/{each + 1}" for each in range(len(statuses))), "/mcp"]
    assert recorder.failures == []


@pytest.mark.parametrize(
    ("url", "location", "same"),
    [
        ("https://a.example/mcp", "https://a.example:443/mcp/", True),
        ("http://a.example:80/mcp", "http://a.example/mcp/", True),
        ("https://A.example/mcp", "HTTPS://a.EXAMPLE/mcp/", True),
        ("https://a.example/mcp", "//a.example:443/mcp/", True),
        ("https://a.example/mcp", "https://a.example:8443/mcp/", False),
        ("https://a.example/mcp", "http://a.example:443/mcp/", False),
        ("https://a.example/mcp", "https://b.example/mcp/", False),
    ],
)
def test_default_port_and_case_do_not_make_another_origin(
    url: str, location: str, same: bool
) -> None:
    """RFC 6454, 4; the rule is that of logins."""
    target, found = resolve_on_origin(urlsplit(url), location, "server")
    assert (request_path(target), found) == ("/mcp/", same)


@pytest.mark.parametrize("location", ["http://[oops", "http://a.example:99999/"])
@pytest.mark.parametrize("status", [307, 308])
async def test_redirect_to_an_invalid_url_is_a_protocol_error(status: int, location: str) -> None:

    async def script(asked: Asked) -> None:
        await asked.reply(status, location=location)

    async with scripted(script) as (transport, recorder):
        await transport.send(request(1))

    assert isinstance(recorder.failure, ProtocolError)


@pytest.mark.parametrize(
    ("location", "reason"), [("https://elsewhere.example/", "elsewhere"), ("/mcp", "in a row")]
)
async def test_other_redirects_are_not_followed(location: str, reason: str) -> None:
    """Another origin must not receive the message, and loops end."""

    async def script(asked: Asked) -> None:
        await asked.reply(308, location=location)

    async with scripted(script) as (transport, recorder):
        await transport.send(request(1))

    assert isinstance(recorder.failure, ConnectError)
    assert reason in str(recorder.failure)


async def test_subscription_takes_no_slot() -> None:

    async def script(asked: Asked) -> None:
        if asked.rpc == "subscriptions/listen":
            await asked.stream(event(NOTE), more=True)
            await asked.receive()
        else:
            await asked.reply(200, {**ANSWER, "id": 2})

    async with scripted(script, max_connections=1) as (transport, recorder):
        listening = asyncio.ensure_future(transport.send(request(1, "subscriptions/listen")))
        await recorder.until(messages=1)
        await transport.send(request(2))
        listening.cancel()
        await asyncio.wait([listening])

    assert [each.get("id") for each in recorder.decoded] == [None, 2]
    assert recorder.failures == []


async def test_send_to_a_silent_server_can_be_cancelled() -> None:

    async def script(asked: Asked) -> None:
        await asked.receive()

    async with scripted(script) as (transport, recorder):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await transport.send(request(1))

    assert recorder.failures == []


async def test_close_ends_open_requests_silently() -> None:

    async def script(asked: Asked) -> None:
        await asked.stream(event(NOTE), more=True)
        await asked.receive()

    async with scripted(script) as (transport, recorder):
        sending = asyncio.ensure_future(transport.send(request(1)))
        await recorder.until(messages=1)
        await transport.close()
        await transport.close()
        await sending
        with pytest.raises(ClientClosed):
            await transport.send(request(2))
        with pytest.raises(ClientClosed):
            await transport.open(recorder)

    assert recorder.failures == []


async def test_httpx_client_of_the_user_sends_the_requests(free_port: int) -> None:
    """It is not closed; only the coding that it accepts is replaced."""
    seen: list[tuple[str, str]] = []

    async def script(asked: Asked) -> None:
        seen.append((asked.headers["user-agent"], asked.headers["accept-encoding"]))
        if asked.rpc == "tools/list":
            await asked.reply(200, {**ANSWER, "id": 2})
        elif asked.rpc == "ping":
            await asked.head(200, content_type="application/json", content_length="9")
            raise ConnectionError
        elif asked.rpc == "prompts/list":
            raise ConnectionError
        else:
            await asked.stream(event(NOTE), event(ANSWER))

    headers = {"user-agent": "mine", "accept-encoding": "gzip"}
    async with httpx.AsyncClient(headers=headers) as client:
        options: dict[str, Any] = {"http_client": client, "connect_timeout": 2}
        async with scripted(script, **options) as (transport, recorder):
            await transport.send(request(1))
            await transport.send(request(2, "tools/list"))
            await transport.send(request(3, "ping"))
        async with opened(f"http://127.0.0.1:{free_port}", **options) as (transport, nobody):
            await transport.send(request(1))
        assert not client.is_closed

    assert seen == [("mine", "identity")] * 3
    assert recorder.request_ids == [1, 1, 2]
    assert isinstance(recorder.failure, OutcomeUnknown)
    assert isinstance(nobody.failure, ConnectError)
