"""Which era a server is of: what a client sends first, and what the answers to that mean.

2026-07-28, basic/versioning, "Backward Compatibility with Initialization-Based Versions";
transports/stdio and transports/streamable-http, "Backward Compatibility".
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from genmcp.core.client_faults import PeerFault
from genmcp.errors import ConfigurationError, McpError
from genmcp.protocol.capabilities import Implementation, ServerCapabilities
from genmcp.protocol.params import SERVER_INFO
from genmcp.protocol.revisions.chain import LATEST, LEGACY, MODERN, REVISIONS
from genmcp.protocol.revisions.revision import Revision
from genmcp.protocol.value import Value, decoder_for

__all__ = ["MODERN_CODES", "Decision", "GiveUp", "Handshake", "Opening", "Probe", "Speak"]

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
