"""The exit of the HTTP server: its detection, and the orderly end of responses and jobs.

uvicorn runs the lifespan's shutdown only after the last response has ended, so an endpoint that
relied on the lifespan would never end its streams. While a response is open, the attributes of the
uvicorn server are polled; the lifespan and `aclose` have the same effect. Nothing is written into
uvicorn, and no signal handler is installed or replaced.
"""

import asyncio
import signal
from collections.abc import Callable, Iterable
from contextvars import Context
from math import inf
from typing import Any, Final

from genmcp._transports.timers import TICK, TimerTable
from genmcp.tasks.worker import TaskWorker

LAST_WORDS: Final = 1.0
"""Seconds that a client has to read the rest of its responses when the server exits."""

_POLL: Final = 0.5
"""Seconds between two looks at the server while a response is open, and before the first one.

Most calls that wait end before the first look. uvicorn itself looks every 0.1 seconds.
"""


Stop = Callable[[], None]
"""Starts to end an open response or stream, and returns. Called on its event loop."""


class Shutdown:
    """The open calls and streams of an endpoint, by event loop. Owned by the endpoint.

    *grace*: seconds that calls have to finish.
    """

    def __init__(self, grace: float) -> None:
        self.grace = grace
        self._loops: dict[asyncio.AbstractEventLoop, _Open] = {}

    def add(self, stop: Stop, *, idle: bool = False) -> None:
        """Register the function *stop*, which ends an open call or stream at the shutdown.

        *idle*: no client waits for a response, so that *stop* is called without a grace period.
        """
        loop = asyncio.get_running_loop()
        opened = self._loops.get(loop)
        if opened is None:
            for dead in [each for each in self._loops if each.is_closed()]:
                del self._loops[dead]  # what was open ended with its loop
            opened = self._loops[loop] = _Open(loop, self)
        opened.add(stop, idle)

    def discard(self, stop: Stop) -> None:
        """Unregister *stop*, whose call or stream has ended."""
        loop = asyncio.get_running_loop()
        opened = self._loops[loop]
        opened.items.pop(stop, None)
        if not opened.items:
            opened.close()
            del self._loops[loop]

    async def stop(self) -> None:
        """End all open calls and streams of this loop, and return when they have ended."""
        loop = asyncio.get_running_loop()
        # A pending call is not registered as stoppable: open it first.
        TimerTable.of(loop).expire_all(TICK)
        opened = self._loops.get(loop)
        if opened is not None:
            await opened.stop()


class _Open:
    """The open calls and streams of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop, shutdown: Shutdown) -> None:
        self.items: dict[Stop, bool] = {}
        self._shutdown = shutdown
        self._ending = False
        self._over = False
        self._closed = asyncio.Event()
        self._loop = loop
        self._stop_task: asyncio.Task[None] | None = None
        # The timer may outlive the request that made it, and must not keep the request's context.
        self._timer = loop.call_later(_POLL, self._poll, context=Context())

    def _poll(self) -> None:
        if is_exiting(uvicorn_server()):
            self._stop_task = self._loop.create_task(self.stop())
        else:
            self._timer = self._loop.call_later(_POLL, self._poll, context=Context())

    def add(self, stop: Stop, idle: bool) -> None:
        self.items[stop] = idle
        if self._over or (self._ending and idle):
            stop()

    async def stop(self) -> None:
        self._ending = True
        # Idle streams first: a grace period for them would only delay the exit.
        for stop in [stop for stop, idle in self.items.items() if idle]:
            stop()
        try:
            async with asyncio.timeout(self._shutdown.grace):
                await self._closed.wait()
        except TimeoutError:
            self._over = True
            for stop in list(self.items):
                stop()
            await self._closed.wait()

    def close(self) -> None:
        self._closed.set()  # which ends `_stop_task`, too
        self._timer.cancel()


def is_exiting(server: object | None) -> bool:
    """Return whether *server*, a uvicorn server, has begun to exit.

    `should_exit` is set by a signal, and by a host that stops the server itself. After
    `limit_max_requests` it stays False, and uvicorn only closes its sockets.
    """
    if getattr(server, "should_exit", False):
        return True
    sockets: Iterable[asyncio.Server] = getattr(server, "servers", ())
    return any(not each.is_serving() for each in sockets)


def uvicorn_server() -> object | None:
    """Return the uvicorn server that handles SIGTERM now, or None.

    uvicorn handles it by a method of its `Server` until the last response has ended, and then
    restores the previous handler. A server that has exited is therefore never returned, and a
    second one in the same process is found when it runs.
    """
    server: object = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
    return server if hasattr(server, "should_exit") else None


_MARGIN: Final = 1.0
"""Seconds of uvicorn's own limit that are reserved for detecting the exit and for writing."""


class JobsAtWork:
    """The work on the jobs of one mux. Owned by an endpoint, from its first request or lifespan.

    Registered with the endpoint's *shutdown* until the jobs are released, at the shutdown or when
    the endpoint is closed; then *ended* is called.

    uvicorn waits for open responses only, and an application that mounts an endpoint need not
    forward its lifespan. Therefore the work on jobs is one of the background tasks that uvicorn
    waits for: the set it keeps for ASGI calls that continue after their response.
    """

    def __init__(self, worker: TaskWorker, shutdown: Shutdown, ended: Callable[[], object]) -> None:
        self._worker = worker
        self._shutdown = shutdown
        self._on_end = ended
        self._loop = asyncio.get_running_loop()
        self._over = False
        self._within = inf
        self._releasing: asyncio.Task[None] | None = None
        self._delay: asyncio.Future[None] | None = None
        worker.use(self)
        shutdown.add(self.stop, idle=True)
        server: Any = uvicorn_server()
        tasks = getattr(getattr(server, "server_state", None), "tasks", None)
        if not isinstance(tasks, set):
            return  # not uvicorn: the lifespan, or `aclose`, releases the jobs
        limit = server.config.timeout_graceful_shutdown
        if limit is not None:
            self._within = max(0.0, limit - _MARGIN)
        # uvicorn cancels it when its own limit expires.
        self._delay = self._loop.create_future()
        tasks.add(self._delay)
        self._delay.add_done_callback(tasks.discard, context=Context())

    @property
    def gone(self) -> bool:
        """Whether its event loop was closed."""
        return self._loop.is_closed()

    def stop(self) -> None:
        """Start the release of the jobs to other processes."""
        if self._releasing is None:
            self._releasing = self._loop.create_task(self._release())

    def end(self) -> None:
        """Unregister; may be called from any event loop."""
        if self._loop is asyncio.get_running_loop():
            self._end()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        if not self._over:
            self._over = True
            if self._delay is not None and not self._delay.done():
                self._delay.set_result(None)
            self._shutdown.discard(self.stop)
            self._on_end()

    async def _release(self) -> None:
        try:
            await self._worker.release(self, within=self._within)
        finally:
            self._end()
