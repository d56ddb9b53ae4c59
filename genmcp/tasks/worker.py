"""The worker of a process: serves the engine, and renews the heartbeat of the process.

Four classes share the work. `TaskWorker`, one per mux and process, starts and stops serving.
`_Serving` is one period of serving, on one event loop. Within that the engine delivers ids (the
`_LocalWorker` of `LocalEngine` claims them from the store), and `TaskRunner.handle` runs the step
of each id.

Two signs of life expire independently after `JobOptions.lease`: the heartbeat of the process, for
calls and awaitables that run in it, and the lease of each delivery, for jobs and other steps. The
head of `tasks/runner.py` lists how work continues after the death of a process.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from concurrent.futures import Future
from contextlib import suppress
from contextvars import Context
from typing import Any, Final, NamedTuple, Protocol

from genmcp.cancellation import cancel_and_wait
from genmcp.errors import StoreError, StoreUnavailable
from genmcp.tasks.engine import CONTINUATIONS, EXTERNAL, DeliveryHandler, Engine, engine_queue
from genmcp.tasks.heartbeats import Heartbeats
from genmcp.tasks.options import JobOptions

logger = logging.getLogger("genmcp")

_BEATS_PER_LEASE: Final = 9  # a few may be late before this process counts as suspended
_CALL_GRACE: Final = 5.0  # seconds that a cancelled call has for its cleanup
_BUSY_POLL: Final = 0.05  # seconds between two checks for running calls


class WorkerUser(Protocol):
    """An endpoint that needs the tasks of its mux to be worked on in this process."""

    @property
    def gone(self) -> bool:
        """Whether it ended together with its event loop."""

    def end(self) -> None:
        """Handle the end of the worker: the mux was closed. Called from any loop."""


class TaskWorker:
    """Serves *engine* on one event loop, and renews the heartbeat of this process meanwhile.

    If that loop was closed, the worker serves on the loop that starts it next. Changed `options`
    apply from the next start on.

    Args:
        engine: delivers the steps.
        heartbeats: renews the heartbeat of this process.
        handler: handles a delivered id.
        options: how this process works on jobs.
        prefix: with which the names of queues begin at the engine.
        follows: whether jobs of external queues are followed here.
        prepare: is called when this has begun to serve.
        has_work: whether there may be work before the first call: the store is durable, or jobs run
            periodically.
        reconcile: submits tasks again whose submission was lost, until it is cancelled. Default:
            none is submitted.

    Attributes:
        engine: the engine.
        resting: whether it was stopped by `rest`, and only `begin` starts it again. Also True while
            it stops.
        closed: whether it was stopped by `aclose` or `rest`, and not started again.
        dormant: whether *has_work*, and this was not started since its creation or its
            last stop: dead processes may have left steps that nothing works on.
        busy: returns whether calls run in this process that others would consider lost.
        calls: calls that run beside the steps (`run_call`).
        checks: called once per lease. They stop work whose task was cancelled by a process that
            could not send that to this one.
    """

    def __init__(
        self,
        engine: Engine,
        heartbeats: Heartbeats,
        handler: DeliveryHandler,
        options: JobOptions,
        *,
        prefix: str = "",
        follows: bool = False,
        prepare: Callable[[], Awaitable[None]] | None = None,
        has_work: bool = False,
        reconcile: Callable[[JobOptions], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        self._reconcile = reconcile
        self.engine = engine
        self._heartbeats = heartbeats
        self._handler = handler
        self.options = options
        self.prefix = prefix
        self._follows = follows
        self._prepare = prepare
        self._has_work = self.dormant = has_work
        self.busy: Callable[[], bool] = lambda: False
        self.checks: list[Callable[[], Awaitable[None]]] = []
        self.calls: set[asyncio.Task[None]] = set()
        self._users: set[WorkerUser] = set()
        self._serving: _Serving | None = None
        self.resting = False
        self.closed = False

    def wake(self) -> None:
        """Start to serve on the running loop, and return without waiting until this serves."""
        self.dormant = False
        self.begin().add_done_callback(self._woken)

    def _woken(self, ready: "Future[None]") -> None:
        if (error := ready.exception()) is not None:
            if not isinstance(error, _Stopped):
                logger.warning(
                    "stored jobs are not run here yet; the next request or probe tries again: %s",
                    error,
                )
            self.dormant = True

    def use(self, user: WorkerUser) -> None:
        """Register a *user* that needs tasks to be worked on here, until it calls `rest`."""
        self._users.add(user)

    async def rest(self, user: WorkerUser, *, within: float | None = None) -> None:
        """Hand the steps of this process to others, unless another user still needs the worker.

        While `busy` returns True, but for at most a lease, the heartbeat is still renewed: other
        processes must not consider the calls lost that still run here. The next `wake` starts the
        worker again.

        Args:
            user: registered by `use`.
            within: seconds that shorten `JobOptions.shutdown_grace`.
        """
        self._users.discard(user)
        if all(each.gone for each in self._users):
            self.dormant = self._has_work
            await self._stop(_StopRequest(within, self.busy), rest=True)

    def run_call(self, call: Coroutine[Any, Any, None]) -> None:
        """Run *call*, which no request owns, to its end; it is cancelled when this stops.

        It has the same grace period as steps.
        """
        running = asyncio.get_running_loop().create_task(call)
        self.calls.add(running)
        running.add_done_callback(self._call_ended)

    def _call_ended(self, call: "asyncio.Task[None]") -> None:
        self.calls.discard(call)
        if not call.cancelled() and (error := call.exception()) is not None:
            logger.error("a call has failed", exc_info=error)

    @property
    def problem(self) -> str | None:
        """The reason why no steps are delivered here; None if the engine serves, or need not."""
        serving = self._serving
        if serving is None:
            return "not started" if self._has_work else None
        if serving.ending or self.resting:
            return "stopped"
        return None if serving.ready.done() else "starting"

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop on which this serves; None if it does not."""
        return None if self._serving is None or self._serving.over else self._serving.loop

    @property
    def ending(self) -> bool:
        """Whether this process stops working, so that its steps must be handed to others.

        Also True while the event loop is torn down, which cancels all of its tasks.
        """
        serving = self._serving
        return self.resting or serving is None or serving.ending

    def begin(self) -> "Future[None]":
        """Start to serve, unless this does already.

        Return a future that is done once the engine serves.
        """
        self.resting = self.closed = False
        serving = self._serving
        if serving is None or serving.ending:
            serving = self._serving = _Serving(self._serve, after=serving)
        return serving.ready

    async def start(self) -> None:
        """Start to serve, unless this does already; return once the engine serves.

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
            await self._serving.wait()

    async def aclose(self, *, within: float | None = None) -> None:
        """Stop serving. Steps that still run after the grace period are taken by other processes.

        *within* shortens the grace period, in seconds.
        """
        await self._stop(_StopRequest(within), rest=False)
        users, self._users = self._users, set()
        for each in users:
            each.end()
        self.dormant = self._has_work

    async def _stop(self, request: "_StopRequest", *, rest: bool) -> None:
        serving = self._serving
        self.resting = True  # calls that end during the stop must not start the worker again
        if request.within is not None and request.within >= self.options.shutdown_grace:
            # The engine ends the grace itself. A second cancellation would interrupt its cleanup.
            request = request._replace(within=None)
        if serving is not None and not serving.over:
            await serving.stop(request)
        if self._serving is serving:  # not started again in the meantime
            self._serving, self.resting, self.closed = None, rest, True

    async def _serve(self, serving: "_Serving") -> None:
        options = self.options
        # Only jobs have a limit per client. Other steps are short, or wait for an external queue.
        served: list[tuple[Collection[str], int, int | None]] = [*options.job_slots()]
        served.append(((CONTINUATIONS,), options.continuation_concurrency, None))
        if self._follows:
            served.append(((EXTERNAL,), options.refs, None))
        barrier = asyncio.Barrier(len(served))
        self._heartbeats.queues = tuple(options.queues)
        self._heartbeats.presence.reset()  # no heartbeats were due until now
        # Before the first delivery: another process must not take over the steps that start here.
        await self._heartbeats.beat()
        if self._prepare is not None:
            await self._prepare()
        serving.delivering = delivering = [
            asyncio.create_task(self._deliver(serving, barrier, *each)) for each in served
        ]
        delivering.append(asyncio.create_task(self._end_calls(serving)))
        beside = [asyncio.create_task(self._check(options.lease))]
        if self._reconcile is not None:
            beside.append(asyncio.create_task(self._reconcile(options)))
        try:
            # The heartbeat is renewed until the last step has ended: other processes would
            # otherwise take over steps that still run here.
            while await _some_run(delivering, within=options.lease / _BEATS_PER_LEASE):
                await self._logged(self._heartbeats.beat())
        finally:
            serving.stopping.set()  # also after an error, so that running steps are handed over
            for each in (*delivering, *beside):
                each.cancel()
            await asyncio.wait([*delivering, *beside])
        with suppress(TimeoutError):
            async with asyncio.timeout(options.lease):
                while serving.request.busy():
                    await self._logged(self._heartbeats.beat())
                    await asyncio.sleep(min(_BUSY_POLL, options.lease / _BEATS_PER_LEASE))
        await self._logged(self._heartbeats.leave())

    async def _check(self, interval: float) -> None:
        while True:
            await asyncio.sleep(interval)
            for check in self.checks:
                try:
                    await check()
                except StoreError as error:
                    logger.debug("running work is checked later: %s", error)

    async def _deliver(
        self,
        serving: "_Serving",
        barrier: asyncio.Barrier,
        queues: Collection[str],
        concurrency: int,
        max_per_owner: int | None,
    ) -> None:
        async with self.engine.serve(
            self._handler,
            queues=[engine_queue(self.prefix, queue) for queue in queues],
            concurrency=concurrency,
            max_per_owner=max_per_owner,
            lease=self.options.lease,
            grace=self.options.shutdown_grace,
            takeover_delay=lambda: self._heartbeats.presence.takeover_delay,
        ):
            if await barrier.wait() == 0:
                serving.ready.set_result(None)
            await serving.stopping.wait()

    async def _end_calls(self, serving: "_Serving") -> None:
        """Wait until the worker stops; then end the calls of this loop."""
        try:
            await serving.stopping.wait()
            if calls := self._calls_of(serving.loop):
                await asyncio.wait(calls, timeout=self.options.shutdown_grace)
        finally:
            # One that ignores this, or cannot write its end, must not delay the exit for ever.
            await cancel_and_wait(*self._calls_of(serving.loop), timeout=_CALL_GRACE)

    def _calls_of(self, loop: asyncio.AbstractEventLoop) -> Sequence["asyncio.Task[None]"]:
        return [each for each in self.calls if each.get_loop() is loop]

    async def _logged(self, write: Coroutine[Any, Any, None]) -> None:
        try:
            await write
        except StoreError as error:
            logger.warning("other processes may consider this one dead: %s", error)


class _StopRequest(NamedTuple):
    """How serving ends.

    within: the maximum seconds until running steps are cancelled; None: `shutdown_grace` only.
    busy: returns whether calls still run for which the heartbeat must be renewed.
    """

    within: float | None = None
    busy: Callable[[], bool] = lambda: False


class _Stopped(StoreUnavailable):
    """The worker was stopped, or its event loop closed, before it served."""


class _Serving:
    """An asyncio task that serves, on the loop that is running when this is created.

    If its predecessor *after* is on the same loop, it starts after that has ended. Both renew the
    same heartbeat, which the predecessor removes when it ends.
    """

    def __init__(
        self,
        serve: Callable[["_Serving"], Coroutine[Any, Any, None]],
        *,
        after: "_Serving | None" = None,
    ) -> None:
        # A `concurrent.futures.Future`, because any event loop may wait for it.
        self.ready: Future[None] = Future()
        self.loop = asyncio.get_running_loop()
        self.stopping = asyncio.Event()
        self.request = _StopRequest()
        self.delivering: Sequence[asyncio.Task[None]] = ()
        before = after if after is not None and after.loop is self.loop else None
        # In an empty context: the steps must not see context variables of the request that happened
        # to start the worker.
        self._task = self.loop.create_task(self._run(serve, before), context=Context())
        self._task.add_done_callback(self._done)

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self._task.done() or self.loop.is_closed()

    @property
    def ending(self) -> bool:
        """Whether it has ended, or is about to end."""
        return self.over or self.stopping.is_set() or bool(self._task.cancelling())

    async def wait(self) -> None:
        """Wait until it has ended, in its own loop."""
        await asyncio.wait({self._task})

    async def stop(self, request: _StopRequest) -> None:
        """Stop it, and wait for its end, from any loop."""
        if self.loop is asyncio.get_running_loop():
            self.request = request
            self.stopping.set()
            if request.within is not None:
                self.loop.call_later(request.within, self._end_grace)
            await self.wait()
        elif self.loop.is_running():
            stopping = asyncio.run_coroutine_threadsafe(self.stop(request), self.loop)
            await asyncio.wrap_future(stopping)

    async def _run(
        self, serve: Callable[["_Serving"], Coroutine[Any, Any, None]], before: "_Serving | None"
    ) -> None:
        if before is not None:
            await before.wait()
        await serve(self)

    def _end_grace(self) -> None:
        for each in self.delivering:
            each.cancel()

    def _done(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if not self.ready.done():
            self.ready.set_exception(
                error or _Stopped("this process is stopping: it does not start jobs")
            )
        elif error is not None:
            logger.error("this process does not work on jobs any more", exc_info=error)


async def _some_run(delivering: Sequence["asyncio.Task[None]"], *, within: float) -> bool:
    """Wait *within* seconds, or until all of *delivering* have ended; return whether some run.

    Raises:
        Exception: raised by one of *delivering*.
    """
    ended, running = await asyncio.wait(
        delivering, timeout=within, return_when=asyncio.FIRST_EXCEPTION
    )
    for each in ended:
        if not each.cancelled():  # `_end_grace` cancels them when the grace period is over
            each.result()
    return bool(running)
