"""Calls of functions that may block for ever, in threads that nothing waits for at the end."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from threading import Thread
from typing import TypeVar

T = TypeVar("T")


def in_daemon_thread(function: Callable[[], T]) -> "asyncio.Future[T]":
    """Call *function* in a thread of its own, within a copy of the context; return its result.

    A daemon thread: those of an executor would delay the end of the event loop, and the exit of the
    process, while they block. If the future is cancelled, the thread goes on.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()
    context = copy_context()

    def settle(result: T | None, error: Exception | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)  # type: ignore[arg-type]
        else:
            future.set_exception(error)
            future.exception()  # it need not be awaited

    def run() -> None:
        try:
            settled = partial(settle, context.run(function), None)
        except Exception as error:
            settled = partial(settle, None, error)
        with suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(settled)

    Thread(target=run, name="genmcp blocking call", daemon=True).start()
    return future
