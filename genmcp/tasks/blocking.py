"""The threads of `def` jobs, which cannot be stopped from outside."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from threading import Lock
from typing import Any

__all__ = ["Blocking", "StillRuns", "Threads"]


class StillRuns(asyncio.CancelledError):
    """A `def` job was cancelled, and its thread continues."""


class Blocking:
    """One call of a `def` job in a thread. Created on the event loop that waits for it."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self._loop = asyncio.get_running_loop()
        self._lock = Lock()
        self._begun = self._given_up = False
        self._ended = asyncio.Event()

    def __call__(self) -> Any:
        """Make the call, in the thread, unless it was given up."""
        with self._lock:
            if self._given_up:
                return None
            self._begun = True
        try:
            return self._call()
        finally:
            with suppress(RuntimeError):  # the loop was closed: there is no waiter
                self._loop.call_soon_threadsafe(self._ended.set)

    @property
    def runs(self) -> bool:
        """Whether the call is running in a thread."""
        return self._begun and not self._ended.is_set()

    async def ends(self, within: float) -> bool:
        """Wait up to *within* seconds for the thread to end; return whether it has ended."""
        with suppress(TimeoutError):
            async with asyncio.timeout(within):
                if self.runs:
                    await self._ended.wait()
        return not self.runs

    async def ended_soon(self, within: float) -> bool:
        """Give up the call; return whether it is not running *within* seconds from now.

        A cancellation in the meantime only ends the wait: the caller is being cancelled already.
        """
        with self._lock:
            self._given_up = True
        with suppress(asyncio.CancelledError):
            await self.ends(within)
        return not self.runs


class Threads:
    """The calls of `def` jobs that were given up while their threads continue. One per process."""

    def __init__(self) -> None:
        self._left: dict[str, Blocking] = {}

    def leave(self, id: str, call: Blocking) -> None:
        """Register that the *call* for the job *id* continues."""
        self._left = {each: left for each, left in self._left.items() if left.runs}
        self._left[id] = call

    async def end(self, id: str, within: float) -> bool:
        """Wait up to *within* seconds for a call left by job *id*; return whether it ended."""
        left = self._left.get(id)
        return left is None or await left.ends(within)
