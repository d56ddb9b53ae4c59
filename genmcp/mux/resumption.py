"""Calls that continue without a request: their job is done, or their questions are answered.

The request is stored beside the task, so that any process can continue it.
"""

import asyncio
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol

import msgspec

from genmcp.channel import Channel, Sink
from genmcp.continuing import UnknownTag
from genmcp.core.call import CallEvent, CallPhase, CallState
from genmcp.core.client_key import ClientKey
from genmcp.core.continuation import Continuation
from genmcp.core.outcome import Failed, Outcome, unpack
from genmcp.core.request import Client, Request
from genmcp.core.task import Finished, Suspended, Task, run_id
from genmcp.errors import ConfigurationError, McpError, OutOfTurn, StoreError, ToolError
from genmcp.mux.answers import outcome_of
from genmcp.mux.awaitables import is_cancelled
from genmcp.mux.limits import Limits
from genmcp.mux.task_results import finished
from genmcp.mux.task_sink import Host as SinkHost
from genmcp.mux.task_sink import TaskSink
from genmcp.mux.telemetry import Observers
from genmcp.protocol.capabilities import ClientCapabilities
from genmcp.protocol.implementation import Implementation
from genmcp.protocol.meta import RequestId
from genmcp.protocol.result import Result
from genmcp.protocol.revisions.chain import REVISIONS
from genmcp.server import Server, resolve_route
from genmcp.tasks.outcomes import Elsewhere
from genmcp.wire.jsonrpc import params_of

__all__ = ["Resumption", "StoredRequest"]

_CANNOT_GO_ON: Final = "No process of the server can go on with the call"


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
        return Request(
            id=self.id,
            method=self.method,
            params=revision.up(method.params_decoder.decode(self.params or b"{}")),
            raw=msgspec.Raw(self.params),
            revision=revision,
            client=Client(self.version, self.info, self.capabilities),
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


class Continuations(Protocol):
    """The calls of the mux that continue in steps."""

    async def advance(
        self, step: Any, channel: Channel, continuation: Continuation | None = None
    ) -> Result | Suspended:
        """Continue from *step*, what a hook has returned."""


class Host(SinkHost, Protocol):
    """The mux, as far as it is needed here."""

    server: Server
    assigns: dict[str, Any]
    limits: Limits
    observers: Observers

    @property
    def continuations(self) -> Continuations:
        """The calls that continue in steps."""

    def outcome(self, request: Request, error: BaseException) -> Result | McpError:
        """Return the outcome of a call that has ended with *error*."""


class Resumption:
    """Runs `continue_` for calls in the store."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._server = host.server

    async def resume(self, task: Task, call: bytes, outcome: Outcome) -> Suspended | Finished:
        """Continue the call of *task*, whose wait has ended with *outcome*.

        Raises:
            StoreError: the store failed, so that it has to be tried again.
            OutOfTurn: another process continues it.
            Elsewhere: this process lacks the code that continues it.
        """
        try:
            continuation = Continuation.unpack(task.continuation)
            channel = self._channel(task, call, continuation.assigns)
            if continuation.asked:
                outcome = _read(continuation, outcome)
        except (ConfigurationError, msgspec.MsgspecError) as error:
            unknown = f"a continuation of {task.tool} was kept by another release: {error}"
            raise Elsewhere(unknown, _CANNOT_GO_ON) from error
        tell = self._host.observers.resuming(channel, continuation.tag)
        raised: BaseException | None = None
        try:
            await resolve_route(channel)
            step = await self._server.resume(continuation, outcome, channel)
            came_to: Any = await self._host.continuations.advance(step, channel, continuation)
        except (StoreError, OutOfTurn, KeyboardInterrupt, GeneratorExit):
            raise
        except BaseException as error:  # a hook may raise anything: it costs one call
            if isinstance(error, asyncio.CancelledError) and is_cancelled():
                tell(None, error)
                await self._stopped(task, channel)
                raise
            latest = channel.call.continuation or continuation
            if isinstance(error, UnknownTag) and latest.release != self._server.info.version:
                tell(None, error)
                unknown = f"{error} (of a call of release {latest.release!r})"
                raise Elsewhere(unknown, _CANNOT_GO_ON) from error
            came_to, raised = self._host.outcome(channel.request, error), error
        finally:
            await channel.sink.flush()
        if isinstance(came_to, Suspended):
            tell(came_to)
            return came_to
        kept = finished(came_to, raised=raised is not None)
        limits = self._host.limits
        if kept.result is not None and len(kept.result) > limits.result:
            raised = limits.too_large()
            if await self._host.tasks.service.values.keep(task):
                raised = ToolError(f"{raised}. The value of its job is kept by the server")
            came_to = self._host.outcome(channel.request, raised)
            kept = finished(came_to)
        tell(came_to, raised)
        del raised  # its traceback holds this frame, which would hold it in turn
        return kept

    async def cancelled(self, task: Task, call: bytes) -> None:
        """Let the tool of *task* know that it was cancelled."""
        assigns = Continuation.unpack(task.continuation).assigns if task.continuation else {}
        channel = self._channel(task, call, assigns)
        with suppress(McpError):  # hidden from its caller by now: notified nevertheless
            await resolve_route(channel)
        await self._server.cancelled(channel)

    async def _stopped(self, task: Task, channel: Channel) -> None:
        """Tell the tool of a task that was cancelled while it waited in this process.

        Whoever cancels it leaves that to the process it lives in.
        """
        channel.call.advance(CallEvent.TASK_CANCEL)
        if channel.call.continuation is not None:
            now = await self._host.tasks.service.get(task.id, task.owner)
            if now.status == "cancelled":
                await self._server.cancelled(channel)

    def _channel(self, task: Task, call: bytes, own: Mapping[str, Any]) -> Channel:
        call_state = CallState(
            phase=CallPhase.TASK,
            task=task.id,
            run=run_id(task),
            fencing_token=task.fencing_token,
        )
        kept = StoredRequest.unpack(call)
        sink = TaskSink(self._host, call_state, kept.client_key)
        channel = kept.channel(self._server, sink, self._host.assigns, own)
        channel.state = call_state
        return channel


def _read(continuation: Continuation, outcome: Outcome) -> Outcome:
    """Return what the answers in *outcome*, by names on the wire, mean to the tool."""
    if isinstance(outcome, Failed):
        return outcome
    answers: dict[str, bytes] = {}
    for each in continuation.asked:
        answer = unpack(msgspec.json.encode(outcome.value[each.name]))
        if isinstance(answer, Failed):
            return answer
        answers[each.key] = msgspec.json.encode(answer.value)
    return outcome_of(continuation.answered(answers))


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(StoredRequest)
