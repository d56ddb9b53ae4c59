"""A thread with a connection of its own, which does what asyncio code asks it for."""

import asyncio
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import Empty, SimpleQueue
from sqlite3 import Connection
from threading import Lock, Thread
from typing import Any, Final
from weakref import WeakSet

from genmcp.errors import StoreUnavailable

__all__ = ["Worker", "WorkerRequest"]

_AT_ONCE: Final = 256  # requests in one turn


class WorkerRequest:
    """Something that is asked for, and what came of it: *result*, or *error* if that is set."""

    __slots__ = ("_future", "error", "loop", "needed", "result", "work")

    def __init__(self, work: Callable[..., Any], needed: Callable[..., bool] | None = None) -> None:
        self.work = work
        self.needed = needed
        self.result: Any = None
        self.error: Exception | None = None
        self.loop = asyncio.get_running_loop()
        self._future: asyncio.Future[Any] = self.loop.create_future()

    async def answer(self) -> Any:
        """Return what came of it, or raise it."""
        return await self._future

    def done(self) -> None:
        """Let `answer` return. Only in the loop it was asked in."""
        if self._future.done():  # whoever asked was cancelled
            return
        if self.error is None:
            self._future.set_result(self.result)
        else:
            self._future.set_exception(self.error)


class Worker:
    """Does requests in the order in which they came, those that wait together in one *turn*.

    A turn says in each request what came of it, and raises nothing. Where *patience* seconds go by
    without a request it is given none. The thread begins with the first request.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[], Connection],
        turn: Callable[[Connection, list[WorkerRequest]], None],
        patience: Callable[[], float | None] = lambda: None,
    ) -> None:
        self._name = name
        self._connect = connect
        self._turn = turn
        self._patience = patience
        # None only ends the patience.
        self._asked: SimpleQueue[WorkerRequest | None] = SimpleQueue()
        self._entrance = Lock()  # held while something is asked: the end comes last
        self._thread: Thread | None = None
        self._end: WorkerRequest | None = None
        self._connection: Connection | None = None
        self._in_use = Lock()  # held while the connection is used
        with _forking:
            _workers.add(self)

    def ask(self, request: WorkerRequest | None) -> None:
        """Have *request* done; with None, have the patience asked for again.

        Raises:
            StoreUnavailable: the worker was closed.
        """
        with self._entrance:
            if self._end is not None:
                raise StoreUnavailable("the store is closed")
            if self._thread is None:
                self._thread = Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._asked.put(request)

    async def aclose(self) -> None:
        """Have everything done that was asked for, and disconnect."""
        end = WorkerRequest(_nothing)
        with self._entrance:
            if self._end is not None:
                return
            self._end = end
            if self._thread is None:
                return
            self._asked.put(end)
        await end.answer()

    def pause(self) -> None:
        """Disconnect, and do nothing until `resume`."""
        self._in_use.acquire()
        self._disconnect()

    def resume(self) -> None:
        """Go on."""
        self._in_use.release()

    def _run(self) -> None:
        ended = False
        while not ended:
            requests = [request for request in self._next() if request is not None]
            ended = bool(requests) and requests[-1] is self._end
            with self._in_use:
                self._do(requests[:-1] if ended else requests)
                if ended:
                    self._disconnect()
            _tell(requests)

    def _next(self) -> list[WorkerRequest | None]:
        asked: list[WorkerRequest | None] = []
        with suppress(Empty):
            asked.append(self._asked.get(timeout=self._patience()))
            while len(asked) < _AT_ONCE:
                asked.append(self._asked.get_nowait())
        return asked

    def _do(self, requests: list[WorkerRequest]) -> None:
        try:
            if self._connection is None:
                self._connection = self._connect()
        except StoreUnavailable as error:
            for request in requests:
                request.error = StoreUnavailable(str(error))
        else:
            self._turn(self._connection, requests)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _nothing() -> None:
    """What is done at the end, and never called."""


def _tell(requests: Iterable[WorkerRequest]) -> None:
    """Let everybody know, each loop by one call."""
    by_loop: dict[asyncio.AbstractEventLoop, list[WorkerRequest]] = {}
    for request in requests:
        by_loop.setdefault(request.loop, []).append(request)
    for loop, asked_there in by_loop.items():
        with suppress(RuntimeError):  # the loop was closed, and who asked went with it
            loop.call_soon_threadsafe(_done, asked_there)


def _done(requests: Iterable[WorkerRequest]) -> None:
    for request in requests:
        request.done()


# No connection may be open while the process forks, not even one the child never uses: SQLite
# ("How To Corrupt An SQLite Database File", 2.6) counts its locks in the process's memory, where
# the child would find locks that it does not have. The threads of the parent connect again when
# they are asked for something; the child has none, and makes a Database of its own.

_workers: WeakSet[Worker] = WeakSet()
_forking = Lock()  # held from before a fork until after it, and while a worker is added


def _before_fork() -> None:
    _forking.acquire()
    for worker in _workers:
        worker.pause()


def _after_fork_in_parent() -> None:
    for worker in _workers:
        worker.resume()
    _forking.release()


def _after_fork_in_child() -> None:
    _workers.clear()
    _forking.release()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(
        before=_before_fork,
        after_in_parent=_after_fork_in_parent,
        after_in_child=_after_fork_in_child,
    )
