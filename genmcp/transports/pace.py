"""Things that come no faster than so many a second."""

import asyncio
import time
from collections.abc import Callable
from math import inf

from genmcp.core.request import Request

__all__ = ["Newest", "Pace"]


class Pace:
    """Lets *rate* things pass in a second, evenly."""

    __slots__ = ("_gap", "_next")

    def __init__(self, rate: float) -> None:
        self._gap = 1 / rate
        self._next = -inf

    def delay(self) -> float:
        """Return for how many seconds nothing passes; 0 means that this one passes now."""
        if not self._gap:
            return 0.0
        now = time.monotonic()
        if now < self._next:
            return self._next - now
        self._next = now + self._gap
        return 0.0

    def turn(self) -> float:
        """Return in how many seconds it is the turn of this one, which waits until then."""
        if not self._gap:
            return 0.0
        now = time.monotonic()
        at = max(now, self._next)
        self._next = at + self._gap
        return at - now


class Newest:
    """The newest progress of each request, while there is no time or no room for it.

    rate: how many are said in a second. say: says one.
    """

    __slots__ = ("_kept", "_pace", "_rate", "_say", "_timer")

    def __init__(self, rate: float, say: Callable[[bytes], None]) -> None:
        self._rate = rate
        self._say = say
        # Most responses send no progress: the state for it is made with the first notification.
        self._pace: Pace | None = None
        self._kept: dict[Request, bytes] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def offer(self, request: Request, message: bytes, *, room: bool) -> None:
        """Say *message*, or keep it instead of older until there is time and *room*."""
        if room and not self._kept and not self._wait():
            self._say(message)
        elif self._kept is None:
            self._kept = {request: message}
        else:
            self._kept[request] = message

    def say(self) -> None:
        """Say what is kept, now that there is room for it, or as soon as its time has come."""
        if self._kept and not self._wait():
            kept, self._kept = self._kept, {}
            for message in kept.values():
                self._say(message)

    def finish(self, request: Request) -> None:
        """Say what is kept of *request*, whose answer comes next."""
        if self._kept and request in self._kept:
            self._say(self._kept.pop(request))

    def close(self) -> None:
        """Say no more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._say = _drop

    def _wait(self) -> bool:
        """Return whether it is too early; it is tried again when it is not."""
        if self._timer is not None:
            return True
        self._pace = self._pace or Pace(self._rate)
        delay = self._pace.delay()
        if delay:
            self._timer = asyncio.get_running_loop().call_later(delay, self._on_time)
        return delay > 0

    def _on_time(self) -> None:
        self._timer = None
        self.say()


def _drop(message: bytes) -> None:
    """Send nothing: the response is over."""
