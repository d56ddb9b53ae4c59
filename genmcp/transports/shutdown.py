"""Detection of the exit of the HTTP server, and the orderly end of open responses.

uvicorn runs the lifespan's shutdown only after the last response has ended, so an endpoint that
relied on the lifespan would never end its streams. While a response is open, the attributes of the
uvicorn server are polled; the lifespan and `aclose` have the same effect. Nothing is written into
uvicorn, and no signal handler is installed or replaced.
"""

import asyncio
import signal
from collections.abc import Iterable
from contextvars import Context
from typing import Final, Protocol

from genmcp.transports.timers import TICK, TimerTable

__all__ = ["LAST_WORDS", "Shutdown", "Stoppable", "is_exiting", "uvicorn_server"]

LAST_WORDS: Final = 1.0
"""How many seconds a client may take to read what is left when the server goes away."""

_POLL: Final = 0.5
"""Seconds between two looks at the server while a response is open, and before the first one.

Most calls that wait end before the first look. uvicorn itself looks every 0.1 seconds.
"""


class Stoppable(Protocol):
    """Something open that can be told to end."""

    @property
    def idle(self) -> bool:
        """Whether nobody waits for an answer: it can end at once."""

    def stop(self) -> None:
        """End soon, saying so to the client."""


class Shutdown:
    """What is open at an endpoint, by event loop, and the word that it must end.

    *grace* is how many seconds calls have to finish by themselves.
    """

    def __init__(self, grace: float) -> None:
        self._grace = grace
        self._loops: dict[asyncio.AbstractEventLoop, _Open] = {}

    def add(self, stoppable: Stoppable) -> None:
        """Count *stoppable* as open."""
        loop = asyncio.get_running_loop()
        opened = self._loops.get(loop)
        if opened is None:
            for dead in [each for each in self._loops if each.is_closed()]:
                del self._loops[dead]  # it took what was open along
            opened = self._loops[loop] = _Open(loop, self._grace)
        opened.add(stoppable)

    def discard(self, stoppable: Stoppable) -> None:
        """Count *stoppable* as ended."""
        loop = asyncio.get_running_loop()
        opened = self._loops[loop]
        opened.items.discard(stoppable)
        if not opened.items:
            opened.close()
            del self._loops[loop]

    async def stop(self) -> None:
        """End what is open on this loop, and return when it has."""
        loop = asyncio.get_running_loop()
        # A pending call is not registered as stoppable: open it first.
        TimerTable.of(loop).expire_all(TICK)
        opened = self._loops.get(loop)
        if opened is not None:
            await opened.stop()


class _Open:
    """What is open on one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, grace: float) -> None:
        self.items: set[Stoppable] = set()
        self._grace = grace
        self._ending = False
        self._over = False
        self._closed = asyncio.Event()
        self._loop = loop
        self._stopping: asyncio.Task[None] | None = None
        # Both may outlive the request that is first, and must not keep its context.
        self._timer = loop.call_later(_POLL, self._poll, context=Context())

    def _poll(self) -> None:
        if is_exiting(uvicorn_server()):
            self._stopping = self._loop.create_task(self.stop())
        else:
            self._timer = self._loop.call_later(_POLL, self._poll, context=Context())

    def add(self, item: Stoppable) -> None:
        self.items.add(item)
        if self._over or (self._ending and item.idle):
            item.stop()

    async def stop(self) -> None:
        self._ending = True
        for item in [item for item in self.items if item.idle]:
            item.stop()
        try:
            async with asyncio.timeout(self._grace):
                await self._closed.wait()
        except TimeoutError:
            self._over = True
            for item in list(self.items):
                item.stop()
            await self._closed.wait()

    def close(self) -> None:
        self._closed.set()
        self._timer.cancel()
        if self._stopping is not None:
            self._stopping.cancel()


class _Listening(Protocol):
    """A socket that a server accepts connections on: an `asyncio.Server`."""

    def is_serving(self) -> bool:
        """Return whether it still accepts connections."""


def is_exiting(server: object | None) -> bool:
    """Return whether *server*, a uvicorn server, has begun to exit.

    `should_exit` is set by a signal, and by a host that stops the server itself. After
    `limit_max_requests` it stays False, and uvicorn only closes its sockets.
    """
    if getattr(server, "should_exit", False):
        return True
    sockets: Iterable[_Listening] = getattr(server, "servers", ())
    return any(not each.is_serving() for each in sockets)


def uvicorn_server() -> object | None:
    """Return the uvicorn server that handles SIGTERM now; None if there is none.

    uvicorn handles it by a method of its `Server` until the last response has ended, and then
    restores the previous handler. A server that has exited is therefore never returned, and a
    second one in the same process is found when it runs.
    """
    server: object = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return server if hasattr(server, "should_exit") else None
