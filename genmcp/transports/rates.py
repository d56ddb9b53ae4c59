"""Limits on how many messages are sent in a second."""

import asyncio
import time
from collections.abc import Callable
from math import inf

import msgspec

from genmcp.core.request import Request

__all__ = ["LatestProgress", "RateLimiter"]


class RateLimiter(msgspec.Struct):
    """Spreads events evenly: at most *rate* of them in a second."""

    rate: float
    _next: float = -inf

    def delay(self) -> float:
        """Return the seconds until an event is admitted; 0 admits one now."""
        now = time.monotonic()
        if now < self._next:
            return self._next - now
        self._next = now + 1 / self.rate
        return 0.0

    def turn(self) -> float:
        """Reserve the next place for an event; return the seconds that it has to wait."""
        now = time.monotonic()
        at = max(now, self._next)
        self._next = at + 1 / self.rate
        return at - now


class LatestProgress(msgspec.Struct):
    """The latest progress of each request that cannot be sent now; earlier progress is dropped.

    limiter: limits how many notifications are sent. send: sends one; None after `close`.
    """

    _limiter: RateLimiter
    _send: Callable[[bytes], None] | None
    _kept: dict[Request, bytes] = {}
    _timer: asyncio.TimerHandle | None = None

    def offer(self, request: Request, message: bytes, *, room: bool) -> None:
        """Send *message*, or keep it in place of an earlier one until there is time and *room*."""
        if room and not self._kept and not self._wait():
            self._say(message)
        else:
            self._kept[request] = message

    def flush(self) -> None:
        """Send what is kept, now that there is room for it, or as soon as its time has come."""
        if self._kept and not self._wait():
            kept, self._kept = self._kept, {}
            for message in kept.values():
                self._say(message)

    def finish(self, request: Request) -> None:
        """Send what is kept of *request*, whose answer is next."""
        if request in self._kept:
            self._say(self._kept.pop(request))

    def close(self) -> None:
        """Send nothing more."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._send = None

    def _say(self, message: bytes) -> None:
        if self._send is not None:
            self._send(message)

    def _wait(self) -> bool:
        """Return whether it is too early; what is kept is sent when it is not."""
        if self._timer is not None:
            return True
        delay = self._limiter.delay()
        if delay:
            self._timer = asyncio.get_running_loop().call_later(delay, self._on_time)
        return delay > 0

    def _on_time(self) -> None:
        self._timer = None
        self.flush()
