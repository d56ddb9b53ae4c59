"""Heartbeats: which processes are alive, and whether this one can judge that.

Each process has a record that expires unless it is renewed.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import Context
from math import inf
from typing import Any, Final, NamedTuple, Protocol

from genmcp.errors import StoreError, StoreUnavailable
from genmcp.stores.clocks import steady
from genmcp.stores.store import Delete, Put, Store
from genmcp.tasks.engine import CONTINUATIONS, REFS, DeliveryHandler, Engine, engine_queue
from genmcp.tasks.options import JobOptions

__all__ = ["Heartbeats", "Presence", "TaskWorker", "WorkerUser"]


class Presence:
    """The signs of life of this process, as accepted by its store.

    A process is gone when it has given no sign of life for a lease. A process that has given none
    itself for a third of a lease was away: it was suspended, its event loop was blocked, the
    machine slept, the store was unavailable, or a clock was set. The same may have prevented the
    signs of other processes. It therefore does not take them for gone until they have had a full
    lease to show that they are alive.

    A process that has just started cannot know what happened before: it does not take others for
    gone until a third of a lease after its own first sign of life. Living processes give signs of
    life and renew their leases at least as often.

    Args:
        lease: seconds without a sign of life after which a process is gone.
        wall: returns the time of the store's clock, which may be set; leases are measured by it.
        clock: returns seconds, and cannot be set.
    """

    def __init__(
        self, lease: float, wall: Callable[[], float], clock: Callable[[], float] = steady
    ) -> None:
        self._lease = lease
        self._wall = wall
        self._clock = clock
        self._shown: tuple[float, float] | None = None
        self._new_until = -inf
        self._away_until = -inf

    @property
    def is_unsure(self) -> bool:
        """Whether others may be alive although they have given no sign of life for a lease."""
        return self.takeover_delay > 0

    @property
    def takeover_delay(self) -> float:
        """For how many more seconds others may be alive without a sign of life; 0: they are not."""
        if self._shown is None:
            return self._lease / 3
        if self._away() > self._lease / 3:
            return self._lease
        return max(0.0, max(self._new_until, self._away_until) - self._clock())

    @property
    def was_suspended(self) -> bool:
        """Whether this process was away less than a lease ago, or still is."""
        return self._clock() < self._away_until or self._away() > self._lease / 3

    def record_beat(self) -> None:
        """Record that the store has accepted a sign of life of this process."""
        if self._shown is None:
            self._new_until = self._clock() + self._lease / 3
        if (away := self._away()) > self._lease / 3:
            self._away_until = self._clock() + self._lease
            logger.warning(
                "this process was away for %.1f seconds (stopped, blocked, without its store, or a "
                "clock was set): for a lease of %g seconds it takes no other process for gone",
                away,
                self._lease,
            )
        self._shown = self._clock(), self._wall()

    def reset(self) -> None:
        """Expect no signs of life until the next one: this process stops working."""
        self._shown = None

    def _away(self) -> float:
        """Return the seconds since the last sign of life, or by which a clock was set since."""
        if self._shown is None:
            return 0.0
        shown, at = self._shown
        passed = self._clock() - shown
        return max(passed, abs(self._wall() - at - passed))


class Heartbeats:
    """The processes that share *store*; *own* is the name of this one.

    A process without a heartbeat for *lease* seconds is considered gone, and what lived in it lost.
    *presence* tells when this process cannot judge that. Keys begin with *prefix*. queues: the
    queues that this process serves.
    """

    def __init__(
        self, store: Store, own: str, lease: float, presence: Presence, prefix: str = ""
    ) -> None:
        self._store = store
        self._prefix = prefix
        self.own = own
        self.lease = lease
        self.presence = presence
        self.queues: Collection[str] = ()  # served by this process

    async def beat(self) -> None:
        """Renew the records of this process and its queues for another lease."""
        keys = [self._node(self.own), *map(self._served, self.queues)]
        await asyncio.gather(*(self._keep(key) for key in keys))
        self.presence.record_beat()

    async def _keep(self, key: str) -> None:
        if not await self._store.touch(key, self.lease):
            await self._store.apply(Put(key, b"", ttl=self.lease))

    async def serves(self, queue: str) -> bool:
        """Return whether a process serves *queue*, or did less than a lease ago."""
        return (
            queue in self.queues
            or await self._store.get(self._served(queue)) is not None
            or self.presence.was_suspended
        )

    async def lives(self, node: str) -> bool:
        """Return whether the process *node* is alive, as far as this one can tell."""
        if node == self.own or self.presence.is_unsure:
            return True
        found = await self._store.get(self._node(node)) is not None
        return (
            found or self.presence.is_unsure
        )  # this process may have been suspended during the read

    async def leave(self) -> None:
        """Remove the record of this process."""
        self.presence.reset()
        self.queues = ()
        await self._store.apply(Delete(self._node(self.own)))

    def _node(self, node: str) -> str:
        return f"{self._prefix}node:{node}"

    def _served(self, queue: str) -> str:
        return f"{self._prefix}served:{queue}"


logger = logging.getLogger("genmcp")

# Signs of life per lease: a few may be late before this process counts as away.
_SIGNS: Final = 9
_LOOK: Final = 0.05  # seconds between two checks for running calls


class WorkerUser(Protocol):
    """An endpoint that needs the tasks of its mux to be worked on in this process."""

    @property
    def gone(self) -> bool:
        """Whether it ended together with its event loop."""

    def end(self) -> None:
        """Handle the end of the work on tasks: the mux was closed. Called from any loop."""


class TaskWorker:
    """Serves *engine* on one event loop, and renews the heartbeat of this process meanwhile.

    If that loop was closed, the next one that starts the worker serves. Changed `options` apply
    from the next start on.

    Attributes:
        resting: only `begin` makes it serve again; also True while it stops.
        closed: it was closed, or rests, and was not started again.
        dormant: processes that died may have left steps, and this one has not looked for them yet.
        busy: returns whether calls run in this process that other processes would take for lost.
    """

    def __init__(
        self,
        engine: Engine,
        heartbeats: Heartbeats,
        step: DeliveryHandler,
        options: JobOptions,
        *,
        prefix: str = "",
        follows: bool = False,
        durable: bool = False,
    ) -> None:
        """*follows*: whether jobs of other queues are followed here. *durable*: the store's."""
        self._engine = engine
        self._heartbeats = heartbeats
        self._step = step
        self.options = options
        self._prefix = prefix
        self._follows = follows
        self._durable = self.dormant = durable
        self.busy: Callable[[], bool] = lambda: False
        self._users: set[WorkerUser] = set()
        self._serving: _Serving | None = None
        self.resting = False
        self.closed = False

    def wake(self) -> None:
        """Begin to work on what is in the store, on the running loop; do not wait for that."""
        self.dormant = False
        self.begin().add_done_callback(self._woken)

    def _woken(self, ready: "Future[None]") -> None:
        if (error := ready.exception()) is not None:
            logger.warning("steps of other processes are not worked on yet: %s", error)
            self.dormant = True

    def use(self, user: WorkerUser) -> None:
        """Register *user* as one that needs tasks to be worked on here, until its `rest`."""
        self._users.add(user)

    async def rest(self, user: WorkerUser, *, within: float | None = None) -> None:
        """Hand the steps of this process to others, unless another user still needs them here.

        While `busy`, for at most a lease, this process stays alive for others: calls that run in it
        have a grace of their own. The next `wake` starts again.

        Args:
            user: given to `use` before.
            within: shortens `JobOptions.shutdown_grace`, in seconds.
        """
        self._users.discard(user)
        if all(each.gone for each in self._users):
            self.dormant = self._durable
            await self.pause(within=within, busy=self.busy)

    @property
    def ending(self) -> bool:
        """Whether this process stops working, so that its steps are to be handed to others.

        Also True if the event loop is torn down, which cancels all of its tasks.
        """
        serving = self._serving
        return self.resting or serving is None or serving.ends

    def begin(self) -> "Future[None]":
        """Serve, unless this does already; return a future that is done once the engine serves."""
        self.resting = self.closed = False
        serving = self._serving
        if serving is None or serving.ends:
            serving = self._serving = _Serving(self._serve, after=serving)
        return serving.ready

    async def start(self) -> None:
        """Serve, unless this does already; return when the engine does.

        Raises:
            StoreUnavailable: the store could not be reached.
        """
        ready = self.begin()
        if not ready.done():
            await asyncio.shield(asyncio.wrap_future(ready))
        ready.result()

    async def ended(self) -> None:
        """Wait until serving on this loop has ended. A failure is logged."""
        if self._serving is not None:
            await self._serving.ended()

    async def aclose(self, *, within: float | None = None) -> None:
        """Stop serving; steps that still run when the grace is over are taken by another process.

        *within* shortens the grace, in seconds.
        """
        await self._stop(_Farewell(within), rest=False)
        users, self._users = self._users, set()
        for each in users:
            each.end()
        self.dormant = self._durable

    async def pause(
        self, *, within: float | None = None, busy: Callable[[], bool] = lambda: False
    ) -> None:
        """Stop serving as `aclose` does, and stay `resting` until the next `begin`."""
        await self._stop(_Farewell(within, busy), rest=True)

    async def _stop(self, farewell: "_Farewell", *, rest: bool) -> None:
        serving = self._serving
        self.resting = True  # calls that end in the meantime do not start it again
        if serving is not None and not serving.over:
            await serving.end(farewell)
        if self._serving is serving:  # not started again in the meantime
            self._serving, self.resting, self.closed = None, rest, True

    async def _serve(self, serving: "_Serving") -> None:
        options = self.options
        # Continuations and refs are short or wait for others: only jobs have shares.
        share = max(1, round(options.concurrency * options.share_of_client))
        served: list[tuple[Collection[str], int, int | None]] = [
            (options.queues, options.concurrency, share),
            ((CONTINUATIONS,), options.continuation_concurrency, None),
        ]
        if self._follows:
            served.append(((REFS,), options.refs, None))
        all_of_them = asyncio.Barrier(len(served))
        self._heartbeats.queues = tuple(options.queues)
        self._heartbeats.presence.reset()  # no signs of life were due until now
        await self._heartbeats.beat()
        serving.delivering = delivering = [
            asyncio.create_task(self._deliver(serving, all_of_them, *each)) for each in served
        ]
        try:
            # Until the last step has ended this process is alive to others.
            while await _left(delivering, within=options.lease / _SIGNS):
                await self._said(self._heartbeats.beat())
        finally:
            serving.ending.set()  # also after a defect: running steps are handed on
            for each in delivering:
                each.cancel()
            await asyncio.wait(delivering)
        await self._linger(serving.farewell.busy)
        await self._said(self._heartbeats.leave())

    async def _linger(self, busy: Callable[[], bool]) -> None:
        """Stay alive for other processes while calls run here, for at most a lease."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.options.lease):
                while busy():
                    await self._said(self._heartbeats.beat())
                    await asyncio.sleep(min(_LOOK, self.options.lease / _SIGNS))

    async def _deliver(
        self,
        serving: "_Serving",
        all_of_them: asyncio.Barrier,
        queues: Collection[str],
        concurrency: int,
        share: int | None,
    ) -> None:
        async with self._engine.serve(
            self._step,
            queues=[engine_queue(self._prefix, queue) for queue in queues],
            concurrency=concurrency,
            share=share,
            lease=self.options.lease,
            grace=self.options.shutdown_grace,
            takeover_delay=lambda: self._heartbeats.presence.takeover_delay,
        ):
            if await all_of_them.wait() == 0:
                serving.ready.set_result(None)
            await serving.ending.wait()

    async def _said(self, sign: Coroutine[Any, Any, None]) -> None:
        try:
            await sign
        except StoreError as error:
            logger.warning("other processes may think that this one is gone: %s", error)


class _Farewell(NamedTuple):
    """How serving ends: *within* at most so many seconds, and alive as long as calls are *busy*."""

    within: float | None = None
    busy: Callable[[], bool] = lambda: False


class _Serving:
    """An asyncio task that serves, on the loop that is running when this is created.

    It starts when the one *after* which it comes has ended, if that is on the same loop: both have
    the same name for other processes.
    """

    def __init__(
        self,
        serve: Callable[["_Serving"], Coroutine[Any, Any, None]],
        *,
        after: "_Serving | None" = None,
    ) -> None:
        self.ready: Future[None] = Future()  # any loop may wait for it
        self._loop = asyncio.get_running_loop()
        self.ending = asyncio.Event()
        self.farewell = _Farewell()
        self.delivering: Sequence[asyncio.Task[None]] = ()
        before = after if after is not None and after._loop is self._loop else None
        # Without the context of the caller: the steps must not see its request.
        self._task = self._loop.create_task(self._live(serve, before), context=Context())
        self._task.add_done_callback(self._done)

    @property
    def over(self) -> bool:
        """Whether it serves no more."""
        return self._task.done() or self._loop.is_closed()

    @property
    def ends(self) -> bool:
        """Whether it has ended, or is about to end."""
        return self.over or self.ending.is_set() or bool(self._task.cancelling())

    async def ended(self) -> None:
        """Wait until it serves no more, in its own loop."""
        await asyncio.wait({self._task})

    async def end(self, farewell: _Farewell) -> None:
        """End it, and wait for that, from any loop."""
        if self._loop is asyncio.get_running_loop():
            self.farewell = farewell
            self.ending.set()
            if farewell.within is not None:
                self._loop.call_later(farewell.within, self._cut)
            await self.ended()
        elif self._loop.is_running():
            ended = asyncio.run_coroutine_threadsafe(self.end(farewell), self._loop)
            await asyncio.wrap_future(ended)

    async def _live(
        self, serve: Callable[["_Serving"], Coroutine[Any, Any, None]], before: "_Serving | None"
    ) -> None:
        if before is not None:
            await before.ended()
        await serve(self)

    def _cut(self) -> None:
        """End the grace now."""
        for each in self.delivering:
            each.cancel()

    def _done(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if not self.ready.done():
            self.ready.set_exception(
                error or StoreUnavailable("this process stops to work on jobs")
            )
        elif error is not None:
            logger.error("no more jobs are worked on here", exc_info=error)


async def _left(delivering: Sequence["asyncio.Task[None]"], *, within: float) -> bool:
    """Wait for *within* seconds, or until all have ended; return whether some have not.

    Raises:
        Exception: what one of them has raised.
    """
    ended, left = await asyncio.wait(
        delivering, timeout=within, return_when=asyncio.FIRST_EXCEPTION
    )
    for each in ended:
        if not each.cancelled():  # cancelled: its grace was cut short
            each.result()
    return bool(left)
