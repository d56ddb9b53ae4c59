"""Runs jobs in the processes of an engine, and shows that these processes are alive.

The path of a job in a queue with an engine (`JobOptions.queues`):

- It is submitted to the queue of the store, as any job. A process of the server claims it there and
  submits it to the engine (`TaskRunner.handle`).
- The engine calls `EngineWorker.run` in one of its processes, which claims the record with a new
  fencing token, and writes its own name to it (`Task.holder`).
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
from secrets import token_hex

from genmcp.cancellation import cancel_and_wait
from genmcp.errors import StoreError
from genmcp.stores.clocks import steady
from genmcp.stores.store import Store
from genmcp.tasks.heartbeats import Heartbeats, Presence
from genmcp.tasks.runner import TaskRunner

logger = logging.getLogger("genmcp")

_BEATS_PER_LEASE = 9


class EngineWorker:
    """Runs jobs in a process of an engine. One per mux and process.

    The process has a heartbeat while jobs run. It has a name of its own, which it gets with its
    first job: a process that was forked must not have that of its parent.

    Args:
        runner: runs the jobs.
        store: has the records.
        lease: seconds without a heartbeat after which the jobs are given to other processes.
        prefix: with which all keys begin.
    """

    def __init__(self, runner: TaskRunner, store: Store, lease: float, prefix: str) -> None:
        self._runner = runner
        self._store = store
        self._lease = lease
        self._prefix = prefix
        self._process = 0
        self._runs = 0
        self._last_beat = 0.0
        self._heartbeats: Heartbeats
        self._beating: asyncio.Task[None] | None = None

    async def run(self, id: str) -> str:
        """Run the job with *id*: `TaskRunner.run_job`."""
        if self._process != os.getpid():
            presence = Presence(self._lease, self._store.now)
            own = f"engine-{token_hex(8)}"
            self._heartbeats = Heartbeats(self._store, own, self._lease, presence, self._prefix)
            self._process, self._runs, self._last_beat = os.getpid(), 0, 0.0
            self._beating = None
        self._runs += 1
        try:
            if steady() - self._last_beat > self._lease / _BEATS_PER_LEASE:
                self._heartbeats.presence.reset()
                await self._beat()
            if self._beating is None:
                self._beating = asyncio.create_task(self._keep_beating())
            return await self._runner.run_job(id, self._heartbeats.own)
        finally:
            self._runs -= 1
            if not self._runs and (beating := self._beating):
                self._beating = None
                await cancel_and_wait(beating)

    async def _beat(self) -> None:
        await self._heartbeats.beat()
        self._last_beat = steady()

    async def _keep_beating(self) -> None:
        while True:
            await asyncio.sleep(self._lease / _BEATS_PER_LEASE)
            try:
                await self._beat()
            except StoreError as error:
                logger.warning("other processes may consider this one dead: %s", error)
