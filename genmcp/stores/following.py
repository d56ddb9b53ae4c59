"""Following a log across failures of its store, and past events that were dropped."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, aclosing, suppress
from typing import Final, TypeAlias, TypeVar

from genmcp.errors import LogTruncated, StoreUnavailable
from genmcp.stores.clocks import WakeSignal
from genmcp.stores.store import LogEvent, Store

T = TypeVar("T")

PAGE: Final = 100
"""The events that a follower reads at once, and then yields."""

ROW_RETENTION: Final = 3600.0
"""Seconds for which a store remembers where an expired log has ended."""

# Seconds after which a follower reads its log although nothing was appended: its position then
# stays newer than any log whose row is deleted meanwhile.
_REFRESH: Final = ROW_RETENTION / 6

RETRY_DELAY: Final = 1.0
"""Seconds after which an operation is repeated that the store could not perform."""

_READ_AT_ONCE: Final = 500

Position: TypeAlias = str | int | None
"""Where a store reads a log: an id that a caller gave, None for the beginning, or a number.

The number is the position of a follower, which may be later than the last event of its log.
"""

Followed: TypeAlias = LogEvent | LogTruncated | StoreUnavailable | None


async def follow(
    store: Store, log: str, after: str | None = None, *, catch_up: bool = False
) -> AsyncGenerator[Followed, None]:
    """Yield the events of *log* that follow *after*, then each new one, until this is closed.

    An event is yielded once, and in order, unless events were dropped. Failures are not logged
    here, where thousands of followers notice the same one: the store logs its outages.

    Args:
        store: has the log.
        log: as for `Store.follow`.
        after: as for `Store.follow`.
        catch_up: whether None is yielded after the events that are stored at the beginning.

    Yields:
        A LogEvent, or the reason of an interruption. After LogTruncated, events were dropped before
        they were read: the oldest event that is retained is the next, which may have been yielded
        before. After StoreUnavailable, the log is followed again from the last event. After the
        stored events that follow an interruption, None is yielded: a follower whose state may be
        out of date reads it then, at the latest.

    Raises:
        StoreUnavailable: the store was closed.
    """
    while True:
        try:
            while catch_up:
                events = await store.read(log, after, _READ_AT_ONCE)
                for event in events:
                    after = event.id
                    yield event
                if len(events) < _READ_AT_ONCE:
                    catch_up = False
                    yield None
            async with aclosing(store.follow(log, after)) as following:
                async for event in following:
                    after = event.id
                    yield event
        except LogTruncated as error:
            after, catch_up = None, True
            yield error
        except StoreUnavailable as error:
            if store.outages.closed:
                raise
            catch_up = True
            yield error
            await asyncio.sleep(RETRY_DELAY)


async def follow_pages(
    waiting: Callable[[], AbstractContextManager[WakeSignal]],
    read: Callable[[T], Awaitable[tuple[T, Sequence[LogEvent]]]],
    position: T,
) -> AsyncGenerator[LogEvent, None]:
    """Yield the events of a log, for `Store.follow` of a store that reads it in pages.

    Args:
        waiting: returns a signal that is set by each append, while it is entered.
        read: returns up to `PAGE` events after a position, and the position to continue from.
        position: the first one.
    """
    with waiting() as signal:
        while True:
            signal.clear()  # before the read: see WakeSignal
            position, events = await read(position)
            for event in events:
                yield event
            if len(events) < PAGE:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_REFRESH):
                        await signal.wait()


async def retry_read(store: Store, read: Callable[[], Awaitable[T]]) -> T:
    """Return the result of *read*, which is repeated until *store* is available.

    It is also repeated if it reads a log that drops events meanwhile.

    Raises:
        StoreUnavailable: the store was closed.
    """
    while True:
        try:
            return await read()
        except (StoreUnavailable, LogTruncated):
            if store.outages.closed:
                raise
            await asyncio.sleep(RETRY_DELAY)
