"""The running calls of legacy sessions."""

from threading import Lock
from typing import Protocol

from genmcp.core.call import CallEvent
from genmcp.core.request import Request
from genmcp.protocol.meta import RequestId

__all__ = ["CallRegistry"]


class Cancellable(Protocol):
    """A running call."""

    request: Request

    def cancel(self, event: CallEvent) -> None:
        """Report *event*, a cancellation, from any thread; ignored if it has ended by then."""


class CallRegistry:
    """The running calls of sessions, so that their clients can cancel them. Owned by the mux.

    Thread-safe, since the calls of a session may run on several event loops.
    """

    def __init__(self) -> None:
        self._calls: dict[str, dict[Cancellable, None]] = {}
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._calls)

    def add(self, session: str, call: Cancellable) -> None:
        """Register a running *call* of *session*."""
        with self._lock:
            self._calls.setdefault(session, {})[call] = None

    def discard(self, session: str, call: Cancellable) -> None:
        """Unregister a *call* that has ended, or cannot be cancelled any more."""
        with self._lock:
            calls = self._calls.get(session)
            if calls is not None:
                calls.pop(call, None)
                if not calls:
                    del self._calls[session]

    def cancel(self, session: str, id: RequestId | None = None) -> None:
        """Cancel the call *id* of *session* in this process, or all calls of the session.

        A call that is cancelled gets no response, whatever its hook returns. An unknown id is
        ignored (2025-11-25, cancellation, "Behavior Requirements"). If two calls have the same id,
        which the specification forbids, both are cancelled.
        """
        with self._lock:
            calls = list(self._calls.get(session, ()))
        for call in calls:
            if id is None or id == call.request.id:
                call.cancel(CallEvent.CANCEL)
