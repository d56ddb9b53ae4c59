"""Callbacks that are told how far a call is."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from typing import Final, TypeAlias

from genmcp.cancellation import cancel_and_wait, cancel_requested

__all__ = ["ProgressCallback", "Reports"]

logger = logging.getLogger("genmcp.client")

ProgressCallback: TypeAlias = Callable[
    [float, float | None, str | None], Awaitable[object] | object
]
"""Is given the progress, the total if it is known, and a message if there is one."""


_GRACE: Final = 1.0  # seconds that a callback has to end when it is cancelled


class Reports:
    """Calls a callback of progress in turn, beside the request, and waits for it at the end.

    At most *most* reports wait for a callback that is slow; of more, the oldest go: the newest says
    more than they do. What the callback raises is logged, and does not concern the request.
    """

    def __init__(self, callback: ProgressCallback, most: int = 256) -> None:
        self._callback = callback
        self._waiting: deque[tuple[float, float | None, str | None]] = deque(maxlen=most)
        self._task: asyncio.Task[None] | None = None

    def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        """Report, and return at once."""
        self._waiting.append((progress, total, message))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def end(self) -> None:
        """Wait until everything is reported."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    async def cancel(self) -> None:
        """Report nothing more; a callback that does not end when it is cancelled is left."""
        self._waiting.clear()
        if self._task is not None:
            await cancel_and_wait(self._task, timeout=_GRACE)

    async def _run(self) -> None:
        while self._waiting:
            try:
                outcome = self._callback(*self._waiting.popleft())
                if isawaitable(outcome):
                    await outcome
            except (Exception, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError) and cancel_requested():
                    raise
                logger.exception("a callback of progress failed")
