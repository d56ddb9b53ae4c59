"""Calls that wait for tasks of Celery: the extra `celery`."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any, Final

from genmcp.tasks.external import ExternalQueue, ExternalStatus, Phase

__all__ = ["CeleryQueue"]

# States of an application, such as "PROGRESS", count as "working".
_PHASES: Final[dict[str, Phase]] = {
    "PENDING": "queued",  # also an unknown id, and one whose result has expired
    "RECEIVED": "queued",
    "SUCCESS": "completed",
    "FAILURE": "failed",
    "REJECTED": "failed",
    "REVOKED": "cancelled",
}


class CeleryQueue(ExternalQueue):
    """The tasks of a Celery application with a result backend: `ExternalJob("celery", task_id)`.

    Celery does not announce results to other processes, so that this polls. A signal in the worker
    may call `Mux.settle` meanwhile: docs/external-queues.md.

    The progress of a task is what it passes to `update_state(state="PROGRESS", meta=...)`:
    "current", "total" and "message".

    Args:
        app: the `celery.Celery` application.
        poll_interval: seconds between two reads of a task's state. Default 1.
        terminate: whether a running task is cancelled by a signal to its process (SIGTERM), which
            pools of threads ignore. Default False: a cancelled task that has started continues, and
            its result is dropped.
    """

    scheme = "celery"

    def __init__(self, app: Any, *, poll_interval: float = 1.0, terminate: bool = False) -> None:
        self._app = app
        self._poll_interval = poll_interval
        self._terminate = terminate

    async def snapshot(self, ref: str) -> ExternalStatus:
        # In a thread, because Celery has blocking clients only: one for each thread.
        stored = await asyncio.to_thread(self._app.backend.get_task_meta, ref, cache=False)
        phase, result = _PHASES.get(stored["status"], "working"), stored["result"]
        if phase == "completed":
            return ExternalStatus(phase, result=result)
        if phase == "failed":
            return ExternalStatus(phase, error=repr(result))
        meta = result if phase == "working" and isinstance(result, dict) else {}
        return ExternalStatus(phase, meta.get("current"), meta.get("total"), meta.get("message"))

    async def watch(self, ref: str) -> AsyncGenerator[ExternalStatus, None]:
        while not (status := await self.snapshot(ref)).over:
            yield status
            await asyncio.sleep(self._poll_interval)
        yield status

    async def cancel(self, ref: str) -> None:
        await asyncio.to_thread(self._app.control.revoke, ref, terminate=self._terminate)
