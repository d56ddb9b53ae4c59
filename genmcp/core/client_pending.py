"""The requests of a client that are not answered: their ids, and how long each may take."""

import math
from collections.abc import Iterator

import msgspec

from genmcp.protocol.methods import Method
from genmcp.protocol.params import RequestId
from genmcp.protocol.revisions.revision import Revision

__all__ = ["Pending", "PendingRequests", "Timeouts"]


class Timeouts(msgspec.Struct, frozen=True):
    """How long a request may take, in seconds; None for ever.

    idle: since anything was heard of it. 2026-07-28, basic/patterns, "Timeouts": progress may
    begin it anew, the *total* runs on. whole: what *total* is the rest of, if it is one.
    """

    idle: float | None = 30.0
    total: float | None = 3600.0
    whole: float | None = None


class Pending(msgspec.Struct, eq=False):
    """One request that is not answered. *known* is None for a method that *revision* lacks."""

    id: int
    method: str
    known: Method | None
    revision: Revision
    progress: bool
    #: It belongs to the opening of the connection, not to who uses it.
    opening: bool
    idle: float
    idle_until: float
    until: float
    whole: float

    @property
    def allowed(self) -> float:
        """How long it may take, in all or without a word, whichever is up first."""
        return self.whole if self.until <= self.idle_until else self.idle

    @property
    def deadline(self) -> float:
        """When its time is up; infinite if never."""
        return min(self.idle_until, self.until)

    def heard(self, now: float) -> None:
        """Note that something was heard of it."""
        self.idle_until = now + self.idle


class PendingRequests:
    """Requests by their ids, which begin at 1 and are never used again.

    2026-07-28, basic, "Requests": no two that are not answered have the same.
    """

    def __init__(self) -> None:
        self._last = 0
        self._by_id: dict[int, Pending] = {}
        self._next_check = math.inf

    def __len__(self) -> int:
        return len(self._by_id)

    def __iter__(self) -> Iterator[Pending]:
        return iter([*self._by_id.values()])

    @property
    def next_check(self) -> float | None:
        """No time is up before it; None: none will be."""
        return None if self._next_check == math.inf else self._next_check

    def add(
        self,
        method: str,
        revision: Revision,
        *,
        now: float,
        timeouts: Timeouts,
        progress: bool = False,
        opening: bool = False,
    ) -> Pending:
        """Return a new request, sent *now*."""
        self._last += 1
        idle = math.inf if timeouts.idle is None else timeouts.idle
        total = math.inf if timeouts.total is None else timeouts.total
        request = Pending(
            id=self._last,
            method=method,
            known=revision.methods.get(method),
            revision=revision,
            progress=progress,
            opening=opening,
            idle=idle,
            idle_until=now + idle,
            until=now + total,
            whole=timeouts.whole or total,
        )
        self._by_id[self._last] = request
        self._next_check = min(self._next_check, request.deadline)
        return request

    def get(self, id: object) -> Pending | None:
        """Return request *id*, None if it is not pending. True and 1.0 are no ids."""
        return self._by_id.get(id) if type(id) is int else None

    def ids(self, about: RequestId | None) -> frozenset[RequestId]:
        """Return *about*, if it is given, or else the ids of all requests."""
        return frozenset(self._by_id) if about is None else frozenset((about,))

    def remove(self, request: Pending) -> None:
        """Forget *request*."""
        del self._by_id[request.id]
        if not self._by_id:
            self._next_check = math.inf

    def clear(self) -> list[Pending]:
        """Forget all requests; return those of who uses the connection."""
        users = [request for request in self if not request.opening]
        self._by_id.clear()
        self._next_check = math.inf
        return users

    def keep(self, request: Pending) -> None:
        """Take *request* back, whose time was up: should an answer come, it is welcome."""
        request.idle_until = request.until = math.inf
        self._by_id[request.id] = request

    def expired(self, now: float, waiting: frozenset[RequestId]) -> list[Pending]:
        """Remove and return those whose time is up: *now* is their deadline, or later.

        waiting: those of which the server may wait for this side: its silence does not count.
        """
        up = []
        for request in self:
            if request.id in waiting:
                request.heard(now)
            if request.deadline <= now:
                up.append(request)
                self.remove(request)
        self._next_check = min((each.deadline for each in self), default=math.inf)
        return up
