"""Jobs on the workers of Temporal, and calls that wait for workflows: the extra `temporal`."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final

from genmcp.cancellation import cancel_and_wait
from genmcp.core.waiting import ExternalCall, ExternalJob
from genmcp.errors import ContractError
from genmcp.extras import missing_extra
from genmcp.tasks.queues import EngineQueue, ExternalStatus, LoopLocal

try:
    from temporalio import activity, workflow
    from temporalio.client import Client, WorkflowFailureError, WorkflowHandle
    from temporalio.common import RetryPolicy
    from temporalio.exceptions import (
        CancelledError,
        TerminatedError,
        WorkflowAlreadyStartedError,
    )
    from temporalio.service import RPCError, RPCStatusCode
except ImportError as error:
    raise missing_extra("TemporalQueue", "temporal", error) from error

__all__ = ["TemporalQueue"]

_LONGEST_JOB: Final = timedelta(days=365)  # Temporal needs a limit; that of a job is `timeout`
_HEARTBEAT: Final = 10.0  # seconds
_HEARTBEAT_TIMEOUT: Final = timedelta(seconds=60)  # after that Temporal shows the job as failed


@workflow.defn(name="genmcp", sandboxed=False)
class JobWorkflow:
    """The workflow of one job: a single activity, which genmcp repeats itself."""

    @workflow.run
    async def run(self, name: str, id: str, job: str) -> str:
        """Run the activity *name*, which runs the *job* with *id*."""
        state: str = await workflow.execute_activity(
            name,
            args=[id, job],
            start_to_close_timeout=_LONGEST_JOB,
            heartbeat_timeout=_HEARTBEAT_TIMEOUT,
            retry_policy=RetryPolicy(maximum_attempts=1),
            summary=job,
        )
        return state


class TemporalQueue(EngineQueue):
    """A Temporal namespace: `JobOptions(queues={"heavy": TemporalQueue(connect)})`.

    The jobs of that queue run as activities in workers with `workflows` and `activities`, which
    import the module of the mux.

    It also follows workflows: `ExternalJob("temporal", workflow_id)`.

    Args:
        connect: returns a client: `lambda: Client.connect("localhost:7233")`.
        task_queue: the task queue of jobs, and of workflows that `job` makes. Default: "genmcp".

    Attributes:
        workflows, activities: those that a worker of *task_queue* needs to run jobs.
    """

    scheme = "temporal"

    def __init__(
        self,
        connect: Callable[[], Awaitable[Client]],
        *,
        task_queue: str = "genmcp",
    ) -> None:
        self._connect = connect
        self._task_queue = task_queue
        self._client: Client | None = None
        self._connecting = LoopLocal(asyncio.Lock)  # many jobs may be followed from the start
        self.workflows: Sequence[type] = [JobWorkflow]
        self.activities: Sequence[Callable[..., Any]] = []

    def __repr__(self) -> str:
        return f"<TemporalQueue {self._task_queue}>"

    def register(self, name: str) -> None:
        @activity.defn(name=name)
        async def run(id: str, job: str) -> str:
            running = asyncio.create_task(self.run(id))
            try:
                while not running.done():
                    activity.heartbeat()
                    await asyncio.wait({running}, timeout=_HEARTBEAT)
            finally:
                await cancel_and_wait(running)
            return running.result()

        self.activities = [run]

    async def submit(self, id: str, job: str) -> None:
        workflow_id = f"{job} {id}"
        await self._start(JobWorkflow.run, [self.name, id, job], workflow_id)

    async def snapshot(self, ref: str) -> ExternalStatus:
        handle = await self._handle(ref)
        try:
            if (await handle.describe()).close_time is None:
                return ExternalStatus("working")
            return ExternalStatus("completed", result=await handle.result())
        except WorkflowFailureError as error:
            cancelled = isinstance(error.cause, CancelledError | TerminatedError)
            return ExternalStatus("cancelled" if cancelled else "failed", error=repr(error.cause))
        except RPCError as error:
            if error.status == RPCStatusCode.NOT_FOUND:
                return ExternalStatus("failed", error=f"no workflow {ref!r}")
            raise

    async def start(self, ref: str, call: ExternalCall) -> str:
        await self._start(call.name, call.args, ref)
        return ref

    def job(self, name: str, *args: Any, **kwargs: Any) -> ExternalJob:
        """Return a workflow, as `ExternalQueue.job` does; its arguments are passed by position."""
        if kwargs:
            raise ContractError(f"{name}: Temporal passes arguments by position")
        return super().job(name, *args)

    async def cancel(self, ref: str) -> None:
        try:
            await (await self._handle(ref)).cancel()
        except RPCError as error:
            if error.status != RPCStatusCode.NOT_FOUND:  # it has ended
                raise

    async def _opened(self) -> Client:
        async with self._connecting.here():
            self._client = self._client or await self._connect()
            return self._client

    async def _start(self, workflow: Any, args: Sequence[Any], id: str) -> None:
        client = await self._opened()
        with suppress(WorkflowAlreadyStartedError):
            await client.start_workflow(workflow, args=args, id=id, task_queue=self._task_queue)

    async def _handle(self, ref: str) -> WorkflowHandle[Any, Any]:
        return (await self._opened()).get_workflow_handle(ref)
