"""Release of the jobs of a durable store to other processes when the server shuts down.

uvicorn waits for open responses only, and an application that mounts an endpoint need not forward
its lifespan. Therefore the work on jobs is registered as one of the background tasks that uvicorn
waits for: the set it keeps for ASGI calls that continue after their response.
"""

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Any, Final
from weakref import WeakKeyDictionary

from genmcp.tasks.worker import TaskWorker
from genmcp.transports.shutdown import Shutdown, uvicorn_server

__all__ = ["JobsAtWork"]

_MARGIN: Final = 1.0
"""Seconds of uvicorn's own limit that are reserved for detecting the exit and for writing."""


class JobsAtWork:
    """The work on the jobs of one mux. Owned by an endpoint, from its first request or lifespan.

    Registered with the endpoint's *shutdown* until the jobs are released, at the shutdown or when
    the endpoint is closed; then *ended* is called.
    """

    idle = True

    def __init__(self, worker: TaskWorker, shutdown: Shutdown, ended: Callable[[], object]) -> None:
        self._worker = worker
        self._shutdown = shutdown
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._over = False
        self._within: float | None = None
        self._resting: asyncio.Task[None] | None = None
        self._delay: _Delay | None = None

    @property
    def gone(self) -> bool:
        """Whether its event loop was closed."""
        return self._loop.is_closed()

    def open(self) -> None:
        """Register with the shutdown, and delay the exit of uvicorn until the jobs are released."""
        self._worker.use(self)
        self._shutdown.add(self)
        server: Any = uvicorn_server()
        tasks = getattr(getattr(server, "server_state", None), "tasks", None)
        if not isinstance(tasks, set):
            return  # not uvicorn: the lifespan, or `aclose`, releases the jobs
        limit = server.config.timeout_graceful_shutdown
        if limit is not None:
            self._within = max(0.0, limit - _MARGIN)
        delay = _delays.get(server)
        if delay is None or delay.over:
            delay = _delays[server] = _Delay(tasks)
        delay.users.add(self)
        self._delay = delay

    def stop(self) -> None:
        """Start the release of the jobs to other processes."""
        if self._resting is None:
            self._resting = self._loop.create_task(self._rest())

    def end(self) -> None:
        """Unregister; may be called from any event loop."""
        if self._loop is asyncio.get_running_loop():
            self._end()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        if not self._over:
            self._over = True
            if self._delay is not None:
                self._delay.discard(self)
            self._shutdown.discard(self)
            self._ended()

    async def _rest(self) -> None:
        try:
            await self._worker.rest(self, within=self._within)
        finally:
            self._end()


class _Delay:
    """Delays the exit of a uvicorn server, on the running event loop, while it has *users*.

    One for all endpoints: each member of *tasks* counts towards uvicorn's `limit_concurrency`.
    """

    def __init__(self, tasks: set[asyncio.Task[None]]) -> None:
        self.users: set[JobsAtWork] = set()
        self._loop = asyncio.get_running_loop()
        self._unused = asyncio.Event()
        # It lives as long as the server, so it must not keep the context of the first request.
        self._task = self._loop.create_task(
            self._hold(), name="genmcp: jobs are worked on", context=Context()
        )
        tasks.add(self._task)
        self._task.add_done_callback(tasks.discard)

    @property
    def over(self) -> bool:
        """Whether it no longer delays the exit, or runs on another event loop."""
        elsewhere = self._loop is not asyncio.get_running_loop()
        return elsewhere or self._unused.is_set() or self._task.done()

    def discard(self, user: JobsAtWork) -> None:
        """Remove *user*; without another one, the server may exit."""
        self.users.discard(user)
        if not self.users:
            self._unused.set()

    async def _hold(self) -> None:
        await self._unused.wait()


_delays: WeakKeyDictionary[object, _Delay] = WeakKeyDictionary()
"""The delay of each server of this process."""
