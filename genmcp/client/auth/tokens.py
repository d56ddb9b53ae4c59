"""Where a client keeps its tokens: the interface, and the tokens of one process."""

import asyncio
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncIterator
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, asynccontextmanager

from genmcp._core.auth.record import Record
from genmcp.errors import GenmcpError

DEFAULT_LOCK_TIMEOUT = 60.0
"""Seconds to wait for another process that renews the same token; longer than a renewal takes."""


class TokensUnavailable(GenmcpError):
    """The stored tokens cannot be read, written or locked. The message names the remedy."""


class TokenStorage(ABC):
    """Stores the records of logins. Safe for any number of event loops, threads and processes.

    To add a storage, implement this class and run `TokensContract` in tests/contracts.
    Every method raises `TokensUnavailable` if the storage cannot be used, and ConfigurationError
    for a record that a newer release wrote. A damaged record counts as absent: a new login replaces
    it.
    """

    @abstractmethod
    async def get(self, key: str) -> Record | None:
        """Return the record under *key*, or None."""

    @abstractmethod
    async def swap(self, key: str, old: Record | None, new: Record | None) -> bool:
        """Replace *old* by *new*, unless another process has changed the record meanwhile.

        It neither needs nor awaits `lock`, so that the holder of the lock can call it.

        Args:
            key: the name of the record.
            old: the record as `get` returned it. None: there must be no record.
            new: the record to store, with a generation of its own. None: remove the record.

        Returns:
            Whether *old* was the present record. If not, nothing was changed.
        """

    @abstractmethod
    def lock(self, key: str) -> AbstractAsyncContextManager[None]:
        """Lock *key* while the record is renewed; no other process is in the block meanwhile.

        The lock of a process that has died is free. It is advisory: `get` and `swap` ignore it. Not
        reentrant.

        Raises:
            TokensUnavailable: the lock was not free in time.
        """


class MemoryTokens(TokenStorage):
    """Tokens in the memory of this process, for all its clients, event loops and threads.

    Args:
        lock_timeout: seconds to wait for a client that renews the same token. Default 60.
    """

    def __init__(self, *, lock_timeout: float = DEFAULT_LOCK_TIMEOUT) -> None:
        self._lock_timeout = lock_timeout
        self._records: dict[str, Record] = {}
        self._queues: dict[str, deque[Future[None]]] = {}
        self._guard = threading.Lock()  # of both, for moments only

    async def get(self, key: str) -> Record | None:
        """Return the record under *key*, or None."""
        return self._records.get(key)

    async def swap(self, key: str, old: Record | None, new: Record | None) -> bool:
        """Replace *old* by *new*, and return whether *old* was the present record."""
        with self._guard:
            if self._records.get(key) != old:
                return False
            if new is None:
                self._records.pop(key, None)
            else:
                self._records[key] = new
            return True

    @asynccontextmanager
    async def lock(self, key: str) -> AsyncIterator[None]:
        """Lock *key*, in the order of arrival.

        An asyncio.Lock belongs to one event loop, and a threading.Lock would block the loop. Each
        waiter is a future instead, which the holder before it resolves from its own thread.
        """
        turn: Future[None] = Future()
        with self._guard:
            queue = self._queues.setdefault(key, deque())
            queue.append(turn)
            _grant(queue[0])
        try:
            try:
                async with asyncio.timeout(self._lock_timeout):
                    await asyncio.wrap_future(turn)
            except TimeoutError:
                raise TokensUnavailable(busy_text(self._lock_timeout)) from None
            yield
        finally:
            with self._guard:
                queue.remove(turn)
                if queue:
                    _grant(queue[0])
                else:
                    del self._queues[key]


def _grant(turn: Future[None]) -> None:
    """Let the waiter of *turn* proceed. One that was cancelled removes itself from the queue."""
    if not turn.done() and turn.set_running_or_notify_cancel():
        turn.set_result(None)


def busy_text(timeout: float) -> str:
    """Return the text of the error of a lock that was not free within *timeout* seconds."""
    return (
        f"another client has been renewing this token for more than {timeout:g} s "
        f"(lock_timeout); try again"
    )
