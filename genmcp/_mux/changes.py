"""Changes of a server, and the subscribers that are notified of them.

Every change is written to one log of the store. Each process that shares the store reads that log
while it has subscribers, and notifies them. The changes that a subscriber has not received yet are
a set: a slow subscriber delays no other and needs bounded memory.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from threading import Lock
from typing import Final

import msgspec

from genmcp._mux.bus import LogFollower
from genmcp._mux.limits import Limits
from genmcp._mux.multimap import Multimap
from genmcp.cancellation import cancel_and_wait
from genmcp.channel import Listener
from genmcp.core.subscription import EVERYTHING, ServerChange
from genmcp.core.task import Task
from genmcp.errors import LogTruncated, StoreError
from genmcp.stores.following import RETRY_DELAY
from genmcp.stores.store import Append, LogEvent, Store

logger = logging.getLogger("genmcp")

_CLOSE_TIMEOUT: Final = 1.0  # seconds for pending writes when the mux is closed

_encode: Final = msgspec.msgpack.Encoder().encode
_decode_change: Final = msgspec.msgpack.Decoder(ServerChange).decode


class Subscription(msgspec.Struct, eq=False):
    """One subscriber: its wanted changes, and those it has not received yet.

    position: the id, in the log, of the last change that was received; None: not known.
    """

    wanted: frozenset[ServerChange]
    position: str | None = None
    _pending_position: str | None = None
    _pending_changes: dict[ServerChange, None] = {}
    _pending_tasks: dict[str, Task] = {}
    _waiter: "asyncio.Future[None] | None" = None

    def notify(
        self,
        changes: Iterable[ServerChange] = (),
        task: Task | None = None,
        *,
        position: str | None = None,
    ) -> None:
        """Add *changes*, up to *position* in the log, and the new state of *task*.

        A change that is pending already is received once. Only the newest state of a task is
        received.
        """
        self._pending_changes |= dict.fromkeys(changes)
        self._pending_position = position or self._pending_position
        if task is not None:
            self._pending_tasks[task.id] = task
        is_pending = self._pending_changes or self._pending_tasks
        if is_pending and self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def receive(self) -> tuple[Sequence[ServerChange], Sequence[Task]]:
        """Wait for changes, and return all that are pending."""
        if not self._pending_changes and not self._pending_tasks:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        changes, self._pending_changes = self._pending_changes, {}
        tasks, self._pending_tasks = self._pending_tasks, {}
        self.position = self._pending_position or self.position
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
        self._writer: asyncio.Task[None] | None = None
        self._follower = LogFollower(store, log, self._handle, self._caught_up)
        # Each subscription is registered for its wanted changes, and for EVERYTHING.
        self._listeners: Multimap[ServerChange, Subscription] = Multimap()
        self._starting: dict[Subscription, None] = {}
        self._position: str | None = None
        self._open = 0

    def announce(self, change: ServerChange) -> None:
        """Schedule the write of *change*. If no event loop runs, write it before returning."""
        with self._lock:
            self._unwritten[change] = None
            if len(self._unwritten) > self._keep:
                self._unwritten = {EVERYTHING: None}  # more than the log retains
            writer = self._writer
            if writer is not None and not writer.done() and not writer.get_loop().is_closed():
                return  # it writes this change as well
            try:
                self._writer = asyncio.get_running_loop().create_task(self._write())
                return
            except RuntimeError:
                pass
        asyncio.run(self._write(once=True))

    async def _write(self, *, once: bool = False) -> None:
        """Write all changes that are not written yet. Unless *once*, retry until they are."""
        while True:
            with self._lock:
                changes, self._unwritten = self._unwritten, {}
                if not changes:
                    self._writer = None
                    return
            try:
                await self._store.apply(*(self._append(_encode(change)) for change in changes))
            except StoreError as error:
                if self._store.outages.closed:  # no process will learn of them from this one
                    return
                logger.warning("%d changes cannot be announced yet: %s", len(changes), error)
                with self._lock:
                    self._unwritten = {**changes, **self._unwritten}
                if once:  # the next change is written together with these
                    return
                await asyncio.sleep(RETRY_DELAY)

    async def aclose(self) -> None:
        """Cancel the pending write of this event loop, after one more second.

        Its changes are written with the next change, if there is one.
        """
        writer = self._writer
        if writer is not None and writer.get_loop() is asyncio.get_running_loop():
            await asyncio.wait({writer}, timeout=_CLOSE_TIMEOUT)
            await cancel_and_wait(writer)

    @asynccontextmanager
    async def listening(self, wanted: Iterable[ServerChange]) -> AsyncIterator[Subscription]:
        """Yield a subscription that receives every change announced while this is entered.

        Raises:
            StoreUnavailable: the store could not be reached.
        """
        subscription = Subscription(frozenset(wanted))
        self._open += 1
        try:
            self._follower.open()
            self._starting[subscription] = None
            if self._follower.current:
                self._start()
            await self._follower.catch_up()
            yield subscription
        finally:
            self._starting.pop(subscription, None)
            self._remove(subscription)
            self._open -= 1
            if not self._open:
                await self._follower.aclose()

    async def notify_missed(self, subscription: Subscription, after: str | None) -> None:
        """Notify *subscription* of its wanted changes after *after*, a position in the log.

        None: of all that are retained. If some are no longer retained, it is notified of all.

        Raises:
            StoreUnavailable: the store could not be reached.
        """
        subscription.position = after
        try:
            while events := await self._store.read(self._log, after):
                for event in events:
                    after, change = event.id, _change(event.data)
                    if change in subscription.wanted or change == EVERYTHING:
                        _notify(subscription, change, after)
        except LogTruncated:
            subscription.position = None
            _notify(subscription, EVERYTHING)

    def change(self, subscription: Subscription, wanted: Iterable[ServerChange]) -> None:
        """Replace the wanted changes of *subscription*."""
        self._remove(subscription)
        subscription.wanted = frozenset(wanted)
        self._add(subscription)

    def _add(self, subscription: Subscription) -> None:
        for change in (EVERYTHING, *subscription.wanted):
            self._listeners.add(change, subscription)

    def _remove(self, subscription: Subscription) -> None:
        for change in (EVERYTHING, *subscription.wanted):
            self._listeners.discard(change, subscription)

    def _start(self) -> None:
        """Register the new subscriptions: the changes from before are for earlier ones."""
        for subscription in self._starting:
            subscription.position = self._position
            self._add(subscription)
        self._starting = {}

    def _caught_up(self) -> None:
        self._notify_all(EVERYTHING)
        self._start()

    def _handle(self, event: LogEvent) -> None:
        self._position = event.id
        self._notify_all(_change(event.data))

    def _notify_all(self, change: ServerChange) -> None:
        for subscription in self._listeners.of(change):
            _notify(subscription, change, self._position)


def _notify(subscription: Subscription, change: ServerChange, position: str | None = None) -> None:
    changes = subscription.wanted if change == EVERYTHING else (change,)
    subscription.notify(changes, position=position)


def _change(data: bytes) -> ServerChange:
    try:
        return _decode_change(data)
    except msgspec.DecodeError:
        return EVERYTHING  # another release has written the change, in another format
