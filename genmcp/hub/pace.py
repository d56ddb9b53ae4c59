"""How time passes between attempts at something."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import msgspec
from msgspec import UNSET

from genmcp.client.errors import RequestTimeout
from genmcp.client.requests import Wait
from genmcp.hub.config import Retry

__all__ = ["LIVED", "Again", "Deadline", "Pace"]

LIVED: Final = 60.0
"""After how many seconds a connection, or a stream, has lasted: it is as good as the first."""

#: After what time a stream that has ended is begun again.
_WAITS: Final = Retry(base_delay=1.0, cap=60.0, jitter=0.5)


class Pace(msgspec.Struct, frozen=True):
    """How time passes between attempts to connect: *sleep*, and *chance*, below 1, for jitter."""

    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    chance: Callable[[], float] = random.random

    async def wait(self, retry: Retry, attempt: int) -> None:
        """Wait as long as *retry* says there is before *attempt*, from 0."""
        await self.sleep(retry.delay(attempt, self.chance()))


class _Unconnected(RequestTimeout):
    """There was no connection in time."""

    sent = False


class Deadline:
    """When a request is to be over: after *seconds*, if they are a number, from now."""

    def __init__(self, seconds: Wait = UNSET) -> None:
        self._seconds = seconds
        self._until: float | None = None
        if isinstance(seconds, int | float):
            self._until = asyncio.get_running_loop().time() + seconds

    @property
    def left(self) -> Wait:
        """What a client is to be told: the seconds that are left."""
        if self._until is None:
            return self._seconds
        left = self._until - asyncio.get_running_loop().time()
        return max(round(left, 2), 0.001)

    @asynccontextmanager
    async def limit(self, where: str) -> AsyncIterator[None]:
        """Wait no longer for a connection to *where*.

        Raises:
            RequestTimeout: the time is over.
        """
        try:
            async with asyncio.timeout_at(self._until):
                yield
        except TimeoutError:
            assert isinstance(self._seconds, int | float)
            raise _Unconnected("connecting again", where, self._seconds) from None


class Again:
    """The waits between streams, each begun when the one before has ended: ever longer."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace
        self._failures = 0
        self._began = asyncio.get_running_loop().time()

    async def wait(self) -> None:
        """Wait before the next one, which begins when this returns."""
        loop = asyncio.get_running_loop()
        if loop.time() - self._began > LIVED:
            self._failures = 0
        await self._pace.wait(_WAITS, self._failures)
        self._failures += 1
        self._began = loop.time()
