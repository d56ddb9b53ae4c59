"""The handlers of `DocketEngine` (genmcp/tasks/docket.py), and the messages for which they run."""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from contextvars import Context
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any, Final, cast

from docket import Execution, Worker
from docket.dependencies import AdmissionBlocked
from redis.exceptions import RedisError

from genmcp.errors import StoreError
from genmcp.tasks.engine import DeliveryHandler
from genmcp.tasks.retry import LogThrottle

logger = logging.getLogger("genmcp")

FAILURES: Final = (RedisError, OSError, TimeoutError)
"""The errors of commands whose server cannot be reached."""

WRITES: Final = 32
"""The maximum number of commands at once, each with a connection, beside those of a worker."""

_RENEWALS: Final = 4  # per lease
_CLAIMS: Final = 64  # tasks that a worker of Docket claims at once, each with a connection
# A worker of Docket whose slots are all taken checks for a free one at this interval, which is also
# the longest time for which it waits for a message. It bounds the rate of short handlers: 10 slots
# and 50 ms allow 200 a second. While few handlers start, a short interval would only cost CPU time.
_BURST_INTERVAL: Final = timedelta(milliseconds=1)
_BURST: Final = 0.25  # seconds after the start of a handler
_FULL_INTERVAL: Final = timedelta(milliseconds=50)  # later, while all slots are taken


class _Fate(Enum):
    """How the handler of a step has ended, or the reason for which it is cancelled."""

    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LOST = "lost"
    HANDED_OVER = "handed over"


class _DocketStep:
    """A running handler, and the message for which it runs.

    Args:
        execution: the message.
        worker: holds the message.
        loop: the loop of that worker, done when it has ended.
    """

    def __init__(self, execution: Execution, worker: Worker, loop: "asyncio.Future[None]") -> None:
        self.execution = execution
        self.worker = worker
        self.loop = loop
        self.task: asyncio.Task[None]
        self._fate: _Fate | None = None
        self._runs = True

    def cancel(self, fate: _Fate) -> None:
        """Cancel the handler, unless it has ended or was cancelled."""
        if self._runs and self._fate is None:
            self._fate = fate
            self.task.cancel()

    async def call(self, handler: DeliveryHandler, id: str) -> _Fate:
        """Call *handler*, and return how it has ended."""
        try:
            await handler(id)
        except asyncio.CancelledError:
            return self._fate or _Fate.HANDED_OVER  # the event loop is torn down
        finally:
            self._runs = False
        return _Fate.DONE


class DocketServing:
    """The slots and handlers of one `DocketEngine.serve`."""

    def __init__(
        self,
        handler: DeliveryHandler,
        concurrency: int,
        lease: float,
        takeover_delay: Callable[[], float],
        *,
        timeout: float,
        check_interval: timedelta,
    ) -> None:
        self.lease = lease
        self._timeout = timeout
        self._check_interval = check_interval
        self._handler = handler
        self._slots = concurrency
        self._takeover_delay = takeover_delay
        self._steps: dict[str, _DocketStep] = {}
        self._loops: dict[Worker, asyncio.Future[None]] = {}
        self._writes = asyncio.Semaphore(WRITES)
        self._warnings = LogThrottle(logger)
        self._burst_end = 0.0
        self._burst_timer: asyncio.TimerHandle | None = None

    @contextmanager
    def attached(self, worker: Worker) -> Iterator[None]:
        """Give *worker* a share of the slots, until its loop ends."""
        self._loops[worker] = loop = asyncio.get_running_loop().create_future()
        self._share_slots()
        try:
            yield
        finally:
            del self._loops[worker]
            loop.set_result(None)

    async def run(self, id: str, execution: Execution, worker: Worker) -> None:
        """Run the handler of *id* for a task of Docket.

        Raises:
            AdmissionBlocked: always. Docket then does nothing to the message: it was acknowledged,
                or it stays with the worker until its lease ends.
        """
        try:
            if execution.redelivered:
                await self._take_over(id, execution, worker)
            elif len(self._steps) >= self._slots:
                # Another queue has taken the last slot since the worker has asked for messages.
                await _reschedule(execution)
            else:
                await self._run(id, _DocketStep(execution, worker, self._loops[worker]))
        except FAILURES as error:
            self._warnings.log(logging.WARNING, "%s is delivered later: %s", id, error)
        raise AdmissionBlocked(execution, "genmcp", handled=True)

    async def drain(self, grace: float) -> None:
        """Start nothing more, and wait up to *grace* seconds for the running handlers."""
        self._slots = 0
        self._share_slots()
        running = {step.task for step in self._steps.values()}
        if running and grace:
            await asyncio.wait(running, timeout=grace)

    async def close(self, cancel_grace: float) -> None:
        """Cancel the running handlers, and give their ids to other processes at once."""
        self._slots = 0
        self._share_slots()
        steps = list(self._steps.values())
        for step in steps:
            step.cancel(_Fate.HANDED_OVER)
        if steps:
            _, stubborn = await asyncio.wait({step.task for step in steps}, timeout=cancel_grace)
            for task in stubborn:  # its id is delivered elsewhere when the lease has ended
                logger.error("%s continues although it was cancelled", task.get_name())
        if self._burst_timer is not None:
            self._burst_timer.cancel()

    async def watch(self) -> None:
        """Renew the leases, and cancel the handlers that have lost theirs, until cancelled.

        Docket itself renews only the leases of its running tasks; a handler may outlive its task.
        """
        while True:
            await asyncio.sleep(self.lease / _RENEWALS)
            for worker in {step.worker for step in self._steps.values()}:
                steps = [step for step in self._steps.values() if step.worker is worker]
                try:
                    async with asyncio.timeout(self._timeout):
                        await _renew(worker, steps)
                except FAILURES as error:
                    self._warnings.log(logging.WARNING, "leases were not renewed: %s", error)

    async def _take_over(self, id: str, execution: Execution, worker: Worker) -> None:
        running = self._steps.get(id)
        if running is not None and running.execution.message_id == execution.message_id:
            return  # this process was suspended, and has its own message again
        delay = self._takeover_delay()
        if delay > 0:
            await _claim(worker, [execution], idle=max(0.0, self.lease - delay))
        else:
            await _reschedule(execution)

    async def _run(self, id: str, step: _DocketStep) -> None:
        before = self._steps.get(id)
        self._steps[id] = step
        step.task = asyncio.create_task(
            self._finish(id, step, before), name=f"step of {id}", context=Context()
        )
        self._burst_end = asyncio.get_running_loop().time() + _BURST
        self._share_slots()
        try:
            await asyncio.wait({step.task, step.loop}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            if not step.loop.done():  # `Docket.cancel`
                step.cancel(_Fate.CANCELLED)

    async def _finish(self, id: str, step: _DocketStep, before: _DocketStep | None) -> None:
        try:
            if before is not None:  # its lease was lost
                before.cancel(_Fate.LOST)
                await asyncio.wait({before.task})
            try:
                fate = await step.call(self._handler, id)
            except Exception as error:
                trace = None if isinstance(error, StoreError) else error
                text = "the step of %s failed, and will be repeated: %s"
                self._warnings.log(logging.ERROR, text, id, error, exc_info=trace)
                fate = _Fate.FAILED
            async with self._writes, asyncio.timeout(self._timeout):
                await _acknowledge(step.execution, fate, self.lease)
        except FAILURES as error:
            self._warnings.log(logging.WARNING, "%s may be delivered again: %s", id, error)
        finally:
            if self._steps.get(id) is step:
                del self._steps[id]
            self._share_slots()

    def _share_slots(self) -> None:
        """Set the maximum number of tasks of each worker, after a change."""
        free = max(0, self._slots - len(self._steps))
        for worker, loop_end in self._loops.items():
            own = sum(step.loop is loop_end for step in self._steps.values())
            worker.concurrency = own + min(free, _CLAIMS)
        self._set_intervals()

    def _set_intervals(self) -> None:
        now = asyncio.get_running_loop().time()
        if now < self._burst_end:
            interval = _BURST_INTERVAL
            if self._burst_timer is None:
                loop = asyncio.get_running_loop()
                self._burst_timer = loop.call_at(self._burst_end, self._end_burst)
        else:
            full = len(self._steps) >= self._slots
            interval = min(_FULL_INTERVAL, self._check_interval) if full else self._check_interval
        for worker in self._loops:
            worker.minimum_check_interval = interval

    def _end_burst(self) -> None:
        self._burst_timer = None
        self._set_intervals()


async def _acknowledge(execution: Execution, fate: _Fate, retry_delay: float) -> None:
    match fate:
        case _Fate.DONE:
            await execution.mark_as_completed()
        case _Fate.CANCELLED:
            await execution.mark_as_cancelled()
        case _Fate.FAILED:
            # Not at once, because it failed with the store.
            await _reschedule(execution, retry_delay)
        case _Fate.HANDED_OVER:
            await _reschedule(execution)
        case _Fate.LOST:
            pass


async def _reschedule(execution: Execution, delay: float = 0.0) -> None:
    """Acknowledge the message of *execution*, and schedule its id again, in one transaction."""
    execution.when = datetime.now(UTC) + timedelta(seconds=delay)
    await execution.schedule(
        reschedule_message=execution.message_id, expected_generation=execution.generation
    )


async def _claim(worker: Worker, executions: Collection[Execution], idle: float) -> set[bytes]:
    """Set the time since the last renewal; return the ids of the messages that still exist."""
    docket = worker.docket
    async with docket.redis() as redis:
        claimed = await cast(Any, redis).xclaim(
            name=docket.stream_key,
            groupname=docket.worker_group_name,
            consumername=worker.name,
            min_idle_time=0,
            message_ids=[each.message_id for each in executions],
            idle=int(idle * 1000),
            justid=True,
        )
    return set(claimed)


async def _renew(worker: Worker, steps: Collection[_DocketStep]) -> None:
    """Renew the leases of *steps*, and cancel those that were lost or cancelled."""
    held = await _claim(worker, [step.execution for step in steps], idle=0.0)
    docket = worker.docket
    async with docket.redis() as client, cast(Any, client).pipeline(transaction=False) as pipeline:
        for step in steps:
            pipeline.hget(docket.runs_key(step.execution.key), "state")
        states = await pipeline.execute()
    for step, state in zip(steps, states, strict=True):
        if step.execution.message_id not in held:
            step.cancel(_Fate.LOST)
        elif state == b"cancelled":
            step.cancel(_Fate.CANCELLED)
