"""Commands of `RedisStore` on a connection that was lost before the server has read them."""

import asyncio
from contextlib import aclosing

import pytest

from genmcp.errors import StoreUnavailable
from genmcp.stores.redis import RedisStore
from genmcp.stores.store import Put
from tests.support.delay import Delay
from tests.support.redis_server import RedisServer


async def test_write_of_a_lost_connection_never_follows_a_later_one() -> None:
    """A write that the network delivers late is rejected, after a later write of the process."""
    async with (
        RedisServer() as server,
        Delay(server.port) as proxy,
        aclosing(RedisStore(proxy.url)) as store,
    ):
        await store.apply(Put("k", b"first"))
        opened = proxy.hold()
        failing = asyncio.ensure_future(store.apply(Put("k", b"late")))
        await proxy.held.wait()
        proxy.cut()
        with pytest.raises(StoreUnavailable):
            await failing
        await store.apply(Put("k", b"later"))
        opened.set()
        await proxy.sent.wait()

        for _ in range(20):  # the server has long read the late write
            await server.command("PING")
            entry = await store.get("k")
            assert entry is not None
            assert entry.value == b"later"


async def test_read_is_repeated_after_its_connection_was_lost() -> None:
    """A read has no effect, so that it can be repeated."""
    async with (
        RedisServer() as server,
        Delay(server.port) as proxy,
        aclosing(RedisStore(proxy.url)) as store,
    ):
        await store.apply(Put("k", b"1"))
        opened = proxy.hold()
        reading = asyncio.ensure_future(store.get("k"))
        await proxy.held.wait()
        proxy.cut()
        entry = await reading
        opened.set()

        assert entry is not None
        assert entry.value == b"1"
