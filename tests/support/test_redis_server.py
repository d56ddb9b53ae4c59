"""The Redis server for tests."""

import asyncio

import pytest

from tests.support.redis_server import RedisServer


async def test_killed_server_keeps_acknowledged_writes() -> None:
    """It restarts on the same port, with all acknowledged writes."""
    async with RedisServer(password="secret") as server:
        url = server.url
        assert await server.command("SET", "key", "value") == b"+OK"
        server.kill()
        with pytest.raises(OSError):
            await server.command("GET", "key")
        await server.start()

        assert await server.command("GET", "key") == b"value"
        assert server.url == url


async def test_paused_server_responds_once_resumed() -> None:
    """Connections stay open while it is paused."""
    async with RedisServer() as server:
        server.pause()
        reply = asyncio.ensure_future(server.command("PING"))
        done, _ = await asyncio.wait({reply}, timeout=0.2)
        server.resume()

        assert not done
        assert await reply == b"+PONG"
