"""Where the words of a call go that has become a task: to its record, and to who follows it."""

from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any, Final, Protocol

import msgspec

from genmcp.carrier import Carrier
from genmcp.channel import Channel
from genmcp.core.client_key import ClientKey
from genmcp.core.request import Request
from genmcp.errors import OutOfTurn, StoreError, Unable
from genmcp.jobs.jobs import Jobs
from genmcp.jobs.progress import Progress, Reporter
from genmcp.jobs.values import JobValues
from genmcp.protocol.notifications import ProgressNotificationParams
from genmcp.protocol.severity import LoggingLevel
from genmcp.protocol.tools import CallToolResult
from genmcp.protocol.value import Value
from genmcp.subscription import Announcer

__all__ = ["Said", "TaskSink", "Writer"]


class Said(msgspec.Struct, frozen=True, array_like=True):
    """A notification of a task, for the process that holds a response to it: params as JSON."""

    method: str
    params: bytes


class Writer(Protocol):
    """What a sink writes to, and has of the mux."""

    @property
    def announcer(self) -> Announcer:
        """What tells of changes of the server."""

    @property
    def jobs(self) -> Jobs:
        """The tasks."""

    @property
    def values(self) -> JobValues:
        """The values of jobs whose calls made too large a result of them."""

    async def level_of(self, request: Request) -> LoggingLevel | None:
        """Return the least severe level that the request wants to hear of."""

    async def in_thread(
        self, function: Callable[..., Any], *arguments: Any, client: Hashable = None
    ) -> Any:
        """Run a blocking *function* in the thread pool; *client* takes turns with others."""

    async def outcome_of(self, id: str, principal: str | None) -> CallToolResult:
        """Return what came of the call *id*."""

    async def failed(self, channel: Channel) -> None:
        """Take in that the call of *channel*, which was resumed, has failed."""


class TaskSink:
    """The sink of the channel of a task, which *carrier* knows; there may be no listener.

    client_key: the client that made the call.
    """

    keep: Final = ()

    def __init__(self, writer: Writer, carrier: Carrier, client_key: ClientKey) -> None:
        self.client_key = client_key
        self._writer = writer
        self._carrier = carrier
        self._reporter: Reporter | None = None  # while there is progress to write

    @property
    def closed(self) -> bool:
        """Whether the task was cancelled, or is over."""
        return self._carrier.stopped

    @property
    def announcer(self) -> Announcer:
        """What tells of changes of the server."""
        return self._writer.announcer

    async def note(self, request: Request, method: str, params: Value | None) -> bool:
        """Keep progress in the task, and tell whoever follows it of the rest.

        Of progress that is reported often only the newest is written. A store that cannot be
        reached costs the words, not the work.
        """
        carrier = self._carrier
        assert carrier.task is not None
        if isinstance(params, ProgressNotificationParams):
            return self._report(params)
        encoded = b"" if params is None else msgspec.json.encode(params)
        try:
            said = msgspec.msgpack.encode(Said(method, encoded))
            await self._writer.jobs.note(carrier.task, said)
        except (StoreError, OutOfTurn):
            return False
        return True

    def _report(self, params: ProgressNotificationParams) -> bool:
        """Have progress written soon; False if the task is over, or somebody else's."""
        reporter = self._reporter
        if reporter is None:
            reporter = self._reporter = Reporter(self._write)
            self._carrier.reports = self
        if reporter.refused:
            return False
        reporter.report(params.progress, params.total, params.message)
        return True

    async def flush(self) -> None:
        """Write the progress that is not written yet."""
        reporter, self._reporter = self._reporter, None  # they refer to each other
        if reporter is None:
            return
        left = await reporter.close()
        if left != Progress() and not reporter.refused:
            with suppress(StoreError, OutOfTurn):
                await self._write(left)

    async def _write(self, newest: Progress) -> None:
        carrier = self._carrier
        assert carrier.task is not None
        await self._writer.jobs.progress(
            carrier.task,
            turn=carrier.turn,
            progress=newest.progress,
            total=newest.total,
            message=newest.message,
        )

    async def level(self, request: Request) -> LoggingLevel | None:
        """Return the request's own level, or its session's."""
        return await self._writer.level_of(request)

    async def ask(self, request: Request, method: str, params: Value) -> bytes:
        """Refuse: what a task asks is kept in its record."""
        raise Unable({})

    def watch_client(self) -> None:
        """Do nothing: a task has no client to watch."""

    async def promote(self, channel: Channel) -> None:
        """Do nothing: it is a task."""

    async def outcome_of(self, id: str, principal: str | None) -> CallToolResult:
        """Return what came of the call *id*."""
        return await self._writer.outcome_of(id, principal)

    def open(self) -> None:
        """Do nothing: there is no stream."""

    def release(self, retry: int) -> None:
        """Do nothing: there is no stream."""

    async def in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a blocking *function* in the thread pool of the mux."""
        client = self.client_key.owner
        return await self._writer.in_thread(function, *arguments, client=client)
