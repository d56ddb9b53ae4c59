"""The requests of a flow: bounds, redirects, and addresses that are not public."""

import asyncio
import gzip
import socket
from typing import Any

import pytest

from genmcp.auth.fetcher import Fetcher
from genmcp.core.auth.fetching import MAX_DOCUMENT
from genmcp.core.auth.steps import Fetch
from tests.client.scripted import Asked, served
from tests.support.held_loop import MAX_HELD, HeldLoop


@pytest.fixture
async def fetcher() -> Any:
    fetcher = Fetcher(5)
    yield fetcher
    await fetcher.close()


async def test_response_is_returned(fetcher: Fetcher) -> None:
    """Status, headers and body of any response, and no redirect is followed."""
    seen: list[Asked] = []

    async def script(asked: Asked) -> None:
        seen.append(asked)
        await asked.reply(302, {"a": 1}, location="http://127.0.0.1:1/")

    async with served(script) as url:
        form = [("Content-Type", "application/x-www-form-urlencoded")]
        found = await fetcher.fetch(Fetch(url=url, method="POST", headers=form, body=b"a=b"))

    assert (found.status, found.body, found.header("Location")) == (
        302,
        b'{"a": 1}',
        "http://127.0.0.1:1/",
    )
    assert seen[0].body == b"a=b"
    assert seen[0].headers["accept-encoding"] == "identity"
    assert len(seen) == 1


async def test_long_body_is_cut_off(fetcher: Fetcher) -> None:
    """After the limit nothing more is read, and the flow sees that it was exceeded."""

    async def script(asked: Asked) -> None:
        await asked.head(200)
        for _ in range(100):
            await asked.write("x" * 65536)
        await asked.write("", more=False)

    async with served(script) as url:
        found = await fetcher.fetch(Fetch(url=url))
    assert len(found.body) == MAX_DOCUMENT + 1


async def test_body_in_small_chunks_leaves_others_their_turns(fetcher: Fetcher) -> None:
    """However many of one byte were received at once."""

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n")
        writer.write(b"1\r\nx\r\n" * 30_000 + b"0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(respond, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
        await fetcher.fetch(Fetch(url=url))  # imports httpx
        async with HeldLoop.watch() as loop:
            found = await fetcher.fetch(Fetch(url=url))

    assert found.body == b"x" * 30_000
    assert loop.longest < MAX_HELD


async def test_compressed_body_is_not_inflated(fetcher: Fetcher) -> None:
    """The request does not accept it, and it may be a thousand times larger than it looks."""

    async def script(asked: Asked) -> None:
        await asked.head(200, content_encoding="gzip")
        await asked._send({"type": "http.response.body", "body": gzip.compress(b"0" * 10**7)})

    async with served(script) as url:
        found = await fetcher.fetch(Fetch(url=url))
    assert len(found.body) < 20_000


async def test_slow_response_is_given_up() -> None:
    """The error names the time."""
    fetcher = Fetcher(0.05)

    async def script(asked: Asked) -> None:
        await asked.head(200)
        while (await asked.receive())["type"] != "http.disconnect":
            pass

    async with served(script) as url:
        found = await fetcher.fetch(Fetch(url=url))
        await fetcher.close()
    assert found.status == 0
    assert "no response within 0.05 s" in found.error


async def test_slow_responses_have_a_bound_together() -> None:
    """A server can name many URLs, while no timeout of the call runs."""
    fetcher, requests = Fetcher(0.02), []

    async def script(asked: Asked) -> None:
        requests.append(asked)
        while (await asked.receive())["type"] != "http.disconnect":
            pass

    async with served(script) as url:
        found = [await fetcher.fetch(Fetch(url=url)) for _ in range(500)]
        await fetcher.close()
    assert len(requests) <= 6  # the others were not sent
    assert "the requests before took 0.12 s" in found[-1].error


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/", "http://[::1", "http://a..b/"])
async def test_failure_is_a_response_without_status(fetcher: Fetcher, url: str) -> None:
    """The flow decides on its meaning."""
    found = await fetcher.fetch(Fetch(url=url))
    assert found.status == 0
    assert found.error


@pytest.mark.parametrize(
    "addresses",
    [["127.0.0.1"], ["8.8.8.8", "10.0.0.1"], ["::1"], ["169.254.169.254"], ["::ffff:10.0.0.1"]],
)
async def test_private_addresses_are_refused(
    fetcher: Fetcher, addresses: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A public name may have one: no connection is opened if any of its addresses is private."""
    resolve_to(monkeypatch, addresses)
    found = await fetcher.fetch(Fetch(url="https://login.example/token", public_only=True))
    assert found.status == 0
    assert "not public" in found.error


async def test_checked_address_is_the_one_connected_to(
    fetcher: Fetcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DNS rebinding: a second resolution, which could differ, does not happen."""
    seen: list[Asked] = []

    async def script(asked: Asked) -> None:
        seen.append(asked)
        await asked.reply(200, {})

    monkeypatch.setattr("genmcp.auth.fetcher.is_private_address", lambda _: False)
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")  # a proxy would resolve it again
    async with served(script) as url:
        port = url.rpartition(":")[2].removesuffix("/mcp")
        # The first address refuses connections; the next one is tried.
        calls = resolve_to(monkeypatch, ["127.0.0.2", "127.0.0.1"])
        named = f"http://login.example:{port}/mcp"
        found = await fetcher.fetch(Fetch(url=named, public_only=True))

    assert found.status == 200
    assert seen[0].headers["host"] == f"login.example:{port}"
    assert calls == ["login.example"]


def resolve_to(monkeypatch: pytest.MonkeyPatch, addresses: list[str]) -> list[str]:
    """Make each host name have *addresses*; return the names that are resolved."""
    calls: list[str] = []
    loop = asyncio.get_running_loop()
    resolve = loop.getaddrinfo

    async def getaddrinfo(host: str, port: int, **options: Any) -> Any:
        if host.replace(".", "").isdigit():
            return await resolve(host, port, **options)
        calls.append(host)
        kinds = {True: socket.AF_INET6, False: socket.AF_INET}
        return [(kinds[":" in each], socket.SOCK_STREAM, 6, "", (each, port)) for each in addresses]

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    return calls
