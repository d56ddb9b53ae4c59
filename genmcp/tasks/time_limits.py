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


async def with_soft_limit(call: Callable[[], Coroutine[Any, Any, Any]], seconds: float) -> Any:
    """Return the result of *call*, in which SoftTimeLimit is raised after *seconds*.

    Raises:
        TimeoutError: the function has let SoftTimeLimit pass.
    """
    task, has_fired = asyncio.current_task(), False
    assert task is not None

    # The interruption is a cancellation, since only that wakes a task from any `await`. `convert`
    # then replaces the CancelledError before it reaches the function.
    def fire() -> None:
        nonlocal has_fired
        has_fired = True
        task.cancel()

    def convert(error: BaseException) -> BaseException:
        nonlocal has_fired
        if not has_fired or not isinstance(error, asyncio.CancelledError):
            return error
        has_fired = False
        # Above 0: the task was also cancelled by another caller, which counts more.
        return error if task.uncancel() else SoftTimeLimit()

    timer = asyncio.get_running_loop().call_later(seconds, fire)
    try:
        return await _driven(call(), convert)
    except SoftTimeLimit as passed:
        raise TimeoutError("the soft time limit has passed") from passed
    finally:
        timer.cancel()


@coroutine
def _driven(
    work: Coroutine[Any, Any, Any], convert: Callable[[BaseException], BaseException]
) -> Generator[Any, Any, Any]:
    """Run *work* like `await`, except that *convert* sees each exception raised in it."""
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
            step, value = work.throw, convert(error)
