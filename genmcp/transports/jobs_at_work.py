"""The work on the jobs of a durable store, as something that is open at an endpoint.

A server that goes away hands its jobs to other processes, as it ends its streams. But uvicorn waits
for open responses only, and the application that an endpoint is mounted in need not pass its
lifespan on. So the work counts among the background tasks that uvicorn waits for: the set that it
has for the ASGI calls which go on behind their response.
"""

import asyncio
from collections.abc import Callable
from typing import Any, Final

from genmcp.mux.long_calls import LongCalls
from genmcp.transports.shutdown import Shutdown, uvicorn_server

__all__ = ["JobsAtWork"]

_MARGIN: Final = 1.0
"""Seconds of uvicorn's own limit that are left for noticing the exit and for writing."""


class JobsAtWork:
    """The work on the jobs of one mux, from the first request or the lifespan's start on.

    Open at the endpoint's *shutdown* until that ends, or the endpoint is closed. *ended* is called
    when the jobs were handed on.
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
        """Whether it ended with its event loop."""
        return self._loop.is_closed()

    def open(self) -> None:
        """Count as open, and hold the exit of the server until the jobs were handed on."""
        self._long.use(self)
        self._shutdown.add(self)
        server: Any = uvicorn_server()
        tasks = getattr(getattr(server, "server_state", None), "tasks", None)
        if not isinstance(tasks, set):
            return  # another server; its lifespan, or `aclose`, hands the jobs on
        limit = server.config.timeout_graceful_shutdown
        if limit is not None:
            self._within = max(0.0, limit - _MARGIN)
        holding = self._loop.create_task(self._hold(), name="genmcp: jobs are worked on")
        tasks.add(holding)
        holding.add_done_callback(tasks.discard)

    def stop(self) -> None:
        """Hand the jobs on."""
        if self._resting is None:
            self._resting = self._loop.create_task(self._rest())

    def end(self) -> None:
        """Count as open no more. From any loop."""
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
