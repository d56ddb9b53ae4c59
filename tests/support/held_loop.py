"""Measures how long the event loop is held."""

import asyncio
import gc
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from time import process_time

__all__ = ["MAX_HELD", "HeldLoop"]

#: The most seconds for which the loop may be held. Coverage measurement slows Python down.
MAX_HELD = 0.05 if sys.gettrace() is None else 0.25


class HeldLoop:
    """The longest time between two turns of the event loop, while it is watched.

    The time is CPU time of the process: other processes of the machine do not count, but threads of
    this one that hold the interpreter do.
    """

    def __init__(self) -> None:
        self.longest = 0.0

    @classmethod
    @asynccontextmanager
    async def watch(cls) -> AsyncIterator["HeldLoop"]:
        """Watch the running loop."""
        held = cls()
        gc.collect()
        gc.disable()  # a collection of all objects of the tests takes as long
        watching = asyncio.ensure_future(held._watch())
        try:
            yield held
        finally:
            gc.enable()
            watching.cancel()

    async def _watch(self) -> None:
        while True:
            began = process_time()
            await asyncio.sleep(0)
            self.longest = max(self.longest, process_time() - began)
