"""The pool of threads that blocking hooks run in."""

import asyncio
from collections.abc import Callable, Coroutine, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from genmcp.core.waiting import Continue
from genmcp.mux.limits import Limits
from genmcp.mux.turns import Turns

__all__ = ["Threads"]


class Threads:
    """A thread pool in which at most *most* functions run at once per event loop.

    At most *waiting* wait for a thread. *of_client* and *waiting_of_client* bound those of one
    client; clients take turns. Work waits in the loop and not in the pool, so that cancelled work
    leaves nothing behind.
    """

    def __init__(
        self,
        most: int,
        waiting: int,
        *,
        of_client: int | None = None,
        waiting_of_client: int | None = None,
    ) -> None:
        self._most = most
        self._bounds = (most, of_client or most, waiting, waiting_of_client or waiting)
        self._pool = self._made()
        self._turns: WeakKeyDictionary[asyncio.AbstractEventLoop, Turns] = WeakKeyDictionary()

    @classmethod
    def within(cls, limits: Limits) -> "Threads":
        """Return the thread pool of a mux with these *limits*."""
        return cls(
            limits.threads,
            limits.waiting,
            of_client=limits.threads_of_client,
            waiting_of_client=limits.waiting_of_client,
        )

    @property
    def waiting(self) -> int:
        """The number of calls that wait for a thread."""
        return sum(turns.waiting for turns in [*self._turns.values()])

    async def run(
        self, function: Callable[..., Any], *arguments: Any, client: Hashable = None
    ) -> Any:
        """Run a blocking *function*, within a copy of the caller's context.

        *client* takes turns with others for a thread. A caller that is cancelled in the meantime
        continues without the result; the thread is free again when *function* returns.

        Raises:
            Overloaded: too many calls wait already.
        """
        loop = asyncio.get_running_loop()
        turns = self._turns.get(loop)
        if turns is None:
            turns = self._turns[loop] = Turns(*self._bounds)
        await turns.acquire(client)
        try:
            work = self._pool.submit(copy_context().run, _run, function, *arguments)
        except BaseException:
            turns.release(client)
            raise
        work.add_done_callback(partial(_give_back, loop, turns, client))
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
    loop: asyncio.AbstractEventLoop, turns: Turns, client: Hashable, work: "Future[Any]"
) -> None:
    with suppress(RuntimeError):  # the loop was closed, and its waiting calls with it
        loop.call_soon_threadsafe(turns.release, client)


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
