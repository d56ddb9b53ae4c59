"""Opening of a client's connection: negotiation of the revision, and the handshake.

2026-07-28, basic/versioning, "Backward Compatibility with Initialization-Based Versions", and
"Backward Compatibility" of the pages transports/stdio and transports/streamable-http, define the
order of the attempts.

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
    HandshakeTimeout,
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
from genmcp.protocol.revisions.chain import LEGACY, MODERN, REVISIONS
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
    """Opens a connection, also for a new session. Owned by its `ClientDispatch`.

    Args:
        lifecycle: the state of the connection.
        pending: the pending requests.
        encoder: encodes the messages of the handshake.
        options: the options of the dispatch.
        per_message: whether each request has a response of its own. Otherwise a server that does
            not respond to a probe counts as one of the legacy era: over stdio, such a server may
            ignore the unknown method.

    Attributes:
        revision: the negotiated revision; before that, the revision that was proposed last.
        server: the connected server; None before the first handshake is complete.
        renewed: whether the session was replaced and no response has arrived in the new session.

    Raises:
        ConfigurationError: `options.revision` is not supported.
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
        only = self._only = options.revision
        if only is not None and only not in REVISIONS:
            supported = ", ".join(REVISIONS)
            raise ConfigurationError(f"revision: {only!r} is not one of {supported}")
        self._supported = (*MODERN, *LEGACY) if only is None else (REVISIONS[only],)
        self._preferred = self._supported[0]
        self.revision: Revision = self._preferred
        self.server: Connected | None = None
        self.renewed = False
        self._restarted = False
        self._probes = 0  # of this negotiation
        self._was_silent = False  # the last probe timed out

    def begin(self, now: float) -> list[Outcome]:
        """Return the action that sends the first message of the handshake."""
        self._lifecycle.take(ConnectionStep.BEGIN)
        return self._propose(self.revision, now)

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
        self._probes = 0
        return [SessionReset(error), *self._propose(self._preferred, now)]

    def answered(
        self, request: Pending, message: Message, status: int, now: float
    ) -> list[Outcome]:
        """Handle the response to *request*, which is part of the handshake."""
        error = None if message.error is None else decode_error(request, message.error, status)
        if request.method == "initialize":
            return self._welcomed(message.result) if error is None else self._refused(error, now)
        if error is None:
            return self._discovered(message.result, now)
        return self._probe_refused(error, now)

    def failed(self, request: Pending, failure: TransportFailure, now: float) -> list[Outcome]:
        """Handle the failure of *request*, which is part of the handshake."""
        error, status = failure.error, failure.status
        if request.method == "initialize" or status is None or status in _NOT_OF_AN_ERA:
            return self.give_up(error)
        return self._fall_back(error, now)

    def timed_out(self, request: Pending, now: float) -> list[Outcome]:
        """Handle the timeout of *request*, which is part of the handshake."""
        # No `notifications/cancelled`: 2025-11-25, cancellation, forbids it for `initialize`, and a
        # server that does not know `server/discover` does not expect its cancellation either.
        error = HandshakeTimeout(request.method, request.allowed)
        if request.method == "initialize" or self._per_message:
            return self.give_up(error)
        self._was_silent = True
        return self._fall_back(error, now)

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
        opening = before in (ConnectionState.PROBING, ConnectionState.INITIALIZING)
        # A server of the legacy era may exit when it receives a probe. The transport is opened
        # again only once: a server that also exits when it receives `initialize` is broken.
        tolerant = self._only is None and not self._per_message
        if opening and tolerant and self._probes and not self._restarted:
            self._restarted = True
            self.revision = LEGACY[0]
            self._lifecycle.take(ConnectionStep.RESTART)
            return [*ended, RestartTransport(lost)]
        closing = before is ConnectionState.CLOSING
        self._lifecycle.take(ConnectionStep.LOSE, None if closing else lost)
        if before in (ConnectionState.CLOSED, ConnectionState.FAILED):
            return ended
        if self._lifecycle.state is ConnectionState.FAILED:
            return [*ended, ConnectionFailed(lost)]
        return [*ended, Disconnected(None if closing else lost)]

    def _discovered(self, raw: msgspec.Raw, now: float) -> list[Outcome]:
        """Handle the result of `server/discover`."""
        try:
            found: _Discovered = decoder_for(_Discovered).decode(raw)
        except msgspec.DecodeError as error:
            return self._fall_back(PeerFault(f"invalid result of server/discover: {error}"), now)
        revision = self._newest_of(found.supported_versions)
        if revision is None:
            return self.give_up(self._nothing_common(found.supported_versions))
        if not revision.modern:
            return self._propose(revision, now)
        server = _decode_server(found.meta.get(SERVER_INFO, _NULL))
        return self._connect(revision, server, found.capabilities, found.instructions)

    def _probe_refused(self, error: McpError, now: float) -> list[Outcome]:
        """Handle a JSON-RPC error in response to `server/discover`."""
        if error.status in _NOT_OF_AN_ERA:
            return self.give_up(error)
        if error.code in MODERN_CODES:
            # 2026-07-28, basic/versioning: the client retries with a supported version, and does
            # not fall back to `initialize`.
            named = self._newest_of(_offered_by(error))
            if named is None or self._probes >= _MAX_PROBES:
                return self.give_up(self._explained(error))
            return self._propose(named, now)
        return self._fall_back(error, now)

    def _welcomed(self, raw: msgspec.Raw) -> list[Outcome]:
        """Handle the result of `initialize`: 2025-11-25, lifecycle, "Version Negotiation"."""
        try:
            result: _Initialized = decoder_for(_Initialized).decode(raw)
        except msgspec.DecodeError as error:
            return self.give_up(PeerFault(f"invalid result of initialize: {error}"))
        version = result.protocol_version or self.revision.version
        revision = REVISIONS.get(version)
        if revision is None or revision.modern:
            return self.give_up(self._nothing_common([version]))
        server = _decode_server(result.server_info)
        capabilities = revision.up(result.capabilities)
        return self._connect(revision, server, capabilities, result.instructions)

    def _refused(self, error: McpError, now: float) -> list[Outcome]:
        """Handle a JSON-RPC error in response to `initialize`."""
        named = self._newest_of(_offered_by(error))
        if named is None and self._was_silent:
            named = self._preferred  # a server of the modern era that was slow to start
        if named is not None and named.modern and self._probes < _MAX_PROBES:
            return self._propose(named, now)
        return self.give_up(self._explained(error))

    def _fall_back(self, error: Exception, now: float) -> list[Outcome]:
        """Send `initialize`, or fail if the user allows only one revision.

        2026-07-28, server/discover: a server MUST implement `server/discover`. A server that
        rejects it does not support the only allowed revision, and may nevertheless process requests
        of that revision, without the handshake that its own revision requires.
        """
        if self._only is None:
            return self._propose(LEGACY[0], now)
        if not isinstance(error, McpError | HandshakeTimeout):
            return self.give_up(error)  # more specific than the message below
        code = f" ({error.code})" if isinstance(error, McpError) else ""
        return self.give_up(
            NoCommonRevision(
                f"the server does not support {self._only}, the only revision allowed, and names "
                f"no other one (server/discover failed: {error}{code}); leave "
                "ClientOptions(revision=...) out, and the client negotiates"
            )
        )

    def _propose(self, revision: Revision, now: float) -> list[Outcome]:
        """Return the action that proposes *revision*: with a probe, or with `initialize`."""
        self.revision, options = revision, self._options
        if revision.modern:
            self._lifecycle.take(ConnectionStep.PROBE)
            self._probes += 1
            self._was_silent = False
            seconds = options.connect_timeout if self._per_message else options.probe_timeout
            request = self._add("server/discover", now, seconds)
            message = self._encoder.request(revision, request.id, request.method, None)
            return [SendMessage(message, request.id, request.method, revision=revision.version)]
        self._lifecycle.take(ConnectionStep.HANDSHAKE)
        request = self._add("initialize", now, options.connect_timeout)
        message = self._encoder.initialize(revision, request.id)
        return [SendMessage(message, request.id, request.method)]

    def _add(self, method: str, now: float, seconds: float) -> Pending:
        timeouts = Timeouts(idle=None, total=seconds)
        return self._pending.add(method, self.revision, now=now, timeouts=timeouts, opening=True)

    def _connect(
        self,
        revision: Revision,
        server: Implementation | None,
        capabilities: ServerCapabilities,
        instructions: str | None,
    ) -> list[Outcome]:
        self._lifecycle.take(ConnectionStep.CONNECT)
        self.revision = revision
        connected = Connected(revision.version, server, capabilities, instructions)
        self.server = connected
        if revision.modern:
            return [connected]
        method = "notifications/initialized"
        message = self._encoder.notification(revision, method, None)
        return [SendMessage(message, method=method, revision=revision.version), connected]

    def _newest_of(self, versions: Sequence[Any]) -> Revision | None:
        return next((each for each in self._supported if each.version in versions), None)

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
