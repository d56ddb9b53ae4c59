"""Threads: the pools for `def` hooks and jobs, shared fairly between clients."""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any

import msgspec

from genmcp.core.waiting import Continue
from genmcp.errors import Overloaded


class ThreadTurns(msgspec.Struct, eq=False):
    """The threads of one event loop, assigned to clients in turn. Owned by the thread pool.

    A client is any hashable value; None has no bound per client.

    Args:
        free: the number of free threads.
        most_of_client: the maximum number of calls of one client that have a thread.
        most_waiting: the maximum number of calls that wait for a thread.
        most_waiting_of_client: the maximum number of calls of one client that wait for a thread.
    """

    free: int
    _most_of_client: int
    _most_waiting: int
    _most_waiting_of_client: int
    waiting: int = 0
    _running: Counter[Hashable] = msgspec.field(default_factory=Counter)
    # Ordered by the next turn of each client; no queue is empty.
    _queues: OrderedDict[Hashable, dict["asyncio.Future[None]", None]] = msgspec.field(
        default_factory=OrderedDict
    )

    async def acquire(self, client: Hashable, *, closing: bool = False) -> None:
        """Wait for a thread; return it with `release`.

        Raises:
            Overloaded: 429, too many calls of *client* wait already; 503, too many in total. Not
                raised if the thread is for *closing* something, which must not be left open.
        """
        if self.free and self._may_run(client):  # then no call of the client waits
            self._begin(client)
            return
        if not closing:
            self._check(client)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue = self._queues.setdefault(client, {})
        queue[turn] = None
        self.waiting += 1
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it got a thread in the same iteration: return it unused
                self.release(client)
            raise
        finally:
            self.waiting -= 1
            del queue[turn]
            if not queue:
                del self._queues[client]

    def release(self, client: Hashable) -> None:
        """Return the thread of a call of *client*; the next client in turn gets it."""
        self.free += 1
        self._running[client] -= 1
        if not self._running[client]:
            del self._running[client]
        # One thread is free, and every call that could run before is running. The first client in
        # the order that is below its bound gets the thread, and moves to the end of the order. Many
        # queued calls of one client therefore delay a call of another client by one call at most.
        for other, queue in self._queues.items():
            turn = next((each for each in queue if not each.done()), None)
            if turn is not None and self._may_run(other):
                self._queues.move_to_end(other)
                self._begin(other)
                turn.set_result(None)
                return

    def _may_run(self, client: Hashable) -> bool:
        return client is None or self._running[client] < self._most_of_client

    def _begin(self, client: Hashable) -> None:
        self.free -= 1
        self._running[client] += 1

    def _check(self, client: Hashable) -> None:
        if self.waiting >= self._most_waiting:
            raise Overloaded(
                f"Too many calls wait for a thread: {self._most_waiting} (limit: max_thread_queue)"
            )
        most = self._most_waiting_of_client
        if client is not None and len(self._queues.get(client, ())) >= most:
            raise Overloaded(
                f"Too many calls of one client wait for a thread: {most} "
                f"(limit: client_share, of max_thread_queue)",
                status=429,
            )


class ThreadPool:
    """A thread pool in which at most *limit* functions run at once per event loop. Owned by a mux.

    At most *waiting* functions wait for a thread. *of_client* and *waiting_of_client* are the same
    limits for one client. Threads are assigned to clients in rotation. Functions wait in the event
    loop and not in the pool, so that a cancelled function is removed from the queue at once.
    """

    def __init__(
        self,
        limit: int,
        waiting: int,
        *,
        of_client: int | None = None,
        waiting_of_client: int | None = None,
    ) -> None:
        self._bounds = (limit, of_client or limit, waiting, waiting_of_client or waiting)
        self._open = partial(ThreadPoolExecutor, limit, thread_name_prefix="genmcp")
        self._pool = self._open()
        self._turns: ThreadTurns | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def waiting(self) -> int:
        """The number of calls that wait for a thread."""
        return 0 if self._turns is None else self._turns.waiting

    @property
    def full(self) -> bool:
        """Whether the next call would wait for a thread."""
        return self._turns is not None and not self._turns.free

    async def run(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        client: Hashable = None,
        closing: bool = False,
    ) -> Any:
        """Run a blocking *function*, within a copy of the caller's context.

        Threads are assigned to each *client* in rotation. If the caller is cancelled, it does not
        wait for *function*, whose thread becomes free when it returns.

        Raises:
            Overloaded: too many calls wait already, and *function* is not for *closing* something.
        """
        loop = asyncio.get_running_loop()
        turns = self._turns
        if turns is None or self._loop is not loop:  # a closed loop keeps its threads and calls
            turns, self._loop = ThreadTurns(*self._bounds), loop
            self._turns = turns
        await turns.acquire(client, closing=closing)
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
        """End the threads; a later call starts new ones."""
        pool, self._pool = self._pool, self._open()
        pool.shutdown(wait=False, cancel_futures=True)


def _give_back(
    loop: asyncio.AbstractEventLoop, turns: ThreadTurns, client: Hashable, work: "Future[Any]"
) -> None:
    with suppress(RuntimeError):  # the loop was closed, and no call waits in it any more
        loop.call_soon_threadsafe(turns.release, client)


def _drop(work: "Future[Any]") -> None:
    """Close the result of *work*, which nothing awaits.

    A coroutine in it would never start, and Python would warn of that.
    """
    if not work.cancelled() and work.exception() is None:
        result = work.result()
        if isinstance(result, Continue | Coroutine):
            result.close()


def _run(function: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return function(*arguments)
    except StopIteration as error:
        # A future cannot hold a StopIteration: a caller that awaits it would wait for ever.
        raise RuntimeError("StopIteration left a function that ran in a thread") from error
