"""The requests of a client that are not answered: their ids, and how long each may take."""

import math
from collections.abc import Iterator

import msgspec

from genmcp.protocol.methods import Method
from genmcp.protocol.revisions.revision import Revision

__all__ = ["Pending", "PendingRequests", "Timeouts"]


class Timeouts(msgspec.Struct, frozen=True):
    """How long a request may take, in seconds; None for ever.

    idle: since anything was heard of it. 2026-07-28, basic/patterns, "Timeouts": progress may
    begin it anew, the *total* runs on.
    """

    idle: float | None = 30.0
    total: float | None = 3600.0


class Pending(msgspec.Struct, eq=False):
    """One request that is not answered. *known* is None for a method that *revision* lacks."""

    id: int
    method: str
    known: Method | None
    revision: Revision
    sent_at: float
    progress: bool
    #: It belongs to the opening of the connection, not to who uses it.
    opening: bool
    idle: float
    idle_until: float
    until: float

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
        until = math.inf if timeouts.total is None else now + timeouts.total
        known = revision.methods.get(method)
        request = Pending(
            self._last, method, known, revision, now, progress, opening, idle, now + idle, until
        )
        self._by_id[self._last] = request
        self._next_check = min(self._next_check, request.deadline)
        return request

    def get(self, id: object) -> Pending | None:
        """Return request *id*, None if it is not pending. True and 1.0 are no ids."""
        return self._by_id.get(id) if type(id) is int else None

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

    def expired(self, now: float, *, waiting: bool) -> list[Pending]:
        """Remove and return those whose time is up: *now* is their deadline, or later.

        waiting: the server waits for this side, so that its silence does not count.
        """
        up = []
        for request in self:
            if waiting:
                request.heard(now)
            if request.deadline <= now:
                up.append(request)
                self.remove(request)
        self._next_check = min((each.deadline for each in self), default=math.inf)
        return up
