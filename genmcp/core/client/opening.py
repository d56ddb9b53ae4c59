"""Opening of a client's connection: negotiation of the revision, and the handshake.

2026-07-28, basic/versioning, "Backward Compatibility with Initialization-Based Versions", and
"Backward Compatibility" of the pages transports/stdio and transports/streamable-http, define the
order of the attempts. `RevisionNegotiation` decides which message is sent next. `Connector` returns
the actions that send the message, and changes the state of the connection.

"Probe" is the `server/discover` of 2026-07-28 that begins the negotiation.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from genmcp.core.client.codec import RequestEncoder, decode_error
from genmcp.core.client.events import (
    Connected,
    ConnectionFailed,
    Disconnected,
    NoCommonRevision,
    Outcome,
    PeerFault,
    RequestFailed,
    RestartTransport,
    SendMessage,
    SessionReset,
)
from genmcp.core.client.lifecycle import (
    ConnectionState,
    ConnectionStep,
    DispatchOptions,
    Lifecycle,
    Pending,
    PendingRequests,
    Timeouts,
    TransportFailure,
)
from genmcp.errors import ConfigurationError, McpError
from genmcp.protocol.capabilities import Implementation, ServerCapabilities
from genmcp.protocol.params import SERVER_INFO
from genmcp.protocol.revisions.chain import LATEST, LEGACY, MODERN, REVISIONS
from genmcp.protocol.revisions.revision import Revision
from genmcp.protocol.value import Value, decoder_for
from genmcp.wire.jsonrpc import Message, printable

_NO_CAPABILITIES: Final = ServerCapabilities()
_NULL: Final = msgspec.Raw(b"null")
_UNSUPPORTED_VERSION: Final = -32022
#: HeaderMismatch, MissingRequiredClientCapability and UnsupportedProtocolVersion of 2026-07-28. No
#: server of an earlier revision sends them.
MODERN_CODES: Final = frozenset({-32020, -32021, _UNSUPPORTED_VERSION})
#: HTTP statuses about authorization, rate limits or availability. Servers of both eras send them,
#: so that they are no reason to try the other era.
_NOT_OF_AN_ERA: Final = frozenset({401, 403, 407, 408, 425, 429, 502, 503, 504})
#: The most probes of one negotiation. A server may name a supported revision and reject that
#: revision again and again.
_MAX_PROBES: Final = 3


class Probe(msgspec.Struct, frozen=True):
    """The decision to send `server/discover` of *revision*."""

    revision: Revision


class Handshake(msgspec.Struct, frozen=True):
    """The decision to send `initialize`, which proposes *revision*."""

    revision: Revision


class UseRevision(msgspec.Struct, frozen=True):
    """The decision to use *revision*: the negotiation is complete."""

    revision: Revision
    server: Implementation | None = None
    capabilities: ServerCapabilities = _NO_CAPABILITIES
    instructions: str | None = None


class GiveUp(msgspec.Struct, frozen=True):
    """The decision to fail the connection with *error*."""

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
        revision, remembered: as for `DispatchOptions`.
        silence_is_legacy: whether a server that does not respond to a probe counts as a server of
            the legacy era. True over stdio, where such a server may ignore the unknown method.

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
        # For a remembered legacy revision, propose the newest legacy revision: the server may have
        # been upgraded, and the response to `initialize` names the revision that it supports.
        self._proposed = proposed if revision or proposed.modern else LEGACY[0]
        self._probes = 0
        self._late: UseRevision | None = None

    def begin(self) -> Decision:
        """Return the first decision: `Probe` or `Handshake`."""
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
            # 2026-07-28, basic/versioning: the client retries with a supported version, and does
            # not fall back to `initialize`.
            revision = self._named_by(error)
            if revision is None or self._probes >= _MAX_PROBES:
                return GiveUp(self._explained(error))
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

        A server of the legacy era may exit when it receives a probe. That counts as no response.
        """
        return self.probe_silent(error) if self._probes else GiveUp(error)

    def probe_answered_late(self, raw: msgspec.Raw) -> None:
        """Handle the result of `server/discover` after `initialize` was sent.

        The server was slow to start, but supports the modern era. The result is used if the server
        rejects `initialize`.
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
        return self.handshake_failed(self._explained(error), error.status)

    def handshake_failed(self, error: Exception, status: int | None) -> Decision:
        """Handle the failure of the transport to get a response to `initialize`.

        If no probe preceded it, `initialize` was sent because of a remembered revision. That
        revision may be outdated, so return `Probe`, unless servers of both eras send this error.
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
        """Return `Handshake`, or `GiveUp` if the user allows only one revision.

        2026-07-28, server/discover: a server MUST implement `server/discover`. A server that
        rejects it does not support the only allowed revision, and may nevertheless process requests
        of that revision, without the handshake that its own revision requires.
        """
        if self._only is None:
            return self._handshake(LEGACY[0])
        if not isinstance(error, McpError | TimeoutError):
            return GiveUp(error)  # more specific than the message below, such as a wrong path
        code = f" ({error.code})" if isinstance(error, McpError) else ""
        return GiveUp(
            NoCommonRevision(
                f"the server does not support {self._only}, the only revision allowed, and names "
                f"no other one (server/discover failed: {error}{code}); leave "
                "ClientOptions(revision=...) out, and the client negotiates"
            )
        )

    def _newest_of(self, versions: Sequence[Any]) -> Revision | None:
        return next((each for each in self._supported if each.version in versions), None)

    def _named_by(self, error: McpError) -> Revision | None:
        """Return the newest supported revision that an UnsupportedProtocolVersionError offers."""
        return self._newest_of(_offered_by(error))

    def _explained(self, error: McpError) -> Exception:
        """Return the error to raise for *error*, which may name only revisions of no use."""
        offered = _offered_by(error)
        useless = offered and self._newest_of(offered) is None
        return self._nothing_common(offered) if useless else error

    def _nothing_common(self, versions: Sequence[str]) -> NoCommonRevision:
        theirs = printable(", ".join(versions)) or "none"
        ours = ", ".join(each.version for each in self._supported)
        text = f"no common revision: the server supports {theirs}, this client {ours}"
        if self._only is not None:
            text += "; set ClientOptions(revision=...) to one that both support, or leave it out"
        return NoCommonRevision(text, versions)


def _offered_by(error: McpError) -> Sequence[str]:
    """Return the revisions that an UnsupportedProtocolVersionError names; none for other errors."""
    supported = error.data.get("supported") if isinstance(error.data, dict) else None
    if error.code != _UNSUPPORTED_VERSION or not isinstance(supported, list):
        return ()
    return [each for each in supported if isinstance(each, str)]


def _decode_server(raw: msgspec.Raw) -> Implementation | None:
    """Return name and version of the server.

    None if they are invalid: they are only displayed, and no reason to fail the connection.
    """
    try:
        server: Implementation = decoder_for(Implementation).decode(raw)
    except msgspec.DecodeError:
        return None
    return server


class Connector:
    """Runs the handshake of a connection, also for a new session. Owned by its `ClientDispatch`.

    Attributes:
        revision: the negotiated revision; before that, the revision that was proposed last.
        server: the connected server; None before the first handshake is complete.
        renewed: whether the session was replaced and no response has arrived in the new session.
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
        """Return the action that sends the first message of the handshake."""
        self._lifecycle.take(ConnectionStep.BEGIN)
        return self._carry_out(self._negotiation.begin(), now)

    def renew(self, error: Exception, now: float) -> list[Outcome]:
        """Begin a new handshake after *error*: the server does not know the current session.

        2025-11-25, transports, "Session Management", point 4, requires a new session. The revision
        is negotiated again: the server was probably restarted, possibly as another version.
        """
        # A server that loses each new session at once would cause an endless loop of handshakes.
        if self.renewed:
            return self.give_up(error)
        self.renewed = True
        self._lifecycle.take(ConnectionStep.RENEW)
        self._negotiation = self._negotiate(None)
        return [SessionReset(error), *self._carry_out(self._negotiation.begin(), now)]

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
        """Handle the end of the transport, because of *error* if it is not None."""
        before = self._lifecycle.state
        lost = error or PeerFault("the server has ended the connection")
        ended: list[Outcome] = [
            RequestFailed(each.id, lost, may_have_run=True) for each in self._pending.clear()
        ]
        if before in (ConnectionState.PROBING, ConnectionState.INITIALIZING):
            # The transport is opened again only once: a server that also exits when it receives
            # `initialize` is broken.
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
            if request.opening:  # a probe that timed out; its response would have no effect
                self._pending.remove(request)
        if self.revision.modern:
            return [connected]
        method = "notifications/initialized"
        message = self._encoder.notification(self.revision, method, None)
        return [SendMessage(message, method=method, revision=self.revision.version), connected]
