"""Messages of a call that is a task: written to its record, and passed on to its followers."""

from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final, Protocol

import msgspec

from genmcp.channel import Channel
from genmcp.core.call import CallState
from genmcp.core.client_key import ClientKey
from genmcp.core.request import Request
from genmcp.errors import OutOfTurn, StoreError, Unable
from genmcp.mux.sessions import Sessions
from genmcp.mux.threads import Threads
from genmcp.protocol.notifications import ProgressNotificationParams
from genmcp.protocol.revisions.chain import LATEST
from genmcp.protocol.severity import LoggingLevel
from genmcp.protocol.tools import CallToolResult
from genmcp.protocol.value import Value
from genmcp.subscription import Announcer
from genmcp.tasks.progress import Progress, Reporter
from genmcp.tasks.service import TaskService

__all__ = ["TaskSink", "pass_on"]


class StoredNotification(msgspec.Struct, frozen=True, array_like=True):
    """A notification of a task, for the process that holds a response to it: params as JSON."""

    method: str
    params: bytes


class Tasks(Protocol):
    """The tasks of the mux, as far as they are needed here."""

    service: TaskService

    async def outcome_of(self, id: str, owner: str | None) -> CallToolResult:
        """Return the result of the call *id*."""


class Host(Protocol):
    """The mux, as far as it is needed here."""

    @property
    def announcer(self) -> Announcer:
        """Notifies clients of changes of the server."""

    @property
    def sessions(self) -> Sessions:
        """The legacy sessions."""

    @property
    def threads(self) -> Threads:
        """The threads of `def` hooks."""

    @property
    def tasks(self) -> Tasks:
        """The tasks."""


class TaskSink:
    """The sink of the channel of a task, which *call* names: writes to the record of the task.

    client_key: the client that made the call.
    """

    keep: Final = ()

    def __init__(self, host: Host, call: CallState, client_key: ClientKey) -> None:
        self.client_key = client_key
        self._host = host
        self._call = call
        self._reporter: Reporter | None = None  # while there is progress to write

    @property
    def closed(self) -> bool:
        """Whether the task was cancelled, or is over."""
        return self._call.discards

    @property
    def announcer(self) -> Announcer:
        """Notifies clients of changes of the server."""
        return self._host.announcer

    async def note(self, request: Request, method: str, params: Value | None) -> bool:
        """Store progress in the task, and log other notifications for its followers.

        Of progress that is reported often only the newest is written. If the store cannot be
        reached, the notification is lost, and the call continues.
        """
        task = self._call.task
        assert task is not None
        if isinstance(params, ProgressNotificationParams):
            return self._report(params)
        encoded = b"" if params is None else msgspec.json.encode(params)
        try:
            said = msgspec.msgpack.encode(StoredNotification(method, encoded))
            await self._host.tasks.service.records.note(task, said)
        except (StoreError, OutOfTurn):
            return False
        return True

    def _report(self, params: ProgressNotificationParams) -> bool:
        """Schedule the write of progress; return False if the task has ended or was taken over."""
        reporter = self._reporter
        if reporter is None:
            reporter = self._reporter = Reporter(self._write)
        if reporter.refused:
            return False
        reporter.report(params.progress, params.total, params.message)
        return True

    async def flush(self) -> None:
        """Write progress that is still pending."""
        reporter, self._reporter = self._reporter, None  # they refer to each other
        if reporter is None:
            return
        left = await reporter.close()
        if left != Progress() and not reporter.refused:
            with suppress(StoreError, OutOfTurn):
                await self._write(left)

    async def _write(self, newest: Progress) -> None:
        call, service = self._call, self._host.tasks.service
        assert call.task is not None
        await service.progress(call.task, newest, fencing_token=call.fencing_token)

    async def level(self, request: Request) -> LoggingLevel | None:
        """Return the request's own level, or its session's."""
        return await self._host.sessions.level_of(request)

    async def ask(self, request: Request, method: str, params: Value) -> bytes:
        """Raise Unable: the questions of a task are stored in its record."""
        raise Unable({})

    def watch_client(self) -> None:
        """Do nothing: a task has no client to watch."""

    async def promote(self) -> None:
        """Do nothing: it is a task."""

    def route_resolved(self) -> None:
        """Do nothing: the policy was applied when the call became a task."""

    async def settle(self) -> None:
        """Do nothing: it is a task."""

    async def following(self, task: str) -> None:
        """Do nothing: no client waits for it here."""

    async def outcome_of(self, id: str, principal: str | None) -> CallToolResult:
        """Return the result of the call *id*."""
        return await self._host.tasks.outcome_of(id, principal)

    def open(self) -> None:
        """Do nothing: there is no stream."""

    def release(self, retry: int) -> None:
        """Do nothing: there is no stream."""

    async def in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a blocking *function* in the thread pool of the mux."""
        client = self.client_key.owner
        return await self._host.threads.run(function, *arguments, client=client)


async def pass_on(packed: bytes, channel: Channel) -> None:
    """Send on *channel* a notification that a task has stored."""
    stored = msgspec.msgpack.decode(packed, type=StoredNotification)
    method = LATEST.methods.get(stored.method)
    params: Any = msgspec.Raw(stored.params) if stored.params else None
    if method is not None and params is not None:
        params = method.params_decoder.decode(params)
    await channel.notify(stored.method, params)
