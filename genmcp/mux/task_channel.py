"""The channel of a call that is a task: rebuilt from the stored request, with a sink of its own."""

from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any, ClassVar

import msgspec

from genmcp.channel import Channel, Sink
from genmcp.core.call import CallState
from genmcp.core.client_key import ClientKey
from genmcp.core.request import REQUEST_TYPES, ClientInfo, Request
from genmcp.errors import CapabilityMissing, IllegalTransition, StoreError
from genmcp.mux.services import MuxSink, Services
from genmcp.protocol.capabilities import ClientCapabilities, Implementation
from genmcp.protocol.params import ProgressNotificationParams, RequestId
from genmcp.protocol.revisions.chain import LATEST, REVISIONS
from genmcp.protocol.value import Value
from genmcp.server import Server
from genmcp.tasks.attempt import Elsewhere
from genmcp.tasks.jobs import Progress, Reporter
from genmcp.tasks.service import TaskService
from genmcp.wire.jsonrpc import params_of

__all__ = ["StoredRequest", "TaskSink", "pass_on"]


class StoredRequest(msgspec.Struct, frozen=True, array_like=True):
    """The stored form of a request, with everything needed to continue it.

    params: as received, JSON. kept: of the assigns that were copied from the host's request, those
    named by the endpoint's keep_assigns. gone: the keys of the others. address: the peer address
    that an anonymous request counts towards.
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

    @property
    def client_key(self) -> ClientKey:
        """The client that sent the request."""
        return ClientKey(self.principal, self.session, self.address)

    @classmethod
    def of(cls, channel: Channel) -> "StoredRequest":
        """Return the request of *channel*, with those copied assigns that the endpoint keeps."""
        request, copied, keep = channel.request, channel._copied or {}, channel.sink.keep
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
            kept={key: value for key, value in copied.items() if key in keep},
            gone=[key for key in copied if key not in keep],
            address=channel.sink.client_key.address,
        )

    def pack(self) -> bytes:
        """Return the bytes that a store keeps."""
        return _encoder.encode(self)

    @classmethod
    def unpack(cls, packed: bytes) -> "StoredRequest":
        """Decode what `pack` encoded.

        Raises:
            Elsewhere: it was encoded by a release with another format.
        """
        try:
            return _decoder.decode(packed)
        except msgspec.MsgspecError as error:
            unknown = f"a request was kept by another release: {error}"
            raise Elsewhere(
                unknown, "The call was kept by another release of the server"
            ) from error

    def request(self) -> Request:
        """Return the request, without its route.

        Raises:
            Elsewhere: its revision is not served here.
        """
        revision = REVISIONS.get(self.version)
        if revision is None:
            unknown = f"{self.version} is not served any more"
            raise Elsewhere(unknown, unknown)
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
            Elsewhere: the requested component does not exist here, or the revision is not served.
        """
        request = self.request()
        route = server.find(self.method, request.key)
        if route is None:
            unknown = f"{self.method} {request.key} is not there any more"
            raise Elsewhere(unknown, unknown)
        request = msgspec.structs.replace(request, route=route)
        channel = Channel(request, sink, self.principal, static, self.kept)
        channel._restore(own, self.gone)
        return channel


class StoredNotification(msgspec.Struct, frozen=True, array_like=True):
    """A notification of a task, for the process that holds a response to it: params as JSON."""

    method: str
    params: bytes


class TaskSink(msgspec.Struct, MuxSink, eq=False):
    """The sink of a call that is a task: writes to the record of the task, which the call names.

    client_key: the client that made the call.
    """

    keep: ClassVar[Collection[str]] = ()

    services: Services
    _tasks: TaskService
    _call: CallState
    client_key: ClientKey
    _reporter: Reporter | None = None  # while there is progress to write

    @property
    def closed(self) -> bool:
        """Whether the task was cancelled, or is over."""
        return self._call.discards

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
            await self._tasks.records.note(task, said)
        except (StoreError, IllegalTransition):
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
            with suppress(StoreError, IllegalTransition):
                await self._write(left)

    async def _write(self, newest: Progress) -> None:
        call = self._call
        assert call.task is not None
        await self._tasks.progress(call.task, newest, fencing_token=call.fencing_token)

    async def ask(self, request: Request, method: str, params: Value) -> bytes:
        """Raise CapabilityMissing: the questions of a task are stored in its record."""
        raise CapabilityMissing({})


async def pass_on(packed: bytes, channel: Channel) -> None:
    """Send on *channel* a notification that a task has stored."""
    stored = msgspec.msgpack.decode(packed, type=StoredNotification)
    method = LATEST.methods.get(stored.method)
    params: Any = msgspec.Raw(stored.params) if stored.params else None
    if method is not None and params is not None:
        params = method.params_decoder.decode(params)
    await channel.notify(stored.method, params)


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(StoredRequest)
