"""Jobs on the workers of Celery, and calls that wait for tasks of Celery: the extra `celery`."""

import asyncio
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from threading import Event, Lock, Thread
from typing import Any, Final

from genmcp.core.waiting import ExternalCall
from genmcp.daemon import in_daemon_thread
from genmcp.tasks.queues import AttemptFailed, EngineQueue, ExternalStatus, LoopLocal, Phase

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

_CALLS: Final = 8  # of Celery at once, for each queue: a broker that never responds keeps a thread


class CeleryQueue(EngineQueue):
    """A Celery application: `JobOptions(queues={"heavy": CeleryQueue(app)})`.

    The jobs of that queue run in Celery's workers, which import the module of the mux. Their pool
    may be of processes or threads, or solo.

    It also follows tasks of the application, if that has a result backend: `ExternalJob("celery",
    task_id)`. A signal in the worker may call `Mux.settle` meanwhile: docs/how-to/external-jobs.md.
    The progress of such a task is what it passes to `update_state(state="PROGRESS", meta=...)`:
    "current", "total" and "message".

    Args:
        app: the `celery.Celery` application.
        queue: the queue of Celery for jobs. Default: that of the application's configuration.
    """

    scheme = "celery"

    def __init__(self, app: Any, *, queue: str | None = None) -> None:
        self._app = app
        self._options = {} if queue is None else {"queue": queue}
        self._task: Any = None
        self._turns = LoopLocal(partial(asyncio.Semaphore, _CALLS))

    def __repr__(self) -> str:
        return f"<CeleryQueue of {self._app.main}>"

    def register(self, name: str) -> None:
        self.check_unregistered(self._app, name)

        def run(id: str, job: str) -> str:
            state: str = _run_in_loop(self.run(id))
            return state

        # `throws`: a failed attempt, whose traceback genmcp has logged, is no error of the worker.
        self._task = self._app.task(
            run, name=name, shared=False, ignore_result=True, throws=(AttemptFailed,)
        )

    async def submit(self, id: str, job: str) -> None:
        # `shadow`: the monitoring of Celery shows the name of the job.
        await self._call(self._task.apply_async, (id, job), shadow=job, **self._options)

    async def snapshot(self, ref: str) -> ExternalStatus:
        stored = await self._call(self._app.backend.get_task_meta, ref, cache=False)
        phase, result = _PHASES.get(stored["status"], "working"), stored["result"]
        if phase == "completed":
            return ExternalStatus(phase, result=result)
        if phase == "failed":
            return ExternalStatus(phase, error=repr(result))
        meta = result if phase == "working" and isinstance(result, dict) else {}
        return ExternalStatus(phase, meta.get("current"), meta.get("total"), meta.get("message"))

    async def start(self, ref: str, call: ExternalCall) -> str:
        send = self._app.send_task
        await self._call(send, call.name, call.args, dict(call.kwargs), task_id=ref)
        return ref

    async def cancel(self, ref: str) -> None:
        await self._call(self._app.control.revoke, ref)

    async def _call(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call a *function* of Celery, which has blocking clients only.

        Not in the executor of the event loop: names of hosts are looked up there, also that of the
        store, and a broker may never respond.
        """
        loop, turns = asyncio.get_running_loop(), self._turns.here()
        await turns.acquire()

        def call() -> Any:
            try:
                return function(*args, **kwargs)
            finally:  # which may be long after the caller was cancelled
                with suppress(RuntimeError):  # the loop was closed
                    loop.call_soon_threadsafe(turns.release)

        return await in_daemon_thread(call)


# Celery calls its tasks in threads without an event loop, of processes that it has forked. Each
# process has one loop for all jobs, so that they share the connections to the store, and the
# heartbeat goes on while a `def` job blocks.

_HAND_OVER: Final = 10.0  # seconds: the cleanup of a job has 5, and the write follows
_loops: Final[dict[int, asyncio.AbstractEventLoop]] = {}  # by process id: one of a parent is dead
_starting: Final = Lock()


def _run_in_loop(work: Any) -> Any:
    """Run *work* in the loop of this process, and return its result; cancel it on any exception.

    Celery raises `SoftTimeLimitExceeded` in this thread, and SystemExit when it terminates this
    process: *work* then has the time to hand its job over.
    """
    ended = Event()

    async def run() -> Any:
        try:
            return await work
        finally:
            ended.set()

    with _starting:
        loop = _loops.get(os.getpid())
        if loop is None:
            loop = _loops[os.getpid()] = asyncio.new_event_loop()
            Thread(target=loop.run_forever, name="genmcp jobs", daemon=True).start()
    running = asyncio.run_coroutine_threadsafe(run(), loop)
    try:
        return running.result()
    finally:
        running.cancel()
        ended.wait(_HAND_OVER)
