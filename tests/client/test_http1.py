"""HTTP/1.1 as a client of one origin speaks it, and peers that speak it badly."""

import asyncio
import json
import socket
import ssl
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256

from genmcp.client.errors import (
    ClientClosed,
    ClientError,
    ConnectError,
    ConnectionRefused,
    MessageTooLarge,
    OutcomeUnknown,
    ProtocolError,
)
from genmcp.client.options import HttpOptions
from genmcp.client.transports.http_pool import HttpPool
from tests.client.scripted import ANSWER, Asked, opened, scripted
from tests.client.sinks import request

JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
BODY = json.dumps(ANSWER).encode()
LENGTH = b"content-length: %d\r\n\r\n" % len(BODY)
CHUNKED = JSON + b"transfer-encoding: chunked\r\n\r\n"


@asynccontextmanager
async def saying(*pieces: bytes) -> AsyncIterator[str]:
    """Serve these bytes to whoever asks, then hang up."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        for piece in pieces:  # `writelines` of Python 3.13 never ends with one that is empty
            writer.write(piece)
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"


async def test_http_nobody_there_is_refused(free_port: int) -> None:
    """The error says where nobody listens, and that nothing was sent."""
    async with opened(f"http://127.0.0.1:{free_port}/mcp") as (transport, recorder):
        await transport.send(request(1))

    assert isinstance(recorder.failure, ConnectionRefused)
    assert f"cannot reach http://127.0.0.1:{free_port}/mcp: connection refused" in str(
        recorder.failure
    )
    assert not recorder.failure.sent


@pytest.mark.skipif(sys.platform != "linux", reason="the whole of 127.0.0.0/8 is this machine")
async def test_http_address_that_is_dead_does_not_hold_up_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A name with several addresses is reached by whichever answers first (RFC 8305)."""
    async with saying(JSON + LENGTH + BODY) as url, AsyncExitStack() as stack:
        port = int(urlsplit(url).port or 0)
        hole = stack.enter_context(socket.create_server(("127.0.0.2", port), backlog=0))
        for _ in range(4):  # its queue is full: nobody else hears of it
            caller = stack.enter_context(socket.socket())
            caller.setblocking(False)
            caller.connect_ex(hole.getsockname())

        async def both(*_: object, **__: object) -> list[Any]:
            found = [("127.0.0.2", port), ("127.0.0.1", port)]
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", each) for each in found]

        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", both)
        named = f"http://two.example:{port}/mcp"
        async with opened(named, HttpOptions(connect_timeout=5)) as (transport, recorder):
            await transport.send(request(1))

    assert [ANSWER] == recorder.said


@pytest.mark.parametrize(
    ("pieces", "kind", "text"),
    [
        ([], OutcomeUnknown, "before it answered"),
        ([b"HTTP/1.1 200 OK\r\nConte"], OutcomeUnknown, "within a response"),
        ([b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{"],
         OutcomeUnknown, "within a response"),
        ([CHUNKED + b"zz\r\n"], ProtocolError, "without a size"),
        ([CHUNKED + b"2\r\n{}xx\r\n"], ProtocolError, "where it said"),
        ([b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n"], ProtocolError, "Content-Length"),
        ([b"HTTP/1.1 200 OK\r\nno header\r\n\r\n"], ProtocolError, "a header that is none"),
        ([b"HTTP/1.1 101 Switching Protocols\r\n\r\n"], ProtocolError, "nobody asked for"),
        ([b"SSH-2.0-OpenSSH_9.2\r\n\r\n"], ProtocolError, "SSH-2.0"),
        ([b"HTTP/1.1 200 OK\r\nx: " + b"x" * 200_000], ProtocolError, "a head of more than"),
    ],
)  # fmt: skip
async def test_http_peer_that_breaks_http_is_a_clear_error(
    pieces: list[bytes], kind: type[ClientError], text: str
) -> None:
    """Whatever a peer sends instead of a response, the request fails and says why."""
    async with saying(*pieces) as url, opened(url) as (transport, recorder):
        await transport.send(request(1))

    assert isinstance(recorder.failure, kind)
    assert text in str(recorder.failure)


@pytest.mark.parametrize(
    "whole",
    [
        b"HTTP/1.1 100 Continue\r\n\r\n"
        + JSON
        + b"content-length: %d\r\n\r\n%b" % (len(BODY), BODY),
        b"HTTP/1.0 200\r\ncontent-type: application/json\r\nx: 1\r\nX: 2\r\n\r\n" + BODY,
        CHUNKED + b"%x;ext=1\r\n%b\r\n0\r\ntrailer: 1\r\n\r\n" % (len(BODY), BODY),
    ],
    ids=["length", "to the end", "chunks"],
)
async def test_http_every_framing_is_read(whole: bytes) -> None:
    """A body may have a length, come in chunks, or end with the connection."""
    async with saying(whole) as url, opened(url) as (transport, recorder):
        await transport.send(request(1))

    assert [ANSWER] == recorder.said


async def test_http_kept_connection_that_the_server_closed_is_not_used() -> None:
    """A server may close an idle connection: the next request takes a new one."""
    connections = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        body = json.dumps(ANSWER).encode()
        head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
        writer.write(head % len(body) + body)
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, opened(url) as (transport, recorder):
        for _ in range(3):
            await transport.send(request(1))

    assert 3 == connections == len(recorder.messages)


@pytest.mark.parametrize("by_httpx", [False, True])
async def test_http_connections_are_bounded(by_httpx: bool) -> None:
    """A request past the most connections waits for one of them."""
    running = most = 0

    async def script(asked: Asked) -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        await asked.reply(200, {**ANSWER, "id": json.loads(asked.body)["id"]})

    async with httpx.AsyncClient() as client:
        options = HttpOptions(max_connections=2, client=client if by_httpx else None)
        async with scripted(script, options) as (transport, recorder):
            await asyncio.gather(*(transport.send(request(id)) for id in range(8)))

    assert 2 == most
    assert 8 == len(recorder.messages)


def certificate() -> tuple[bytes, bytes]:
    """Return a certificate for 127.0.0.1 that nobody trusts, and its key."""
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


async def test_http_certificates_are_checked(tmp_path: Path) -> None:
    """Over TLS a server is believed if its certificate is trusted, and else not spoken to."""
    trusted, key = certificate()
    files = tmp_path / "cert.pem", tmp_path / "key.pem"
    files[0].write_bytes(trusted)
    files[1].write_bytes(key)
    listening = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    listening.load_cert_chain(*files)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(JSON + LENGTH + BODY)
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0, ssl=listening)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    tls = ssl.create_default_context(cadata=trusted.decode())
    async with server:
        async with opened(url, HttpOptions(tls=tls)) as (transport, recorder):
            await transport.send(request(1))
        async with opened(url) as (transport, doubting):
            await transport.send(request(1))

    assert [ANSWER] == recorder.said
    assert isinstance(doubting.failure, ConnectError)
    assert "certificate" in str(doubting.failure)


@pytest.mark.parametrize("by_httpx", [False, True])
async def test_http_connection_that_takes_too_long_is_given_up(by_httpx: bool) -> None:
    """A server that accepts and says nothing of TLS is unreachable after `connect_timeout`."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    async with httpx.AsyncClient() as client:
        options = HttpOptions(connect_timeout=0.1, client=client if by_httpx else None)
        async with server, opened(url, options) as (transport, recorder):
            await transport.send(request(1))

    assert isinstance(recorder.failure, ConnectError)
    assert by_httpx or "no connection within 0.1 s" in str(recorder.failure)


@pytest.mark.parametrize("before", [b"", JSON + b"content-length: 9\r\n\r\n{"])
async def test_http_by_httpx_a_broken_connection_is_lost(before: bytes) -> None:
    """Through httpx as well the outcome of a request is unknown when its connection breaks."""
    async with (
        saying(before) as url,
        httpx.AsyncClient() as client,
        opened(url, HttpOptions(client=client)) as (transport, recorder),
    ):
        await transport.send(request(1))

    assert isinstance(recorder.failure, OutcomeUnknown)


@pytest.mark.parametrize("before", [b"", JSON + b"content-length: 9\r\n\r\n{"])
async def test_http_connection_that_is_reset_is_lost(before: bytes) -> None:
    """A reset before or within a response leaves the outcome of the request unknown."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(before)
        linger = struct.pack("ii", 1, 0)  # closing resets
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    async with server, opened(url) as (transport, recorder):
        await transport.send(request(1))

    assert isinstance(recorder.failure, OutcomeUnknown)


async def test_http_closed_pool_connects_to_nobody() -> None:
    """After `close` there is no connection, and there will be none."""
    pool = HttpPool(urlsplit("http://127.0.0.1:9/"), "here", connect_timeout=1, most=1)
    await pool.close()

    with pytest.raises(ClientClosed):
        await pool.request("GET", "/", [])


async def test_http_body_of_no_length_is_bounded() -> None:
    """A body without end is read as far as a message may go."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(JSON + b"\r\n")
        with suppress(ConnectionError):
            while True:
                writer.write(b"x" * 1000)
                await writer.drain()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    async with server, opened(url, max_message=5000) as (transport, recorder):
        await transport.send(request(1))

    assert isinstance(recorder.failure, MessageTooLarge)


FORGED = json.dumps({**ANSWER, "result": {"forged": True}}).encode()
LONG_CHUNK = CHUNKED[:-2] + LENGTH + b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY)


@pytest.mark.parametrize(
    "whole",
    [
        JSON + LENGTH + BODY + b"\r\n",
        JSON
        + LENGTH
        + BODY
        + JSON
        + LENGTH.replace(b"%d" % len(BODY), b"%d" % len(FORGED))
        + FORGED,
        LONG_CHUNK,
    ],
    ids=["rest", "response", "two framings"],
)
async def test_http_connection_of_doubtful_framing_is_not_kept(whole: bytes) -> None:
    """What follows a response on its connection is the answer to nothing."""
    connections = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                await reader.readuntil(b'"params": {}}')
                writer.write(whole)
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    async with server, opened(url) as (transport, recorder):
        await transport.send(request(1))
        await transport.send(request(1))

    assert [ANSWER, ANSWER] == recorder.said
    assert 2 == connections


async def test_http_connection_on_which_something_came_is_not_used() -> None:
    """Not even when the event loop has read it already."""
    kept = asyncio.Event()
    sent = asyncio.Event()
    connections = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        await reader.readuntil(b"\r\n\r\n")
        writer.write(JSON + LENGTH + BODY)
        if connections == 1:
            await kept.wait()
            writer.write(JSON + LENGTH + BODY)
            sent.set()
        await reader.read()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    pool = HttpPool(urlsplit(f"http://127.0.0.1:{port}/"), "here", connect_timeout=5, most=9)
    other = HttpPool(urlsplit(f"http://127.0.0.1:{port}/"), "here", connect_timeout=5, most=9)
    async with server, asyncio.timeout(10):
        try:
            await asked(pool)
            kept.set()
            await sent.wait()
            await asked(other)  # by then what was sent is read
            await asked(pool)
        finally:
            await pool.close()
            await other.close()

    assert 3 == connections


async def asked(pool: HttpPool) -> None:
    reply = await pool.request("GET", "/", [])
    assert BODY == await reply.read(1000)
    await reply.close()


async def test_http_idle_connections_are_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a while, also if nothing more is asked."""
    monkeypatch.setattr("genmcp.client.transports.http_pool._IDLE", 0.05)
    connected = asyncio.Barrier(3)
    ended = [asyncio.Event() for _ in range(3)]
    waiting = iter(ended)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        end = next(waiting)
        await reader.readuntil(b"\r\n\r\n")
        await connected.wait()
        writer.write(JSON + LENGTH + BODY)
        with suppress(ConnectionError):
            await reader.read()
        end.set()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    pool = HttpPool(urlsplit(f"http://127.0.0.1:{port}/"), "here", connect_timeout=5, most=9)
    async with server, asyncio.timeout(5):
        try:
            await asyncio.gather(*(asked(pool) for _ in ended))
            for each in ended:
                await each.wait()
        finally:
            await pool.close()


@pytest.mark.parametrize(
    ("name", "host"),
    [("例え.テスト", b"xn--r8jz45g.xn--zckzah"), ("[::1]", b"[::1]"), ("A.example", b"a.example")],
)
async def test_http_request_says_host_and_coding(
    name: str, host: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The name as DNS has it, with its port; and that a body must come as it is."""
    heads: list[bytes] = []

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(JSON + LENGTH + BODY)
        writer.close()

    async def connect(made: Any, host: str, port: int, **options: Any) -> Any:
        return await asyncio.BaseEventLoop.create_connection(loop, made, "127.0.0.1", port)

    loop: Any = asyncio.get_running_loop()
    monkeypatch.setattr(loop, "create_connection", connect)
    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    pool = HttpPool(urlsplit(f"http://{name}:{port}/"), "here", connect_timeout=5, most=1)
    async with server, asyncio.timeout(5):
        await asked(pool)
        await pool.close()

    lines = heads[0].split(b"\r\n")
    assert b"Host: %b:%d" % (host, port) in lines
    assert b"Accept-Encoding: identity" in lines


async def test_http_close_that_is_cancelled_ends_so() -> None:
    """A caller who gives up closing is not told that it went well."""

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(JSON + LENGTH + BODY)
        with suppress(ConnectionError):
            await reader.read()
        writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    pool = HttpPool(urlsplit(f"http://127.0.0.1:{port}/"), "here", connect_timeout=5, most=1)
    async with server, asyncio.timeout(5):
        await asked(pool)
        closing = asyncio.create_task(pool.close())
        await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing


async def test_http_connection_that_is_silent_is_watched_by_the_system() -> None:
    """A stream whose line is dead ends some time, although nothing is sent on it."""
    async with saying() as url:
        pool = HttpPool(urlsplit(url), "here", connect_timeout=5, most=1)
        connection = await pool._connect()
        line = connection.writer.get_extra_info("socket")
        watched = line.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        connection.abort()
        await pool.close()
    assert watched
