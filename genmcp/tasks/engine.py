"""What carries a task's next step to a process that takes it: the one interface."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial
from secrets import token_hex
from typing import Final, TypeAlias

from genmcp.errors import StoreError, StoreUnavailable
from genmcp.stores.clocks import WakeSignal
from genmcp.stores.deliveries import Deliveries, OwnerShare
from genmcp.tasks.retry import LogThrottle

__all__ = ["CONTINUATIONS", "REFS", "DeliveryHandler", "Engine", "LocalEngine", "engine_queue"]

logger = logging.getLogger("genmcp")

DeliveryHandler: TypeAlias = Callable[[str], Awaitable[None]]
"""What an id is delivered to. It raises only where the store fails: then it is to come again."""


CONTINUATIONS: Final = "genmcp:continuations"
"""The queue of every step that is not a job, so that none of them waits for long jobs."""

REFS: Final = "genmcp:refs"
"""The queue of steps that follow a job of another queue: each takes as long as that job."""


def engine_queue(prefix: str, queue: str) -> str:
    """Return the name that an engine knows *queue* by.

    A "/" in the name of the queue is escaped: otherwise the queue "b/x" of the audience "a" would
    be the queue "x" of the audience "a/b", whose process does not know the task.
    """
    return prefix + queue.replace("%", "%25").replace("/", "%2F")


class Engine(ABC):
    """Delivers ids, each at least once, to a process that serves its queue.

    An engine knows nothing of tasks: all that counts is in the store. It may deliver twice, late,
    and in any order.
    """

    @abstractmethod
    async def submit(
        self, id: str, *, queue: str = "default", delay: float = 0.0, owner: str = ""
    ) -> None:
        """Deliver *id* once, *delay* seconds from now (default: at once) or slightly later.

        Does nothing if *id* is already queued. *owner* is the client that the id belongs to: an
        engine may schedule the owners of a queue in turn.

        Raises:
            StoreUnavailable: the engine could not be reached, or is full.
        """

    @abstractmethod
    async def cancel(self, id: str) -> None:
        """Do not deliver *id*, or cancel the step that it was delivered to, as well as possible.

        The step is cancelled as an asyncio.Task is; in another process a little later.

        Raises:
            StoreUnavailable: the engine could not be reached.
        """

    @abstractmethod
    def serve(
        self,
        step: DeliveryHandler,
        *,
        queues: Collection[str],
        concurrency: int,
        lease: float,
        share: int | None = None,
        grace: float = 0.0,
        takeover_delay: Callable[[], float] = lambda: 0.0,
    ) -> AbstractAsyncContextManager[None]:
        """Deliver the ids of *queues* to *step*, at most *concurrency* at once, while entered.

        At most *share* of them belong to one owner, if the engine knows owners (None: no bound).

        An id is delivered again if its process gives no sign of life for *lease* seconds, or if its
        step raised. On exit delivery stops here; running steps have *grace* seconds to end. Then
        they are cancelled, and their ids are delivered to another process at once. While
        *takeover_delay* returns more than 0, ids held by others are not delivered here: this
        process has just started, or was suspended itself, and cannot tell for so many seconds
        whether others are gone.
        """


_GRACE: Final = 5.0  # seconds that a cancelled step has for its end
_RESPITE: Final = 1.0  # seconds before the store is asked again after it failed


class LocalEngine(Engine):
    """Delivers what *deliveries* carry: inside this process, or to others that share the store.

    Nothing is polled: it sleeps until something is put, due, lapses or is to be renewed.
    """

    def __init__(self, deliveries: Deliveries) -> None:
        self._deliveries = deliveries

    async def submit(
        self, id: str, *, queue: str = "default", delay: float = 0.0, owner: str = ""
    ) -> None:
        await self._deliveries.put(id, queue, delay, owner=owner)

    async def cancel(self, id: str) -> None:
        await self._deliveries.cancel(id)

    @asynccontextmanager
    async def serve(
        self,
        step: DeliveryHandler,
        *,
        queues: Collection[str],
        concurrency: int,
        lease: float,
        share: int | None = None,
        grace: float = 0.0,
        takeover_delay: Callable[[], float] = lambda: 0.0,
    ) -> AsyncGenerator[None, None]:
        bounds = concurrency, concurrency if share is None else share
        worker = _LocalWorker(self._deliveries, step, queues, bounds, lease, takeover_delay)
        serving = asyncio.create_task(worker.run())
        try:
            yield
            await worker.drain(grace)
        finally:
            serving.cancel()
            await asyncio.wait({serving})
            await worker.close()


class _LocalWorker:
    """Claims ids, runs their steps, and renews their leases meanwhile."""

    def __init__(
        self,
        deliveries: Deliveries,
        step: DeliveryHandler,
        queues: Collection[str],
        bounds: tuple[int, int],
        lease: float,
        takeover_delay: Callable[[], float],
    ) -> None:
        self._deliveries = deliveries
        self._step = step
        self._queues = tuple(queues)
        self._concurrency, self._most_of_one = bounds
        self._lease = lease
        self._takeover_delay = takeover_delay
        self._node = token_hex(8)
        self._working: dict[str, asyncio.Task[None]] = {}
        self._owners: dict[str, str] = {}  # of the working ids
        self._full = False  # whether the end of a step lets more be claimed
        self._left = self._share()  # after the last claim
        self._claiming = asyncio.Lock()
        self._complaints = LogThrottle(logger)
        self._renewal = 0.0  # when all that is held is renewed next

    async def run(self) -> None:
        """Work until this is cancelled."""
        clock = asyncio.get_running_loop().time
        self._renewal = clock() + self._lease / 3
        with self._deliveries.news(self._queues) as news:
            while True:
                news.clear()
                try:
                    await self._keep_hold(clock())
                    await self._begin_more(news)
                    pause = await self._pause(clock())
                except StoreUnavailable as error:
                    self._complaints.log(logging.ERROR, "jobs cannot be fetched: %s", error)
                    await asyncio.sleep(_RESPITE)
                    continue
                with suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await news.wait()

    async def drain(self, grace: float) -> None:
        """Claim nothing more, and give what is worked on *grace* seconds to end."""
        self._concurrency = 0
        async with self._claiming:  # what is being claimed is ours to hand back
            working = set(self._working.values())
        if working and grace:
            await asyncio.wait(working, timeout=grace)

    async def close(self) -> None:
        """Cancel the running steps, and release their ids to other workers at once."""
        working = dict(self._working)
        for work in working.values():
            work.cancel()
        if working:
            _, stubborn = await asyncio.wait(working.values(), timeout=_GRACE)
            for work in stubborn:
                logger.error("%s goes on although it was cancelled", work.get_name())
        for id, work in working.items():
            # What ended by itself has been dropped, and what goes on is not to run twice.
            if work.done():
                with suppress(StoreUnavailable):  # then it lapses
                    await self._deliveries.release(self._node, id)

    async def _keep_hold(self, now: float) -> None:
        """Renew what is due for it, and stop what is no longer held."""
        if not self._working:
            self._renewal = now + self._lease / 3
            return
        if now < self._renewal:
            gone = await self._deliveries.lost(self._node, tuple(self._working))
        else:
            gone = await self._deliveries.renew(self._node, tuple(self._working), self._lease)
            self._renewal = now + self._lease / 3
        for id in gone:
            if work := self._working.get(id):
                work.cancel()

    async def _begin_more(self, news: WakeSignal) -> None:
        async with self._claiming:
            free = self._concurrency - len(self._working)
            self._full = free <= 0
            if self._full:
                return
            claimed = await self._deliveries.claim(
                self._queues,
                self._node,
                self._lease,
                free,
                takeover_delay=self._takeover_delay(),
                share=self._share(),
            )
            for id, _, owner in claimed:
                before = self._working.get(id)
                if before is not None and not before.cancelling():
                    continue  # this process was frozen, and no other claimed it
                work = asyncio.create_task(self._work(id, before), name=f"step of {id}")
                self._working[id], self._owners[id] = work, owner
                work.add_done_callback(partial(self._forget, id, news))
            self._left = self._share()
            self._full = len(claimed) == free or bool(self._left.full)

    def _share(self) -> OwnerShare:
        return OwnerShare(self._most_of_one, Counter(self._owners.values()))

    async def _pause(self, now: float) -> float | None:
        """Return how long nothing is to be done, None if that is until there is news."""
        full = len(self._working) >= self._concurrency
        due = None if full else await self._deliveries.next_due(self._queues, self._left)
        if not self._working:
            return due
        renewal = max(0.0, self._renewal - now)
        return renewal if due is None else min(due, renewal)

    async def _work(self, id: str, before: "asyncio.Task[None] | None") -> None:
        if before is not None:  # taken over, given back, and not ended here yet
            await asyncio.wait({before})
        try:
            await self._step(id)
            await self._deliveries.drop(self._node, id)
        except Exception as error:
            # Its lease is not renewed any more: it is delivered again when the lease has expired.
            trace = None if isinstance(error, StoreError) else error
            told = "the step of %s failed, and is taken again: %s"
            self._complaints.log(logging.ERROR, told, id, error, exc_info=trace)

    def _forget(self, id: str, news: WakeSignal, work: "asyncio.Task[None]") -> None:
        if self._working[id] is work:
            del self._working[id], self._owners[id]
        if self._full:
            news.wake()
