"""The sinks of channels: the parts common to all, and the sink of a call that is a task.

A call that is a task may be resumed without a request. Its channel is then rebuilt from the stored
request, and its messages go to the record of the task.
"""

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar

import msgspec

from genmcp._core.access import Access
from genmcp._core.call import CallState
from genmcp._core.client_key import ClientKey
from genmcp._core.request import REQUEST_TYPES, ClientInfo, Request
from genmcp._core.seal import Seal
from genmcp._mux.bus import MessageBus
from genmcp._mux.limits import Limits
from genmcp._mux.sessions import Sessions
from genmcp._mux.telemetry import Observers
from genmcp._mux.threads import ThreadPool
from genmcp._wire.jsonrpc import params_of
from genmcp.channel import ChangeNotifier, Channel, Sink
from genmcp.errors import CapabilityMissing, IllegalTransition, StoreError
from genmcp.protocol.capabilities import ClientCapabilities, Implementation
from genmcp.protocol.params import LoggingLevel, ProgressNotificationParams, RequestId
from genmcp.protocol.revisions.chain import LATEST, REVISIONS
from genmcp.protocol.tools import CallToolResult
from genmcp.protocol.value import Value
from genmcp.server import Server
from genmcp.stores.store import Store
from genmcp.tasks.attempt import NotRunnableHere
from genmcp.tasks.progress import JobProgress, ProgressWriter
from genmcp.tasks.service import TaskService
from genmcp.tasks.values import restore_types, store_types


class Services(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The parts of a mux that its calls and tasks need. The mux creates it before them.

    outcome_of: returns the result of a call of a principal by its id.
    """

    server: Server
    store: Store
    seal: Seal
    limits: Limits
    assigns: dict[str, Any]
    bus: MessageBus
    sessions: Sessions
    threads: ThreadPool
    changes: ChangeNotifier
    observers: Observers
    outcome_of: Callable[[str, str | None], Awaitable[CallToolResult]]


class MuxSink:
    """The part of a channel's sink that all transports, and tasks, have in common.

    By default no client waits: nothing is watched, and no stream is opened.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def services(self) -> Services:
        """The parts of the mux."""

    @property
    @abstractmethod
    def client_key(self) -> ClientKey:
        """The client that the request counts towards."""

    @property
    def changes(self) -> ChangeNotifier:
        """Notifies clients of changes of the server."""
        return self.services.changes

    async def level(self, request: Request) -> LoggingLevel | None:
        """Return the request's own log level, or its session's."""
        return await self.services.sessions.level_of(request)

    async def outcome_of(self, id: str, principal: str | None) -> CallToolResult:
        """Return the result of the call *id*."""
        return await self.services.outcome_of(id, principal)

    async def in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a blocking *function* in the thread pool of the mux."""
        client = self.client_key.client or None
        return await self.services.threads.run(function, *arguments, client=client)

    def require_scopes(self, scopes: Sequence[str]) -> None:
        """Check nothing: the call was authorized when it began."""

    def begin_stream(self) -> None:
        """Make the response an event stream; does nothing here, where there is none."""

    def release(self, retry: int) -> None:
        """End the connection, if the client can resume the stream."""

    def watch_client(self) -> None:
        """Watch the connection from now on, so that a disconnect is reported at once."""

    def route_resolved(self) -> None:
        """Apply the policy of the route, which was resolved only after the hook had begun."""

    async def promote(self) -> None:
        """Make the call a task, while its hook continues."""

    async def settle(self) -> None:
        """Wait until a promotion that was started has succeeded or failed."""

    async def following(self, task: str) -> None:
        """Record that the call waits for the end of *task*."""

    async def flush(self) -> None:
        """Write notifications that are still pending."""


class StoredAccess(msgspec.Struct, frozen=True, array_like=True):
    """The stored part of an `Access`: no claims, which may be private, and no time of expiry.

    A call that was authorized when it began continues after its token has expired.
    """

    issuer: str
    subject: str | None
    client_id: str | None
    scopes: Sequence[str]

    @classmethod
    def of(cls, access: Access) -> "StoredAccess":
        """Return the part of *access* to store."""
        return cls(access.issuer, access.subject, access.client_id, sorted(access.scopes))

    def restored(self) -> Access:
        """Return the access, without claims."""
        return Access(
            issuer=self.issuer,
            subject=self.subject,
            client_id=self.client_id,
            scopes=frozenset(self.scopes),
        )


class StoredRequest(msgspec.Struct, frozen=True, array_like=True):
    """The stored form of a request, with everything needed to continue it.

    params: the params as received, JSON. kept: the assigns copied from the host's request whose
    keys are in the endpoint's `keep_assigns`. gone: the keys of the other copied assigns, which are
    not stored. address: the peer address that an anonymous request counts towards. granted: the
    access of the client; in a record of a release before it, only *principal* identifies the
    client.
    """

    id: RequestId
    method: str
    params: bytes
    version: str
    info: Implementation | None
    capabilities: ClientCapabilities
    session: str | None
    principal: str | None
    kept: Mapping[str, Any]
    gone: Collection[str]
    address: str | None = None
    # The last member: earlier releases skip it, and read the rest, while both run side by side.
    granted: StoredAccess | None = None

    @property
    def access(self) -> Access | None:
        """The access of the client that sent the request."""
        if self.granted is not None:
            return self.granted.restored()
        return None if self.principal is None else Access(subject=self.principal)

    @property
    def client_key(self) -> ClientKey:
        """The client that sent the request."""
        return ClientKey(self.principal, self.session, self.address)

    @classmethod
    def of(cls, channel: Channel) -> "StoredRequest":
        """Return the request of *channel*, with those copied assigns that the endpoint keeps."""
        request, copied, keep = channel.request, channel._copied or {}, channel._sink.keep
        raw = request.raw
        return cls(
            id=request.id,
            method=request.method,
            params=bytes(params_of(raw) if isinstance(raw, bytes) else raw),
            version=request.revision.version,
            info=request.client.info,
            capabilities=request.client.capabilities,
            session=request.session,
            principal=channel.principal,
            kept=store_types(
                "keep_assigns", {key: value for key, value in copied.items() if key in keep}
            ),
            gone=[key for key in copied if key not in keep],
            address=channel._sink.client_key.address,
            granted=None if channel.access is None else StoredAccess.of(channel.access),
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
        return REQUEST_TYPES.get(self.method, Request)(
            id=self.id,
            method=self.method,
            params=revision.up(method.params_decoder.decode(self.params or b"{}")),
            raw=msgspec.Raw(self.params),
            revision=revision,
            client=ClientInfo(self.version, self.info, self.capabilities),
            session=self.session,
        )

    def channel(
        self, server: Server, sink: Sink, static: Mapping[str, Any], own: Mapping[str, Any]
    ) -> Channel:
        """Return a channel for the same request, with *sink* for its notifications.

        Raises:
            NotRunnableHere: this process has no such component, or does not serve the revision.
        """
        request = self.request()
        route = server.find(self.method, request.key)
        if route is None:
            unknown = f"{self.method} {request.key} is not there any more"
            raise NotRunnableHere(unknown, unknown)
        request = msgspec.structs.replace(request, route=route)
        channel = Channel(request, sink, self.access, static, restore_types(self.kept))
        channel._restore(restore_types(own), self.gone)
        return channel


class StoredNotification(msgspec.Struct, frozen=True, array_like=True):
    """A notification of a task, as stored for the process that sends it to the client.

    params: the params of the notification, as JSON.
    """

    method: str
    params: bytes


class TaskSink(msgspec.Struct, MuxSink, eq=False):
    """The sink of a call that is a task: writes its progress and messages to the task's record.

    client_key: the client that made the call.
    """

    keep: ClassVar[Collection[str]] = ()

    services: Services
    _tasks: TaskService
    _call: CallState
    client_key: ClientKey
    _progress_writer: ProgressWriter | None = None  # while there is progress to write

    @property
    def closed(self) -> bool:
        """Whether the task was cancelled, or has ended."""
        return self._call.discards_output

    async def note(self, request: Request, method: str, params: Value | None) -> bool:
        """Store progress in the task, and log other notifications for its followers.

        Progress is written at a limited rate, and only the newest. If the store cannot be reached,
        the notification is lost, and the call continues.
        """
        task = self._call.task
        assert task is not None
        if isinstance(params, ProgressNotificationParams):
            return self._report(params)
        encoded = b"" if params is None else msgspec.json.encode(params)
        try:
            said = msgspec.msgpack.encode(StoredNotification(method, encoded))
            await self._tasks.records.log_message(task, said)
        except (StoreError, IllegalTransition):
            return False
        return True

    def _report(self, params: ProgressNotificationParams) -> bool:
        """Schedule the write of progress; return False if the task has ended or was taken over."""
        reporter = self._progress_writer
        if reporter is None:
            reporter = self._progress_writer = ProgressWriter(self._write)
        if reporter.rejected:
            return False
        reporter.report(params.progress, params.total, params.message)
        return True

    async def flush(self) -> None:
        """Write progress that is still pending."""
        # Sink and writer refer to each other: the cycle is broken here.
        reporter, self._progress_writer = self._progress_writer, None
        if reporter is None:
            return
        left = await reporter.close()
        if left != JobProgress() and not reporter.rejected:
            with suppress(StoreError, IllegalTransition):
                await self._write(left)

    async def _write(self, newest: JobProgress) -> None:
        call = self._call
        assert call.task is not None
        await self._tasks.progress(call.task, newest, fencing_token=call.fencing_token)

    async def ask(self, request: Request, method: str, params: Value) -> bytes:
        """Raise CapabilityMissing: the questions of a task are stored in its record."""
        raise CapabilityMissing({})


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
