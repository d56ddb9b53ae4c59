"""The connections of a store to its server: those of each event loop of a process."""

import asyncio
import logging
import os
import random
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final, Generic, TypeVar

from genmcp.errors import ConfigurationError, StoreUnavailable
from genmcp.stores.clocks import ServerClock, WakeSignal, reconnect_pause
from genmcp.stores.lanes import CLOSED, Again, Lane, RequestKind
from genmcp.stores.outages import Outages
from genmcp.stores.waiters import Waiters

logger = logging.getLogger("genmcp")

T = TypeVar("T")

UPKEEP_INTERVAL: Final = 10.0
"""Seconds between two removals of expired entries."""


class LoopConnections(ABC):
    """The requests, the waiters and the upkeep of one event loop. A subclass connects.

    All of it ends with the event loop, which cancels the upkeep at its end: connections that are
    left open would be reported.

    Args:
        name: the server, for messages and names of tasks.
        clock: that of the server.
        outages: those of the store.
        timeout: seconds after which an operation without a response fails.

    Attributes:
        waiters: are woken by the notifications of the server.
        writes: the requests that change something.
        reads: the others.
    """

    def __init__(self, name: str, clock: ServerClock, outages: Outages, timeout: float) -> None:
        self.clock = clock
        self.timeout = timeout
        self.waiters = Waiters(self.changed)
        self.writes = Lane(name, self.send, outages, timeout, writes=True)
        self.reads = Lane(name, self.send, outages, timeout, writes=False)
        self._name = name
        self._failures = 0  # of attempts to connect, in a row
        self._failure: Exception | None = None  # of the last one
        self._connecting = asyncio.Lock()
        self._listener: asyncio.Task[None] | None = None
        self._upkeep = asyncio.create_task(self._keep(), name=f"upkeep of {name}")

    @abstractmethod
    async def send(self, kind: RequestKind, items: Sequence[Any]) -> Sequence[Any]:
        """Send a batch of a `Lane`."""

    @abstractmethod
    async def keep(self) -> None:
        """Remove expired entries, and measure the clock of the server."""

    @abstractmethod
    async def listen(self) -> None:
        """Connect, and wake the waiters until the connection is lost."""

    @abstractmethod
    async def disconnect(self) -> None:
        """Close all connections."""

    @abstractmethod
    def changed(self, name: str) -> None:
        """Handle that *name* has got its first waiter, or lost its last one."""

    def lanes(self) -> Sequence[Lane]:
        """Return all lanes."""
        return self.writes, self.reads

    @contextmanager
    def signal(self, names: Collection[str]) -> Iterator[WakeSignal]:
        """Yield a signal that is set by changes of *names*; see `Waiters`."""
        if self._listener is None:
            name = f"followers of {self._name}"
            self._listener = asyncio.create_task(self._listen(), name=name)
        with self.waiters.signal(names) as signal:
            yield signal

    def not_sent(self, error: Exception, count: int) -> Sequence[Any]:
        """Return the results of *count* requests that were not sent because of *error*.

        They wait for a server that was there before, and may be restarting.
        """
        waits = self.clock.was_measured and isinstance(error, StoreUnavailable)
        return [Again(error) if waits else error] * count

    async def in_time(self, connecting: Awaitable[T]) -> T:
        """Return the result of *connecting*.

        Raises:
            StoreUnavailable: the time is over. It has the error of the last attempt, if any.
        """
        try:
            async with asyncio.timeout(self.timeout):
                return await connecting
        except TimeoutError:
            text = f"{self._name}: no response within {self.timeout} seconds"
            raise StoreUnavailable(str(self._failure or text)) from None

    async def attempt(self, connect: Callable[[], Awaitable[T]]) -> T:
        """Return the result of *connect*, which is called after a pause if it has just failed."""
        if self._failures:
            # A pause that is longer than a request waits would end every attempt before it begins.
            await asyncio.sleep(min(reconnect_pause(self._failures), self.timeout / 4))
        self._failures += 1
        try:
            connected = await connect()
        except (StoreUnavailable, ConfigurationError) as error:
            self._failure = error
            raise
        self._failures, self._failure = 0, None
        return connected

    async def aclose(self) -> None:
        """Give the requests that are under way a second, and close everything."""
        self._upkeep.cancel()
        await self._end()
        await asyncio.wait({self._upkeep})

    async def _end(self) -> None:
        if self._listener is not None:
            self._listener.cancel()
            await asyncio.wait({self._listener})
        for lane in self.lanes():
            await lane.aclose()
        self.waiters.wake_all()
        await self.disconnect()

    async def _keep(self) -> None:
        try:
            while True:
                await asyncio.sleep(UPKEEP_INTERVAL * random.uniform(0.7, 1.3))
                with suppress(StoreUnavailable, ConfigurationError):
                    await self.keep()
        finally:
            await self._end()

    async def _listen(self) -> None:
        while True:
            try:
                await self.listen()
            except (StoreUnavailable, ConfigurationError):
                pass  # the operations of the waiters raise it
            except Exception:
                # A programming error here must not end the task that wakes all waiters.
                logger.exception("%s: a notification was not understood", self._name)
            await asyncio.sleep(reconnect_pause(max(1, self._failures)))


C = TypeVar("C", bound=LoopConnections)


class ConnectionsByLoop(Generic[C]):
    """The connections of all event loops of a process. Owned by a store.

    Args:
        name: the server, for messages.
        make: returns the connections of the running event loop.
    """

    def __init__(self, name: str, make: Callable[[], C]) -> None:
        self._name = name
        self._make = make
        self._process = os.getpid()
        self._by_loop: dict[asyncio.AbstractEventLoop, C] = {}
        self._closed = False

    def here(self) -> C:
        """Return the connections of the running event loop.

        Raises:
            StoreUnavailable: the store is closed.
            ConfigurationError: this process was forked from one that has opened connections.
        """
        loop = asyncio.get_running_loop()
        found = self._by_loop.get(loop)
        if found is None:
            if self._closed:
                raise StoreUnavailable(CLOSED)
            for each in [each for each in [*self._by_loop] if each.is_closed()]:
                self._by_loop.pop(each, None)  # another thread may do this at the same time
            if self._by_loop and self._process != os.getpid():
                raise ConfigurationError(
                    f"{self._name} was used before this process was forked: fork before its first "
                    "use, or start the process without a fork (spawn)"
                )
            self._process = os.getpid()
            found = self._by_loop[loop] = self._make()
        return found

    async def aclose(self) -> None:
        """Close the connections of this process: wait for those of this event loop."""
        self._closed = True
        if self._process != os.getpid():
            return
        for loop, connections in [*self._by_loop.items()]:
            if loop is asyncio.get_running_loop():
                await connections.aclose()
            elif loop.is_running():
                asyncio.run_coroutine_threadsafe(connections.aclose(), loop)
