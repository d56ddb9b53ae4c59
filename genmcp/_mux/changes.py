"""Changes of a server, and the subscribers that are notified of them.

Every change is written to one log of the store. Each process that shares the store reads that log,
once for each of its event loops, and notifies its own subscribers. The changes that a subscriber
has not received yet are a set: a slow subscriber delays no other and needs bounded memory.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager, suppress
from functools import partial
from threading import Lock
from typing import Final

import msgspec

from genmcp._core.subscription import EVERYTHING, ServerChange
from genmcp._core.task import Task
from genmcp._mux.limits import Limits
from genmcp._mux.threads import Multimap
from genmcp.cancellation import cancel_and_wait
from genmcp.channel import Listener
from genmcp.errors import StoreError, StoreUnavailable
from genmcp.stores.following import RETRY_DELAY, follow
from genmcp.stores.store import Append, LogEvent, Store

logger = logging.getLogger("genmcp")

_CLOSE_TIMEOUT: Final = 1.0  # seconds for pending writes when the mux is closed

_encode: Final = msgspec.msgpack.Encoder().encode
_decode_change: Final = msgspec.msgpack.Decoder(ServerChange).decode


class Subscription(msgspec.Struct, eq=False):
    """One subscriber, in one event loop: its wanted changes, and those it has not received yet."""

    wanted: frozenset[ServerChange]
    _pending_changes: dict[ServerChange, None] = {}
    _pending_tasks: dict[str, Task] = {}
    _waiter: "asyncio.Future[None] | None" = None

    def notify(self, changes: Iterable[ServerChange] = (), task: Task | None = None) -> None:
        """Add *changes*, and the new state of *task*.

        A change that is pending already is received once. Only the newest state of a task is
        received.
        """
        self._pending_changes |= dict.fromkeys(changes)
        if task is not None:
            self._pending_tasks[task.id] = task
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def receive(self) -> tuple[Sequence[ServerChange], Sequence[Task]]:
        """Wait for changes, and return all that are pending."""
        if not self._pending_changes and not self._pending_tasks:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        changes, self._pending_changes = self._pending_changes, {}
        tasks, self._pending_tasks = self._pending_tasks, {}
        return [*changes], [*tasks.values()]


class Subscriptions(Listener):
    """The log of a mux's changes, and its subscribers in this process. Owned by the mux.

    Delivery is at least once: a process that has missed changes notifies its subscribers of
    everything that they want. *log* is the name of the log.
    """

    def __init__(self, store: Store, log: str, limits: Limits) -> None:
        self._store = store
        self._log = log
        self._append = partial(Append, log, ttl=limits.replay_ttl, keep=limits.max_replay_events)
        self._keep = limits.max_replay_events
        self._lock = Lock()
        self._unwritten: dict[ServerChange, None] = {}
        self._written_in: asyncio.AbstractEventLoop | None = None
        self._writes: set[asyncio.Task[None]] = set()
        self._followers: dict[asyncio.AbstractEventLoop, _Follower] = {}

    def announce(self, change: ServerChange) -> None:
        """Schedule the write of *change*. If no event loop runs, write it before returning."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            loop = None
        with self._lock:
            if len(self._unwritten) >= self._keep:
                self._unwritten = {EVERYTHING: None}  # more than the log retains
            self._unwritten[change] = None
            is_coming = loop is self._written_in
            self._written_in = loop
        if loop is None:
            asyncio.run(self._write(once=True))
        elif not is_coming:
            writer = loop.create_task(self._write())
            self._writes.add(writer)
            writer.add_done_callback(self._writes.discard)

    async def _write(self, *, once: bool = False) -> None:
        """Write all changes that are not written yet. Unless *once*, retry until they are."""
        while True:
            with self._lock:
                changes, self._unwritten = self._unwritten, {}
                self._written_in = None
            if not changes:
                return  # another event loop has written the changes of all loops
            try:
                await self._store.apply(*(self._append(_encode(change)) for change in changes))
                return
            except StoreError as error:
                if self._store.outages.closed:  # no process will learn of them from this one
                    return
                logger.warning("%d changes cannot be announced yet: %s", len(changes), error)
                with self._lock:
                    unwritten = {**changes, **self._unwritten}
                    too_many = len(unwritten) >= self._keep
                    self._unwritten = {EVERYTHING: None} if too_many else unwritten
                    # The changes of other event loops wait for this write, or for their own.
                    self._written_in = None if once else asyncio.get_running_loop()
                if once:  # the next change is written together with these
                    return
                await asyncio.sleep(RETRY_DELAY)

    async def aclose(self) -> None:
        """Cancel the pending writes of this event loop, after one more second.

        Their changes are written with the next change, if there is one.
        """
        here = asyncio.get_running_loop()
        if own := [each for each in [*self._writes] if each.get_loop() is here]:
            await asyncio.wait(own, timeout=_CLOSE_TIMEOUT)
            await cancel_and_wait(*own)
            with self._lock:
                if self._written_in is here:
                    self._written_in = None

    def listening(
        self, wanted: Iterable[ServerChange]
    ) -> AbstractAsyncContextManager[Subscription]:
        """Yield a subscription that receives every change announced while this is entered.

        Raises:
            StoreUnavailable: the store could not be reached.
        """
        return self._follower().listening(wanted)

    def change(self, subscription: Subscription, wanted: Iterable[ServerChange]) -> None:
        """Replace the wanted changes of *subscription*, which belongs to this event loop."""
        self._follower().change(subscription, frozenset(wanted))

    def _follower(self) -> "_Follower":
        loop = asyncio.get_running_loop()
        with self._lock:
            follower = self._followers.get(loop)
            if follower is None:
                for closed in [each for each in self._followers if each.is_closed()]:
                    del self._followers[closed]
                follower = self._followers[loop] = _Follower(self._store, self._log)
            return follower


class _Follower(msgspec.Struct, eq=False):
    """The reader of the log in an event loop. Runs while there are subscribers."""

    _store: Store
    _log: str
    # Each listener is registered for its wanted changes, and for EVERYTHING.
    _listeners: Multimap[ServerChange, Subscription] = msgspec.field(default_factory=Multimap)
    _lock: asyncio.Lock = msgspec.field(default_factory=asyncio.Lock)
    _following: "asyncio.Task[None] | None" = None

    @asynccontextmanager
    async def listening(self, wanted: Iterable[ServerChange]) -> AsyncIterator[Subscription]:
        # Several subscribers may begin while the first of them waits for the store.
        async with self._lock:
            if self._following is None:
                after = await self._end()
                self._following = asyncio.get_running_loop().create_task(self._follow(after))
        subscription = Subscription(frozenset(wanted))
        self._add(subscription)
        try:
            yield subscription
        finally:
            self._remove(subscription)
            if not self._listeners and self._following is not None:
                task, self._following = self._following, None
                await cancel_and_wait(task)

    def change(self, subscription: Subscription, wanted: frozenset[ServerChange]) -> None:
        self._remove(subscription)
        subscription.wanted = wanted
        self._add(subscription)

    def _add(self, subscription: Subscription) -> None:
        for change in (EVERYTHING, *subscription.wanted):
            self._listeners.add(change, subscription)

    def _remove(self, subscription: Subscription) -> None:
        for change in (EVERYTHING, *subscription.wanted):
            self._listeners.discard(change, subscription)

    def _notify(self, change: ServerChange) -> None:
        for subscription in self._listeners.of(change):
            subscription.notify(subscription.wanted if change == EVERYTHING else (change,))

    async def _follow(self, after: str | None) -> None:
        missed = False
        with suppress(StoreUnavailable):  # the store was closed
            async with aclosing(follow(self._store, self._log, after)) as items:
                async for item in items:
                    if isinstance(item, LogEvent):
                        if not missed:
                            self._notify(_change(item.data))
                    elif item is None:
                        # Only now: a change that is stored meanwhile is announced twice, but never
                        # lost.
                        missed = False
                        self._notify(EVERYTHING)
                    else:
                        missed = True

    async def _end(self) -> str | None:
        """Return the id of the last change, after which a new subscriber starts."""
        after: str | None = None
        async with aclosing(follow(self._store, self._log, catch_up=True)) as items:
            async for item in items:
                if isinstance(item, StoreUnavailable):
                    raise item
                if item is None:
                    break
                after = item.id if isinstance(item, LogEvent) else None
        return after


def _change(data: bytes) -> ServerChange:
    try:
        return _decode_change(data)
    except msgspec.DecodeError:
        return EVERYTHING  # another release has written the change, in another format
