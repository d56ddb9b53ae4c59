"""Requests to the server of a store, which are sent in batches."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from msgspec import Struct

from genmcp.cancellation import shielded
from genmcp.errors import StoreUnavailable
from genmcp.stores.outages import Outages

CLOSED: Final = "the store is closed"

_WAITING: Final = 100_000  # requests; beyond it they fail, so that memory is bounded
_BATCH_BYTES: Final = 1024 * 1024
_CLOSING: Final = 1.0  # seconds for the batches that are under way


class RequestKind(Struct, frozen=True, eq=False):
    """A kind of requests, of which at most *limit* are sent together."""

    limit: int = 100


class Again(NamedTuple):
    """The result of a request that was not performed: it is sent again while it has time.

    Attributes:
        error: the error of the request once it has none.
    """

    error: Exception


class Late(NamedTuple):
    """The result of a request that may still be performed later: its caller waits for its *error*.

    Attributes:
        time: when it cannot be performed any more, by the clock of the event loop.
    """

    error: Exception
    time: float


Send: TypeAlias = Callable[[Any, Sequence[Any]], Awaitable[Sequence[Any]]]


class _Waiting(Struct, eq=False):
    item: Any
    cost: int
    deadline: float
    future: "asyncio.Future[Any]"


class Lane:
    """Requests of one event loop, sent one batch after the other.

    A write therefore takes effect before those that were requested after it, also if its caller
    was cancelled. A task runs only while there are requests.

    Args:
        name: of the task.
        send: sends items of one kind, and returns the result of each: a value, an error, `Again` or
            `Late`. Raises nothing.
        outages: those of the store.
        timeout: seconds after which a request is not sent any more.
        writes: whether the requests are writes. Equal reads that wait share one request.
    """

    def __init__(
        self, name: str, send: Send, outages: Outages, timeout: float, *, writes: bool
    ) -> None:
        self._name = name
        self._send = send
        self._outages = outages
        self._timeout = timeout
        self._writes = writes
        self._loop = asyncio.get_running_loop()
        self._pending: dict[RequestKind, deque[_Waiting]] = {}
        self._waiting = 0
        self._same: dict[tuple[RequestKind, Any], _Waiting] = {}
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    async def request(self, kind: RequestKind, item: Any, cost: int = 0) -> Any:
        """Return the response to *item*, whose size is *cost* bytes.

        Raises:
            StoreUnavailable: there was none, or the store is closed.
            ConfigurationError: the server cannot be used with the settings of the store.
        """
        try:
            if self._writes:
                response = await self._add(kind, item, cost).future
            else:
                request = self._same.get((kind, item))
                if request is None:
                    request = self._same[kind, item] = self._add(kind, item, cost)
                # A caller that is cancelled must not cancel a read that others share.
                response = await shielded(request.future)
        except Exception as error:
            if str(error) != CLOSED:  # the end of an event loop is no outage
                self._outages.record(error, write=self._writes)
            raise
        if self._outages.failing:
            self._outages.record(None, write=self._writes)
        return response

    async def aclose(self) -> None:
        """Reject all later requests, and give the batches that are under way a second."""
        self._closed = True
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=_CLOSING)
            self._task.cancel()
            await asyncio.wait({self._task})

    def _add(self, kind: RequestKind, item: Any, cost: int) -> _Waiting:
        if self._closed:
            raise StoreUnavailable(CLOSED)
        check_room(self._name, self._waiting)
        deadline = self._loop.time() + self._timeout
        request = _Waiting(item, cost, deadline, self._loop.create_future())
        self._pending.setdefault(kind, deque()).append(request)
        self._waiting += 1
        if self._task is None or self._task.done():
            # It begins in the next turn of the event loop, with all requests of this one.
            self._task = self._loop.create_task(self._run(), name=self._name)
        return request

    async def _run(self) -> None:
        try:
            while self._pending:
                kind, batch = self._next_batch()
                results: Sequence[Any] = [StoreUnavailable(CLOSED)] * len(batch)
                try:
                    if batch:
                        results = await self._send(kind, [request.item for request in batch])
                finally:  # also if this is cancelled
                    self._complete_batch(kind, batch, results)
        finally:
            # If this is cancelled: by `aclose`, or by the event loop at its end. What tasks write
            # when they are cancelled begins another task.
            for waiting in self._pending.values():
                for request in waiting:
                    complete(request.future, StoreUnavailable(CLOSED))
            self._pending.clear()

    def _next_batch(self) -> tuple[RequestKind, Sequence[_Waiting]]:
        self._same.clear()
        kind = next(iter(self._pending))
        waiting, batch, size = self._pending.pop(kind), list[_Waiting](), 0
        while waiting and len(batch) < kind.limit and size < _BATCH_BYTES:
            request = waiting.popleft()
            self._waiting -= 1
            if self._loop.time() > request.deadline:
                complete(request.future, StoreUnavailable(f"{self._name}: no response in time"))
            elif not request.future.done():  # its caller was not cancelled
                batch.append(request)
                size += request.cost
        if waiting:
            self._pending[kind] = waiting  # after those of other kinds
        return kind, batch

    def _complete_batch(
        self, kind: RequestKind, batch: Sequence[_Waiting], results: Sequence[Any]
    ) -> None:
        again, now = list[_Waiting](), self._loop.time()
        for request, result in zip(batch, results, strict=True):
            if isinstance(result, Late):
                self._loop.call_at(result.time, complete, request.future, result.error)
            elif not isinstance(result, Again):
                complete(request.future, result)
            elif self._closed or now > request.deadline:
                complete(request.future, result.error)
            else:
                again.append(request)
        if again:
            self._pending.setdefault(kind, deque()).extendleft(reversed(again))
            self._waiting += len(again)


def check_room(name: str, waiting: int) -> None:
    """Check that another request may wait beside *waiting* ones for the server or file *name*.

    Raises:
        StoreUnavailable: it may not.
    """
    if waiting >= _WAITING:
        raise StoreUnavailable(f"{name}: {_WAITING} operations wait")


def complete(future: "asyncio.Future[Any]", result: Any) -> None:
    """Complete *future* with *result*, or with an error, unless its caller was cancelled."""
    if future.done():
        return
    if isinstance(result, Exception):
        future.set_exception(result)
        future.exception()  # it need not be retrieved: all callers may be cancelled
    else:
        future.set_result(result)
