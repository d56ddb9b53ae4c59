"""The table of pending calls: the second of the three levels of a response.

A response allocates only what it uses. A call whose hook returns at its first step is answered at
once (level 1, `Responder.serve`). A call that waits becomes *pending* (level 2): it has an entry in
the table of its event loop, and no asyncio.Task, timer or stream, since nearly all calls return
within milliseconds. A call that is still pending after a tick, or that has something to send,
becomes *open* (level 3, `Held`): it then gets a disconnect watch, a heartbeat, a promotion timer
and a writer.
"""

import asyncio
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

    __slots__ = ("_deadlines", "_loop", "_timer")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._deadlines: dict[Opening, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, call: Opening) -> None:
        """Add *call*, which is opened after a tick unless it is discarded before."""
        self._deadlines[call] = self._loop.time() + TICK
        if self._timer is None:
            self._timer = self._loop.call_later(TICK, self._tick)

    def discard(self, call: Opening) -> None:
        """Remove *call*, which has returned or is open."""
        self._deadlines.pop(call, None)

    def open_all(self) -> None:
        """Open every call now, as when the server exits."""
        for call in list(self._deadlines):
            call.open_call()

    def _tick(self) -> None:
        self._timer = None
        now = self._loop.time()
        due = []
        for call, deadline in self._deadlines.items():
            if deadline > now:
                self._timer = self._loop.call_at(deadline, self._tick)
                break
            due.append(call)
        for call in due:
            call.open_call()
