"""Threads that have a connection to a SQLite file, since SQLite blocks."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from sqlite3 import Connection
from threading import Lock, Thread
from typing import Any, Final, NamedTuple, TypeAlias

from genmcp.errors import ConfigurationError, StoreUnavailable
from genmcp.stores.lanes import CLOSED, check_room, complete

_MAX_BATCH: Final = 256  # requests that are performed together

Work: TypeAlias = Callable[..., Any]


class _ThreadRequest(NamedTuple):
    work: Work
    future: "asyncio.Future[Any]"


class ConnectionThread:
    """A thread with a connection of its own, which performs requests of any event loop in order.

    Args:
        name: the name of the thread, which starts with the first request.
        connect: opens the connection, in the thread.
        perform: performs the work of the requests that wait together, and returns the result of
            each, or its error.
        idle_after: returns the seconds without a request after which *perform* is called with an
            empty list; None: never.
    """

    def __init__(
        self,
        name: str,
        connect: Callable[[], Connection],
        perform: Callable[[Connection, Sequence[Work]], list[Any]],
        idle_after: Callable[[], float | None],
    ) -> None:
        self._name = name
        self._connect = connect
        self._perform = perform
        self._idle_after = idle_after
        # None only wakes the thread, so that it calls `idle_after` again.
        self._requests: SimpleQueue[_ThreadRequest | None] = SimpleQueue()
        self._submitting = Lock()  # no request may be queued after the last one
        self._thread: Thread | None = None
        self._closing = False

    def request(self, work: Work) -> "asyncio.Future[Any]":
        """Return a future with the result of *work*.

        Raises:
            StoreUnavailable: the thread was closed, or too many requests wait.
        """
        check_room(self._name, self._requests.qsize())
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        with self._submitting:
            self._submit(_ThreadRequest(work, future))
        return future

    def wake(self) -> None:
        """Make the thread call `idle_after` again."""
        with self._submitting:
            self._submit(None)

    async def aclose(self) -> None:
        """Perform all queued requests, then disconnect and end the thread."""
        with self._submitting:
            self._closing = True
            # Only now: the thread waits for a request again, unless it sees that this is closing.
            self._requests.put(None)
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)

    def _submit(self, request: _ThreadRequest | None) -> None:
        if self._closing:
            raise StoreUnavailable(CLOSED)
        if self._thread is None:
            self._thread = Thread(target=self._run, name=self._name, daemon=True)
            self._thread.start()
        self._requests.put(request)

    def _run(self) -> None:
        connection: Connection | None = None
        while not (self._closing and self._requests.empty()):
            requests = self._next_batch()
            outcomes: list[Any]
            try:
                connection = connection or self._connect()
                outcomes = self._perform(connection, [request.work for request in requests])
            except (StoreUnavailable, ConfigurationError) as error:
                outcomes = [type(error)(str(error)) for _ in requests]
            _complete(zip(requests, outcomes, strict=True))
        if connection is not None:
            connection.close()

    def _next_batch(self) -> list[_ThreadRequest]:
        batch: list[_ThreadRequest | None] = []
        with suppress(Empty):
            batch.append(self._requests.get(timeout=self._idle_after()))
            while len(batch) < _MAX_BATCH:
                batch.append(self._requests.get_nowait())
        return [request for request in batch if request is not None]


def _complete(requests: Iterable[tuple[_ThreadRequest, Any]]) -> None:
    """Complete *requests*. Each event loop is woken once, because that costs a system call."""
    by_loop = defaultdict[asyncio.AbstractEventLoop, list[tuple[asyncio.Future[Any], Any]]](list)
    for request, outcome in requests:
        by_loop[request.future.get_loop()].append((request.future, outcome))
    for loop, completed in by_loop.items():
        with suppress(RuntimeError):  # the loop was closed, and the callers with it
            loop.call_soon_threadsafe(_complete_all, completed)


def _complete_all(completed: Iterable[tuple["asyncio.Future[Any]", Any]]) -> None:
    for future, outcome in completed:
        complete(future, outcome)
