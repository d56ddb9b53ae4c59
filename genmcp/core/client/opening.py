"""Which era a server is of: what a client sends first, and what the answers to that mean.

2026-07-28, basic/versioning, "Backward Compatibility with Initialization-Based Versions";
transports/stdio and transports/streamable-http, "Backward Compatibility".
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from genmcp.core.client.codec import ClientEncoder, error_of
from genmcp.core.client.events import (
    Connected,
    ConnectionFailed,
    Disconnected,
    Outcome,
    PeerFault,
    RequestFailed,
    Reset,
    Restart,
    Send,
)
from genmcp.core.client.lifecycle import Lifecycle, Pending, PendingRequests, State, Step, Timeouts
from genmcp.errors import ConfigurationError, McpError
from genmcp.protocol.capabilities import Implementation, ServerCapabilities
from genmcp.protocol.params import SERVER_INFO
from genmcp.protocol.revisions.chain import LATEST, LEGACY, MODERN, REVISIONS
from genmcp.protocol.revisions.revision import Revision
from genmcp.protocol.value import Value, decoder_for
from genmcp.wire.jsonrpc import Message

__all__ = [
    "MODERN_CODES",
    "Connecting",
    "Decision",
    "DispatchOptions",
    "GiveUp",
    "Handshake",
    "Opening",
    "Probe",
    "Speak",
    "TransportFailure",
]

_NO_CAPABILITIES: Final = ServerCapabilities()
_NULL: Final = msgspec.Raw(b"null")
_UNSUPPORTED_VERSION: Final = -32022
#: 2026-07-28, HeaderMismatch, MissingRequiredClientCapability and UnsupportedProtocolVersion: no
#: server before it knew them.
MODERN_CODES: Final = frozenset({-32020, -32021, _UNSUPPORTED_VERSION})
#: HTTP statuses that are about who asks, how often, or whether the server is there at all.
_NOT_OF_AN_ERA: Final = frozenset({401, 403, 407, 408, 425, 429, 502, 503, 504})
#: How often a server may say that it speaks a revision, and then that it does not.
_MOST_PROBES: Final = 3


class Probe(msgspec.Struct, frozen=True):
    """Send `server/discover`, as *revision* has it."""

    revision: Revision


class Handshake(msgspec.Struct, frozen=True):
    """Send `initialize`, and propose *revision*."""

    revision: Revision


class Speak(msgspec.Struct, frozen=True):
    """The server is known, and *revision* is spoken from now on."""

    revision: Revision
    server: Implementation | None = None
    capabilities: ServerCapabilities = _NO_CAPABILITIES
    instructions: str | None = None


class GiveUp(msgspec.Struct, frozen=True):
    """Nothing will come of it."""

    error: Exception


Decision = Probe | Handshake | Speak | GiveUp


class _Discovered(Value, kw_only=True):
    """A DiscoverResult, as far as it is needed to go on."""

    supported_versions: Sequence[str]
    capabilities: ServerCapabilities = _NO_CAPABILITIES
    instructions: str | None = None
    meta: Mapping[str, msgspec.Raw] = {}


class _Welcome(Value, kw_only=True):
    """An InitializeResult, as far as it is needed to go on."""

    protocol_version: str | None = None
    capabilities: ServerCapabilities = _NO_CAPABILITIES
    server_info: msgspec.Raw = _NULL
    instructions: str | None = None


class Opening:
    """Finds out what a server speaks.

    told: the revision to speak; an older one is proposed, and the server's answer counts.
    remembered: what it spoke last time, whose era is tried first. silence_is_legacy: on a channel
    without statuses a server of the older era may not answer at all (stdio).

    Raises:
        ConfigurationError: *told* is none of the revisions spoken here.
    """

    def __init__(
        self, told: str | None, remembered: str | None, *, silence_is_legacy: bool
    ) -> None:
        if told is not None and told not in REVISIONS:
            raise ConfigurationError(f"revision: {told!r} is none of {', '.join(REVISIONS)}")
        self._told = told
        self._spoken = (*MODERN, *LEGACY) if told is None else (REVISIONS[told],)
        self._silence_is_legacy = silence_is_legacy
        proposed = REVISIONS.get(told or remembered or "", LATEST)
        # A server of the older era may speak a newer revision of it by now than it did.
        self._proposed = proposed if told or proposed.modern else LEGACY[0]
        self._probes = 0
        self._late: Speak | None = None

    def begin(self) -> Decision:
        """Say what to send first."""
        proposed = self._proposed
        return self._probe(proposed) if proposed.modern else Handshake(proposed)

    def probe_answered(self, raw: msgspec.Raw) -> Decision:
        """Learn the result of `server/discover`."""
        try:
            found = _discovered(raw)
        except msgspec.DecodeError as error:
            fault = PeerFault(f"the result of server/discover is not what it must be: {error}")
            return self._older(fault)
        revision = self._newest_of(found.supported_versions)
        if revision is None:
            return GiveUp(self._nothing_common(found.supported_versions))
        if not revision.modern:
            return self._handshake(revision)
        server = _read_server(found.meta.get(SERVER_INFO, _NULL))
        return Speak(revision, server, found.capabilities, found.instructions)

    def probe_refused(self, error: McpError) -> Decision:
        """Learn that the server answered `server/discover` with an error."""
        if error.status in _NOT_OF_AN_ERA:
            return GiveUp(error)
        if error.code in MODERN_CODES:
            # "The client retries with a supported version rather than falling back."
            revision = self._named_by(error)
            if revision is None or self._probes >= _MOST_PROBES:
                return GiveUp(error)
            return self._probe(revision) if revision.modern else self._handshake(revision)
        return self._older(error)

    def probe_failed(self, error: Exception, status: int | None) -> Decision:
        """Learn that the probe was answered by no message at all."""
        if status is None or status in _NOT_OF_AN_ERA:
            return GiveUp(error)
        return self._older(error)

    def probe_silent(self, error: Exception) -> Decision:
        """Learn that the time of the probe is up."""
        return self._older(error) if self._silence_is_legacy else GiveUp(error)

    def ended(self, error: Exception) -> Decision:
        """Learn that the channel ended before anything was agreed on.

        A server of the older era may end for what it did not expect, which is as good as silence.
        """
        return self.probe_silent(error) if self._probes else GiveUp(error)

    def probe_answered_late(self, raw: msgspec.Raw) -> None:
        """Learn the result of `server/discover` when `initialize` is sent already.

        A server that was slow to start: what it says counts if it refuses to initialize.
        """
        decision = self.probe_answered(raw)
        if isinstance(decision, Speak):
            self._late = decision

    def welcomed(self, raw: msgspec.Raw) -> Decision:
        """Learn the result of `initialize`: 2025-11-25, lifecycle, "Version Negotiation"."""
        try:
            welcome: _Welcome = decoder_for(_Welcome).decode(raw)
        except msgspec.DecodeError as error:
            return GiveUp(PeerFault(f"the result of initialize is not what it must be: {error}"))
        version = welcome.protocol_version or self._proposed.version
        revision = REVISIONS.get(version)
        if revision is None or revision.modern:
            return GiveUp(self._nothing_common([version]))
        return Speak(
            revision,
            _read_server(welcome.server_info),
            revision.up(welcome.capabilities),
            welcome.instructions,
        )

    def handshake_refused(self, error: McpError) -> Decision:
        """Learn that the server answered `initialize` with an error."""
        if self._late is not None:
            return self._late
        named = self._named_by(error)
        if named is not None and named.modern and self._probes < _MOST_PROBES:
            return self._probe(named)
        return self.handshake_failed(error, error.status)

    def handshake_failed(self, error: Exception, status: int | None) -> Decision:
        """Learn that `initialize` was not answered.

        What was remembered does not hold then, unless it is no matter of the era.
        """
        if status is None or status in _NOT_OF_AN_ERA or self._probes or self._told is not None:
            return GiveUp(error)
        return self._probe(LATEST)

    def _probe(self, revision: Revision) -> Decision:
        self._probes += 1
        self._proposed = revision
        return Probe(revision)

    def _handshake(self, revision: Revision) -> Decision:
        self._proposed = revision
        return Handshake(revision)

    def _older(self, error: Exception) -> Decision:
        """Fall back to a legacy handshake, unless the caller allows one revision only.

        2026-07-28, server/discover: a server MUST implement it. A server that rejects it does not
        speak the requested revision, and would handle requests without the handshake that it needs.
        """
        if self._told is None:
            return self._handshake(LEGACY[0])
        if not isinstance(error, McpError | TimeoutError):
            return GiveUp(error)  # more specific, such as a wrong path
        code = f" ({error.code})" if isinstance(error, McpError) else ""
        return GiveUp(
            PeerFault(
                f"the server does not speak {self._told}, the only revision allowed (option: "
                f"revision): server/discover failed: {error}{code}"
            )
        )

    def _newest_of(self, versions: Sequence[Any]) -> Revision | None:
        """Return the newest revision that both sides speak."""
        return next((each for each in self._spoken if each.version in versions), None)

    def _named_by(self, error: McpError) -> Revision | None:
        """Return the newest of those that an UnsupportedProtocolVersionError offers."""
        if error.code != _UNSUPPORTED_VERSION or not isinstance(error.data, dict):
            return None
        supported = error.data.get("supported")
        return self._newest_of(supported) if isinstance(supported, list) else None

    def _nothing_common(self, versions: Sequence[str]) -> PeerFault:
        theirs = ", ".join(versions) or "none"
        ours = ", ".join(each.version for each in self._spoken)
        return PeerFault(f"the server speaks no revision that this client does: {theirs}; {ours}")


def _discovered(raw: msgspec.Raw) -> _Discovered:
    found: _Discovered = decoder_for(_Discovered).decode(raw)
    return found


def _read_server(raw: msgspec.Raw) -> Implementation | None:
    """Return who the server says it is; it is for display, so a faulty name is none."""
    try:
        server: Implementation = decoder_for(Implementation).decode(raw)
    except msgspec.DecodeError:
        return None
    return server


class DispatchOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a client's machine behaves; times in seconds, 0 is no limit where it says so.

    revision: the revision to speak; an older one is proposed, and the server's answer counts.
    remembered: what this server spoke last time, tried first, and found anew if it does not hold.
    probe_timeout: how long a server without HTTP statuses may leave `server/discover` unanswered
        before it is taken for an older one. connect_timeout: ... any other message until then.
    max_pending: how many requests may be unanswered at once (0: no limit).
    max_asked: how many requests of the server may wait for this side.
    max_depth: how deep a message may nest.
    """

    revision: str | None = None
    remembered: str | None = None
    probe_timeout: float = 5.0
    connect_timeout: float = 60.0
    max_pending: int = 0
    max_asked: int = 64
    max_depth: int = 64


class TransportFailure(msgspec.Struct, frozen=True):
    """Why a transport has no answer to a request.

    status: the HTTP status, where there was one. sent: whether the request may have reached the
    server. session: whether the server said that it does not know the session any more.
    """

    error: Exception
    status: int | None = None
    sent: bool = True
    session: bool = False


class Connecting:
    """Brings one connection about.

    revision: what is spoken, or proposed so far. server: what is known of who speaks it.
    renewed: whether a session was begun in place of another, and nothing was answered in it yet.
    """

    def __init__(
        self,
        lifecycle: Lifecycle,
        pending: PendingRequests,
        encoder: ClientEncoder,
        options: DispatchOptions,
        *,
        per_message: bool,
    ) -> None:
        self._lifecycle = lifecycle
        self._pending = pending
        self._encoder = encoder
        self._options = options
        self._per_message = per_message
        self._opening = self._opening_of(options.remembered)
        self.revision: Revision = LATEST
        self.server: Connected | None = None
        self.renewed = False
        self._restarted = False

    def begin(self, now: float) -> list[Outcome]:
        """Send the first message."""
        self._lifecycle.take(Step.BEGIN)
        return self._carry_out(self._opening.begin(), now)

    def renew(self, error: Exception, now: float) -> list[Outcome]:
        """Open another session, since the server does not know this one any more: *error*.

        2025-11-25, transports, "Session Management", point 4. A server that forgets each new
        session at once is not tried again. The revision is negotiated anew: a server that lost its
        sessions was restarted, and may be another version.
        """
        if self.renewed:
            return self.give_up(error)
        self.renewed = True
        self._lifecycle.take(Step.RENEW)
        self._opening = self._opening_of(None)
        return [Reset(error), *self._carry_out(self._opening.begin(), now)]

    def forget(self) -> None:
        """Know nothing of the server any more but what it spoke."""
        remembered = self._options.remembered if self.server is None else self.server.revision
        self._opening = self._opening_of(remembered)
        self.server = None
        self.renewed = False
        self._restarted = False

    def answered(
        self, request: Pending, message: Message, status: int, now: float
    ) -> list[Outcome]:
        """Learn the answer to a request that was sent here."""
        opening = self._opening
        said = message.error
        error = None if said is None else error_of(request, said, status)
        if request.method == "initialize":
            decision = (
                opening.welcomed(message.result)
                if error is None
                else opening.handshake_refused(error)
            )
        elif self._lifecycle.state is State.INITIALIZING:
            if error is None:
                opening.probe_answered_late(message.result)
            return []
        else:
            decision = (
                opening.probe_answered(message.result)
                if error is None
                else opening.probe_refused(error)
            )
        return self._carry_out(decision, now)

    def failed(self, request: Pending, failure: TransportFailure, now: float) -> list[Outcome]:
        """Learn that there is no answer to a request that was sent here."""
        if request.method == "initialize":
            decision = self._opening.handshake_failed(failure.error, failure.status)
        elif self._lifecycle.state is State.INITIALIZING:
            return []
        else:
            decision = self._opening.probe_failed(failure.error, failure.status)
        return self._carry_out(decision, now)

    def timed_out(self, request: Pending, now: float) -> list[Outcome]:
        """Learn that the time of a request that was sent here is up.

        It is not cancelled: 2025-11-25, cancellation, "MUST NOT" for `initialize`; and a server
        that does not know `server/discover` need not know what cancelling it means.
        """
        error = TimeoutError(f"no answer to {request.method} within {request.allowed:g} s")
        if request.method == "initialize":
            return self.give_up(error)
        decision = self._opening.probe_silent(error)
        self._pending.keep(request)
        return self._carry_out(decision, now)

    def give_up(self, error: Exception) -> list[Outcome]:
        """Fail, and every request with it."""
        self._lifecycle.take(Step.FAIL, error)
        ended = [RequestFailed(each.id, error, may_have_run=True) for each in self._pending.clear()]
        return [*ended, ConnectionFailed(error)]

    def lose(self, error: Exception | None) -> list[Outcome]:
        """Learn that the transport has ended, of itself or, without *error*, by the server."""
        was = self._lifecycle.state
        lost = error or PeerFault("the server has ended the connection")
        ended: list[Outcome] = [
            RequestFailed(each.id, lost, may_have_run=True) for each in self._pending.clear()
        ]
        if was in (State.PROBING, State.INITIALIZING) and self._may_restart(lost):
            self._restarted = True
            self._lifecycle.take(Step.RESTART)
            return [*ended, Restart(lost)]
        self._lifecycle.take(Step.LOSE, None if was is State.CLOSING else lost)
        if was in (State.CLOSED, State.FAILED):
            return ended
        if self._lifecycle.state is State.FAILED:
            return [*ended, ConnectionFailed(lost)]
        return [*ended, Disconnected(None if was is State.CLOSING else lost)]

    def _may_restart(self, error: Exception) -> bool:
        """Whether to try again, once, with what a server of the older era expects."""
        return not self._restarted and isinstance(self._opening.ended(error), Handshake)

    def _opening_of(self, remembered: str | None) -> Opening:
        told = self._options.revision
        return Opening(told, remembered, silence_is_legacy=not self._per_message)

    def _carry_out(self, decision: Decision, now: float) -> list[Outcome]:
        if isinstance(decision, GiveUp):
            return self.give_up(decision.error)
        self.revision = decision.revision
        if isinstance(decision, Probe):
            self._lifecycle.take(Step.PROBE)
            return [self._probe(now)]
        if isinstance(decision, Handshake):
            self._lifecycle.take(Step.HANDSHAKE)
            return [self._hello(now)]
        return self._connect(
            Connected(
                self.revision.version,
                decision.server,
                decision.capabilities,
                decision.instructions,
            )
        )

    def _probe(self, now: float) -> Send:
        options = self._options
        seconds = options.connect_timeout if self._per_message else options.probe_timeout
        request = self._add("server/discover", now, seconds)
        message = self._encoder.request(self.revision, request.id, request.method, None, {})
        return Send(message, request.id, request.method, revision=self.revision.version)

    def _hello(self, now: float) -> Send:
        request = self._add("initialize", now, self._options.connect_timeout)
        message = self._encoder.hello(self.revision, request.id)
        return Send(message, request.id, request.method)

    def _add(self, method: str, now: float, seconds: float) -> Pending:
        timeouts = Timeouts(idle=None, total=seconds)
        return self._pending.add(method, self.revision, now=now, timeouts=timeouts, opening=True)

    def _connect(self, connected: Connected) -> list[Outcome]:
        self._lifecycle.take(Step.CONNECT)
        self.server = connected
        for request in self._pending:
            if request.opening:  # a probe that is not answered yet, and need not be
                self._pending.remove(request)
        if self.revision.modern:
            return [connected]
        method = "notifications/initialized"
        message = self._encoder.notification(self.revision, method, None)
        return [Send(message, method=method, revision=self.revision.version), connected]
