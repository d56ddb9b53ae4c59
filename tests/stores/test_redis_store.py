"""What the contract does not say of `RedisStore`: failures of the server, settings, connections."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, suppress
from typing import Any

import pytest

from genmcp.errors import (
    ConfigurationError,
    StoreUnavailable,
)
from genmcp.stores.redis import RedisStore
from genmcp.stores.store import Append, Put
from tests.support.redis_server import RedisServer

BOUND = 30.0
"""Seconds after which a test that waits fails."""


@pytest.fixture
async def server() -> AsyncIterator[RedisServer]:
    """A server of the test's own, to kill and to pause."""
    async with RedisServer() as server:
        yield server


def impatient(server: RedisServer, **options: Any) -> RedisStore:
    """Return a store that waits for half a second."""
    return RedisStore(server.url, **{"timeout": 0.5, "connect_timeout": 0.5, **options})


async def until_available(store: RedisStore) -> None:
    """Wait until the store has connected again."""
    async with asyncio.timeout(BOUND):
        while True:
            with suppress(StoreUnavailable):
                await store.get("")
                return
            await asyncio.sleep(0.02)


# Failures of the server


async def test_killed_server_keeps_what_it_acknowledged(server: RedisServer) -> None:
    """With an append-only file nothing that was acknowledged is lost, and no version is reused."""
    async with aclosing(RedisStore(server.url)) as store:
        acknowledged = 0
        begun = asyncio.Event()

        async def write() -> None:
            nonlocal acknowledged
            with suppress(StoreUnavailable):
                for number in range(100_000):
                    value = b"%d" % number
                    await store.apply(Put("count", value), Append("count", value, ttl=60))
                    acknowledged = number
                    if number == 20:
                        begun.set()

        writing = asyncio.ensure_future(write())
        await begun.wait()
        server.kill()
        await writing
        before = acknowledged
        with pytest.raises(StoreUnavailable):
            await store.get("count")
        await server.start()
        await until_available(store)

        entry = await store.get("count")
        assert entry is not None
        assert int(entry.value) in (before, before + 1)
        events = await store.read("count", limit=before + 2)
        assert [event.data for event in events] == [b"%d" % n for n in range(int(entry.value) + 1)]


async def test_paused_server_is_unavailable_and_comes_back(server: RedisServer) -> None:
    """Operations fail after their timeout; the next ones succeed once the server responds."""
    async with aclosing(impatient(server)) as store:
        await store.apply(Put("k", b"1"))
        server.pause()
        try:
            for _ in range(3):
                async with asyncio.timeout(5):
                    with pytest.raises(StoreUnavailable, match="no response within"):
                        await store.get("k")
        finally:
            server.resume()
        await until_available(store)

        assert await store.get("k")


async def test_follower_continues_after_a_restart_without_a_gap(server: RedisServer) -> None:
    """It subscribes anew, and looks at what it may have missed."""
    async with (
        aclosing(RedisStore(server.url)) as store,
        aclosing(RedisStore(server.url)) as writer,
        aclosing(store.follow("log")) as followed,
    ):
        following = asyncio.ensure_future(anext(followed))
        await writer.apply(Append("log", b"0", ttl=60))
        assert (await following).data == b"0"
        for number in range(1, 4):
            following = asyncio.ensure_future(anext(followed))
            await asyncio.sleep(0.05)  # it waits
            server.kill()
            await server.start()
            await until_available(writer)
            await writer.apply(Append("log", b"%d" % number, ttl=60))
            async with asyncio.timeout(BOUND):
                assert (await following).data == b"%d" % number


# Settings


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"maxmemory-policy": "allkeys-lru"}, "set maxmemory-policy to noeviction"),
        ({"replicaof": "127.0.0.1 1"}, "read-only replica"),
    ],
)
async def test_unfit_server_is_refused(options: Mapping[str, str], message: str) -> None:
    """The error says what to change."""
    async with RedisServer(options) as server, aclosing(RedisStore(server.url)) as store:
        with pytest.raises(ConfigurationError, match=message):
            await store.get("k")


@pytest.mark.parametrize("credentials", ["", ":wrong@", "ann:wrong@"])
async def test_wrong_password_is_refused(credentials: str) -> None:
    """The message has no part of it."""
    async with (
        RedisServer(password="secret") as server,
        aclosing(RedisStore(f"redis://{credentials}127.0.0.1:{server.port}")) as store,
        aclosing(RedisStore(server.url)) as authenticated,
    ):
        with pytest.raises(ConfigurationError, match="user and password are part of") as caught:
            await store.get("k")
        assert "wrong" not in str(caught.value)
        await authenticated.apply(Put("k", b""))


async def test_server_that_is_not_there_is_unavailable() -> None:
    """The message names the server, and not the password."""
    async with aclosing(RedisStore("redis://ann:secret@127.0.0.1:1")) as store:
        with pytest.raises(StoreUnavailable, match=r"redis://127\.0\.0\.1:1: ") as caught:
            await store.get("k")
    assert "secret" not in str(caught.value)
