"""Responses that their clients do not read: their deadline, and the account of their bytes."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from genmcp import Channel, Endpoint, Limits, Mux, Suite, tool
from genmcp._mux.limits import UNSENT_SHARE, UnsentBytes
from genmcp.core.client_key import ClientKey
from genmcp.errors import Overloaded
from tests.support.asgi import PATIENCE, Client, serving, until
from tests.support.serving import serve
from tests.support.sockets import Connection, called, http, initialize

LARGE = 8_000_000  # bytes: more than the kernel takes for a client that does not read
SERVERS = [
    pytest.param({"loop": "uvloop", "http": "httptools"}, id="uvloop, httptools"),
    pytest.param({"loop": "asyncio", "http": "h11"}, id="asyncio, h11"),
]
ELSEWHERE = sys.platform == "linux"  # only there, all of 127.0.0.0/8 is this machine


@tool
async def large() -> str:
    """Returns at once."""
    return "x" * LARGE


@tool
async def large_later() -> str:
    """Waits first, so that its client is watched."""
    await asyncio.sleep(0.1)
    return "x" * LARGE


@tool
async def large_message(channel: Channel) -> str:
    """Sends it on a stream."""
    await channel.progress(1, message="x" * LARGE)
    return "done"


@tool
async def small() -> str:
    """Returns little."""
    return "here"


def of_header(scope: Any) -> str | None:
    """Return the principal."""
    user = dict(scope["headers"]).get(b"x-user")
    return None if user is None else user.decode()


def served(**limits: Any) -> Endpoint:
    """Return an endpoint with the tools above."""
    suite = Suite(name="test", version="1", tools=[large, large_later, large_message, small])
    return Endpoint(Mux(suite, limits=Limits(**limits)), principal=of_header)


@asynccontextmanager
async def reading_nothing(
    url: str, request: bytes, address: str = "127.0.0.1"
) -> AsyncIterator[asyncio.StreamReader]:
    """Send *request*, and keep the connection open; yield the reader of its response."""
    host, _, port = url.removeprefix("http://").partition(":")
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        client.bind((address, 0))
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, (host, int(port)))
        await loop.sock_sendall(client, request)
        reader = asyncio.StreamReader(limit=4096)
        transport, _ = await loop.connect_accepted_socket(
            lambda: asyncio.StreamReaderProtocol(reader), client
        )
        transport.pause_reading()
        try:
            yield reader
        finally:
            transport.abort()


async def rest(reader: asyncio.StreamReader) -> int:
    """Return how many bytes can be read until the response or the connection ends."""
    count = 0
    reader._transport.resume_reading()  # type: ignore[attr-defined]
    async with asyncio.timeout(PATIENCE):
        try:
            while count <= LARGE and (data := await reader.read(65536)):
                count += len(data)
        except ConnectionError:
            pass
    return count


def lists(session: str) -> bytes:
    """Return a batch with a response of `LARGE` bytes."""
    call = '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"large","arguments":{}}}'
    return http("POST", {"mcp-session-id": session}, f"[{call}]".encode())


@pytest.mark.parametrize("name", ["large", "large_later", "large_message"])
@pytest.mark.parametrize("server", SERVERS)
async def test_connection_of_an_unread_response_is_closed(
    server: dict[str, Any], name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """After `Limits.write_timeout`, for any response; the server logs it, and serves others."""
    caplog.set_level("INFO")
    app = served(write_timeout=0.3)
    async with serve(app, **server) as url:
        async with reading_nothing(url, called(name, {}, id=1)) as reader:
            # The account is empty for a moment as well when queued bytes begin to be written.
            await until(lambda: "has read nothing (limit: write_timeout)" in caplog.text)
            await until(lambda: len(app.mux.unsent_bytes) == 0)

            assert await rest(reader) < LARGE
        async with await Connection.open(url) as connection:
            assert (await connection.ask(called("small", {}, id=2))).status == 200
    assert "without completing response" not in caplog.text  # uvicorn's word for a defect


@pytest.mark.parametrize("server", SERVERS)
async def test_connection_of_an_unread_batch_is_closed(
    server: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    """As that of a single response."""
    caplog.set_level("INFO")
    app = served(write_timeout=0.3)
    async with serve(app, **server) as url:
        async with await Connection.open(url) as connection:
            opened = await connection.ask(initialize("2025-03-26"))
        async with reading_nothing(url, lists(opened.headers["mcp-session-id"])) as reader:
            await until(lambda: "has read nothing (limit: write_timeout)" in caplog.text)
            await until(lambda: len(app.mux.unsent_bytes) == 0)

            assert await rest(reader) < LARGE


async def test_slow_client_gets_all_of_it() -> None:
    """Each piece that is read extends the deadline."""
    app = served(write_timeout=0.5)
    async with serve(app) as url, reading_nothing(url, called("large", {}, id=1)) as reader:
        await until(lambda: len(app.mux.unsent_bytes) > 0)

        assert await rest(reader) > LARGE


async def test_client_that_reads_nothing_is_rejected_before_its_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With 429, until it has read; another client, and a small request, is served meanwhile."""
    monkeypatch.setattr("genmcp._mux.limits.UNSENT_SHARE", LARGE // 2)
    app, ada, bob = served(), {"x-user": "ada"}, {"x-user": "bob"}
    async with serve(app) as url, await Connection.open(url) as connection:

        async def status(user: dict[str, str], name: str = "small") -> int:
            answer = await connection.ask(with_headers(called(name, {}, id=2), user))
            await answer.body()
            return answer.status

        async with reading_nothing(url, with_headers(called("large", {}, id=1), ada)) as reader:
            await until(lambda: app.mux.unsent_bytes.full)

            assert (await status(ada), await status(bob)) == (429, 200)
            await rest(reader)
            await until(lambda: not app.mux.unsent_bytes.full)
        assert await status(ada) == 200


async def test_messages_that_are_not_sent_are_not_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that accepts no event stream gets one JSON body, and nothing waits for it before."""
    monkeypatch.setattr("genmcp._mux.limits.UNSENT_SHARE", 100_000)
    begun, go = asyncio.Event(), asyncio.Event()

    @tool
    async def talks(channel: Channel) -> str:
        """Logs more than its client may leave unread."""
        await channel.log("error", "x" * 200_000)
        begun.set()
        await go.wait()
        return "done"

    client = await Client.begin(serving(talks, small), "2025-11-25")
    json = {"accept": "application/json"}
    async with client.open(client.call("talks"), headers=json) as connection:
        await begun.wait()
        other = await client.send(client.call("small", id=2))
        go.set()
        await connection.over()

    assert (connection.status, other.status) == (200, 200)


@pytest.mark.skipif(not ELSEWHERE, reason="needs several loopback addresses")
async def test_longest_unread_response_is_closed_under_pressure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A client below its own share is served: the newest response is sent."""
    caplog.set_level("INFO", "genmcp")
    monkeypatch.setattr("genmcp._mux.limits.UNSENT_TOTAL", LARGE)  # the kernel takes some of each
    app = served()
    async with serve(app) as url:
        request = called("large", {}, id=1)
        async with reading_nothing(url, request, "127.0.0.2") as first:
            await until(lambda: len(app.mux.unsent_bytes) > 0)
            async with reading_nothing(url, request, "127.0.0.3") as second:
                await until(lambda: "too much memory" in caplog.text)

                assert (await rest(first) < LARGE) and (await rest(second) > 0)


def with_headers(request: bytes, headers: dict[str, str]) -> bytes:
    """Return *request* with more headers."""
    lines = "".join(f"\r\n{name}: {value}" for name, value in headers.items()).encode()
    first, rest = request.split(b"\r\n", 1)
    return first + lines + b"\r\n" + rest


# The account.


class Waiting:
    """A response that waits."""

    def __init__(self, address: str | None = "192.0.2.1", principal: str | None = None) -> None:
        self.client_key = ClientKey(principal, None, address)
        self.closed = False

    def close(self) -> None:
        self.closed = True


@contextmanager
def refused(account: UnsentBytes, client: ClientKey) -> Iterator[None]:
    """Check that *client* is refused, and yield."""
    with pytest.raises(Overloaded) as caught:
        account.check(client)
    assert caught.value.status == 429
    yield


def test_account_refuses_who_has_used_up_the_share() -> None:
    """By principal or address, until the response is sent."""
    account = UnsentBytes(0.8)
    one, other = Waiting("192.0.2.1"), Waiting("192.0.2.2")
    account.count(one, UNSENT_SHARE)
    assert account.full
    with refused(account, one.client_key):
        account.check(other.client_key)
    account.count(one, 0)
    account.check(one.client_key)
    assert (account.full, len(account)) == (False, 0)


def test_account_closes_the_response_that_was_read_longest_ago() -> None:
    """That of the client above its share, and never its only one."""
    account = UnsentBytes(1)
    first, second, third, other = Waiting(), Waiting(), Waiting(), Waiting("192.0.2.2")
    account.count(other, UNSENT_SHARE // 2)
    account.count(first, UNSENT_SHARE // 2)
    account.count(second, UNSENT_SHARE // 2)
    account.count(first, UNSENT_SHARE // 4, was_read=True)
    account.count(third, UNSENT_SHARE // 2)

    assert [each.closed for each in (first, second, third, other)] == [False, True, False, False]
    account.count(third, 3 * UNSENT_SHARE)
    assert [first.closed, third.closed] == [True, False]


def test_account_leaves_room_to_authenticated_clients() -> None:
    """Anonymous clients have a part of the total; their oldest response is closed."""
    account = UnsentBytes(0.5)
    ada = Waiting(None, "ada")
    account.count(ada, 1000)
    crowd = [Waiting(f"192.0.2.{number}") for number in range(8)]
    for each in crowd:
        account.count(each, UNSENT_SHARE // 2)

    assert not ada.closed
    assert [each.closed for each in crowd] == [True] * 6 + [False] * 2


def test_local_client_has_no_share() -> None:
    """It is the only client of its process."""
    account = UnsentBytes(0.8)
    local = Waiting(None)
    account.count(local, 10 * UNSENT_SHARE)
    account.check(local.client_key)
    assert not local.closed
