"""The base of the contract suites of stores, and the helpers that several of them use."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Coroutine
from typing import Any, Final

from genmcp.stores.store import LogEvent, Store, StoreEntry

BOUND: Final = 30.0
"""Seconds after which a test that waits fails."""

CAPACITY: Final = 1_000_000
"""Bytes that the store under test may hold."""


class StoreBench:
    """A store under test, and how its time passes. The base class of the contract suites.

    A subclass provides a pytest fixture `store`, a new and empty store for each test that is closed
    after it. Its capacity is `CAPACITY` bytes.

    Attributes:
        unit: seconds. Every ttl, delay and lease that a test waits for is a multiple of it, up to
            40 times. A store with a real clock needs about 0.25: a tenth of a ttl has to be longer
            than a few operations take. Default 1.0, for a clock that `advance` sets.
    """

    unit: float = 1.0

    async def advance(self, seconds: float) -> None:
        """Let *seconds* pass by the clock of the store (`Store.now`). Default: sleep."""
        await asyncio.sleep(seconds)


async def entry_of(store: Store, key: str) -> StoreEntry:
    """Return the record under *key*, which must exist."""
    found = await store.get(key)
    assert found is not None
    return found


async def keys_of(
    store: Store, label: str, after: str | None = None, limit: int = 100
) -> list[str]:
    """Return the keys of a page of records with *label*."""
    return [each.key for each in await store.find(label, after, limit)]


async def data_of(store: Store, log: str, after: str | None = None) -> list[bytes]:
    """Return the data of the events of *log* after *after*."""
    return [event.data for event in await store.read(log, after)]


async def take(followed: AsyncGenerator[LogEvent, None], count: int) -> list[bytes]:
    """Return the data of the next *count* events."""
    async with asyncio.timeout(BOUND):
        return [(await anext(followed)).data for _ in range(count)]


async def until_waiting(store: Store) -> None:
    """Let the other tasks run until they wait, as far as that can be known from outside.

    A store with a server may still be busy with their requests: a test must not depend on it.
    """
    for _ in range(5):
        await store.get("")  # earlier operations have completed
        for _ in range(5):
            await asyncio.sleep(0)


def in_another_loop(work: Coroutine[Any, Any, None]) -> Awaitable[None]:
    """Run *work* in an event loop of another thread."""
    return asyncio.to_thread(asyncio.run, work)
