"""The pool of HTTP/1.1 connections, against servers that are raw sockets."""

import asyncio
import gzip
import json
import socket
import ssl
import struct
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import certifi
import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256

import genmcp
from genmcp.auth.fetcher import Fetcher
from genmcp.client.errors import (
    ClientClosed,
    ClientError,
    ConnectError,
    NotFound,
    OutcomeUnknown,
    ProtocolError,
)
from genmcp.client.transports.http_pool import HttpPool
from genmcp.core.auth.steps import Fetch
from genmcp.tls import _context_for, trusted_context
from tests.client.scripted import ANSWER, Asked, opened, scripted
from tests.client.sinks import request
from tests.support.client_bounds import bounds
from tests.support.held_loop import MAX_HELD, HeldLoop

JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
BODY = json.dumps(ANSWER).encode()
DATA = b"data: %b\n\n" % BODY
LENGTH = b"content-length: %d\r\n\r\n" % len(BODY)
RESPONSE = JSON + LENGTH + BODY
CHUNKED = JSON + b"transfer-encoding: chunked\r\n\r\n"
CHUNK = b"%x\r\n%b\r\n" % (len(BODY), BODY)

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def listening(handler: Handler, tls: ssl.SSLContext | None = None) -> AsyncIterator[str]:
    """Serve each connection with *handler*, after the head of its first request was read."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            await handler(reader, writer)
        writer.close()

    server = await asyncio.start_server(connected, "127.0.0.1", 0, ssl=tls)
    async with server:
        scheme = "http" if tls is None else "https"
        yield f"{scheme}://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"


@asynccontextmanager
async def sending(*pieces: bytes) -> AsyncIterator[str]:
    """Respond to the first request of a connection with these bytes, then close it."""

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for piece in pieces:  # `writelines` of Python 3.13 never ends with an empty one
            writer.write(piece)

    async with listening(respond) as url:
        yield url


@asynccontextmanager
async def pooled(url: str, **options: Any) -> AsyncIterator[HttpPool]:
    with bounds(**options):
        pool = HttpPool(urlsplit(url), "here")
        try:
            async with asyncio.timeout(10):
                yield pool
        finally:
            await pool.close()


async def get(pool: HttpPool) -> None:
    response = await pool.request("GET", "/", [])
    assert await response.read(1000) == BODY
    await response.close()


async def test_refused_connection_names_the_address(free_port: int) -> None:
    async with opened(f"http://127.0.0.1:{free_port}/mcp") as (transport, recorder):
        await transport.send(request(1))

    assert isinstance(recorder.failure, ConnectError)
    text = f"cannot reach http://127.0.0.1:{free_port}/mcp: connection refused"
    assert text in str(recorder.failure)
    assert not recorder.failure.sent


@pytest.mark.skipif(sys.platform != "linux", reason="the whole of 127.0.0.0/8 is this machine")
async def test_dead_address_does_not_delay_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host with several addresses is reached by the first that accepts (RFC 8305)."""
    async with sending(RESPONSE) as url, AsyncExitStack() as stack:
        port = int(urlsplit(url).port or 0)
        hole = stack.enter_context(socket.create_server(("127.0.0.2", port), backlog=0))
        for _ in range(4):  # fill its queue, so that further connections stay unanswered
            caller = stack.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(hole.getsockname())

        async def both(*_: object, **__: object) -> list[Any]:
            found = [("127.0.0.2", port), ("127.0.0.1", port)]
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", each) for each in found]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", both)
        named = f"http://two.example:{port}/mcp"
        async with opened(named, connect_timeout=5) as (transport, recorder):
            await transport.send(request(1))

    assert recorder.decoded == [ANSWER]


@pytest.mark.parametrize(
    ("pieces", "kind", "text"),
    [
        ([], OutcomeUnknown, "before it responded"),
        ([b"HTTP/1.1 200 OK\r\nConte"], OutcomeUnknown, "closed in a response"),
        ([JSON + b"content-length: 9\r\n\r\n{"], OutcomeUnknown, "closed in a response"),
        ([CHUNKED + b"9\r\n{"], OutcomeUnknown, "closed in a response"),
        ([CHUNKED + b"zz\r\n"], ProtocolError, "illegal chunk header"),
        ([CHUNKED + b"2\r\n{}xx\r\n"], ProtocolError, "malformed chunk footer"),
        ([b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n"], ProtocolError, "Content-Length"),
        ([b"HTTP/1.1 200 OK\r\nno header\r\n\r\n"], ProtocolError, "illegal header line"),
        ([b"HTTP/1.1 101 Switching Protocols\r\n\r\n"], ProtocolError, "not valid HTTP/1.1"),
        ([b"SSH-2.0-OpenSSH_9.2\r\n\r\n"], ProtocolError, "SSH-2.0"),
    ],
)  # fmt: skip
async def test_invalid_response_is_a_clear_error(
    pieces: list[bytes], kind: type[ClientError], text: str
) -> None:
    async with sending(*pieces) as url, opened(url) as (transport, recorder):
        await transport.send(request(1))

    assert isinstance(recorder.failure, kind)
    assert text in str(recorder.failure)


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 200 OK\r\nx: " + b"x" * 5000,
        b"HTTP/1.1 100 Continue\r\nx: 1\r\n\r\n" * 300,
        CHUNKED + CHUNK + b"0\r\n" + b"x: 1\r\n" * 1000,
        CHUNKED + b"1;x=" + b"x" * 5000,
        JSON + b"x: 1\r\n" * 5000 + LENGTH + BODY,
    ],
    ids=["head", "interim responses", "trailers", "chunk header", "head received at once"],
)
async def test_oversized_head_is_rejected(response: bytes) -> None:
    """Every part of a response besides its body is bounded, and the error names the setting.

    The server keeps the connection open: the bound does not depend on the end of the response.
    """
    done = asyncio.Event()

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(response)
        await done.wait()

    async with (
        listening(respond) as url,
        opened(url, max_header_bytes=2000) as (
            transport,
            recorder,
        ),
    ):
        async with asyncio.timeout(5):
            await transport.send(request(1))
        done.set()

    assert isinstance(recorder.failure, ProtocolError)
    assert "exceed 2000 bytes" in str(recorder.failure)


@pytest.mark.parametrize(
    "response",
    [
        b"HTTP/1.1 100 Continue\r\n\r\n" + RESPONSE,
        b"HTTP/1.0 200\r\ncontent-type: application/json\r\nx: 1\r\nX: 2\r\n\r\n" + BODY,
        CHUNKED + b"%x;ext=1\r\n%b\r\n0\r\ntrailer: 1\r\n\r\n" % (len(BODY), BODY),
    ],
    ids=["length", "end of connection", "chunks"],
)
async def test_each_framing_of_a_body_is_read(response: bytes) -> None:
    async with sending(response) as url, opened(url) as (transport, recorder):
        await transport.send(request(1))

    assert recorder.decoded == [ANSWER]


async def test_body_without_length_is_bounded() -> None:
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(JSON + b"\r\n")
        while True:
            writer.write(b"x" * 1000)
            await writer.drain()

    async with listening(respond) as url, opened(url, max_message=5000) as (transport, recorder):
        await transport.send(request(1))

    assert isinstance(recorder.failure, ProtocolError)


SIZE = 400_000


def in_chunks(part: bytes, last: bytes) -> bytes:
    """Return the rest of a response: 33,000 chunks of *part*, which is one byte, and *last*."""
    chunks = [b"1\r\n%b\r\n" % part * 33_000, b"%x\r\n%b\r\n" % (len(last), last)]
    return b"transfer-encoding: chunked\r\n\r\n%b0\r\n\r\n" % b"".join(chunks)


@pytest.mark.parametrize("by_httpx", [False, True])
@pytest.mark.parametrize(
    "response",
    [
        EVENTS + b"\r\n" + b"\n" * SIZE + DATA,
        EVENTS + b"\r\n" + b":\n" * (SIZE // 2) + DATA,
        EVENTS + b"\r\n" + b"data:\n\n" * (SIZE // 7) + DATA,
        EVENTS + b"\r\n" + b"data:0\n\n" * (SIZE // 8) + DATA,
        EVENTS + in_chunks(b"\n", DATA),
        JSON + in_chunks(b" ", BODY),
    ],
    ids=["lines", "comments", "empty events", "small events", "chunks of events", "chunks of JSON"],
)
async def test_flood_of_small_parts_leaves_others_their_turns(
    by_httpx: bool, response: bytes
) -> None:
    """However many a server sends at once, the client reads some, and other tasks run."""
    async with httpx.AsyncClient() as client, sending(response) as url:
        own = client if by_httpx else None
        async with opened(url, http_client=own) as (transport, recorder), HeldLoop.watch() as loop:
            await transport.send(request(1))

    assert recorder.decoded[-1] == ANSWER
    assert loop.longest < MAX_HELD


@pytest.mark.parametrize("by_httpx", [False, True])
@pytest.mark.parametrize("head", [JSON, EVENTS])
async def test_compressed_response_is_refused_unexpanded(by_httpx: bool, head: bytes) -> None:
    """A few KiB of it may be many MiB; requests accept none."""
    body = gzip.compress(b"\n" * 10_000_000)
    head += b"content-encoding: gzip\r\ncontent-length: %d\r\n\r\n" % len(body)
    async with httpx.AsyncClient() as client, sending(head + body) as url:
        own = client if by_httpx else None
        async with opened(url, http_client=own) as (transport, recorder), HeldLoop.watch() as loop:
            await transport.send(request(1))

    assert isinstance(recorder.failure, ProtocolError)
    assert "compressed by gzip" in str(recorder.failure)
    assert loop.longest < MAX_HELD


@pytest.mark.parametrize("by_httpx", [False, True])
async def test_compressed_body_of_an_error_is_not_expanded(by_httpx: bool) -> None:
    """The status of such a response is used as any other."""
    body = gzip.compress(b"0" * 10_000_000)
    head = b"HTTP/1.1 404 Not Found\r\ncontent-encoding: gzip\r\ncontent-length: %d\r\n\r\n"
    async with httpx.AsyncClient() as client, sending(head % len(body) + body) as url:
        own = client if by_httpx else None
        async with opened(url, http_client=own) as (transport, recorder):
            await transport.send(request(1))

    assert isinstance(recorder.failure, NotFound)
    assert recorder.failure.content == body


async def test_response_that_a_hook_of_httpx_has_read_is_used() -> None:
    """A hook for the log, for example."""
    hooks: dict[str, Any] = {"response": [httpx.Response.aread]}
    async with (
        httpx.AsyncClient(event_hooks=hooks) as client,
        sending(RESPONSE) as url,
        opened(url, http_client=client) as (transport, recorder),
    ):
        await transport.send(request(1))

    assert recorder.decoded == [ANSWER]


async def test_large_body_is_read_with_backpressure() -> None:
    """A reader slower than the server pauses the connection instead of filling the memory."""
    size = 3 * 1024 * 1024

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(JSON + b"content-length: %d\r\n\r\n" % size)
        writer.write(b"x" * size)
        await writer.drain()

    async with listening(respond) as url, pooled(url) as pool:
        response = await pool.request("GET", "/", [])
        chunks = []
        while chunk := await response.chunk():
            chunks.append(len(chunk))
            await asyncio.sleep(0)
        await response.close()

    assert sum(chunks) == size
    assert max(chunks) < size


async def test_closed_idle_connection_is_not_reused() -> None:
    """A server may close an idle connection at any time."""
    connections = 0

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.write(RESPONSE)

    async with listening(respond) as url, opened(url) as (transport, recorder):
        for _ in range(3):
            await transport.send(request(1))

    assert connections == 3
    assert len(recorder.messages) == 3


@pytest.mark.parametrize("by_httpx", [False, True])
async def test_concurrent_requests_are_bounded(by_httpx: bool) -> None:
    running = most = 0

    async def script(asked: Asked) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        await asked.reply(200, {**ANSWER, "id": json.loads(asked.body)["id"]})

    async with httpx.AsyncClient() as client:
        own = client if by_httpx else None
        async with scripted(script, max_connections=2, http_client=own) as (transport, recorder):
            await asyncio.gather(*(transport.send(request(id)) for id in range(8)))

    assert most == 2
    assert len(recorder.messages) == 8


def certificate() -> tuple[bytes, bytes]:
    """Return a self-signed certificate for 127.0.0.1, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.now(UTC)
    address = x509.IPAddress(ip_address("127.0.0.1"))
    signed = (
        x509.CertificateBuilder(name, name, key.public_key(), 1, now, now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([address]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, SHA256())
    )
    plain = serialization.NoEncryption()
    return (
        signed.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain),
    )


def certified(folder: Path) -> tuple[str, ssl.SSLContext]:
    """Return a certificate, and the context of a server that has it."""
    trusted, key = certificate()
    files = folder / "cert.pem", folder / "key.pem"
    files[0].write_bytes(trusted)
    files[1].write_bytes(key)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(*files)
    return trusted.decode(), context


async def test_untrusted_certificate_is_rejected(tmp_path: Path) -> None:
    trusted, server_tls = certified(tmp_path)

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(RESPONSE)

    client_tls = ssl.create_default_context(cadata=trusted)
    async with listening(respond, server_tls) as url:
        async with opened(url, tls=client_tls) as (transport, recorder):
            await transport.send(request(1))
        async with opened(url) as (transport, distrusting):
            await transport.send(request(1))

    assert recorder.decoded == [ANSWER]
    assert isinstance(distrusting.failure, ConnectError)
    assert "certificate" in str(distrusting.failure)


def test_certificates_are_those_of_system_and_certifi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store that the environment names replaces both."""
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.delenv("SSL_CERT_DIR", raising=False)
    bundled = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    bundled.load_verify_locations(certifi.where())
    wanted = {each["serialNumber"] for each in bundled.get_ca_certs()}

    trusted = trusted_context().get_ca_certs()
    assert wanted <= {each["serialNumber"] for each in trusted}

    file = tmp_path / "own.pem"
    file.write_bytes(certificate()[0])
    monkeypatch.setenv("SSL_CERT_FILE", str(file))
    assert len(trusted_context().get_ca_certs()) < len(wanted)


async def test_verifier_trusts_what_a_client_trusts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as the authority of a company, in the store of the system only."""
    trusted, server_tls = certified(tmp_path)
    monkeypatch.setattr(
        ssl.SSLContext,
        "load_default_certs",
        lambda context, *_: context.load_verify_locations(cadata=trusted),
    )
    _context_for.cache_clear()

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(RESPONSE)
        await writer.drain()

    try:
        async with listening(respond, server_tls) as url:
            async with opened(url) as (transport, recorder):
                await transport.send(request(1))
            fetcher = Fetcher()
            fetched = await fetcher.fetch(Fetch(url=url))
            await fetcher.close()
    finally:
        _context_for.cache_clear()

    assert recorder.decoded == [ANSWER]
    assert (fetched.status, fetched.error) == (200, "")


@pytest.mark.parametrize("by_httpx", [False, True])
async def test_connect_timeout_ends_a_silent_handshake(by_httpx: bool) -> None:
    """A server that accepts the connection and does not speak TLS cannot be reached."""

    async def ignore(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(ignore, "127.0.0.1", 0)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    async with httpx.AsyncClient() as client:
        own = client if by_httpx else None
        async with (
            server,
            opened(url, connect_timeout=0.1, http_client=own) as (transport, recorder),
        ):
            await transport.send(request(1))

    assert isinstance(recorder.failure, ConnectError)
    text = "no connection within 0.1 s"
    assert by_httpx or text in str(recorder.failure)


@pytest.mark.parametrize("before", [b"", JSON + b"content-length: 9\r\n\r\n{"])
async def test_lost_connection_of_httpx_leaves_outcome_unknown(before: bytes) -> None:
    async with (
        sending(before) as url,
        httpx.AsyncClient() as client,
        opened(url, http_client=client) as (transport, recorder),
    ):
        await transport.send(request(1))

    assert isinstance(recorder.failure, OutcomeUnknown)


@pytest.mark.parametrize("before", [b"", JSON + b"content-length: 9\r\n\r\n{"])
async def test_reset_connection_leaves_outcome_unknown(before: bytes) -> None:
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(before)
        linger = struct.pack("ii", 1, 0)  # makes closing send a reset
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()

    async with listening(respond) as url, opened(url) as (transport, recorder):
        await transport.send(request(1))

    assert isinstance(recorder.failure, OutcomeUnknown)


async def test_closed_pool_does_not_connect() -> None:
    async with pooled("http://127.0.0.1:9/") as pool:
        await pool.close()

        with pytest.raises(ClientClosed):
            await pool.request("GET", "/", [])


FORGED = json.dumps({**ANSWER, "result": {"forged": True}}).encode()


@pytest.mark.parametrize(
    "response",
    [
        RESPONSE + b"\r\n",
        RESPONSE + JSON + b"content-length: %d\r\n\r\n%b" % (len(FORGED), FORGED),
        CHUNKED[:-2] + LENGTH + CHUNK + b"0\r\n\r\n",
        CHUNKED[:-2] + b"connection: close\r\n\r\n" + CHUNK + b"0\r\n\r\n",
    ],
    ids=["trailing bytes", "second response", "two framings", "connection: close"],
)
async def test_ambiguous_connection_is_not_reused(response: bytes) -> None:
    """Bytes behind a response must not become the response to the next request."""
    connections = 0

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while True:
            await reader.readuntil(b'"params": {}}')
            writer.write(response)

    async with listening(respond) as url, opened(url) as (transport, recorder):
        await transport.send(request(1))
        await transport.send(request(1))

    assert recorder.decoded == [ANSWER, ANSWER]
    assert connections == 2


async def test_connection_with_unread_input_is_not_reused() -> None:
    """Not even if the event loop has received the input already."""
    kept = asyncio.Event()
    sent = asyncio.Event()
    connections = 0

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        writer.write(RESPONSE)
        if connections == 1:
            await kept.wait()
            writer.write(RESPONSE)
            sent.set()
        await reader.read()

    async with listening(respond) as url, pooled(url) as pool, pooled(url) as other:
        await get(pool)
        kept.set()
        await sent.wait()
        await get(other)  # by its end, the event loop has received all data
        await get(pool)

    assert connections == 3


async def test_idle_connections_are_closed() -> None:
    """After four seconds, with the next request."""
    connected = asyncio.Barrier(3)
    ended = [asyncio.Event() for _ in range(4)]
    waiting = iter(ended)

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        end = next(waiting)
        if end is not ended[3]:
            await connected.wait()
        writer.write(RESPONSE)
        with suppress(ConnectionError):
            await reader.read()
        end.set()

    async with listening(respond) as url, pooled(url, keepalive_timeout=0.0) as pool:
        await asyncio.gather(*(get(pool) for _ in range(3)))
        await get(pool)
        for each in ended[:3]:
            await each.wait()


@pytest.mark.parametrize(
    ("name", "host"),
    [("例え.テスト", b"xn--r8jz45g.xn--zckzah"), ("[::1]", b"[::1]"), ("A.example", b"a.example")],
)
async def test_request_has_the_headers_of_the_connection(
    name: str, host: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host as DNS has it with its port, no content coding, and the client's name."""
    heads: list[bytes] = []

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(RESPONSE)
        writer.close()

    async def connect(made: Any, host: str, port: int, **options: Any) -> Any:
        return await asyncio.BaseEventLoop.create_connection(loop, made, "127.0.0.1", port)

    loop: Any = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "create_connection", connect)
    server = await asyncio.start_server(respond, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, pooled(f"http://{name}:{port}/") as pool:
        await get(pool)

    lines = heads[0].split(b"\r\n")
    assert b"Host: %b:%d" % (host, port) in lines
    assert b"Accept-Encoding: identity" in lines


@pytest.mark.parametrize(
    ("headers", "sent"),
    [
        ({}, f"genmcp/{genmcp.__version__}"),
        ({"User-Agent": "mine/1 "}, "mine/1"),
        ({"user-agent": "mine/1 "}, "mine/1"),
    ],
)
async def test_user_agent_is_sent(headers: dict[str, str], sent: str) -> None:
    """Some firewalls reject a request without; that of the user is sent instead."""
    agents: list[str] = []

    async def script(asked: Asked) -> None:
        agents.append(asked.headers["user-agent"])
        await asked.reply(200, ANSWER)

    async with scripted(script, headers) as (transport, _):
        await transport.send(request(1))

    assert agents == [sent]


async def test_header_that_http_does_not_allow_is_not_sent() -> None:
    """An event id of a server may hold control characters, which a header must not."""
    async with sending(RESPONSE) as url, pooled(url) as pool:
        with pytest.raises(ConnectError, match="the request is not valid"):
            await pool.request("GET", "/", [(b"Last-Event-ID", b"\x0b")])


async def test_cancelled_close_is_cancelled() -> None:
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(RESPONSE)
        await reader.read()

    async with listening(respond) as url, pooled(url) as pool:
        await get(pool)
        closing = asyncio.create_task(pool.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing


async def test_connections_have_tcp_keepalive() -> None:
    """The system detects a dead connection, on which nothing may be sent for hours."""
    async with sending() as url, pooled(url) as pool:
        connection = await pool._connect()
        connected = connection._transport.get_extra_info("socket")
        enabled = connected.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        connection.abort()
    assert enabled
