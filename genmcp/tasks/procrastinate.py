"""Jobs on the workers of procrastinate, and calls that wait for its jobs: the extra
`procrastinate`."""

import asyncio
from typing import Any, Final

from genmcp.core.waiting import ExternalCall, ExternalJob
from genmcp.errors import ContractError
from genmcp.extras import missing_extra
from genmcp.tasks.queues import EngineQueue, ExternalStatus, LoopLocal, Phase

try:
    from procrastinate import App
    from procrastinate.exceptions import AlreadyEnqueued
except ImportError as error:
    raise missing_extra("ProcrastinateQueue", "procrastinate", error) from error

__all__ = ["ProcrastinateQueue"]

_PHASES: Final[dict[str | None, Phase]] = {
    "todo": "queued",
    "doing": "working",
    "aborting": "working",
    "succeeded": "completed",
    "failed": "failed",
    "cancelled": "cancelled",
    "aborted": "cancelled",
}


class ProcrastinateQueue(EngineQueue):
    """An application of procrastinate: `JobOptions(queues={"heavy": ProcrastinateQueue(app)})`.

    The jobs of that queue run in procrastinate's workers, which import the module of the mux.

    It also follows jobs of the application: `ExternalJob("procrastinate", str(job_id))`.
    procrastinate keeps neither progress nor results, so that the value of such a job is
    None.

    Args:
        app: the `procrastinate.App`, with an asynchronous connector. It is opened with the first
            job, and closed with the mux.
        queue: the queue of procrastinate for jobs. Default: "default".
    """

    scheme = "procrastinate"

    def __init__(self, app: App, *, queue: str = "default") -> None:
        self._app = app
        self._queue = queue
        self._opening = LoopLocal(asyncio.Lock)  # many jobs may be submitted from the start
        self._loop: asyncio.AbstractEventLoop | None = None

    def __repr__(self) -> str:
        return f"<ProcrastinateQueue {self._queue}>"

    def register(self, name: str) -> None:
        self.check_unregistered(self._app, name)

        async def run(id: str, job: str) -> str:
            return await self.run(id)

        if name not in self._app.tasks:
            self._app.task(name=name, queue=self._queue)(run)

    async def submit(self, id: str, job: str) -> None:
        await self._open()
        await self._app.configure_task(self.name, queue=self._queue).defer_async(id=id, job=job)

    async def aclose(self) -> None:
        if self._loop is asyncio.get_running_loop():
            await self._app.close_async()

    async def snapshot(self, ref: str) -> ExternalStatus:
        await self._open()
        found = [*await self._app.job_manager.list_jobs_async(id=int(ref))]
        if not found:
            return ExternalStatus("failed", error=f"no job {ref}, or it was deleted after its end")
        return ExternalStatus(_PHASES[found[0].status], error=found[0].status)

    async def start(self, ref: str, call: ExternalCall) -> str:
        await self._open()
        # A second submission is rejected as long as the first one waits.
        options: dict[str, Any] = {"queueing_lock": ref}
        try:
            deferrer = self._app.configure_task(call.name, **options)
            return str(await deferrer.defer_async(**call.kwargs))
        except AlreadyEnqueued:
            (job, *_) = await self._app.job_manager.list_jobs_async(queueing_lock=ref)
            return str(job.id)

    def job(self, name: str, *args: Any, **kwargs: Any) -> ExternalJob:
        """Return a job of this queue, as `ExternalQueue.job` does; its arguments have names."""
        if args:
            raise ContractError(f"{name}: procrastinate passes arguments by name")
        return super().job(name, **kwargs)

    async def cancel(self, ref: str) -> None:
        if ref.isdecimal():  # otherwise it was not submitted
            await self._open()
            await self._app.job_manager.cancel_job_by_id_async(int(ref), abort=True)

    async def _open(self) -> None:
        async with self._opening.here():
            await self._app.open_async()  # does nothing if it is open
            self._loop = asyncio.get_running_loop()
