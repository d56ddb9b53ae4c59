"""Opening of a client's connection: negotiation of the revision, and the handshake.

2026-07-28, basic/versioning, "Backward Compatibility with Initialization-Based Versions";
_transports/stdio and transports/streamable-http, "Backward Compatibility". `RevisionNegotiation`
decides what to send next, `Connector` sends it and keeps the state.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from genmcp._core.client.codec import RequestEncoder, decode_error
from genmcp._core.client.events import (
    Connected,
    ConnectionFailed,
    Disconnected,
    Outcome,
    PeerFault,
    RequestFailed,
    RestartTransport,
    SendMessage,
    SessionReset,
)
from genmcp._core.client.lifecycle import (
    ConnectionState,
    ConnectionStep,
    DispatchOptions,
    Lifecycle,
    Pending,
    PendingRequests,
    Timeouts,
    TransportFailure,
)
from genmcp._wire.jsonrpc import Message
from genmcp.errors import ConfigurationError, McpError
from genmcp.protocol.capabilities import Implementation, ServerCapabilities
from genmcp.protocol.params import SERVER_INFO
from genmcp.protocol.revisions.chain import LATEST, LEGACY, MODERN, REVISIONS
from genmcp.protocol.revisions.revision import Revision
from genmcp.protocol.value import Value, decoder_for

_NO_CAPABILITIES: Final = ServerCapabilities()
_NULL: Final = msgspec.Raw(b"null")
_UNSUPPORTED_VERSION: Final = -32022
#: HeaderMismatch, MissingRequiredClientCapability and UnsupportedProtocolVersion of 2026-07-28. No
#: server of an earlier revision sends them.
MODERN_CODES: Final = frozenset({-32020, -32021, _UNSUPPORTED_VERSION})
#: HTTP statuses about authorization, rate limits or availability: they tell nothing about the era.
_NOT_OF_AN_ERA: Final = frozenset({401, 403, 407, 408, 425, 429, 502, 503, 504})
#: Bounds a server that names a supported revision and then rejects it.
_MAX_PROBES: Final = 3


class Probe(msgspec.Struct, frozen=True):
    """Send `server/discover` of *revision*."""

    revision: Revision


class Handshake(msgspec.Struct, frozen=True):
    """Send `initialize` and propose *revision*."""

    revision: Revision


class UseRevision(msgspec.Struct, frozen=True):
    """The negotiation is complete: use *revision*."""

    revision: Revision
    server: Implementation | None = None
    capabilities: ServerCapabilities = _NO_CAPABILITIES
    instructions: str | None = None


class GiveUp(msgspec.Struct, frozen=True):
    """The negotiation has failed."""

    error: Exception


Decision = Probe | Handshake | UseRevision | GiveUp


class _Discovered(Value, kw_only=True):
    """The members of a DiscoverResult that the negotiation needs."""

    supported_versions: Sequence[str]
    capabilities: ServerCapabilities = _NO_CAPABILITIES
    instructions: str | None = None
    meta: Mapping[str, msgspec.Raw] = {}


class _Initialized(Value, kw_only=True):
    """The members of an InitializeResult that the negotiation needs."""

    protocol_version: str | None = None
    capabilities: ServerCapabilities = _NO_CAPABILITIES
    server_info: msgspec.Raw = _NULL
    instructions: str | None = None


class RevisionNegotiation:
    """Decides which revision to use with a server. Owned by a `Connector`.

    Args:
        revision, remembered: As for `DispatchOptions`.
        silence_is_legacy: On a channel without statuses (stdio), a server of an earlier era may
            not respond to a probe at all.

    Raises:
        ConfigurationError: *revision* is not supported.
    """

    def __init__(
        self, revision: str | None, remembered: str | None, *, silence_is_legacy: bool
    ) -> None:
        if revision is not None and revision not in REVISIONS:
            supported = ", ".join(REVISIONS)
            raise ConfigurationError(f"revision: {revision!r} is not one of {supported}")
        self._only = revision
        self._supported = (*MODERN, *LEGACY) if revision is None else (REVISIONS[revision],)
        self._silence_is_legacy = silence_is_legacy
        proposed = REVISIONS.get(revision or remembered or "", LATEST)
        # Only the era of a remembered legacy revision counts: the server may have been upgraded to
        # a newer revision of that era, which `initialize` finds out.
        self._proposed = proposed if revision or proposed.modern else LEGACY[0]
        self._probes = 0
        self._late: UseRevision | None = None

    def begin(self) -> Decision:
        """Return the first message to send."""
        proposed = self._proposed
        return self._probe(proposed) if proposed.modern else Handshake(proposed)

    def probe_answered(self, raw: msgspec.Raw) -> Decision:
        """Handle the result of `server/discover`."""
        try:
            found: _Discovered = decoder_for(_Discovered).decode(raw)
        except msgspec.DecodeError as error:
            return self._fall_back(PeerFault(f"invalid result of server/discover: {error}"))
        revision = self._newest_of(found.supported_versions)
        if revision is None:
            return GiveUp(self._nothing_common(found.supported_versions))
        if not revision.modern:
            return self._handshake(revision)
        server = _decode_server(found.meta.get(SERVER_INFO, _NULL))
        return UseRevision(revision, server, found.capabilities, found.instructions)

    def probe_refused(self, error: McpError) -> Decision:
        """Handle a JSON-RPC error in response to `server/discover`."""
        if error.status in _NOT_OF_AN_ERA:
            return GiveUp(error)
        if error.code in MODERN_CODES:
            # "The client retries with a supported version rather than falling back."
            revision = self._named_by(error)
            if revision is None or self._probes >= _MAX_PROBES:
                return GiveUp(error)
            return self._probe(revision) if revision.modern else self._handshake(revision)
        return self._fall_back(error)

    def probe_failed(self, error: Exception, status: int | None) -> Decision:
        """Handle the failure of the transport to get a response to the probe."""
        if status is None or status in _NOT_OF_AN_ERA:
            return GiveUp(error)
        return self._fall_back(error)

    def probe_silent(self, error: Exception) -> Decision:
        """Handle the timeout of the probe."""
        return self._fall_back(error) if self._silence_is_legacy else GiveUp(error)

    def transport_ended(self, error: Exception) -> Decision:
        """Handle the end of the transport during the negotiation.

        A server of an earlier era may exit on an unexpected message, which counts as silence.
        """
        return self.probe_silent(error) if self._probes else GiveUp(error)

    def probe_answered_late(self, raw: msgspec.Raw) -> None:
        """Handle the result of `server/discover` after `initialize` was sent.

        The server was only slow to start: the result counts if it rejects `initialize`.
        """
        decision = self.probe_answered(raw)
        if isinstance(decision, UseRevision):
            self._late = decision

    def initialized(self, raw: msgspec.Raw) -> Decision:
        """Handle the result of `initialize`: 2025-11-25, lifecycle, "Version Negotiation"."""
        try:
            result: _Initialized = decoder_for(_Initialized).decode(raw)
        except msgspec.DecodeError as error:
            return GiveUp(PeerFault(f"invalid result of initialize: {error}"))
        version = result.protocol_version or self._proposed.version
        revision = REVISIONS.get(version)
        if revision is None or revision.modern:
            return GiveUp(self._nothing_common([version]))
        server = _decode_server(result.server_info)
        capabilities = revision.up(result.capabilities)
        return UseRevision(revision, server, capabilities, result.instructions)

    def handshake_refused(self, error: McpError) -> Decision:
        """Handle a JSON-RPC error in response to `initialize`."""
        if self._late is not None:
            return self._late
        named = self._named_by(error)
        if named is not None and named.modern and self._probes < _MAX_PROBES:
            return self._probe(named)
        return self.handshake_failed(error, error.status)

    def handshake_failed(self, error: Exception, status: int | None) -> Decision:
        """Handle the failure of the transport to get a response to `initialize`.

        Without a probe before, `initialize` was sent for a remembered revision, which may be
        outdated: probe, unless the error tells nothing about the era.
        """
        if status is None or status in _NOT_OF_AN_ERA or self._probes or self._only is not None:
            return GiveUp(error)
        return self._probe(LATEST)

    def _probe(self, revision: Revision) -> Decision:
        self._probes += 1
        self._proposed = revision
        return Probe(revision)

    def _handshake(self, revision: Revision) -> Decision:
        self._proposed = revision
        return Handshake(revision)

    def _fall_back(self, error: Exception) -> Decision:
        """Fall back to `initialize`, unless the caller allows one revision only.

        2026-07-28, server/discover: a server MUST implement it. A server that rejects it does not
        support the requested revision, and would handle requests without the required handshake.
        """
        if self._only is None:
            return self._handshake(LEGACY[0])
        if not isinstance(error, McpError | TimeoutError):
            return GiveUp(error)  # more specific, such as a wrong path
        code = f" ({error.code})" if isinstance(error, McpError) else ""
        return GiveUp(
            PeerFault(
                f"the server does not support {self._only}, the only revision allowed (option: "
                f"revision): server/discover failed: {error}{code}"
            )
        )

    def _newest_of(self, versions: Sequence[Any]) -> Revision | None:
        return next((each for each in self._supported if each.version in versions), None)

    def _named_by(self, error: McpError) -> Revision | None:
        """Return the newest supported revision that an UnsupportedProtocolVersionError offers."""
        if error.code != _UNSUPPORTED_VERSION or not isinstance(error.data, dict):
            return None
        supported = error.data.get("supported")
        return self._newest_of(supported) if isinstance(supported, list) else None

    def _nothing_common(self, versions: Sequence[str]) -> PeerFault:
        theirs = ", ".join(versions) or "none"
        ours = ", ".join(each.version for each in self._supported)
        return PeerFault(f"no common revision: the server supports {theirs}, this client {ours}")


def _decode_server(raw: msgspec.Raw) -> Implementation | None:
    """Return the name of the server, None if it is invalid: it is only displayed."""
    try:
        server: Implementation = decoder_for(Implementation).decode(raw)
    except msgspec.DecodeError:
        return None
    return server


class Connector:
    """Opens one connection, and reopens its session. Owned by its `ClientDispatch`.

    `revision` is the negotiated revision, or the one proposed so far; `server` describes the
    connected server. `renewed`: a session was replaced, and no request has succeeded in the new one
    yet.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        pending: PendingRequests,
        encoder: RequestEncoder,
        options: DispatchOptions,
        *,
        per_message: bool,
    ) -> None:
        self._lifecycle = lifecycle
        self._pending = pending
        self._encoder = encoder
        self._options = options
        self._per_message = per_message
        self._negotiation = self._negotiate(options.remembered)
        self.revision: Revision = LATEST
        self.server: Connected | None = None
        self.renewed = False
        self._restarted = False

    def begin(self, now: float) -> list[Outcome]:
        """Send the first message."""
        self._lifecycle.take(ConnectionStep.BEGIN)
        return self._carry_out(self._negotiation.begin(), now)

    def renew(self, error: Exception, now: float) -> list[Outcome]:
        """Open a new session after *error*: the server does not know the current one.

        2025-11-25, transports, "Session Management", point 4. The revision is negotiated again:
        a server that lost its sessions was restarted, possibly as another version.
        """
        if self.renewed:  # a server that forgets each new session at once would loop forever
            return self.give_up(error)
        self.renewed = True
        self._lifecycle.take(ConnectionStep.RENEW)
        self._negotiation = self._negotiate(None)
        return [SessionReset(error), *self._carry_out(self._negotiation.begin(), now)]

    def forget(self) -> None:
        """Discard everything about the server except its revision."""
        remembered = self._options.remembered if self.server is None else self.server.revision
        self._negotiation = self._negotiate(remembered)
        self.server = None
        self.renewed = False
        self._restarted = False

    def answered(
        self, request: Pending, message: Message, status: int, now: float
    ) -> list[Outcome]:
        """Handle the response to *request*, which is part of the handshake."""
        negotiation, body = self._negotiation, message.error
        error = None if body is None else decode_error(request, body, status)
        if request.method == "initialize":
            decision = (
                negotiation.initialized(message.result)
                if error is None
                else negotiation.handshake_refused(error)
            )
        elif self._lifecycle.state is ConnectionState.INITIALIZING:
            if error is None:
                negotiation.probe_answered_late(message.result)
            return []
        else:
            decision = (
                negotiation.probe_answered(message.result)
                if error is None
                else negotiation.probe_refused(error)
            )
        return self._carry_out(decision, now)

    def failed(self, request: Pending, failure: TransportFailure, now: float) -> list[Outcome]:
        """Handle the failure of *request*, which is part of the handshake."""
        if request.method == "initialize":
            decision = self._negotiation.handshake_failed(failure.error, failure.status)
        elif self._lifecycle.state is ConnectionState.INITIALIZING:
            return []
        else:
            decision = self._negotiation.probe_failed(failure.error, failure.status)
        return self._carry_out(decision, now)

    def timed_out(self, request: Pending, now: float) -> list[Outcome]:
        """Handle the timeout of *request*, which is part of the handshake."""
        # No `notifications/cancelled`: 2025-11-25, cancellation, forbids it for `initialize`, and a
        # server that does not know `server/discover` does not expect its cancellation either.
        error = TimeoutError(f"no response to {request.method} within {request.allowed:g} s")
        if request.method == "initialize":
            return self.give_up(error)
        decision = self._negotiation.probe_silent(error)
        self._pending.keep(request)
        return self._carry_out(decision, now)

    def give_up(self, error: Exception) -> list[Outcome]:
        """Fail the connection and every pending request."""
        self._lifecycle.take(ConnectionStep.FAIL, error)
        ended = [RequestFailed(each.id, error, may_have_run=True) for each in self._pending.clear()]
        return [*ended, ConnectionFailed(error)]

    def transport_ended(self, error: Exception | None) -> list[Outcome]:
        """Handle the end of the transport; *error* is None if the server ended it regularly."""
        before = self._lifecycle.state
        lost = error or PeerFault("the server has ended the connection")
        ended: list[Outcome] = [
            RequestFailed(each.id, lost, may_have_run=True) for each in self._pending.clear()
        ]
        if before in (ConnectionState.PROBING, ConnectionState.INITIALIZING):
            # Once only: a server that also exits on `initialize` is broken.
            retry = isinstance(self._negotiation.transport_ended(lost), Handshake)
            if retry and not self._restarted:
                self._restarted = True
                self._lifecycle.take(ConnectionStep.RESTART)
                return [*ended, RestartTransport(lost)]
        closing = before is ConnectionState.CLOSING
        self._lifecycle.take(ConnectionStep.LOSE, None if closing else lost)
        if before in (ConnectionState.CLOSED, ConnectionState.FAILED):
            return ended
        if self._lifecycle.state is ConnectionState.FAILED:
            return [*ended, ConnectionFailed(lost)]
        return [*ended, Disconnected(None if closing else lost)]

    def _negotiate(self, remembered: str | None) -> RevisionNegotiation:
        return RevisionNegotiation(
            self._options.revision, remembered, silence_is_legacy=not self._per_message
        )

    def _carry_out(self, decision: Decision, now: float) -> list[Outcome]:
        if isinstance(decision, GiveUp):
            return self.give_up(decision.error)
        revision = self.revision = decision.revision
        if isinstance(decision, UseRevision):
            return self._connect(
                Connected(
                    revision.version,
                    decision.server,
                    decision.capabilities,
                    decision.instructions,
                )
            )
        options = self._options
        if isinstance(decision, Probe):
            self._lifecycle.take(ConnectionStep.PROBE)
            seconds = options.connect_timeout if self._per_message else options.probe_timeout
            request = self._add("server/discover", now, seconds)
            message = self._encoder.request(revision, request.id, request.method, None, {})
            return [SendMessage(message, request.id, request.method, revision=revision.version)]
        self._lifecycle.take(ConnectionStep.HANDSHAKE)
        request = self._add("initialize", now, options.connect_timeout)
        return [
            SendMessage(self._encoder.initialize(revision, request.id), request.id, request.method)
        ]

    def _add(self, method: str, now: float, seconds: float) -> Pending:
        timeouts = Timeouts(idle=None, total=seconds)
        return self._pending.add(method, self.revision, now=now, timeouts=timeouts, opening=True)

    def _connect(self, connected: Connected) -> list[Outcome]:
        self._lifecycle.take(ConnectionStep.CONNECT)
        self.server = connected
        for request in self._pending:
            if request.opening:  # a probe that the server may still answer, to no effect
                self._pending.remove(request)
        if self.revision.modern:
            return [connected]
        method = "notifications/initialized"
        message = self._encoder.notification(self.revision, method, None)
        return [SendMessage(message, method=method, revision=self.revision.version), connected]
