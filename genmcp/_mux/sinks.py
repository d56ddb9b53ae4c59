"""Calls that are tasks: their stored requests, and the sink that writes to their records.

A call that is a task may be resumed without a request. Its channel is then rebuilt from the stored
request, and its messages go to the record of the task.
"""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import msgspec

from genmcp._mux.bus import MessageBus
from genmcp._mux.limits import Limits
from genmcp._mux.sessions import Sessions
from genmcp._mux.telemetry import Observers
from genmcp._mux.threads import ThreadPool
from genmcp.channel import CallContext, ChangeNotifier, Channel
from genmcp.core.access import Access
from genmcp.core.client_key import ClientKey
from genmcp.core.request import REQUEST_TYPES, ClientInfo, Request
from genmcp.core.seal import Seal
from genmcp.core.server_dispatch import reader_of
from genmcp.errors import CapabilityMissing, IllegalTransition, StoreError
from genmcp.protocol.capabilities import ClientCapabilities, Implementation
from genmcp.protocol.params import ProgressNotificationParams, RequestId
from genmcp.protocol.revisions.chain import LATEST, REVISIONS
from genmcp.protocol.value import Value
from genmcp.server import Server
from genmcp.stores.store import Store
from genmcp.tasks.attempt import NotRunnableHere
from genmcp.tasks.progress import JobProgress, ProgressWriter
from genmcp.tasks.service import TaskService
from genmcp.tasks.values import restore_types, store_types


class Services(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The parts of a mux that its calls and tasks need. The mux creates it before them."""

    server: Server
    store: Store
    seal: Seal
    limits: Limits
    assigns: dict[str, Any]
    bus: MessageBus
    sessions: Sessions
    changes: ChangeNotifier
    threads: ThreadPool
    observers: Observers


class StoredRequest(msgspec.Struct, frozen=True, array_like=True):
    """The stored form of a request, with everything needed to continue it.

    params: the params as received, JSON; *whole*: the message with them. kept: the assigns copied
    from the host's request whose keys are in the endpoint's `keep_assigns`. gone: the keys of the
    other copied assigns, which are not stored. address: the peer address that an anonymous request
    counts towards. access: that of the client, without its claims, which may be private, and its
    time of expiry: a call that was authorized when it began continues after that.
    """

    id: RequestId
    method: str
    params: bytes
    version: str
    info: Implementation | None
    capabilities: ClientCapabilities
    session: str | None
    kept: Mapping[str, Any]
    gone: Collection[str]
    address: str | None
    access: Access | None
    whole: bool

    @property
    def client_key(self) -> ClientKey:
        """The client that sent the request."""
        principal = None if self.access is None else self.access.principal
        return ClientKey(principal, self.session, self.address)

    @classmethod
    def of(cls, channel: Channel) -> "StoredRequest":
        """Return the request of *channel*, with those copied assigns that the endpoint keeps."""
        request, caller = channel.request, channel.context.caller
        copied, keep, access = caller.copied or {}, caller.keep, channel.access
        if access is not None:
            access = msgspec.structs.replace(access, claims={}, expires=None)
        raw = request.raw
        return cls(
            id=request.id,
            method=request.method,
            params=bytes(raw),
            version=request.revision.version,
            info=request.client.info,
            capabilities=request.client.capabilities,
            session=request.session,
            kept=store_types(
                "keep_assigns", {key: value for key, value in copied.items() if key in keep}
            ),
            gone=[key for key in copied if key not in keep],
            address=caller.client_key.address,
            access=access,
            whole=isinstance(raw, bytes),
        )

    def pack(self) -> bytes:
        """Return the bytes to store."""
        # A copy: msgspec leaves half as much memory again behind what it encodes.
        return bytes(memoryview(_encoder.encode(self)))

    @classmethod
    def unpack(cls, packed: bytes) -> "StoredRequest":
        """Return the request that `pack` has packed.

        Raises:
            NotRunnableHere: it was packed by a release with another format.
        """
        try:
            return _decoder.decode(packed)
        except msgspec.MsgspecError as error:
            unknown = f"a request was stored by another release: {error}"
            raise NotRunnableHere(
                unknown, "The call was stored by another release of the server"
            ) from error

    def request(self) -> Request:
        """Return the request, without its route.

        Raises:
            NotRunnableHere: its revision is not supported here.
        """
        revision = REVISIONS.get(self.version)
        if revision is None:
            unknown = f"{self.version} is no longer supported"
            raise NotRunnableHere(unknown, unknown)
        method = revision.methods[self.method]
        if self.whole:
            params = reader_of(method)(self.params).params
        else:
            params = method.params_decoder.decode(self.params or b"{}")
        return REQUEST_TYPES.get(self.method, Request)(
            id=self.id,
            method=self.method,
            params=revision.up(params),
            raw=self.params if self.whole else msgspec.Raw(self.params),
            revision=revision,
            client=ClientInfo(self.version, self.info, self.capabilities),
            session=self.session,
        )

    def channel(self, server: Server, context: CallContext, own: Mapping[str, Any]) -> Channel:
        """Return a channel for the same request, with the assigns *own* of its hooks.

        Raises:
            NotRunnableHere: this process has no such component, or does not serve the revision.
        """
        request = self.request()
        route = server.find(self.method, request.key)
        if route is None:
            unknown = f"{self.method} {request.key} is not there any more"
            raise NotRunnableHere(unknown, unknown)
        request = msgspec.structs.replace(request, route=route)
        context.restore(restore_types(own), self.gone)
        return Channel(request, context, self.access)


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
            return self._report(params)
        encoded = b"" if params is None else msgspec.json.encode(params)
        try:
            stored = msgspec.msgpack.encode(StoredNotification(method, encoded))
            await self._service.records.log_message(self._id, stored)
        except (StoreError, IllegalTransition):
            return False
        return True

    def _report(self, params: ProgressNotificationParams) -> bool:
        """Schedule the write of progress; return False if the task has ended or was taken over."""
        writer = self._progress_writer
        if writer is None:
            writer = self._progress_writer = ProgressWriter(self._write)
        if writer.rejected:
            return False
        writer.report(params.progress, params.total, params.message)
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


async def forward_notification(packed: bytes, channel: Channel) -> None:
    """Send on *channel* a notification that a task has stored."""
    stored = msgspec.msgpack.decode(packed, type=StoredNotification)
    method = LATEST.methods.get(stored.method)
    params: Any = msgspec.Raw(stored.params) if stored.params else None
    if method is not None and params is not None:
        params = method.params_decoder.decode(params)
    await channel.notify(stored.method, params)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(StoredRequest)
