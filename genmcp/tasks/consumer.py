"""Claims the ids of some queues of the store, and runs a handler for each.

The queue is `Store.deliveries`. It delivers an id at least once, perhaps late and in any order, and
does not know tasks: the handler, `TaskRunner.handle`, compares each delivery with the record of the
task.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Collection
from contextlib import suppress
from secrets import token_hex
from typing import Final, TypeAlias

from genmcp.errors import StoreError, StoreUnavailable
from genmcp.log_throttle import LogThrottle
from genmcp.stores.clocks import WakeSignal
from genmcp.stores.deliveries import Deliveries, OwnerShare
from genmcp.tasks.heartbeats import Presence

logger = logging.getLogger("genmcp")

Handler: TypeAlias = Callable[[str], Awaitable[None]]
"""Handles a delivered id. It raises only if the store fails: the id must be delivered again."""

_RETRY_DELAY: Final = 1.0  # seconds before the next claim after the store has failed
_CANCEL_GRACE: Final = 5.0  # seconds for the cleanup of a cancelled handler


class QueueConsumer:
    """Claims ids, runs their handlers, and renews the leases. Owned by a `TaskWorker`.

    An id is dropped when its handler returns. It is delivered again, here or elsewhere, if its
    handler raised, or if its process has not renewed the lease for *lease* seconds. This does not
    poll: it sleeps until an id is put or becomes due, or a lease expires or must be renewed.

    Args:
        deliveries: `Store.deliveries`.
        handler: called with each id, in an asyncio.Task of its own.
        queues: the names of the queues.
        concurrency: the maximum number of handlers at once.
        lease: seconds without a renewal after which an id is given to another process. It expires
            independently of the heartbeat of the process (`tasks/heartbeats.py`).
        presence: whether ids of other processes may be taken over when their lease has expired.
        max_per_owner: the maximum number of handlers at once for one owner. Default: no limit.
    """

    def __init__(
        self,
        deliveries: Deliveries,
        handler: Handler,
        queues: Collection[str],
        *,
        concurrency: int,
        lease: float,
        presence: Presence,
        max_per_owner: int | None = None,
    ) -> None:
        self._deliveries = deliveries
        self._handler = handler
        self._queues = tuple(queues)
        self._concurrency = concurrency
        self._max_per_owner = concurrency if max_per_owner is None else max_per_owner
        self._lease = lease
        self._presence = presence
        self._holder = token_hex(8)
        self._running: dict[str, asyncio.Task[None]] = {}
        self._owners: dict[str, str] = {}  # the owner of each running id
        self._reclaimed: set[str] = set()  # those that run again once their handler has ended
        self._full = False  # whether more could be claimed once a handler ends
        self._share_left = self._share()  # as of the last claim
        self._claiming = asyncio.Lock()
        self._warnings = LogThrottle(logger)
        self._next_renewal = 0.0

    async def run(self) -> None:
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
                    await asyncio.sleep(_RETRY_DELAY)
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

    async def aclose(self) -> None:
        """Cancel the running handlers, and release their ids to other processes at once."""
        running = dict(self._running)
        self._reclaimed.clear()
        for work in running.values():
            work.cancel()
        if running:
            _, stubborn = await asyncio.wait(running.values(), timeout=_CANCEL_GRACE)
            for work in stubborn:
                logger.error("%s continues although it was cancelled", work.get_name())
        for id, work in running.items():
            # If the handler has returned, its id was dropped, and `release` does nothing. If the
            # handler ignores the cancellation, its id is not released: another process would run
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
        self._reclaimed.difference_update(lost)
        for id in lost:
            # Once: a second cancellation would interrupt the cleanup of the handler.
            if (work := self._running.get(id)) and not work.cancelling():
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
                takeover_delay=self._presence.takeover_delay,
                share=self._share(),
            )
            for id, _, owner in claimed:
                running = self._running.get(id)
                if running is None:
                    self._start(id, owner, news)
                elif running.cancelling():
                    # The lease was lost and claimed again, and the handler has not ended yet.
                    self._reclaimed.add(id)
                # Otherwise the lease expired while this process was suspended, and no other process
                # had claimed the id: its handler still runs, now with a new lease.
            self._share_left = self._share()
            self._full = len(claimed) == free or bool(self._share_left.full)

    def _start(self, id: str, owner: str, news: WakeSignal) -> None:
        work = asyncio.create_task(self._handle(id), name=f"step of {id}")
        self._running[id], self._owners[id] = work, owner
        work.add_done_callback(lambda _: self._ended(id, owner, news))

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

    async def _handle(self, id: str) -> None:
        try:
            await self._handler(id)
            await self._deliveries.drop(self._holder, id)
        except Exception as error:
            # The lease is not renewed any more. When it expires, the id is delivered again. An
            # immediate retry would load a store that has just failed.
            trace = None if isinstance(error, StoreError) else error
            text = "the step of %s failed, and will be repeated: %s"
            self._warnings.log(logging.ERROR, text, id, error, exc_info=trace)

    def _ended(self, id: str, owner: str, news: WakeSignal) -> None:
        del self._running[id], self._owners[id]
        if id in self._reclaimed:
            self._reclaimed.remove(id)
            self._start(id, owner, news)
        if self._full:
            news.wake()
