"""Who keeps what a call needs to go on, as far as its own process knows."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from genmcp.core.continuation import Continuation
from genmcp.errors import McpError
from genmcp.protocol.result import Result
from genmcp.tasks.records import HeldTask

__all__ = ["Carrier"]


class Reports(Protocol):
    """What a call says of its progress, some of which may not be written yet."""

    async def flush(self) -> None:
        """Write the rest."""


class Carrier(msgspec.Struct, eq=False):
    """The state of one call that is needed to continue it. Owned by the channel of the call.

    continuation: set once the call has returned Continue. task: the id of its record in the store,
    if there is one. run: the id of the job that the call waits for, or continues after.
    fencing_token: for changes of the record. promotion: the asyncio.Task that writes the record
    while the call runs. promoted: whether the client got a handle instead of the
    result, so that the outcome is written to the record. follows: the task whose end the call
    awaits here; it may belong to another call. keyed: the task of its idempotency key. raised:
    whether a keyed call has raised, which frees its key. waits: whether it cannot become a task
    now, since another call has its key or its job is being written. stopped: whether all further
    output is discarded. told: the response that was sent instead of the result. reports: its
    progress, once it is a task and has reported any. found: callback for when the route of the
    request is found. asks: whether a question to the client is open on the connection. following:
    callback with the id of a task, before it is followed. outcome: the result or error of the call,
    if its response was held.
    """

    continuation: Continuation | None = None
    task: str | None = None
    run: str | None = None
    fencing_token: int = 0
    promotion: "asyncio.Task[None] | None" = None
    promoted: bool = False
    follows: str | None = None
    keyed: HeldTask | None = None
    raised: bool = False
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
