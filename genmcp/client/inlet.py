"""What a transport tells of, given to the machine."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from msgspec.structs import replace

from genmcp.client.errors import ClientError, HttpStatusError, SessionEnded, failure_of
from genmcp.core.client import events
from genmcp.core.client.dispatch import ClientDispatch
from genmcp.wire.jsonrpc import RequestId

__all__ = ["Inlet"]

_ENDS: Final = frozenset(
    {
        events.Answered,
        events.RequestRejected,
        events.RequestFailed,
        events.InputNeeded,
        events.TaskCreated,
    }
)


class Inlet:
    """The sink of a transport: *machine* is told, and *perform* does what it says to that.

    now: tells the time of the event loop. hang_up: ends the response of a request that was answered
    elsewhere; it may be open for ever.
    """

    def __init__(
        self,
        machine: ClientDispatch,
        perform: Callable[[Iterable[Any]], None],
        now: Callable[[], float],
        hang_up: Callable[[RequestId], None],
    ) -> None:
        self._machine = machine
        self._perform = perform
        self._now = now
        self._hang_up = hang_up

    def begin(self) -> None:
        """Find out what the server speaks, now that the transport is open."""
        self._perform(self._machine.begin(self._now()))

    def on_message(self, message: bytes, about: RequestId | None = None) -> bool:
        """Take a message of the server; see `TransportSink.on_message`."""
        self._take(self._machine.received(message, self._now(), about=about), about)
        return about is None or not self._machine.is_pending(about)

    def on_oversized(self, size: int, head: bytes, about: RequestId | None = None) -> bool:
        """Learn of a message that was not read; see `TransportSink.on_oversized`."""
        self._take(self._machine.too_long(size, head, now=self._now(), about=about), about)
        return not self._machine.is_pending(about)

    def on_failure(self, id: RequestId | None, error: ClientError) -> None:
        """Learn that a request, or everything, has failed; see `TransportSink.on_failure`."""
        if id is None:
            self._perform(self._machine.closed(error))
            return
        # An HTTP error may hold the answer; that to a request in a session that is over is none.
        if isinstance(error, HttpStatusError) and not isinstance(error, SessionEnded):
            content, status = error.content, error.status
            if content.lstrip().startswith(b"{"):
                steps = self._machine.received(content, self._now(), about=id, status=status)
                self._perform([_caused(step, error) for step in steps])
        self._perform(self._machine.failed(id, failure_of(error), self._now()))

    def on_lost_notifications(self) -> None:
        """Learn that something was not heard; see `TransportSink.on_lost_notifications`."""
        self._perform([events.NotificationsMissed()])

    def on_session_ended(self, error: ClientError) -> None:
        """Learn that the session is over; see `TransportSink.on_session_ended`."""
        self._perform(self._machine.session_ended(error, self._now()))

    def _take(self, steps: Sequence[Any], about: RequestId | None) -> None:
        self._perform(steps)
        for step in steps:
            if type(step) in _ENDS and step.id != about:
                self._hang_up(step.id)


def _caused(step: Any, error: HttpStatusError) -> Any:
    return replace(step, cause=error) if type(step) is events.RequestRejected else step
