"""Runs jobs in the processes of an engine, and shows that these processes are alive.

The path of a job in a queue with an engine (`JobOptions.queues`):

- It is submitted to the queue of the store, as any job. A process of the server claims it there and
  submits it to the engine (`TaskRunner.handle`).
- The engine calls `EngineWorker.run` in one of its processes, which claims the record with a new
  fencing token, and writes its own name to it (`Task.engine_node`).
- After the attempt the task is in the queue of the store again: for a retry, or for the
  continuation of its call by a process of the server.

What an engine loses, repeats, or cannot know is in the record: a repetition finds it claimed; a job
that no process has claimed is submitted again (`TaskWriter.recover`); a process that dies stops
renewing its heartbeat, and its job is submitted again; a process that is cancelled by the engine
hands its job over.
"""

import asyncio
import logging
import os
from contextlib import aclosing, suppress
from functools import partial
from socket import gethostname
from typing import Any, Final

from genmcp.cancellation import cancel_and_wait
from genmcp.core.outcome import Failed, unpack
from genmcp.core.task import Task
from genmcp.core.waiting import Working
from genmcp.errors import TaskNotFound
from genmcp.log_throttle import LogThrottle
from genmcp.stores.clocks import steady
from genmcp.tasks.follower import TaskChange, follow_task
from genmcp.tasks.heartbeats import Heartbeats, ProcessName
from genmcp.tasks.queues import AttemptFailed
from genmcp.tasks.records import TaskRecords
from genmcp.tasks.runner import TaskRunner, parse_queued_id

logger = logging.getLogger("genmcp")

_WARNING_INTERVAL: Final = 60.0  # seconds between two warnings about unknown tasks


class EngineWorker:
    """Runs jobs in a process of an engine. One per mux and process.

    The process has a heartbeat while jobs run, and a name of its own for it: a server in the same
    process has another heartbeat.

    Args:
        runner: runs the jobs.
        records: the tasks.
        lease: seconds without a heartbeat after which the jobs are given to other processes.
    """

    def __init__(self, runner: TaskRunner, records: TaskRecords, lease: float) -> None:
        self._runner = runner
        self._records = records
        self._lease = lease
        self._name = ProcessName(f"engine-{gethostname()}-")
        self._process = ""
        self._runs = 0
        self._heartbeats: Heartbeats
        self._beating: asyncio.Task[None] | None = None
        self._unknown = LogThrottle(logger, _WARNING_INTERVAL)

    async def run(self, id: str) -> str:
        """Run the job with *id*, and show meanwhile that this process is alive: see `RunJob`."""
        if self._process != self._name():  # this is its first job, or it was forked since
            store, prefix = self._records.store, self._records.prefix
            self._heartbeats = Heartbeats(store, self._name, self._lease, prefix)
            self._process, self._runs, self._beating = self._name(), 0, None
            logger.info("process %d runs jobs of an engine, store: %r", os.getpid(), store)
        self._runs += 1
        try:
            if steady() > self._heartbeats.next_beat:
                self._heartbeats.presence.reset()
                await self._heartbeats.beat()
            if self._beating is None:
                keeps = self._heartbeats.keep_beating(self._runner.check)
                self._beating = asyncio.create_task(keeps)
            return await self._run(id)
        finally:
            self._runs -= 1
            if not self._runs and (beating := self._beating):
                self._beating = None
                await cancel_and_wait(beating)

    async def _run(self, queued_id: str) -> str:
        """Run the job that an engine has delivered to this process.

        Do nothing if the job is not due: an engine may deliver an id twice, or late. Whether it is
        due is only in the record. Return the state of the job, for the engine's monitoring.

        Raises:
            AttemptFailed: the job has failed, which was recorded.
            StoreError: the store failed; the id will be submitted again.
        """
        id, delivery, _ = parse_queued_id(queued_id)
        stored = await self._records.find(id)
        if stored is None:
            self._unknown.log(
                logging.WARNING,
                "an engine delivered task %s, which is not in %r: it has ended and expired, or the "
                "process that submitted it uses another store (GENMCP_STORE) or audience",
                id,
                self._records.store,
            )
            return f"no such task in {self._records.store!r}"
        if stored.task.job is None:
            return "ended before"
        if delivery != stored.task.delivery_id or stored.task.held_delivery is not None:
            return "runs elsewhere"
        step = asyncio.create_task(self._runner.run_step(stored, self._heartbeats.own))
        following = asyncio.create_task(self._cancel_when_ended(stored.task, step))
        try:
            await asyncio.wait({step})
        finally:
            await cancel_and_wait(following)
            await cancel_and_wait(step)  # the engine has cancelled this
        if step.cancelled():
            return "cancelled"
        return _state_after(stored.task, step.result())

    async def _cancel_when_ended(self, before: Task, step: "asyncio.Task[Any]") -> None:
        """Cancel the *step* of an engine when its task has ended, or was taken over from it."""
        token = before.fencing_token + 1
        with suppress(TaskNotFound):
            read = partial(self._records.get, before.id)
            async with aclosing(follow_task(self._records, before.id, None, read)) as items:
                async for each in items:
                    task = each.task if isinstance(each, TaskChange) else before
                    if task.ended or task.fencing_token > token:
                        break
        step.cancel()


def _state_after(before: Task, after: Task | None) -> str:
    """Return the state of a job after an attempt, for the monitoring of an engine.

    Raises:
        AttemptFailed: the attempt has failed.
    """
    assert isinstance(before.work, Working)
    if after is None:
        return "taken over by another process"
    failure = None if after.outcome is None else unpack(after.outcome)
    if isinstance(failure, Failed):
        raise AttemptFailed(f"{before.work.job.name}: {failure.error!r}")
    if isinstance(after.work, Working) and after.work.failures > before.work.failures:
        raise AttemptFailed(f"{before.work.job.name}: another attempt follows")
    return "completed" if after.settled else "deferred"
