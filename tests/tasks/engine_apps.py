"""A mux whose queue "heavy" runs on an engine: what the workers of the engine import.

The workers get the engine, its broker, and the store from the environment: ENGINE, BROKER_URL and
STORE_URL. On Temporal, which has no command for workers, this module is run itself.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

from genmcp import Channel, Continue, JobOptions, Mux, Suite, Tool, ToolRequest
from genmcp.tasks.jobs import Run, job
from genmcp.tasks.queues import EngineQueue
from tests.tasks.engine_log import record

LEASE: Final = 2.0  # seconds


def is_released(folder: str) -> bool:
    """Return whether the test lets the jobs end that hold."""
    return (Path(folder) / "go").exists()


@job(name="engines.work", queue="heavy", retries=2, backoff=0.0)
async def work(
    run: Run, folder: str, items: int = 2, pause: float = 0.0, fails: int = 0, holds: bool = False
) -> list[Any]:
    """Save after each item; the first *fails* attempts fail; *holds*: wait for the file `go`."""
    record(folder, "started", run.id, run.attempt, run.saved or 0)
    try:
        for item in range(run.saved or 0, items):
            await asyncio.sleep(pause)
            await run.progress(item + 1, items, f"item {item}")
            await run.save(item + 1)
            record(folder, "saved", run.id, item + 1)
        while holds and not is_released(folder):
            await run.progress(items)
            await asyncio.sleep(0.05)
    except asyncio.CancelledError:
        record(folder, "cancelled", run.id, run.attempt)
        raise
    if run.attempt <= fails:
        raise ValueError(f"attempt {run.attempt} fails")
    record(folder, "returned", run.id, run.attempt)
    return [run.id, run.attempt, run.saved]


@job(name="engines.slow_end", queue="heavy")
async def slow_end(run: Run, folder: str) -> int:
    """Take time to end when the first attempt is cancelled."""
    record(folder, "started", run.id)
    try:
        if run.attempt == 1:
            await asyncio.Event().wait()
    except asyncio.CancelledError:
        await asyncio.sleep(0.5)
        raise
    return run.attempt


@job(name="engines.block", queue="heavy")
def block(run: Run, seconds: float) -> int:
    """Block a thread of the worker."""
    time.sleep(seconds)
    return os.getpid()


@job(name="engines.endless", queue="heavy", timeout=0.5)
async def endless(run: Run) -> None:
    await asyncio.Event().wait()


def plain(folder: str, how: str = "") -> str:
    """A function of the engine itself, which knows nothing of genmcp."""
    record(folder, "plain started")
    while how == "holds" and not is_released(folder):
        time.sleep(0.05)
    if how == "fails":
        raise ValueError("a secret of the work")
    return "plain"


async def plain_async(folder: str, how: str = "") -> str:
    return await asyncio.to_thread(plain, folder, how)


def counting(self: Any, folder: str) -> str:
    """A task of Celery that reports progress, until the test releases it."""
    meta = {"current": 1, "total": 2, "message": "half"}
    self.update_state(state="PROGRESS", meta=meta)
    return plain(folder, "holds")


class EngineApp(NamedTuple):
    """What a worker of the engine is started with."""

    queue: EngineQueue
    app: Any = None
    tasks: Sequence[Any] = ()


def celery(broker: str) -> EngineApp:
    celery: Any = import_module("celery")  # it has no types

    from genmcp.tasks.celery import CeleryQueue

    app = celery.Celery("engines", broker=broker, backend=broker)
    app.conf.broker_connection_retry_on_startup = True
    app.task(plain, name="plain", shared=False)
    app.task(counting, name="counting", bind=True, shared=False)
    return EngineApp(CeleryQueue(app), app)


def procrastinate(broker: str) -> EngineApp:
    from procrastinate import App, PsycopgConnector

    from genmcp.tasks.procrastinate import ProcrastinateQueue

    app = App(connector=PsycopgConnector(conninfo=broker, max_size=10))
    app.task(name="plain")(plain_async)
    return EngineApp(ProcrastinateQueue(app), app)


def docket(broker: str) -> EngineApp:
    from genmcp.tasks.docket import DocketQueue

    plain_async.__name__ = "plain"
    return EngineApp(DocketQueue("engines", broker), tasks=[plain_async])


def temporal(broker: str) -> EngineApp:
    from temporalio.client import Client

    from genmcp.tasks.temporal import TemporalQueue
    from tests.tasks.engine_workflow import PlainWorkflow

    async def connect() -> Client:
        return await Client.connect(broker)

    return EngineApp(TemporalQueue(connect), connect, [PlainWorkflow])


def options_of(made: EngineApp) -> JobOptions:
    """Return the options of each process: those of the server, and of the engine."""
    return JobOptions(queues={"default": 4, "heavy": made.queue}, lease=LEASE, max_crashes=20)


ENGINES: Final[Mapping[str, Callable[[str], EngineApp]]] = {
    "celery": celery,
    "procrastinate": procrastinate,
    "docket": docket,
    "temporal": temporal,
}


def worker_command(engine: str, broker: str) -> list[str]:
    """Return the command of a worker of *engine*."""
    here = "tests.tasks.engine_apps"
    match engine:
        case "celery":
            options = ["--concurrency=4", "--loglevel=warning", "--without-gossip"]
            command = ["celery", "-A", f"{here}:app", "worker", "--without-mingle", *options]
        case "procrastinate":
            command = ["procrastinate", "--app", f"{here}.app", "worker", "--concurrency=4"]
        case "docket":
            command = ["docket", "worker", "--docket=engines", f"--url={broker}"]
            command += [f"--tasks={here}:queue", f"--tasks={here}:tasks", "--concurrency=4"]
            command += ["--logging-level=WARNING"]
        case _:
            command = [here]
    return [sys.executable, "-m", *command]


def worker_environment(engine: str, broker: str, store: str) -> Mapping[str, str]:
    """Return the environment of a worker of *engine*."""
    settings = {"ENGINE": engine, "BROKER_URL": broker, "STORE_URL": store}
    return {**os.environ, **settings, "PYTHONPATH": str(Path.cwd())}


async def serve_temporal() -> None:
    """Run a worker of Temporal until SIGTERM."""
    from temporalio.worker import Worker

    heavy: Any = queue
    worker = Worker(
        await app(),
        task_queue="genmcp",
        workflows=[*heavy.workflows, *tasks],
        activities=[*heavy.activities],
        max_concurrent_activities=4,
    )
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    async with worker:
        await stopping.wait()


class Works(Tool):
    """Waits for a job, which may run again."""

    name = "works"
    on_worker_lost: Literal["rerun", "fail"] = "rerun"
    input_schema = {"type": "object"}

    async def call(self, request: ToolRequest, channel: Channel) -> Continue:
        return work.job(**request.arguments).then(self.done)

    async def done(self, request: ToolRequest, value: list[Any], channel: Channel) -> str:
        return json.dumps(value)


class WorksOnce(Works):
    """Waits for a job, which may not run again."""

    name = "works_once"
    on_worker_lost = "fail"


def mux_of(made: EngineApp, store: str) -> Mux:
    """Return a mux whose queue "heavy" runs on an engine."""
    suite = Suite(name="engines", version="1", tools=[Works, WorksOnce])
    return Mux(suite, store=store, jobs=options_of(made), secret="a secret of the tests")


if "ENGINE" in os.environ:
    made = ENGINES[os.environ["ENGINE"]](os.environ["BROKER_URL"])
    queue, app, tasks = made
    mux = mux_of(made, os.environ["STORE_URL"])

if __name__ == "__main__":
    asyncio.run(serve_temporal())
