"""Coroutines driven by hand, up to where they first wait.

An asyncio.Task or a timer for each piece of work that nearly never waits would cost more than
most of the work. `work.send(None)` runs its first step in the asyncio.Task that is there already;
StopIteration brings the result, anything else is what it waits for, and only then is made what
waiting needs.
"""

import asyncio
import sys
from collections.abc import Coroutine, Generator
from types import coroutine
from typing import Any, TypeVar

__all__ = ["resume", "start"]

T = TypeVar("T")


@coroutine
def resume(work: Coroutine[Any, Any, T], waited: Any) -> Generator[Any, Any, T]:
    """Go on with *work*, whose first step has ended in waiting for *waited*, as `await` would."""
    try:
        while True:
            try:
                sent = yield waited
            except GeneratorExit:
                work.close()
                raise
            except BaseException as error:  # thrown in by the asyncio.Task: a cancellation
                waited = work.throw(error)
            else:
                waited = work.send(sent)
    except StopIteration as done:
        result: T = done.value
        return result


if sys.version_info >= (3, 12):

    def start(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Return an asyncio.Task for *work* whose first step runs at once.

        This needs Python 3.12, and saves an iteration of the event loop.
        """
        return asyncio.Task(work, loop=loop, eager_start=True)

else:

    def start(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Return an asyncio.Task for *work*."""
        return loop.create_task(work)
