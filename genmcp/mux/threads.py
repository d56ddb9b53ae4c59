"""The pool of threads that blocking hooks run in."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from genmcp.continuation import Continue
from genmcp.errors import Overloaded

__all__ = ["Threads"]


class Threads:
    """At most *most* run at once on an event loop; at most *waiting* wait for that.

    Work waits in the loop and not in the pool: what is cancelled meanwhile leaves nothing behind.
    """

    def __init__(self, most: int, waiting: int) -> None:
        self._most = most
        self._allowed = waiting
        self._waiting = 0
        self._pool = self._made()
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Semaphore] = (
            WeakKeyDictionary()
        )

    @property
    def waiting(self) -> int:
        """How many wait for a thread."""
        return self._waiting

    async def run(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a blocking *function*, within a copy of the caller's context.

        Who is cancelled meanwhile goes on without its result; the thread is free again when
        *function* returns.

        Raises:
            Overloaded: too many wait already.
        """
        loop = asyncio.get_running_loop()
        turns = self._turns.get(loop)
        if turns is None:
            turns = self._turns[loop] = asyncio.Semaphore(self._most)
        if turns.locked() and self._waiting >= self._allowed:
            raise Overloaded(f"Too many calls wait for a thread: {self._allowed} (limit: waiting)")
        self._waiting += 1
        try:
            await turns.acquire()
        finally:
            self._waiting -= 1
        work = self._pool.submit(copy_context().run, _run, function, *arguments)
        work.add_done_callback(partial(_give_back, loop, turns))
        try:
            return await asyncio.wrap_future(work)
        except asyncio.CancelledError:
            work.add_done_callback(_drop)
            raise

    def close(self) -> None:
        """Let go of the threads that are there; who needs one later gets a new one."""
        pool, self._pool = self._pool, self._made()
        pool.shutdown(wait=False, cancel_futures=True)

    def _made(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._most, thread_name_prefix="genmcp")


def _give_back(
    loop: asyncio.AbstractEventLoop, turns: asyncio.Semaphore, work: "Future[Any]"
) -> None:
    with suppress(RuntimeError):  # the loop was closed, and whoever waited went with it
        loop.call_soon_threadsafe(turns.release)


def _drop(work: "Future[Any]") -> None:
    """Let go of what *work* has come to, which nobody takes: a coroutine would never begin."""
    if not work.cancelled() and work.exception() is None:
        result = work.result()
        if isinstance(result, Continue | Coroutine):
            result.close()


def _run(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except StopIteration as error:
        # No future can carry it: whoever waits for this one would wait for ever.
        raise RuntimeError("StopIteration left a function that ran in a thread") from error
