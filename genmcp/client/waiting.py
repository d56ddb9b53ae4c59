"""The requests that are not answered yet, and who waits for them."""

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec

from genmcp.client.errors import ClientError, Timeout
from genmcp.client.faults import said
from genmcp.core import client_events as events
from genmcp.core.client_faults import LateAnswer
from genmcp.wire.jsonrpc import RequestId

__all__ = ["Outcome", "Report", "Waiter", "Waiters"]

#: What a server may have questions about.
_CALLS: Final = frozenset({"tools/call", "prompts/get", "resources/read"})
#: How many that were left are remembered; few servers answer them.
_MOST: Final = 1000

Outcome: TypeAlias = events.Answered | events.InputRequired | events.TaskCreated
"""What a server answers, other than with an error."""

Report: TypeAlias = Callable[[float, float | None, str | None], None]
"""Is told how far a request is: the progress, the total if it is known, a message."""


class Waiter:
    """Who waits for the answer to one request: its future, and the scope of its `send`."""

    __slots__ = ("future", "method", "report", "scope")

    def __init__(self, loop: asyncio.AbstractEventLoop, method: str, report: Report | None) -> None:
        self.future: asyncio.Future[Outcome] = loop.create_future()
        self.method = method
        self.report = report
        self.scope: asyncio.Timeout | None = None

    def settle(self, outcome: Outcome | ClientError) -> None:
        """Give the answer, or the error that is raised in its place; the first one counts."""
        if self.future.done():
            return
        if isinstance(outcome, ClientError):
            self.future.set_exception(outcome)
        else:
            self.future.set_result(outcome)

    def hang_up(self) -> None:
        """End the response at once; whoever waits for it gets what was settled."""
        scope = self.scope
        if scope is not None and not scope.expired():
            scope.reschedule(0)

    @property
    def is_left(self) -> bool:
        """Whether nobody has learned what becomes of it: it was cancelled, or took too long."""
        future = self.future
        return not future.done() or future.cancelled() or isinstance(future.exception(), Timeout)

    def forget(self) -> None:
        """Nobody waits any more, and nobody need be told of an error."""
        if self.future.done() and not self.future.cancelled():
            self.future.exception()


class Waiters:
    """Those of one connection, by the ids of their requests.

    `left`: calls that nobody waits for any more, and that the server has not answered: for all
    that is known, it works on them still.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._by_id: dict[RequestId, Waiter] = {}
        self.left: set[RequestId | None] = set()

    def add(self, id: RequestId, waiter: Waiter) -> None:
        """Let *waiter* learn what becomes of request *id*."""
        self._by_id[id] = waiter

    def remove(self, id: RequestId) -> None:
        """Forget the one that waits for request *id*."""
        waiter = self._by_id.pop(id)
        if waiter.method in _CALLS and waiter.is_left and len(self.left) < _MOST:
            self.left.add(id)
        waiter.forget()

    def take(self, event: Any, now: float) -> bool:
        """Tell the one it concerns; return whether it is an event of a request at all."""
        match event:
            case events.Answered() | events.InputRequired() | events.TaskCreated():
                self._settle(event.id, event)
            case events.Refused():
                self._settle(event.id, self._said(event.id, event.error))
            case events.Failed():
                self._settle(event.id, self._said(event.id, event.error, event.may_have_run))
            case events.TimedOutRequest():
                self._settle(event.id, Timeout(event.method, self._where, now - event.sent_at))
                self.hang_up(event.id)  # a server that does not read keeps it from being sent
            case events.Ended():
                self._settle(event.id, events.Answered(event.id, None, msgspec.Raw()))
            case events.HangUp():
                self.hang_up(event.id)
            case events.Progress():
                waiter = self._by_id.get(event.id)
                if waiter is not None and waiter.report is not None:
                    waiter.report(event.progress, event.total, event.message)
            case events.Dropped(fault=LateAnswer()):
                self.left.discard(event.id)
                return False
            case events.Reset():
                self.left.clear()  # with the session they were of
                return False
            case _:
                return False
        return True

    def _settle(self, id: RequestId, outcome: Outcome | ClientError) -> None:
        if (waiter := self._by_id.get(id)) is not None:
            waiter.settle(outcome)

    def hang_up(self, id: RequestId) -> None:
        """End the response to request *id*, which nobody needs any more."""
        if (waiter := self._by_id.get(id)) is not None:
            waiter.hang_up()

    def _said(
        self, id: RequestId, error: Exception | None, may_have_run: bool = False
    ) -> ClientError:
        waiter = self._by_id.get(id)
        what = waiter.method if waiter else "a request"
        return said(error, what, self._where, may_have_run)
