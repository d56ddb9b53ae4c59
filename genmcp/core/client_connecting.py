"""How a client's connection comes about: what `Opening` decides, carried out as messages."""

import msgspec

from genmcp.core.client_answers import error_of
from genmcp.core.client_encoder import ClientEncoder
from genmcp.core.client_events import (
    Connected,
    ConnectionFailed,
    Disconnected,
    Outcome,
    RequestFailed,
    Reset,
    Restart,
    Send,
)
from genmcp.core.client_faults import PeerFault
from genmcp.core.client_lifecycle import Lifecycle, State, Step
from genmcp.core.client_opening import Decision, GiveUp, Handshake, Opening, Probe
from genmcp.core.client_pending import Pending, PendingRequests, Timeouts
from genmcp.protocol.revisions.chain import LATEST
from genmcp.protocol.revisions.revision import Revision
from genmcp.wire.jsonrpc import Message

__all__ = ["Connecting", "DispatchOptions", "TransportFailure"]


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
