"""How an endpoint hears that its server is going away, and how what is open then ends.

uvicorn waits for open responses before it runs the lifespan's shutdown, so an endpoint that only
listened to the lifespan would never end its streams. While something is open, sse-starlette's
detection of the exit is listened to; the lifespan and `aclose` work as well. No signal handler
is installed.
"""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextvars import Context
from typing import Any, Final, Protocol

from genmcp.transports.pending import PendingCalls

__all__ = ["LAST_WORDS", "Shutdown", "Stoppable", "uvicorn_server"]

LAST_WORDS: Final = 1.0
"""How many seconds a client may take to read what is left when the server goes away."""

_DELAY: Final = 0.5
"""How long something is open before it is worth listening: most calls that wait wait less."""


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
        self._pending: dict[asyncio.AbstractEventLoop, PendingCalls] = {}

    def pending(self, loop: asyncio.AbstractEventLoop) -> PendingCalls:
        """Return the pending calls of *loop*, the running one."""
        pending = self._pending.get(loop)
        if pending is None:
            for closed in [each for each in self._pending if each.is_closed()]:
                del self._pending[closed]
            pending = self._pending[loop] = PendingCalls(loop)
        return pending

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
        self.pending(loop).open_all()
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
        self._listener: asyncio.Task[None] | None = None
        # Both may outlive the request that is first, and must not keep its context.
        self._timer = loop.call_later(_DELAY, self._start, context=Context())

    def _start(self) -> None:
        self._listener = asyncio.get_running_loop().create_task(self._listen())

    async def _listen(self) -> None:
        await _exit_of_server()
        await self.stop()

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
        if self._listener is not None:
            self._listener.cancel()


async def _exit_of_server() -> None:
    """Return when the server of this process begins to exit.

    An event stream of sse-starlette ends then; this is one to nobody.
    """
    # Imported where it is first needed: it brings uvicorn along, which not everybody runs.
    from sse_starlette.sse import AppStatus, EventSourceResponse

    if AppStatus.should_exit and not _is_exiting():
        # An earlier server of this process has left it behind: nobody else takes it back.
        AppStatus.should_exit = False
    await EventSourceResponse(_nothing(), ping=0)({"type": "http", "method": "GET"}, _never, _drop)


def _is_exiting() -> bool:
    """Whether the server that takes SIGTERM now is about to exit.

    A uvicorn that runs has its own method there, until its last response is out.
    """
    return bool(getattr(uvicorn_server(), "should_exit", False))


def uvicorn_server() -> object | None:
    """Return the uvicorn Server that handles SIGTERM now; None if there is none."""
    server: object = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return server if hasattr(server, "should_exit") else None


async def _nothing() -> AsyncIterator[bytes]:
    await asyncio.Event().wait()
    yield b""


async def _never() -> dict[str, Any]:
    await asyncio.Event().wait()
    return {}


async def _drop(message: Any) -> None:
    """Send nothing anywhere."""
