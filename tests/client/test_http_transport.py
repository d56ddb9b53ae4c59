"""Streamable HTTP, over real servers on loopback ports."""

import asyncio
import json
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from genmcp.channel import Channel
from genmcp.client.errors import (
    ClientClosed,
    ConnectError,
    ConnectionLost,
    ConnectionRefused,
    HttpStatusError,
    MessageTooLarge,
    NotFound,
    OutcomeUnknown,
    ProtocolError,
    Unauthorized,
)
from genmcp.client.options import HttpOptions
from genmcp.core.client.events import Send
from genmcp.errors import ConfigurationError
from genmcp.suite.suite import Suite
from genmcp.tool import Tool
from genmcp.transports.endpoint import Endpoint
from tests.client.scripted import ANSWER, NOTE, Asked, event, opened, scripted
from tests.client.sinks import MODERN, notification, request
from tests.support.serving import serve

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


def call(id: int, name: str, **options: Any) -> Send:
    meta = {**META, "progressToken": id}
    return request(id, name=name, arguments=options, _meta=meta)


async def test_http_request_is_answered_by_json_or_by_a_stream() -> None:
    """Each message is passed on as it comes, with the request it belongs to."""
    app = Starlette(routes=[Endpoint(Suite(name="s", version="1", tools=[Count])).route("/mcp")])
    async with serve(app) as url, opened(url + "/mcp") as (transport, recorder):
        await transport.send(request(1, "tools/list", _meta=META))
        await transport.send(call(2, "count"))

    assert [1, 2, 2, 2, 2] == recorder.abouts
    listed, *progress, answer = recorder.said
    assert "count" == listed["result"]["tools"][0]["name"]
    assert ["notifications/progress"] * 3 == [each["method"] for each in progress]
    assert "done" == answer["result"]["content"][0]["text"]
    assert [] == recorder.failures


async def test_http_headers_say_what_the_message_is() -> None:
    """A request carries the headers of its revision, those of the options and the mirrored ones."""
    seen: list[Asked] = []

    async def script(asked: Asked) -> None:
        seen.append(asked)
        await asked.reply(200, ANSWER)

    options = HttpOptions(headers={"Authorization": "Bearer t"})
    async with scripted(script, options) as (transport, _):
        plain = request(1, name="grüße")
        await transport.send(
            Send(plain.message, 1, "tools/call", "grüße", MODERN, ((b"mcp-param-a", b"b"),))
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


async def test_http_connection_is_kept() -> None:
    """One request after another goes over one connection, also after an event stream."""
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
        assert 6 == len(recorder.messages)
    assert len(clients) <= 2


async def test_http_stream_is_left_once_its_request_is_answered() -> None:
    """A server that does not end the stream holds nobody up."""
    left = asyncio.Event()
    loop = asyncio.get_running_loop()

    async def script(asked: Asked) -> None:
        await asked.stream(event(NOTE), event(ANSWER), more=True)
        while (await asked.receive())["type"] != "http.disconnect":
            pass
        loop.call_soon_threadsafe(left.set)

    async with scripted(script) as (transport, recorder):
        await transport.send(request(1))
        assert [NOTE, ANSWER] == recorder.said
        await transport.close()
        async with asyncio.timeout(5):
            await left.wait()


async def test_http_cancelled_send_closes_the_response() -> None:
    """Leaving `send` is the cancellation of 2026-07-28: the server sees the connection go."""
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
    assert [] == recorder.failures


@pytest.mark.parametrize(
    ("status", "kind", "sent"),
    [
        (400, HttpStatusError, True),
        (401, Unauthorized, False),
        (403, HttpStatusError, True),
        (404, NotFound, True),
        (503, HttpStatusError, True),
        (302, HttpStatusError, True),
    ],
)
async def test_http_error_status_is_told_with_its_body(
    status: int, kind: type[HttpStatusError], sent: bool
) -> None:
    """A request fails with the status, headers and body; a notification raises them."""

    async def script(asked: Asked) -> None:
        await asked.reply(status, {"why": "no"}, www_authenticate="Bearer", retry_after="3")

    async with scripted(script) as (transport, recorder):
        await transport.send(request(1))
        with pytest.raises(kind):
            await transport.send(notification("notifications/progress"))

    [(id, error)] = recorder.failures
    assert isinstance(error, kind)
    assert (1, status, sent) == (id, error.status, error.sent)
    assert b'{"why": "no"}' == error.content
    assert "3" == error.headers["retry-after"]
    assert f"HTTP {status}" in str(error)
    if isinstance(error, Unauthorized):
        assert "Bearer" == error.challenge


@pytest.mark.parametrize(
    ("media", "body", "fault"),
    [
        ("text/html", "hello", "text/html"),
        ("application/json", '{"id":2}', "does not answer"),
        ("application/json", "\x00", "does not answer"),
        ("application/json", "", "does not answer"),
    ],
)
async def test_http_response_that_is_no_answer_is_a_fault(
    media: str, body: str, fault: str
) -> None:
    """A server that answers a request with something else broke the protocol."""

    async def script(asked: Asked) -> None:
        await asked.head(200, content_type=media)
        await asked.write(body, more=False)

    async with scripted(script) as (transport, recorder):
        await transport.send(request(1))

    assert isinstance(recorder.failure, ProtocolError)
    assert fault in str(recorder.failure)


@pytest.mark.parametrize("streamed", [False, True])
async def test_http_message_past_max_message_fails_its_request(streamed: bool) -> None:
    """A request whose answer is too long fails, and the next one does not."""

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

    assert [2] == [each["id"] for each in recorder.said]
    if streamed:
        [(size, _)] = recorder.lost
        assert size > 5000
    else:
        assert isinstance(recorder.failure, MessageTooLarge)
        assert 1000 == recorder.failure.limit


async def test_http_broken_stream_of_2026_has_an_unknown_outcome() -> None:
    """Streams of 2026-07-28 cannot be resumed: the request may have been carried out."""
    methods = []

    async def script(asked: Asked) -> None:
        methods.append(asked.method)
        await asked.stream(event(NOTE, id="a"))

    async with scripted(script) as (transport, recorder):
        await transport.send(request(1))

    assert isinstance(recorder.failure, OutcomeUnknown)
    assert isinstance(recorder.failure.__cause__, ConnectionLost)
    assert "tools/call may or may not have been carried out" in str(recorder.failure)
    assert ["POST"] == methods


async def test_http_answer_to_a_notification_is_of_no_matter() -> None:
    """A server that answers a notification, even with a stream without end, holds nobody up."""

    async def script(asked: Asked) -> None:
        if asked.rpc == "notifications/progress":
            await asked.reply(200, {"jsonrpc": "2.0", "result": {}})
        else:
            await asked.stream(": hello\n\n", more=True)
            await asked.receive()

    async with scripted(script) as (transport, recorder):
        await transport.send(notification("notifications/progress"))
        await transport.send(notification("notifications/cancelled"))

    assert [] == recorder.messages


@pytest.mark.parametrize(
    ("statuses", "then"),
    [((308,), "/1"), ((307,), "/mcp"), ((308, 307), "/1"), ((307, 308), "/mcp")],
)
async def test_http_redirect_on_the_same_origin_is_followed(
    statuses: tuple[int, ...], then: str
) -> None:
    """An endpoint that is somewhere else on its server is found; remembered is what 308 says."""
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

    assert ["/mcp", *(f"/{each + 1}" for each in range(len(statuses))), then] == paths
    assert [] == recorder.failures


@pytest.mark.parametrize("status", [307, 308])
async def test_http_redirect_to_no_url_is_a_fault(status: int) -> None:
    """A Location that cannot be read is an error of the server."""

    async def script(asked: Asked) -> None:
        await asked.reply(status, location="http://[oops")

    async with scripted(script) as (transport, recorder):
        await transport.send(request(1))

    assert isinstance(recorder.failure, ProtocolError)


@pytest.mark.parametrize(
    ("location", "reason"), [("https://elsewhere.example/", "elsewhere"), ("/mcp", "in a row")]
)
async def test_http_other_redirects_are_not_followed(location: str, reason: str) -> None:
    """What is meant for one server is not given to another one, and circles end."""

    async def script(asked: Asked) -> None:
        await asked.reply(308, location=location)

    async with scripted(script) as (transport, recorder):
        await transport.send(request(1))

    assert isinstance(recorder.failure, ConnectError)
    assert reason in str(recorder.failure)


async def test_http_listening_takes_no_place() -> None:
    """What listens for as long as it likes leaves the one connection there may be to others."""

    async def script(asked: Asked) -> None:
        if asked.rpc == "subscriptions/listen":
            await asked.stream(event(NOTE), more=True)
            await asked.receive()
        else:
            await asked.reply(200, {**ANSWER, "id": 2})

    async with scripted(script, HttpOptions(max_connections=1)) as (transport, recorder):
        listening = asyncio.ensure_future(transport.send(request(1, "subscriptions/listen")))
        await recorder.until(messages=1)
        await transport.send(request(2))
        listening.cancel()
        await asyncio.wait([listening])

    assert [None, 2] == [each.get("id") for each in recorder.said]
    assert [] == recorder.failures


async def test_http_silent_server_is_left_when_the_caller_likes() -> None:
    """A server that never answers hangs nobody: the wait is the caller's."""

    async def script(asked: Asked) -> None:
        await asked.receive()

    async with scripted(script) as (transport, recorder):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await transport.send(request(1))

    assert [] == recorder.failures


async def test_http_close_ends_what_is_under_way_silently() -> None:
    """After `close` nothing is told any more, and nothing can be sent."""

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

    assert [] == recorder.failures


async def test_http_by_httpx_is_the_same(free_port: int) -> None:
    """A client of httpx that is given makes the requests, and stays open."""
    seen: list[str] = []

    async def script(asked: Asked) -> None:
        seen.append(asked.headers["user-agent"])
        if asked.rpc == "tools/list":
            await asked.reply(200, {**ANSWER, "id": 2})
        elif asked.rpc == "ping":
            await asked.head(200, content_type="application/json", content_length="9")
            raise ConnectionError
        elif asked.rpc == "prompts/list":
            raise ConnectionError
        else:
            await asked.stream(event(NOTE), event(ANSWER))

    async with httpx.AsyncClient(headers={"user-agent": "mine"}) as client:
        options = HttpOptions(client=client, connect_timeout=2)
        async with scripted(script, options) as (transport, recorder):
            await transport.send(request(1))
            await transport.send(request(2, "tools/list"))
            await transport.send(request(3, "ping"))
        async with opened(f"http://127.0.0.1:{free_port}", options) as (transport, nobody):
            await transport.send(request(1))
        assert not client.is_closed

    assert ["mine"] * 3 == seen
    assert [1, 1, 2] == recorder.abouts
    assert isinstance(recorder.failure, OutcomeUnknown)
    assert isinstance(nobody.failure, ConnectionRefused)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"connect_timeout": 0}, "connect_timeout"),
        ({"max_connections": 0}, "max_connections"),
        ({"keepalive_timeout": 0}, "keepalive_timeout"),
        ({"max_header_bytes": 0}, "max_header_bytes"),
        ({"max_resume_attempts": -1}, "max_resume_attempts"),
        ({"listen_retry_interval": 0}, "listen_retry_interval"),
        ({"headers": {"a": "b\r\nc: d"}}, "headers"),
        ({"client": httpx.Client}, "client must be an httpx.AsyncClient, not"),
    ],
)
def test_invalid_http_option_is_named(options: dict[str, Any], name: str) -> None:
    """A wrong option fails at construction."""
    with pytest.raises(ConfigurationError, match=f"HttpOptions.{name}"):
        HttpOptions(**options)
