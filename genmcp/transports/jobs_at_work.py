"""Release of the jobs of a durable store to other processes when the server shuts down.

uvicorn waits for open responses only, and an application that mounts an endpoint need not forward
its lifespan. Therefore the work on jobs is registered as one of the background tasks that uvicorn
waits for: the set it keeps for ASGI calls that continue after their response.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from genmcp.mux.long_calls import LongCalls
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

    def __init__(self, long: LongCalls, shutdown: Shutdown, ended: Callable[[], object]) -> None:
        self._long = long
        self._shutdown = shutdown
        self._ended = ended
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._within: float | None = None
        self._resting: asyncio.Task[None] | None = None

    @property
    def gone(self) -> bool:
        """Whether its event loop was closed."""
        return self._loop.is_closed()

    def open(self) -> None:
        """Register with the shutdown, and delay the exit of uvicorn until the jobs are released."""
        self._long.use(self)
        self._shutdown.add(self)
        server: Any = uvicorn_server()
        tasks = getattr(getattr(server, "server_state", None), "tasks", None)
        if not isinstance(tasks, set):
            return  # not uvicorn: the lifespan, or `aclose`, releases the jobs
        limit = server.config.timeout_graceful_shutdown
        if limit is not None:
            self._within = max(0.0, limit - _MARGIN)
        holding = self._loop.create_task(self._hold(), name="genmcp: jobs are worked on")
        tasks.add(holding)
        holding.add_done_callback(tasks.discard)

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
        if not self._over.is_set():
            self._over.set()
            self._shutdown.discard(self)
            self._ended()

    async def _hold(self) -> None:
        await self._over.wait()

    async def _rest(self) -> None:
        try:
            await self._long.rest(self, within=self._within)
        finally:
            self._end()
