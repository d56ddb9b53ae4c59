"""The present state of a mux in numbers, for telemetry that polls it."""

import asyncio
from collections.abc import Mapping, Sized

from genmcp.errors import StoreError
from genmcp.stores.deliveries import Backlog
from genmcp.tasks.engine import engine_queue
from genmcp.tasks.worker import TaskWorker


class Gauges:
    """Numbers of one mux, in this process. Owned by the mux, and read from any thread.

    Args:
        open_calls: the calls that wait, as far as `Limits.max_waiting_calls` counts them.
        open_streams: the streams that `Limits.max_streams` counts.
        worker: serves the queues.
    """

    def __init__(self, open_calls: Sized, open_streams: Sized, worker: TaskWorker) -> None:
        self._open_calls = open_calls
        self._open_streams = open_streams
        self._worker = worker
        self._last: Mapping[str, Backlog] = {}

    @property
    def open_calls(self) -> int:
        """The number of calls that wait now. Calls that end at once are not counted."""
        return len(self._open_calls)

    @property
    def open_streams(self) -> int:
        """The number of streams that are open now."""
        return len(self._open_streams)

    def backlogs(self, timeout: float = 1.0) -> Mapping[str, Backlog]:
        """Return the backlog of each queue that this process serves, by its name.

        A queue is left out if the engine cannot tell, or does not respond. In a thread that runs an
        event loop, return the result of the previous call: waiting would block the loop.

        Args:
            timeout: seconds for the engine to respond. Default 1.
        """
        loop = self._worker.loop
        if loop is None:
            return {}
        reading = asyncio.run_coroutine_threadsafe(self._read(timeout), loop)
        if _runs_loop():
            return self._last
        try:
            return reading.result(2 * timeout)
        except (TimeoutError, asyncio.CancelledError):  # the loop is blocked, or was closed
            return {}

    async def _read(self, timeout: float) -> Mapping[str, Backlog]:
        found: dict[str, Backlog] = {}
        worker = self._worker
        try:
            async with asyncio.timeout(timeout):
                for queue in worker.options.queues:
                    backlog = await worker.engine.backlog(engine_queue(worker.prefix, queue))
                    if backlog is not None:
                        found[queue] = backlog
        except (TimeoutError, StoreError):
            pass  # the readiness of the process has the reason
        self._last = found
        return found


def _runs_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
