"""Cancellation in asyncio: who has requested it, and which code must let it propagate.

Only the rules of asyncio are here. When a call is cancelled, and with which effect:
`genmcp/core/call.py`.

asyncio raises the same CancelledError for two different events:

- The current asyncio.Task was cancelled: its caller gave up, a timeout expired, or the process is
  shutting down. `Task.cancelling()` counts these requests. They must propagate, or the caller waits
  forever.
- An awaited task or future was cancelled by other code. The current task was not cancelled, and
  `Task.cancelling()` is 0. This is a failure of the awaited work and is handled like any exception.

The rules, and the helper for each:

1. Code that catches CancelledError calls `cancel_requested` before it treats the error as a
   failure of the awaited work.
2. Code that cancels its own task, to leave one block early, takes exactly its own requests back
   with `Task.uncancel()`, and swallows the error only if no other request remains: `CancelScope`.
   `RunningCall` in `genmcp._transports` counts its requests in the same way.
3. Code that owns a child task cancels it and waits for its end: `cancel_and_wait`.
4. Cleanup that must not stop half-way delays cancellations until it is done: `run_to_completion`.
5. Code that waits for a future which others need as well does not cancel it: `shielded`.

A test searches the mux and the transports for functions that cancel a task and wait for it without
the helper. Code that must not wait, such as a callback, only cancels: the owner of the task waits
for it later.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, TypeVar

T = TypeVar("T")


def cancel_requested() -> bool:
    """Return whether the current asyncio.Task was cancelled, as opposed to the awaited work.

    To be called where a CancelledError was just caught.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


async def cancel_and_wait(*tasks: "asyncio.Task[Any]", timeout: float | None = None) -> None:
    """Cancel *tasks* and wait until they have ended. Their results and exceptions are dropped.

    Args:
        tasks: may include tasks that have ended, but not the current one.
        timeout: seconds to wait for tasks that ignore the cancellation; None: no limit.
    """
    for task in tasks:
        task.cancel()
    if not tasks:
        return
    ended, _ = await asyncio.wait(tasks, timeout=timeout)
    for task in ended:
        if not task.cancelled():
            task.exception()  # retrieved, or asyncio logs "exception was never retrieved"


async def run_to_completion(work: Coroutine[Any, Any, T]) -> T:
    """Run *work* to its end, and return its result.

    Cancellations of the current task are delayed until then, however many there are: *work* must
    have a bound of its own. The end of the event loop cancels *work* itself.
    """
    task = asyncio.get_running_loop().create_task(work)
    try:
        return await shielded(task)
    except asyncio.CancelledError:
        # There may be several: of a timeout, a client that leaves, and a shutdown. The first one
        # is raised, since an `anyio.CancelScope` knows its own by the message.
        while not task.done():
            with suppress(asyncio.CancelledError):
                await asyncio.wait((task,))
        if not task.cancelled():
            task.exception()  # retrieved, as in `cancel_and_wait`
        raise
    finally:
        del task  # its error has this frame in its traceback: a reference cycle


async def shielded(future: "asyncio.Future[T]") -> T:
    """Return the result of *future*, which is not cancelled with the current task.

    Unlike `asyncio.shield`, which since Python 3.14 logs an error of *future* after that.
    """
    try:
        await asyncio.wait((future,))
        return future.result()
    finally:
        del future  # a reference cycle, as in `run_to_completion`


class CancelScope:
    """A block that other code can end early by cancelling the task inside it (rule 2).

    Owned by the task that enters it. Equivalent to `asyncio.timeout(None)` with `reschedule(0)`,
    which cost 7 % of a client's whole call.
    """

    __slots__ = ("_cancelled", "_cancelling", "_scheduled", "_task")

    def __enter__(self) -> "CancelScope":
        task = asyncio.current_task()
        assert task is not None  # it is entered in a coroutine
        self._task = task
        self._cancelling = task.cancelling()
        self._cancelled = False
        self._scheduled: asyncio.Handle | None = None
        return self

    def cancel(self) -> None:
        """End the block in the next iteration of the event loop, at its current await."""
        # Not at once: the block may be ending by itself in this iteration, and `__exit__` then
        # drops the request before it can hit an await outside of the block.
        if self._scheduled is None:
            self._scheduled = self._task.get_loop().call_soon(self._cancel)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        """Take back the scope's own request; swallow the error unless others remain."""
        if self._scheduled is None:
            return False
        self._scheduled.cancel()
        if not self._cancelled:
            return False
        return self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError

    def _cancel(self) -> None:
        self._cancelled = True
        self._task.cancel()
