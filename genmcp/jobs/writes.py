"""Writes that must not be lost, and are not to be left half done."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeVar

from genmcp.errors import OverShare, StoreFull, Unavailable
from genmcp.jobs.throttle import Throttle

__all__ = ["Writes"]

T = TypeVar("T")

logger = logging.getLogger("genmcp")

_PAUSES: Final = (0.1, 0.5, 2.0)  # seconds between attempts at a write that must not be lost


class Writes:
    """How one process writes what counts.

    patience: for how many seconds a request waits for a store that takes nothing. ending: whether
    this process works no more, so that others find what it has not written.
    """

    def __init__(self, *, patience: float, ending: Callable[[], bool]) -> None:
        self._ending = ending
        self._patience = patience
        self._complaints = Throttle(logger)
        self._going_on: set[asyncio.Task[Any]] = set()

    async def insist(
        self,
        write: Callable[[], Awaitable[T]],
        instead: Callable[[Unavailable], Awaitable[T]] | None = None,
    ) -> T:
        """Write the result of long work, and retry for as long as the store does not accept it.

        Giving up would look as if this process had died. If *instead* is given, it is written when
        the client has used its share of the store, or when the store is still full after `patience`
        seconds: the client would otherwise wait for room that may never come.

        Raises:
            Unavailable: this process stops working.
            OverShare: the client has used its share, and there is no *instead*, or no room for it
                either.
        """
        pauses = iter(_PAUSES)
        begun = time.monotonic()
        while True:
            try:
                return await write()
            except Unavailable as error:
                if self._ending():
                    raise
                waited = time.monotonic() - begun
                full = isinstance(error, StoreFull) and waited >= self._patience
                if instead is not None and (full or isinstance(error, OverShare)):
                    logger.warning("what a task came to has no room: %s", error)
                    write, instead = partial(instead, error), None
                    continue
                if isinstance(error, OverShare):
                    raise
                told = "what a task came to is written again: %s"
                self._complaints.log(logging.WARNING, told, error)
                await asyncio.sleep(next(pauses, _PAUSES[-1]))

    async def patiently(self, write: Coroutine[Any, Any, T]) -> T:
        """Wait a while for *write*, which insists, and goes on when nobody waits for it any more.

        Raises:
            Unavailable: it was not written yet.
        """
        writing = self._begin(write)
        await asyncio.wait({writing}, timeout=self._patience)
        if not writing.done():
            raise Unavailable("the store takes nothing: what a task came to is written later")
        return writing.result()

    async def whole(self, writes: Coroutine[Any, Any, T]) -> T:
        """Let *writes* come to their end, also where whoever wants them is cancelled meanwhile."""
        writing = self._begin(writes)
        try:
            return await asyncio.shield(writing)
        except asyncio.CancelledError:
            await asyncio.wait({writing})
            raise

    def _begin(self, write: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        writing = asyncio.create_task(write)
        self._going_on.add(writing)
        writing.add_done_callback(self._ended)
        return writing

    def _ended(self, writing: "asyncio.Task[Any]") -> None:
        self._going_on.discard(writing)
        if not writing.cancelled() and (error := writing.exception()) is not None:
            logger.debug("a write of a task ended with %r", error)  # who waits for it has it
