"""Who listens to a server, and how they hear of its changes: through one log of the store.

Every process that shares the store reads that log, once for each event loop it serves on, and
tells its own listeners. Nothing waits for a listener: what one has not yet been told is a set.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import aclosing, asynccontextmanager
from threading import Lock
from typing import Final

import msgspec

from genmcp.core.subscription import EVERYTHING, Change
from genmcp.errors import Gap, StoreError
from genmcp.stores.store import Append, Store
from genmcp.subscription import Listener

__all__ = ["Subscription", "Subscriptions"]

logger = logging.getLogger("genmcp")

_AGAIN: Final = 1.0
"""After how many seconds a store that could not be reached is tried again."""
_READ_AT_ONCE: Final = 1000

_encode = msgspec.msgpack.Encoder().encode
_decoder = msgspec.msgpack.Decoder(Change)


class Subscription:
    """One listener, in one event loop: what it wants to hear of, and has not yet been told."""

    __slots__ = ("_pending", "_waiter", "wanted")

    def __init__(self, wanted: Iterable[Change]) -> None:
        self.wanted = frozenset(wanted)
        self._pending: dict[Change, None] = {}
        self._waiter: asyncio.Future[None] | None = None

    def tell(self, changes: Iterable[Change]) -> None:
        """Let it know of *changes*; one that it has still to be told of is told once."""
        self._pending |= dict.fromkeys(changes)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def news(self) -> Sequence[Change]:
        """Return what it has to be told, as soon as there is something."""
        if not self._pending:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        pending, self._pending = self._pending, {}
        return [*pending]


class Subscriptions(Listener):
    """The listeners of one mux. *log* is the log of its changes.

    It is kept for *ttl* seconds, *keep* changes of it: a process that falls further behind than
    that tells its listeners of everything, because it does not know what it has missed.
    """

    def __init__(self, store: Store, log: str, *, ttl: float, keep: int) -> None:
        self._store = store
        self._log = log
        self._ttl = ttl
        self._keep = keep
        self._lock = Lock()
        self._unwritten: dict[Change, None] = {}
        self._written_in: asyncio.AbstractEventLoop | None = None
        self._writers: set[asyncio.Task[None]] = set()
        self._followers: dict[asyncio.AbstractEventLoop, _Follower] = {}

    def announce(self, change: Change) -> None:
        """Write *change* to the log, soon; where no event loop runs, before this returns."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        with self._lock:
            if len(self._unwritten) >= self._keep:
                self._unwritten = {EVERYTHING: None}  # the log would drop the oldest of them
            self._unwritten[change] = None
            is_coming = loop is self._written_in
            self._written_in = loop
        if loop is None:
            asyncio.run(self._write())
        elif not is_coming:
            writer = loop.create_task(self._write())
            self._writers.add(writer)
            writer.add_done_callback(self._writers.discard)

    async def _write(self) -> None:
        with self._lock:
            changes, self._unwritten = self._unwritten, {}
            self._written_in = None
        if not changes:
            return  # those of another event loop have been written with this one's
        try:
            await self._store.apply(
                *(
                    Append(self._log, _encode(change), ttl=self._ttl, keep=self._keep)
                    for change in changes
                )
            )
        except StoreError as error:
            logger.warning("listeners are not told of %d changes: %s", len(changes), error)

    @asynccontextmanager
    async def listening(self, wanted: Iterable[Change]) -> AsyncIterator[Subscription]:
        """Give a subscription that hears of whatever is announced once this has begun.

        Raises:
            Unavailable: the store could not be reached.
        """
        follower = self._follower()
        subscription = Subscription(wanted)
        await follower.join(subscription)
        try:
            yield subscription
        finally:
            follower.leave(subscription)

    def change(self, subscription: Subscription, wanted: Iterable[Change]) -> None:
        """Let *subscription*, one of this event loop, hear of something else from now on."""
        self._follower().change(subscription, frozenset(wanted))

    def _follower(self) -> "_Follower":
        loop = asyncio.get_running_loop()
        with self._lock:
            follower = self._followers.get(loop)
            if follower is None:
                for dead in [each for each in self._followers if each.is_closed()]:
                    del self._followers[dead]  # it took its listeners along
                follower = self._followers[loop] = _Follower(self._store, self._log)
            return follower


class _Follower:
    """The one reader of the log in an event loop, for as long as somebody listens there."""

    def __init__(self, store: Store, log: str) -> None:
        self._store = store
        self._log = log
        self._listeners: dict[Change, dict[Subscription, None]] = {}
        self._all: dict[Subscription, None] = {}
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    async def join(self, subscription: Subscription) -> None:
        async with self._lock:
            if self._task is None:
                after = await self._end()
                self._task = asyncio.get_running_loop().create_task(self._follow(after))
        self._all[subscription] = None
        self._add(subscription)

    def leave(self, subscription: Subscription) -> None:
        del self._all[subscription]
        self._remove(subscription)
        if not self._all and self._task is not None:
            self._task.cancel()
            self._task = None

    def change(self, subscription: Subscription, wanted: frozenset[Change]) -> None:
        self._remove(subscription)
        subscription.wanted = wanted
        self._add(subscription)

    def _add(self, subscription: Subscription) -> None:
        for change in subscription.wanted:
            self._listeners.setdefault(change, {})[subscription] = None

    def _remove(self, subscription: Subscription) -> None:
        for change in subscription.wanted:
            listeners = self._listeners[change]
            del listeners[subscription]
            if not listeners:
                del self._listeners[change]

    def _tell(self, change: Change) -> None:
        if change == EVERYTHING:
            for subscription in self._all:
                subscription.tell(subscription.wanted)
        else:
            for subscription in self._listeners.get(change, ()):
                subscription.tell((change,))

    async def _follow(self, after: str | None) -> None:
        missed = False
        while True:
            try:
                if missed:
                    after = await self._end()
                    self._tell(EVERYTHING)
                    missed = False
                async with aclosing(self._store.follow(self._log, after)) as events:
                    async for event in events:
                        self._tell(_change(event.data))
            except Gap:
                missed = True
            except StoreError as error:
                missed = True
                logger.warning("changes cannot be followed, and are tried again: %s", error)
                await asyncio.sleep(_AGAIN)

    async def _end(self) -> str | None:
        """Return the id of the last change there is: who joins hears of those behind it."""
        after: str | None = None
        while True:
            try:
                events = await self._store.read(self._log, after, limit=_READ_AT_ONCE)
            except Gap:
                after = None  # it was dropped meanwhile
                continue
            if not events:
                return after
            after = events[-1].id


def _change(data: bytes) -> Change:
    try:
        return _decoder.decode(data)
    except msgspec.DecodeError:
        return EVERYTHING  # another release says it in other words
