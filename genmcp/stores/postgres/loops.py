"""The connections of a store: a few per event loop, since a psycopg connection belongs to one."""

import asyncio
import os
from contextlib import suppress
from threading import Lock

from genmcp.errors import StoreUnavailable
from genmcp.stores.postgres.connection import PostgresOptions, ServerClock
from genmcp.stores.postgres.lanes import Lane
from genmcp.stores.postgres.listener import NotificationListener, NotificationSender, Waiters


class LoopConnections:
    """The connections of one event loop: for writes, deliveries, reads, and notifications.

    Each is opened when it is needed. Deliveries have one of their own, so that a large write does
    not delay the renewal of a lease.
    """

    def __init__(
        self, options: PostgresOptions, clock: ServerClock, sender: NotificationSender
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.waiters = Waiters()
        self.listener = NotificationListener(options, clock, self.waiters, sender)
        self.writes = Lane(options, clock, sender.doubt)
        self.work = Lane(options, clock, sender.doubt)
        self._reads = [
            Lane(options, clock, sender.doubt, writes=False) for _ in range(options.readers)
        ]

    @property
    def reads(self) -> Lane:
        """The connection for reads that has the fewest waiting requests."""
        return min(self._reads, key=lambda lane: lane.load)

    async def aclose(self) -> None:
        """Complete the statements that are under way, and disconnect."""
        self.waiters.wake_all()
        lanes = (self.writes, self.work, *self._reads)
        await asyncio.gather(self.listener.aclose(), *(lane.aclose() for lane in lanes))

    def drop(self) -> None:
        """Disconnect: the event loop was closed."""
        self.listener.drop()
        for lane in (self.writes, self.work, *self._reads):
            lane.drop()


class ConnectionRegistry:
    """The connections of all event loops of this process. Owned by a store."""

    def __init__(self, options: PostgresOptions) -> None:
        self.options = options
        self.clock = ServerClock()
        self.sender = NotificationSender()
        self._lock = Lock()
        self._of_loop: dict[int, LoopConnections] = {}
        self._process = os.getpid()
        self._inherited: list[object] = []
        self._closed = False

    def current(self) -> LoopConnections:
        """Return the connections of the running event loop.

        Raises:
            StoreUnavailable: the store is closed.
        """
        loop = asyncio.get_running_loop()
        found = self._of_loop.get(id(loop))
        if found is not None and found.loop is loop and self._process == os.getpid():
            return found
        with self._lock:
            if self._closed:
                raise StoreUnavailable(f"{self.options.address}: the store is closed")
            if self._process != os.getpid():
                # Connections of the parent process must not be closed here: they are in use there.
                self._inherited.append(self._of_loop)
                self._of_loop, self._process = {}, os.getpid()
                self.sender.waiters.clear()
                self.sender.doubt()
            for key, each in tuple(self._of_loop.items()):
                if each.loop.is_closed():
                    each.drop()
                    self._forget(key)
            made = LoopConnections(self.options, self.clock, self.sender)
            self._of_loop[id(loop)] = made
            self.sender.waiters[id(loop)] = made.waiters
            return made

    async def aclose(self) -> None:
        """Close the connections of all event loops, and wake all waiters."""
        with self._lock:
            self._closed = True
            loops, self._of_loop = self._of_loop, {}
            self.sender.waiters.clear()
            if self._process != os.getpid():
                self._inherited.append(loops)
                return
        for each in loops.values():
            if each.loop is asyncio.get_running_loop():
                await each.aclose()
            elif each.loop.is_closed():
                each.drop()
            else:
                ended = asyncio.run_coroutine_threadsafe(each.aclose(), each.loop)
                with suppress(TimeoutError):  # that loop may end without running it
                    async with asyncio.timeout(self.options.timeout):
                        await asyncio.wrap_future(ended)

    def _forget(self, key: int) -> None:
        del self._of_loop[key]
        self.sender.waiters.pop(key, None)
