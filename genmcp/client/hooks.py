"""Calls of user code one at a time: hooks for notifications, and progress callbacks."""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import Context, ContextVar, copy_context
from inspect import isawaitable
from typing import Any, Final, TypeAlias

from genmcp.cancellation import cancel_and_wait, cancel_requested

logger = logging.getLogger("genmcp.client")

ORIGIN_CONTEXT: ContextVar[Context] = ContextVar("genmcp_client_origin_context")
"""In a hook for a notification: the context variables of the code that received the notification.

Over HTTP, these are the context variables of the call whose response contained the notification.
"""

ProgressCallback: TypeAlias = Callable[
    [float, float | None, str | None], Awaitable[object] | object
]
"""Called with the progress, the total if it is known, and a message if there is one."""

MAX_REPORTS: Final = 256  # that wait for the progress callback of one call
_CANCEL_TIMEOUT: Final = 1.0  # seconds that a cancelled function has to end


class CallQueue:
    """Calls a function of the user for each entry, one entry at a time, in order.

    If too many wait for a slow function, a further entry displaces the oldest. Errors of the
    function are logged. Owned by the call whose progress it reports, or by a `HandlerRunner`.

    Args:
        function: the function, `async` or not, which is called in the event loop.
        most: maximum number of waiting entries.
        name: the name of the function in the log.
    """

    def __init__(self, function: Callable[..., Any], most: int, name: str) -> None:
        self._function = function
        self._name = name
        self._queue: deque[tuple[Context, tuple[Any, ...]]] = deque(maxlen=most)
        self._is_late = False
        self._worker: asyncio.Task[None] | None = None

    def put(self, *arguments: Any) -> None:
        """Queue an entry, and return at once."""
        if len(self._queue) == self._queue.maxlen and not self._is_late:
            self._is_late = True
            logger.warning("%s is too slow: some of its calls are left out", self._name)
        self._queue.append((copy_context(), arguments))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.get_running_loop().create_task(self._run())

    def runs_in(self, task: "asyncio.Task[Any]") -> bool:
        """Return whether *task* is the one that calls the function."""
        return task is self._worker

    async def end(self, timeout: float | None = None) -> None:
        """Wait until the queue is empty, or *timeout* seconds have passed."""
        if self._worker is not None:
            await asyncio.wait((self._worker,), timeout=timeout)

    async def cancel(self) -> None:
        """Drop the waiting entries and cancel the function; do not wait long for its end."""
        self._queue.clear()
        if self._worker is not None:
            await cancel_and_wait(self._worker, timeout=_CANCEL_TIMEOUT)

    async def _run(self) -> None:
        while self._queue:
            context, arguments = self._queue.popleft()
            ORIGIN_CONTEXT.set(context)
            try:
                returned = self._function(*arguments)
                if isawaitable(returned):
                    await returned
            except (Exception, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError) and cancel_requested():
                    raise
                logger.exception("%s failed", self._name)
