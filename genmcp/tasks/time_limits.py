"""The soft time limit of a job: an exception inside its function, before the hard limit."""

import asyncio
from collections.abc import Callable, Coroutine, Generator
from types import coroutine
from typing import Any


class SoftTimeLimit(asyncio.CancelledError):
    """Raised inside an `async def` job when its `soft_timeout` has passed, at an `await`.

    The function may save its state, or return what it has so far, until its `timeout`. If it lets
    the exception pass, the attempt has timed out. This is a CancelledError, so that `except
    Exception` does not catch it, and task groups and timeouts inside the function end their work.
    """


class _SoftTimer:
    """Interrupts the running asyncio task once, after *seconds*.

    The interruption is a cancellation, since only that wakes a task from any `await`. `convert`
    then replaces the CancelledError before it reaches the function.
    """

    def __init__(self, seconds: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._fired = False
        self._handle = asyncio.get_running_loop().call_later(seconds, self._fire)

    def _fire(self) -> None:
        self._fired = True
        self._task.cancel()

    def convert(self, error: BaseException) -> BaseException:
        """Return the exception to raise in the function in place of *error*."""
        if not self._fired or not isinstance(error, asyncio.CancelledError):
            return error
        self._fired = False
        # Above 0: the task was also cancelled by another caller, which counts more.
        return error if self._task.uncancel() else SoftTimeLimit()

    def cancel(self) -> None:
        """Do not interrupt the task any more. An interruption that has not arrived is undone."""
        self._handle.cancel()


async def with_soft_limit(call: Callable[[], Coroutine[Any, Any, Any]], seconds: float) -> Any:
    """Return the result of *call*, in which SoftTimeLimit is raised after *seconds*.

    Raises:
        TimeoutError: the function has let SoftTimeLimit pass.
    """
    timer = _SoftTimer(seconds)
    try:
        return await _driven(call(), timer)
    except SoftTimeLimit as passed:
        raise TimeoutError("the soft time limit has passed") from passed
    finally:
        timer.cancel()


@coroutine
def _driven(work: Coroutine[Any, Any, Any], timer: _SoftTimer) -> Generator[Any, Any, Any]:
    """Run *work* like `await`, except that `timer.convert` sees each exception raised in it."""
    step: Callable[[Any], Any] = work.send
    value: Any = None
    while True:
        try:
            awaited = step(value)
        except StopIteration as ended:
            return ended.value
        try:
            step, value = work.send, (yield awaited)
        except GeneratorExit:
            work.close()
            raise
        except BaseException as error:
            step, value = work.throw, timer.convert(error)
