"""The connections of one process to the server of a RedisStore."""

import asyncio
from contextlib import suppress
from threading import Lock

from genmcp.errors import StoreUnavailable
from genmcp.stores.redis.channels import RedisChannels
from genmcp.stores.redis.commands import RedisCommands
from genmcp.stores.redis.server import RedisAddress, RedisClock, RedisServerState, RedisSettings


class RedisClient:
    """The connections of one process: a pool for each event loop, opened when it is needed.

    Attributes:
        closed: whether `aclose` was called.
    """

    def __init__(self, address: RedisAddress, settings: RedisSettings, clock: RedisClock) -> None:
        self._state = RedisServerState(address, settings, clock)
        self._lock = Lock()
        self._lines: dict[asyncio.AbstractEventLoop, tuple[RedisCommands, RedisChannels]] = {}
        self.closed = False

    @property
    def commands(self) -> RedisCommands:
        """The commands of the running event loop."""
        return self._here()[0]

    @property
    def channels(self) -> RedisChannels:
        """The subscriptions of the running event loop."""
        return self._here()[1]

    def _here(self) -> tuple[RedisCommands, RedisChannels]:
        loop = asyncio.get_running_loop()
        found = self._lines.get(loop)
        if found is None:
            with self._lock:
                if self.closed:
                    raise StoreUnavailable("the store is closed")
                for each in [each for each in self._lines if each.is_closed()]:
                    del self._lines[each]
                commands = RedisCommands(self._state)
                found = self._lines[loop] = commands, RedisChannels(commands, self._state)
        return found

    async def aclose(self) -> None:
        """Close the connections of all event loops, and wait for those of this one."""
        with self._lock:
            self.closed = True
            lines = dict(self._lines)
        here = lines.pop(asyncio.get_running_loop(), None)
        for loop, (commands, channels) in lines.items():
            with suppress(RuntimeError):  # the loop was closed
                loop.call_soon_threadsafe(commands.close)
                loop.call_soon_threadsafe(channels.close)
        if here is not None:
            # The followers' read that this ends finds that the commands are closed.
            here[0].closed = True
            await here[1].aclose()
            await here[0].aclose()
