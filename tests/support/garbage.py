"""Counts objects that only the cyclic garbage collector can free."""

import gc
from collections.abc import Awaitable, Callable, Iterator

import pytest

__all__ = ["kinds", "no_collections"]


@pytest.fixture
def no_collections() -> Iterator[None]:
    """Disable automatic garbage collection during a test, and leave out what exists before it."""
    gc.collect()
    gc.freeze()  # a collection would look at every object of the test process
    gc.disable()
    yield
    gc.enable()


async def kinds(garbage: Callable[[int], Awaitable[int]]) -> str:
    """Return the types of the objects that one call leaves, for the message of a failure."""
    gc.set_debug(gc.DEBUG_SAVEALL)
    try:
        await garbage(1)
        return "\n".join(f"{type(each).__name__}: {each!r:.200}" for each in gc.garbage)
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
