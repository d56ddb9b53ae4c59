"""The table of pending calls: the second of the three levels of a response.

A response allocates only what it uses. A call whose hook returns at its first step is answered at
once (level 1, `Responder.serve`). A call that waits becomes *pending* (level 2): it has an entry in
the table of its event loop, and no asyncio.Task, timer or stream, since nearly all calls return
within milliseconds. A call that is still pending after a tick, or that has something to send,
becomes *open* (level 3, `Held`): it then gets a disconnect watch, a heartbeat, a promotion timer
and a writer.
"""

import asyncio
from contextvars import Context, copy_context
from typing import Final, Protocol

__all__ = ["TICK", "PendingCalls"]

TICK: Final = 0.05
"""Seconds for which a call is pending before it is opened."""


class Opening(Protocol):
    """A pending call."""

    def open_call(self) -> None:
        """Make the call open; called on the loop of the call."""


class PendingCalls:
    """The pending calls of one event loop. A single timer serves all of them.

    Every call is pending for the same time, so insertion order is deadline order: a tick looks at
    the calls that are due and at one more. There is no timer while the table is empty.
    """

    __slots__ = ("_calls", "_loop", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._calls: dict[Opening, tuple[float, Context]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, call: Opening) -> None:
        """Add *call*, which is opened after a tick unless it is discarded before.

        It is opened in the context of the caller: what belongs to an open call runs with the
        context variables of its own request, not of the one that started the timer.
        """
        self._calls[call] = self._loop.time() + TICK, copy_context()
        if self._timer is None:
            self._timer = self._loop.call_later(TICK, self._tick, context=Context())

    def discard(self, call: Opening) -> None:
        """Remove *call*, which has returned or is open."""
        self._calls.pop(call, None)

    def open_all(self) -> None:
        """Open every call now, as when the server exits."""
        for call, (_, context) in list(self._calls.items()):
            context.run(call.open_call)

    def _tick(self) -> None:
        self._timer = None
        now = self._loop.time()
        for call, (deadline, context) in self._calls.items():
            if deadline > now:
                self._timer = self._loop.call_at(deadline, self._tick, context=Context())
                break
            # Not called here, so that an error in one leaves the others as they are.
            self._loop.call_soon(call.open_call, context=context)
