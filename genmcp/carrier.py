"""Who keeps what a call needs to go on, as far as its own process knows."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from genmcp.core.continuation import Continuation
from genmcp.errors import McpError
from genmcp.protocol.result import Result

__all__ = ["Carrier", "Claim"]


class Claim(Protocol):
    """What a call has that nobody else runs at the same time: its idempotency key."""

    @property
    def ttl(self) -> float:
        """For how many seconds at least a task that the call becomes is kept."""

    @property
    def task(self) -> str | None:
        """The task by which others that have the key may know the call."""

    async def becomes(self, task: str) -> None:
        """Know that the call is *task*, whose record is written next."""

    async def became(self) -> None:
        """Know that the record of that task is written."""


class Reports(Protocol):
    """What a call says of its progress, some of which may not be written yet."""

    async def flush(self) -> None:
        """Write the rest."""


class Carrier(msgspec.Struct, eq=False):
    """The carrier of one call.

    continuation: what the call waits for, once it has returned Continue. task: the record in the
    store, if there is one, and the turn in which it may be changed. promotion: what writes that
    record while the call runs on. promoted: whether its client has got something else than its
    result, so that what it comes to goes to the record. follows: the task whose end the call waits
    for here; it may be that of another call. claim: its idempotency key. waits: whether it
    cannot become a task now: another call has its key, or its job is being written. stopped:
    whether nothing that it says counts any more. told: what its client has got instead of its
    result. reports: its progress, once it is a task and has said any. found: what wants to know
    that the request's route has been found. asks: whether its client is being asked something on
    the connection. following: wants to know the task that is followed, before it is. outcome: what
    the call has come to, if its response was held.
    """

    continuation: Continuation | None = None
    task: str | None = None
    turn: int = 0
    promotion: "asyncio.Task[None] | None" = None
    promoted: bool = False
    follows: str | None = None
    claim: Claim | None = None
    waits: bool = False
    asks: bool = False
    stopped: bool = False
    told: Result | None = None
    reports: Reports | None = None
    found: Callable[[], None] | None = None
    following: Callable[[str], Awaitable[None]] | None = None
    outcome: Result | McpError | None = None

    async def flush(self) -> None:
        """Have written what the call has said of its progress, before others go on with it."""
        reports, self.reports = self.reports, None
        if reports is not None:
            await reports.flush()

    async def settle(self) -> None:
        """Wait until it is decided whether the call becomes a task, if that is being decided."""
        if self.promotion is not None:
            await asyncio.wait([self.promotion])
