"""The `Engine` interface, which delivers the next steps of tasks, and `LocalEngine` on a store."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from secrets import token_hex
from typing import Final, TypeAlias

from genmcp.errors import ConfigurationError, StoreError, StoreUnavailable
from genmcp.stores.clocks import WakeSignal
from genmcp.stores.deliveries import Backlog, Deliveries, OwnerShare
from genmcp.stores.store import Store
from genmcp.tasks.log_throttle import LogThrottle

logger = logging.getLogger("genmcp")

DeliveryHandler: TypeAlias = Callable[[str], Awaitable[None]]
"""Handles a delivered id. It raises only if the store fails: the id must be delivered again."""

CONTINUATIONS: Final = "genmcp:continuations"
"""The queue of all steps that are not jobs, so that none of them waits for long jobs."""

EXTERNAL: Final = "genmcp:refs"
"""The queue of steps that follow a job of an external queue: each takes as long as that job."""


def engine_queue(prefix: str, queue: str) -> str:
    """Return the name of *queue* at an engine.

    A "/" in the name is escaped: otherwise the queue "b/x" of the audience "a" would be the queue
    "x" of the audience "a/b", and its processes do not have the task.
    """
    return prefix + queue.replace("%", "%25").replace("/", "%2F")


class Engine(ABC):
    """Delivers ids to processes, each at least once.

    An engine does not know tasks: their state is in the store. It may deliver an id twice, late,
    and in any order, because the handler compares each delivery with the record of the task.
    """

    @abstractmethod
    async def submit(
        self, id: str, *, queue: str = "default", delay: float = 0.0, owner: str = ""
    ) -> None:
        """Schedule one delivery of *id*. Do nothing if *id* is queued already, or its handler runs.

        When this returns, the id is stored as durably as the engine stores anything: the death of
        this process must not lose it.

        Args:
            id: an opaque text of up to 100 characters.
            queue: the queue to put it in. Default: "default".
            delay: seconds until it is delivered, at the earliest. Default 0.
            owner: the client that the id belongs to ("": no client). An engine may deliver the
                ids of a queue's owners in rotation, so that no client delays the others.

        Raises:
            StoreUnavailable: the engine cannot be reached, or is full.
        """

    @abstractmethod
    async def cancel(self, id: str) -> None:
        """Remove *id* from its queue, or cancel the handler that runs for it.

        This is best effort: if the handler continues, its result is rejected, because its fencing
        token is outdated. The handler is cancelled like an asyncio.Task. A handler in another
        process is cancelled a little later.

        Raises:
            StoreUnavailable: the engine cannot be reached.
        """

    async def backlog(self, queue: str) -> Backlog | None:
        """Return how many ids of *queue* wait and are held. For monitoring.

        None: the engine cannot tell. This is the default.

        Raises:
            StoreUnavailable: the engine cannot be reached.
        """
        return None

    @abstractmethod
    def serve(
        self,
        handler: DeliveryHandler,
        *,
        queues: Collection[str],
        concurrency: int,
        lease: float,
        max_per_owner: int | None = None,
        grace: float = 0.0,
        takeover_delay: Callable[[], float] = lambda: 0.0,
    ) -> AbstractAsyncContextManager[None]:
        """Return a context manager that delivers the ids of *queues* here while it is entered.

        An id is acknowledged when its handler returns. It is delivered again, here or elsewhere,
        if its handler raised, or if its process has not renewed the lease for *lease* seconds. On
        exit no new ids are delivered; running handlers have *grace* seconds to end, are then
        cancelled, and their ids are delivered to another process at once.

        Args:
            handler: called with each id, in an asyncio.Task of its own.
            queues: the names of the queues to serve.
            concurrency: the maximum number of handlers at once.
            lease: seconds without a renewal after which an id is given to another process.
            max_per_owner: the maximum number of handlers at once for one owner, if the engine knows
                owners. None (the default): no limit.
            grace: seconds for running handlers on exit. Default 0.
            takeover_delay: returns the seconds for which this process must not take over ids of
                other processes, although their lease has expired. It is above 0 after this process
                has started or was suspended: other processes may have been suspended as well, and
                unable to renew their leases.
        """


def engine_on(store: Store) -> "LocalEngine":
    """Return an engine on the job queue of *store*.

    Raises:
        ConfigurationError: the store has none.
    """
    if store.deliveries is None:
        raise ConfigurationError(
            f"store: {store!r} does not deliver jobs: implement Store.deliveries"
        )
    return LocalEngine(store.deliveries)


class LocalEngine(Engine):
    """The engine that needs no broker: it uses the deliveries of a store.

    It delivers within this process, or to all processes that share the store. It does not poll: it
    sleeps until an id is put or becomes due, or a lease expires or must be renewed.

    Args:
        deliveries: `Store.deliveries`.
        retry_delay: seconds before the next claim after the store has failed. Default 1.
        cancel_grace: seconds for the cleanup of a cancelled handler. Default 5.
    """

    def __init__(
        self, deliveries: Deliveries, *, retry_delay: float = 1.0, cancel_grace: float = 5.0
    ) -> None:
        self._deliveries = deliveries
        self._retry_delay = retry_delay
        self._cancel_grace = cancel_grace

    async def submit(
        self, id: str, *, queue: str = "default", delay: float = 0.0, owner: str = ""
    ) -> None:
        await self._deliveries.put(id, queue, delay, owner=owner)

    async def cancel(self, id: str) -> None:
        await self._deliveries.cancel(id)

    async def backlog(self, queue: str) -> Backlog:
        return await self._deliveries.backlog(queue)

    @asynccontextmanager
    async def serve(
        self,
        handler: DeliveryHandler,
        *,
        queues: Collection[str],
        concurrency: int,
        lease: float,
        max_per_owner: int | None = None,
        grace: float = 0.0,
        takeover_delay: Callable[[], float] = lambda: 0.0,
    ) -> AsyncGenerator[None, None]:
        limits = concurrency, concurrency if max_per_owner is None else max_per_owner
        worker = _LocalWorker(self._deliveries, handler, queues, limits, lease, takeover_delay)
        serving = asyncio.create_task(worker.run(self._retry_delay))
        try:
            yield
            await worker.drain(grace)
        finally:
            serving.cancel()
            await asyncio.wait({serving})
            await worker.close(self._cancel_grace)


class _LocalWorker:
    """Claims ids, runs their handlers, and renews the leases. Owned by one `LocalEngine.serve`.

    It does not know tasks: the handler, `TaskRunner.handle`, reads and writes their records. Its
    leases expire independently of the heartbeat of the process (`tasks/heartbeats.py`).
    """

    def __init__(
        self,
        deliveries: Deliveries,
        handler: DeliveryHandler,
        queues: Collection[str],
        limits: tuple[int, int],
        lease: float,
        takeover_delay: Callable[[], float],
    ) -> None:
        self._deliveries = deliveries
        self._handler = handler
        self._queues = tuple(queues)
        self._concurrency, self._max_per_owner = limits
        self._lease = lease
        self._takeover_delay = takeover_delay
        # The holder of the leases. Not the name of the process in `Task.node` and in `Heartbeats`:
        # one process serves several sets of queues, each with leases of its own.
        self._holder = token_hex(8)
        self._running: dict[str, asyncio.Task[None]] = {}
        self._owners: dict[str, str] = {}  # the owner of each running id
        self._full = False  # whether more could be claimed once a handler ends
        self._share_left = self._share()  # as of the last claim
        self._claiming = asyncio.Lock()
        self._warnings = LogThrottle(logger)
        self._next_renewal = 0.0

    async def run(self, retry_delay: float) -> None:
        """Work until this is cancelled."""
        clock = asyncio.get_running_loop().time
        self._next_renewal = clock() + self._lease / 3
        with self._deliveries.news(self._queues) as news:
            while True:
                news.clear()
                try:
                    await self._renew(clock())
                    await self._claim(news)
                    pause = await self._pause(clock())
                except Exception as error:
                    # Also after a defect of the store: this process would otherwise appear to
                    # serve, and run no jobs any more.
                    trace = None if isinstance(error, StoreError) else error
                    text = "jobs cannot be fetched: %s"
                    self._warnings.log(logging.ERROR, text, error, exc_info=trace)
                    await asyncio.sleep(retry_delay)
                    continue
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await news.wait()

    async def drain(self, grace: float) -> None:
        """Claim nothing more, and wait up to *grace* seconds for the running handlers."""
        self._concurrency = 0
        async with self._claiming:  # a claim in progress may add handlers to `_running`
            running = set(self._running.values())
        if running and grace:
            await asyncio.wait(running, timeout=grace)

    async def close(self, cancel_grace: float) -> None:
        """Cancel the running handlers, and release their ids to other workers at once."""
        running = dict(self._running)
        for work in running.values():
            work.cancel()
        if running:
            _, stubborn = await asyncio.wait(running.values(), timeout=cancel_grace)
            for work in stubborn:
                logger.error("%s continues although it was cancelled", work.get_name())
        for id, work in running.items():
            # If the handler has returned, its id was dropped, and `release` does nothing. If the
            # handler ignores the cancellation, its id is not released: another worker would run
            # the same step at the same time.
            if work.done():
                with suppress(StoreUnavailable):  # its lease expires instead
                    await self._deliveries.release(self._holder, id)

    async def _renew(self, now: float) -> None:
        """Renew the leases if that is due, and cancel handlers whose leases were lost."""
        # Leases are renewed after a third of their time, so that two renewals may fail.
        if not self._running:
            self._next_renewal = now + self._lease / 3
            return
        if now < self._next_renewal:
            lost = await self._deliveries.lost(self._holder, tuple(self._running))
        else:
            lost = await self._deliveries.renew(self._holder, tuple(self._running), self._lease)
            self._next_renewal = now + self._lease / 3
        for id in lost:
            if work := self._running.get(id):
                work.cancel()

    async def _claim(self, news: WakeSignal) -> None:
        """Claim as many ids as there is capacity for, and start their handlers."""
        async with self._claiming:
            free = self._concurrency - len(self._running)
            self._full = free <= 0
            if self._full:
                return
            claimed = await self._deliveries.claim(
                self._queues,
                self._holder,
                self._lease,
                free,
                takeover_delay=self._takeover_delay(),
                share=self._share(),
            )
            for id, _, owner in claimed:
                before = self._running.get(id)
                if before is not None and not before.cancelling():
                    # The lease expired while this process was suspended, and no other process had
                    # claimed the id: its handler still runs, now with a new lease.
                    continue
                work = asyncio.create_task(self._handle(id, before), name=f"step of {id}")
                self._running[id], self._owners[id] = work, owner
                work.add_done_callback(partial(self._forget, id, news))
            self._share_left = self._share()
            self._full = len(claimed) == free or bool(self._share_left.full)

    def _share(self) -> OwnerShare:
        return OwnerShare(self._max_per_owner, Counter(self._owners.values()))

    async def _pause(self, now: float) -> float | None:
        """Return the seconds until a claim or renewal is due.

        None: neither is due before the store signals a change.
        """
        full = len(self._running) >= self._concurrency
        due = None if full else await self._deliveries.next_due(self._queues, self._share_left)
        if not self._running:
            return due
        renewal = max(0.0, self._next_renewal - now)
        return renewal if due is None else min(due, renewal)

    async def _handle(self, id: str, before: "asyncio.Task[None] | None") -> None:
        if before is not None:
            # The lease was lost and claimed again, and the first handler has not ended yet.
            await asyncio.wait({before})
        try:
            await self._handler(id)
            await self._deliveries.drop(self._holder, id)
        except Exception as error:
            # The lease is not renewed any more. When it expires, the id is delivered again. An
            # immediate retry would load a store that has just failed.
            trace = None if isinstance(error, StoreError) else error
            text = "the step of %s failed, and will be repeated: %s"
            self._warnings.log(logging.ERROR, text, id, error, exc_info=trace)

    def _forget(self, id: str, news: WakeSignal, work: "asyncio.Task[None]") -> None:
        if self._running[id] is work:
            del self._running[id], self._owners[id]
        if self._full:
            news.wake()
