"""The requests that are not answered yet, and who waits for them."""

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeAlias

import msgspec

from genmcp.cancellation import CancelScope
from genmcp.client.errors import ClientError, RequestTimeout
from genmcp.client.faults import said
from genmcp.core.client import events
from genmcp.core.client.events import LateAnswer
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
        self.scope: CancelScope | None = None

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
        if scope is not None:
            scope.cancel()

    def leave(self) -> bool:
        """Wait no more; return whether nobody has learned what becomes of it.

        It was cancelled, or took too long.
        """
        future = self.future
        if not future.done() or future.cancelled():
            return True
        return isinstance(future.exception(), RequestTimeout)  # nobody need be told of it any more


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
        if waiter.leave() and waiter.method in _CALLS and len(self.left) < _MOST:
            self.left.add(id)

    def take(self, event: Any) -> bool:
        """Tell the one it concerns; return whether it is an event of a request at all."""
        match event:
            case events.Answered() | events.InputRequired() | events.TaskCreated():
                self._settle(event.id, event)
            case events.Rejected():
                refused = self._said(event.id, event.error)
                refused.__cause__ = event.cause
                self._settle(event.id, refused)
            case events.RequestFailed():
                self._settle(event.id, self._said(event.id, event.error, event.may_have_run))
            case events.TimedOutRequest():
                seconds, silent = event.seconds, event.silent
                self._settle(
                    event.id, RequestTimeout(event.method, self._where, seconds, silent=silent)
                )
                self.hang_up(event.id)  # a server that does not read keeps it from being sent
            case events.Ended():
                self._settle(event.id, events.Answered(event.id, None, msgspec.Raw()))
            case events.HangUp():
                self.hang_up(event.id)
            case events.Progress():
                waiter = self._by_id.get(event.id)
                if waiter is not None and waiter.report is not None:
                    waiter.report(event.progress, event.total, event.message)
            case events.Dropped() if event.id in self.left:  # it has crossed with the giving up
                if isinstance(event.fault, LateAnswer):
                    self.left.discard(event.id)
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
