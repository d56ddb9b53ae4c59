"""The present state of a mux in numbers, for telemetry that polls it."""

import asyncio
from collections.abc import Mapping, Sized
from typing import Final, NamedTuple, TypeAlias

from genmcp.errors import ConfigurationError, StoreError
from genmcp.stores.clocks import steady
from genmcp.stores.deliveries import Backlog
from genmcp.stores.store import Store
from genmcp.tasks.worker import TaskWorker

PROBE_KEY: Final = "health:probe"
"""No record has this key, but reading it needs the store like any other read."""

_CACHE: Final = 1.0  # seconds: one collection of metrics calls several methods

Backlogs: TypeAlias = Mapping[str, Backlog | None]


class _Reading(NamedTuple):
    up: bool
    backlogs: Backlogs
    valid_until: float = 0.0


class Gauges:
    """Numbers of one mux, in this process. Owned by the mux, and read from any thread.

    Args:
        open_calls: the calls that wait, as far as `Limits.max_waiting_calls` counts them.
        open_streams: the streams that `Limits.max_streams` counts.
        worker: serves the queues.
        store: the store of the mux.
    """

    def __init__(
        self, open_calls: Sized, open_streams: Sized, worker: TaskWorker, store: Store
    ) -> None:
        self._open_calls = open_calls
        self._open_streams = open_streams
        self._worker = worker
        self._store = store
        self._last = _Reading(True, {})

    @property
    def open_calls(self) -> int:
        """The number of calls that wait now. Calls that end at once are not counted."""
        return len(self._open_calls)

    @property
    def open_streams(self) -> int:
        """The number of streams that are open now."""
        return len(self._open_streams)

    def backlogs(self, timeout: float = 1.0) -> Backlogs:
        """Return the backlog of each queue that this process serves, by its name.

        None: the store does not respond. In a
        thread that runs an event loop, return the previous result: waiting would block the loop.

        Args:
            timeout: seconds for the store to respond. Default 1.
        """
        return self._read(timeout).backlogs

    def is_store_up(self, timeout: float = 1.0) -> bool:
        """Return whether the store responds, and no operation fails that has not succeeded since.

        Like `backlogs`, it reads from the store, so that an idle process notices an outage.

        Args:
            timeout: seconds for the store to respond. Default 1.
        """
        return self._read(timeout).up and not self._store.outages.failing

    def _read(self, timeout: float) -> _Reading:
        loop = self._worker.loop
        if loop is None:
            return _Reading(True, {})
        if steady() < self._last.valid_until:
            return self._last
        reading = asyncio.run_coroutine_threadsafe(self._collect(timeout), loop)
        if not _runs_loop():
            try:
                return reading.result(3 * timeout)
            except (TimeoutError, asyncio.CancelledError):  # the loop is blocked, or was closed
                return _Reading(True, dict.fromkeys(self._worker.options.queues))
        return self._last

    async def _collect(self, timeout: float) -> _Reading:
        worker, up = self._worker, True
        found: dict[str, Backlog | None] = {}
        try:
            async with asyncio.timeout(timeout):
                await self._store.get(PROBE_KEY)
        except (TimeoutError, StoreError, ConfigurationError):
            up = False
        queues = [*worker.options.queues]
        try:
            async with asyncio.timeout(timeout):
                while queues:
                    backlog = await worker.backlog(queues[0])
                    found[queues.pop(0)] = backlog
        except (TimeoutError, StoreError):
            found.update(dict.fromkeys(queues))  # the readiness of the process has the reason
        self._last = _Reading(up, found, steady() + _CACHE)
        return self._last


def _runs_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
