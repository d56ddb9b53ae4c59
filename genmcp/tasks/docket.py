"""Jobs on the workers of Docket, and calls that wait for its tasks: the extra `docket`."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final

from genmcp.core.waiting import ExternalCall
from genmcp.extras import missing_extra
from genmcp.tasks.queues import EngineQueue, ExternalStatus, LoopLocal, Phase

try:
    from docket import Docket
    from docket.execution import ExecutionState
except ImportError as error:
    raise missing_extra("DocketQueue", "docket", error) from error

__all__ = ["DocketQueue"]

_PHASES: Final[dict[ExecutionState, Phase]] = {
    ExecutionState.SCHEDULED: "queued",
    ExecutionState.QUEUED: "queued",
    ExecutionState.RUNNING: "working",
    ExecutionState.COMPLETED: "completed",
    ExecutionState.FAILED: "failed",
    ExecutionState.CANCELLED: "cancelled",
}


class DocketQueue(EngineQueue):
    """A docket: `JobOptions(queues={"heavy": DocketQueue("reports", url)})`.

    The jobs of that queue run in Docket's workers: this is a collection of tasks for `docket worker
    --tasks module:attribute`, or for `Docket.register_collection`.

    It also follows tasks of the docket: `ExternalJob("docket", key)`.

    Args:
        name: the name of the docket.
        url: the URL of its Redis server.
        **options: other options of `docket.Docket`.
    """

    scheme = "docket"

    def __init__(
        self, name: str = "docket", url: str = "redis://localhost:6379/0", **options: Any
    ) -> None:
        self._docket_name = name
        self._options = {"name": name, "url": url, **options}
        self._tasks: list[Callable[..., Awaitable[Any]]] = []
        self._docket: Docket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening = LoopLocal(asyncio.Lock)  # many jobs may be submitted from the start

    def __repr__(self) -> str:
        return f"<DocketQueue {self._docket_name}>"

    def __iter__(self) -> Iterator[Callable[..., Awaitable[Any]]]:
        """Yield the tasks for a worker."""
        return iter(self._tasks)

    def register(self, name: str) -> None:
        async def run(id: str, job: str) -> str:
            return await self.run(id)

        run.__name__ = name
        self._tasks = [run]

    async def submit(self, id: str, job: str) -> None:
        await (await self._open()).add(self._tasks[0], key=f"{job} {id}")(id, job)

    async def aclose(self) -> None:
        docket, self._docket = self._docket, None
        if docket is not None and self._loop is asyncio.get_running_loop():
            await docket.__aexit__(None, None, None)

    async def snapshot(self, ref: str) -> ExternalStatus:
        execution = await (await self._open()).get_execution(ref)
        if execution is None:
            return ExternalStatus("failed", error=f"no task {ref!r}")
        await execution.sync()
        progress = execution.progress
        phase = _PHASES[execution.state]
        if phase == "completed":
            return ExternalStatus(phase, result=await execution.get_result())
        if phase != "working" or progress.current is None:
            return ExternalStatus(phase, error=execution.error)
        return ExternalStatus(phase, progress.current, progress.total, progress.message)

    async def start(self, ref: str, call: ExternalCall) -> str:
        async def function(*args: Any, **kwargs: Any) -> None:
            """Stub: only its name is sent to the worker."""

        function.__name__ = call.name
        await (await self._open()).add(function, key=ref)(*call.args, **call.kwargs)
        return ref

    async def cancel(self, ref: str) -> None:
        await (await self._open()).cancel(ref)

    async def _open(self) -> Docket:
        loop = asyncio.get_running_loop()
        async with self._opening.here():
            if self._docket is None or self._loop is not loop:
                docket = Docket(**self._options)
                await docket.__aenter__()
                self._docket, self._loop = docket, loop
            return self._docket
