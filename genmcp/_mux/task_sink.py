"""What a call that is a task sends: its progress and messages go to the record."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import msgspec

from genmcp.channel import Channel
from genmcp.core.client_key import ClientKey
from genmcp.core.request import Request
from genmcp.errors import CapabilityMissing, IllegalTransition, StoreError
from genmcp.protocol.params import ProgressNotificationParams
from genmcp.protocol.revisions.chain import LATEST
from genmcp.protocol.value import Value
from genmcp.tasks.progress import JobProgress, ProgressWriter
from genmcp.tasks.service import TaskService


class TaskCaller(msgspec.Struct, frozen=True, eq=False):
    """The caller of a call that is a task, which runs without a connection."""

    client_key: ClientKey
    copied: Mapping[str, Any] | None
    keep: ClassVar[Collection[str]] = ()
    detached: ClassVar[bool] = False

    def require_scopes(self, scopes: Sequence[str]) -> None:
        """Check nothing: the call was authorized when it began."""


class StoredNotification(msgspec.Struct, frozen=True, array_like=True):
    """A notification of a task, as stored for the process that sends it to the client.

    params: the params of the notification, as JSON.
    """

    method: str
    params: bytes


class TaskSink(msgspec.Struct, eq=False):
    """The sink of a call that is the task *id*: writes its progress and messages to the record."""

    _service: TaskService
    _id: str
    _fencing_token: int
    _progress_writer: ProgressWriter | None = None  # while there is progress to write

    @property
    def closed(self) -> bool:
        """False: whether the task was cancelled, or has ended, is known to the call."""
        return False

    async def note(self, request: Request, method: str, params: Value | None) -> bool:
        """Store progress in the task, and log other notifications for its followers.

        Progress is written at a limited rate, and only the newest. If the store cannot be reached,
        the notification is lost, and the call continues.
        """
        if isinstance(params, ProgressNotificationParams):
            return self._write_progress(params)
        encoded = b"" if params is None else msgspec.json.encode(params)
        try:
            stored = msgspec.msgpack.encode(StoredNotification(method, encoded))
            await self._service.records.log_message(self._id, stored)
        except (StoreError, IllegalTransition):
            return False
        return True

    def _write_progress(self, params: ProgressNotificationParams) -> bool:
        """Schedule the write of progress; return False if the task has ended or was taken over."""
        writer = self._progress_writer
        if writer is None:
            writer = self._progress_writer = ProgressWriter(self._write)
        if writer.rejected:
            return False
        writer.write_soon(params.progress, params.total, params.message)
        return True

    async def flush(self) -> None:
        """Write progress that is still pending."""
        # Sink and writer refer to each other: the cycle is broken here.
        writer, self._progress_writer = self._progress_writer, None
        if writer is None:
            return
        left = await writer.close()
        if left is not None and not writer.rejected:
            with suppress(StoreError, IllegalTransition):
                await self._write(left)

    async def _write(self, newest: JobProgress) -> None:
        await self._service.progress(self._id, newest, fencing_token=self._fencing_token)

    async def ask(self, request: Request, method: str, params: Value) -> bytes:
        """Raise CapabilityMissing: the questions of a task are stored in its record."""
        raise CapabilityMissing({})

    def watch_client(self) -> None:
        """Watch nothing: no client waits for the result here."""

    def begin_stream(self) -> None:
        """Begin nothing: there is no stream."""

    def release(self, retry: int) -> None:
        """Close nothing: there is no connection."""


async def flush(channel: Channel) -> None:
    """Write the notifications of *channel* that are pending, if its call is a task."""
    if isinstance(channel.context.sink, TaskSink):
        await channel.context.sink.flush()


async def forward_notification(packed: bytes, channel: Channel) -> None:
    """Send on *channel* a notification that a task has stored."""
    stored = msgspec.msgpack.decode(packed, type=StoredNotification)
    method = LATEST.methods.get(stored.method)
    params: Any = msgspec.Raw(stored.params) if stored.params else None
    if method is not None and params is not None:
        params = method.params_decoder.decode(params)
    await channel.notify(stored.method, params)
