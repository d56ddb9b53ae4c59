"""The worker of a process: claims steps from the store, and renews the heartbeat of the process.

`TaskWorker`, one per mux and process, starts and stops; `WorkerState` has its states. While it
serves, a `QueueConsumer` for each set of queues claims ids, and `TaskRunner.handle` runs the step
of each id.

Two signs of life expire independently after `JobOptions.lease`: the heartbeat of the process, for
calls and awaitables that run in it, and the lease of each delivery, for jobs and other steps. The
head of `tasks/runner.py` lists how work continues after the death of a process.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence, Sized
from concurrent.futures import Future
from contextlib import suppress
from contextvars import Context
from enum import Enum, auto
from functools import partial
from math import ceil, inf
from typing import Any, Final, Protocol

from genmcp.cancellation import cancel_and_wait
from genmcp.errors import StoreError, StoreUnavailable
from genmcp.stores.deliveries import Deliveries
from genmcp.tasks.consumer import Handler, QueueConsumer
from genmcp.tasks.heartbeats import ENGINE, Heartbeats
from genmcp.tasks.options import JobOptions
from genmcp.tasks.writer import CONTINUATIONS, EXTERNAL, delivery_queue

logger = logging.getLogger("genmcp")

# Steps at once that are not jobs, such as methods that continue a call. They await more than they
# compute, and do not depend on the queues.
_CONTINUATION_CONCURRENCY: Final = 1000
_EXTERNAL_CONCURRENCY: Final = 1000  # jobs of external queues that are followed at once
_SUBMISSIONS: Final = 16  # at once, to engines
_CALL_GRACE: Final = 5.0  # seconds that a cancelled call has for its cleanup
_BUSY_POLL: Final = 0.05  # seconds between two checks for running calls


class WorkerState(Enum):
    """What the worker of a process does."""

    IDLE = auto()
    """It was never started."""
    STARTING = auto()
    SERVING = auto()
    STOPPING = auto()
    """It claims no more steps. Running steps have their grace period."""
    RELEASED = auto()
    """Its last user has released it. Only `start_serving` starts it again: calls that end during a
    shutdown must not."""
    CLOSED = auto()
    """It was closed; the next `start` starts it again."""
    FAILED = auto()
    """It has ended by itself, because of an error or with its event loop; as after CLOSED."""


_AT_WORK: Final = (WorkerState.STARTING, WorkerState.SERVING)
_ENDED: Final = (WorkerState.RELEASED, WorkerState.CLOSED)


class WorkerLifecycle:
    """The state of the worker of this process. The `TaskWorker` writes it; others act on it."""

    def __init__(self) -> None:
        self.state = WorkerState.IDLE
        self.task: asyncio.Task[None] | None = None  # serves

    def is_stopping(self) -> bool:
        """Return whether this process does not work, so that its steps must be handed to others.

        Also True while the event loop is torn down, which cancels all of its tasks.
        """
        task = self.task
        at_work = self.state in _AT_WORK and task is not None and not task.done()
        return not at_work or bool(task and task.cancelling())

    def has_ended(self) -> bool:
        """Return whether this process has handed its steps to others, and writes no more."""
        return self.state in _ENDED


class WorkerUser(Protocol):
    """An endpoint that needs the tasks of its mux to be worked on in this process."""

    @property
    def gone(self) -> bool:
        """Whether it ended together with its event loop."""

    def end(self) -> None:
        """Handle the end of the worker: the mux was closed. Called from any loop."""


class TaskWorker:
    """Works on the steps in *deliveries* on one event loop, and renews the heartbeat meanwhile.

    If that loop was closed, the worker serves on the loop that starts it next. Changed `options`
    apply from the next start on.

    Args:
        deliveries: the queues of the store.
        heartbeats: renews the heartbeat of this process.
        handler: runs the step with a delivered id.
        options: how this process works on jobs.
        lifecycle: the state, for others.
        prefix: with which the names of queues begin in the store.
        has_work: whether there may be work before the first call: the store is durable, or jobs run
            periodically.
        schedules: creates the occurrences of periodic jobs, until it is cancelled.
        checks: called at least twice per lease. They stop work whose task was cancelled by a
            process that could not send that to this one, and repair tasks of dead processes.
        calls: the calls that run in this process, and that others would consider lost without its
            heartbeat.

    Attributes:
        dormant: whether stored work may wait for this process, which does not work. Derived from
            the state, and kept beside it because each request reads it.
    """

    def __init__(
        self,
        deliveries: Deliveries,
        heartbeats: Heartbeats,
        handler: Handler,
        options: JobOptions,
        lifecycle: WorkerLifecycle,
        *,
        prefix: str = "",
        has_work: bool = False,
        schedules: Callable[[], Coroutine[Any, Any, None]],
        checks: Sequence[Callable[[], Awaitable[None]]] = (),
        calls: Sized = (),
    ) -> None:
        self._deliveries = deliveries
        self._heartbeats = heartbeats
        self._handler = handler
        self.options = options
        self._lifecycle = lifecycle
        self._prefix = prefix
        self._has_work = self.dormant = has_work
        self._schedules = schedules
        self._checks = checks
        self._calls = calls
        self._unowned: set[asyncio.Task[None]] = set()  # of `run_call`
        self._users: set[WorkerUser] = set()
        self._serving: _Serving | None = None

    @property
    def state(self) -> WorkerState:
        """What it does. An event loop that was closed has ended it."""
        state, serving = self._lifecycle.state, self._serving
        lost = state in _AT_WORK and serving is not None and serving.over
        return WorkerState.FAILED if lost else state

    def run_call(self, call: Coroutine[Any, Any, None]) -> None:
        """Run *call*, which no request owns, to its end; it is cancelled when this stops.

        It has the same grace period as steps.
        """
        running = asyncio.get_running_loop().create_task(call, name="a call")
        self._unowned.add(running)
        running.add_done_callback(self._call_ended)

    def _call_ended(self, call: "asyncio.Task[None]") -> None:
        self._unowned.discard(call)
        _log_failure(call)

    @property
    def problem(self) -> str | None:
        """The reason why no steps are run here; None if they are, or none are expected."""
        state = self.state
        if state is WorkerState.SERVING:
            return None
        if state in (WorkerState.STARTING, WorkerState.STOPPING, WorkerState.FAILED):
            return state.name.lower()
        return "not started" if self._has_work else None

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop on which this works; None if it does not."""
        serving = self._serving
        return None if serving is None or serving.over else serving.loop

    def start_serving(self) -> "Future[None]":
        """Start to serve on the running loop, unless this serves already.

        Return a future that is done once it serves. It is one of `concurrent.futures`, because any
        event loop may wait for it.
        """
        serving = self._serving
        if serving is None or self.state not in _AT_WORK or serving.task.cancelling():
            serving = self._serving = _Serving(serving)
            # In an empty context: the steps must not see context variables of the request that
            # happened to start the worker.
            task = serving.loop.create_task(self._serve(serving), context=Context())
            serving.task = self._lifecycle.task = task
            self._enter(WorkerState.STARTING)
            task.add_done_callback(partial(self._ended, serving))
        return serving.ready

    def wake(self) -> None:
        """Start to serve, and return without waiting until this does. An error is logged."""
        self.start_serving().add_done_callback(_log_failed_start)

    async def start(self) -> None:
        """Start to serve, unless this does already; return once it does.

        Does nothing if this was released.

        Raises:
            StoreUnavailable: the store could not be reached.
        """
        state, serving = self._lifecycle.state, self._serving
        if state is WorkerState.SERVING and serving is not None and not serving.loop.is_closed():
            return
        if state in (WorkerState.STOPPING, WorkerState.RELEASED):
            return
        ready = self.start_serving()
        if not ready.done():
            await asyncio.shield(asyncio.wrap_future(ready))
        ready.result()

    async def ended(self) -> None:
        """Wait until serving on this loop has ended. A failure is logged."""
        if self._serving is not None:
            await asyncio.wait({self._serving.task})

    def use(self, user: WorkerUser) -> None:
        """Register a *user* that needs tasks to be worked on here, until it calls `release`."""
        self._users.add(user)

    async def release(self, user: WorkerUser, *, within: float = inf) -> None:
        """Hand the steps of this process to others, unless another user still needs the worker.

        While calls run in this process, but for at most a lease, the heartbeat is still renewed:
        other processes must not consider them lost. The next `wake` starts the worker again.

        Args:
            user: registered by `use`.
            within: seconds that shorten `JobOptions.shutdown_grace`.
        """
        self._users.discard(user)
        if all(each.gone for each in self._users):
            await self._stop(WorkerState.RELEASED, within)

    async def aclose(self, *, within: float = inf) -> None:
        """Stop serving. Steps that still run after the grace period are taken by other processes.

        *within* shortens the grace period, in seconds.
        """
        await self._stop(WorkerState.CLOSED, within)
        users, self._users = self._users, set()
        for each in users:
            each.end()

    async def _stop(self, after: WorkerState, within: float) -> None:
        serving = self._serving
        self._enter(WorkerState.STOPPING)
        if serving is not None and not serving.over:
            grace = min(within, self.options.shutdown_grace)
            await serving.stop(grace, waits_for_calls=after is WorkerState.RELEASED)
        if self._serving is serving:  # not started again in the meantime
            self._serving = None
            self._enter(after)

    def _enter(self, state: WorkerState) -> None:
        self._lifecycle.state = state
        self.dormant = self._has_work and state not in (*_AT_WORK, WorkerState.STOPPING)

    async def _serve(self, serving: "_Serving") -> None:
        if serving.before is not None:
            await asyncio.wait({serving.before})
        options, heartbeats = self.options, self._heartbeats
        heartbeats.queues = {
            queue: ENGINE if queue in options.engines else b"" for queue in options.queues
        }
        heartbeats.presence.reset()  # no heartbeats were due until now
        # Before the first claim: another process must not take over the steps that start here.
        await heartbeats.beat()
        consumers = self._consumers(options)
        # The heartbeat is renewed until the last step has ended: other processes would otherwise
        # take over steps that still run here.
        beating = asyncio.create_task(heartbeats.keep_beating())
        consuming = [asyncio.create_task(each.run()) for each in consumers]
        for part in (beating, *consuming):
            part.add_done_callback(lambda part: serving.stopping.set())  # it has failed
        # Records would expire during a long step: a check extends that.
        pause = min(options.lease / 2, options.retention / 6)
        others = [
            asyncio.create_task(self._check(pause), name="the check of tasks"),
            asyncio.create_task(self._schedules(), name="the creation of periodic jobs"),
        ]
        for each in others:
            each.add_done_callback(_log_failure)
        if self._serving is serving and self.state is WorkerState.STARTING:
            self._enter(WorkerState.SERVING)
        serving.ready.set_result(None)
        try:
            await serving.stopping.wait()
            drains = [each.drain(serving.grace) for each in consumers]
            await asyncio.gather(*drains, self._drain_calls(serving))
        finally:
            # Also after an error, so that running steps are handed over.
            await cancel_and_wait(*consuming, *others)
            # One that ignores this, or cannot write its end, must not delay the exit for ever.
            await cancel_and_wait(*self._calls_on(serving.loop), timeout=_CALL_GRACE)
            await asyncio.gather(*(each.aclose() for each in consumers))
            if serving.waits_for_calls:
                await self._wait_for_calls(options.lease)
            await cancel_and_wait(beating)
        for part in (beating, *consuming):
            if not part.cancelled():
                part.result()
        with suppress(StoreError):  # others find out when the heartbeat expires
            await heartbeats.leave()

    def _consumers(self, options: JobOptions) -> list[QueueConsumer]:
        # Only jobs have a limit per client. Other steps are short, or wait for an external queue.
        served: list[tuple[Sequence[str], int, int | None]] = [
            ([*queues], concurrency, share) for queues, concurrency, share in options.job_slots()
        ]
        served.append(([CONTINUATIONS], _CONTINUATION_CONCURRENCY, None))
        served.append(([EXTERNAL], _EXTERNAL_CONCURRENCY, None))
        if options.engines:  # their jobs are submitted to them, which takes no slots
            served.append(([*options.engines], _SUBMISSIONS, None))
        return [
            QueueConsumer(
                self._deliveries,
                self._handler,
                [delivery_queue(self._prefix, queue) for queue in queues],
                concurrency=concurrency,
                max_per_owner=share,
                lease=options.lease,
                presence=self._heartbeats.presence,
            )
            for queues, concurrency, share in served
        ]

    async def _check(self, interval: float) -> None:
        while True:
            await asyncio.sleep(interval)
            for check in self._checks:
                try:
                    await check()
                except StoreError as error:
                    logger.debug("tasks are checked later: %s", error)

    async def _wait_for_calls(self, timeout: float) -> None:
        for _ in range(ceil(timeout / _BUSY_POLL)):
            if not self._calls:
                return
            await asyncio.sleep(_BUSY_POLL)

    async def _drain_calls(self, serving: "_Serving") -> None:
        if calls := self._calls_on(serving.loop):
            await asyncio.wait(calls, timeout=serving.grace)

    def _calls_on(self, loop: asyncio.AbstractEventLoop) -> Sequence["asyncio.Task[None]"]:
        return [each for each in self._unowned if each.get_loop() is loop]

    def _ended(self, serving: "_Serving", task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if not serving.ready.done():
            serving.ready.set_exception(
                error or _Stopped("this process is stopping: it does not start jobs")
            )
        elif error is not None:
            logger.error("this process does not work on jobs any more", exc_info=error)
        if self._serving is serving and self._lifecycle.state in _AT_WORK:
            self._enter(WorkerState.FAILED)


class _Stopped(StoreUnavailable):
    """The worker was stopped, or its event loop closed, before it served."""


def _log_failure(task: "asyncio.Task[None]") -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("%s has failed", task.get_name(), exc_info=error)


def _log_failed_start(ready: "Future[None]") -> None:
    error = ready.exception()
    if error is not None and not isinstance(error, _Stopped):
        logger.warning(
            "stored jobs are not run here yet; the next request or probe tries again: %s", error
        )


class _Serving:
    """One period of serving, on the event loop that is running when this is created.

    before: the task of the period before, if that is on the same loop: both renew the same
    heartbeat, which the earlier one removes when it ends. grace: seconds that running steps have
    when it is stopped. waits_for_calls: whether the heartbeat is renewed for calls after that.
    """

    task: "asyncio.Task[None]"

    def __init__(self, before: "_Serving | None") -> None:
        self.loop = asyncio.get_running_loop()
        same_loop = before is not None and before.loop is self.loop
        self.before = before.task if before is not None and same_loop else None
        self.ready: Future[None] = Future()
        self.stopping = asyncio.Event()
        self.grace = 0.0
        self.waits_for_calls = False

    @property
    def over(self) -> bool:
        """Whether it has ended, with its loop or before."""
        return self.task.done() or self.loop.is_closed()

    async def stop(self, grace: float, *, waits_for_calls: bool) -> None:
        """Stop it, and wait for its end, from any loop."""
        if self.loop is asyncio.get_running_loop():
            self.grace, self.waits_for_calls = grace, waits_for_calls
            self.stopping.set()
            await asyncio.wait({self.task})
        elif self.loop.is_running():
            stop = self.stop(grace, waits_for_calls=waits_for_calls)
            await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(stop, self.loop))
