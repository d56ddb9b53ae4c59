"""The connections of one process to the server of a RedisStore."""

import asyncio
from contextlib import suppress

from genmcp.errors import StoreUnavailable
from genmcp.stores.redis.channels import RedisChannels
from genmcp.stores.redis.commands import RedisCommands
from genmcp.stores.redis.server import RedisServer


class RedisClient:
    """The connections of one process: a pool for each event loop, opened when it is needed.

    Attributes:
        closed: whether `aclose` was called.
    """

    def __init__(self, server: RedisServer) -> None:
        self._server = server
        self._lines: dict[asyncio.AbstractEventLoop, tuple[RedisCommands, RedisChannels]] = {}
        self.closed = False

    @property
    def commands(self) -> RedisCommands:
        """The operations of the running event loop."""
        return self._here()[0]

    @property
    def channels(self) -> RedisChannels:
        """The subscriptions of the running event loop."""
        return self._here()[1]

    def _here(self) -> tuple[RedisCommands, RedisChannels]:
        loop = asyncio.get_running_loop()
        found = self._lines.get(loop)
        if found is None:
            if self.closed:
                raise StoreUnavailable("the store is closed")
            for each in [*self._lines]:  # other threads may do this at the same time
                if each.is_closed():
                    self._lines.pop(each, None)
            commands = RedisCommands(self._server)
            found = self._lines[loop] = commands, RedisChannels(commands, self._server)
        return found

    async def aclose(self) -> None:
        """Close the connections of all event loops, and wait for those of this one."""
        self.closed = True
        lines = dict(self._lines)
        here = lines.pop(asyncio.get_running_loop(), None)
        for loop, line in lines.items():
            for part in line:
                with suppress(RuntimeError):  # the loop was closed
                    loop.call_soon_threadsafe(part.close)
        if here is not None:
            commands, channels = here
            commands.closed = True  # also for the followers that the next line wakes
            await channels.aclose()
            await commands.aclose()
