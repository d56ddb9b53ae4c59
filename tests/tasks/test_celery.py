"""Tasks of Celery that calls wait for: a real worker, over a real Redis server."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from genmcp.core.waiting import Working
from genmcp.tasks.celery import CeleryQueue
from genmcp.tasks.queues import ExternalStatus
from tests.tasks.bench import ended, made
from tests.tasks.engine_apps import EngineApp, slow_end, work
from tests.tasks.engine_bench import BOUND, EngineBench, JobLog

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineBench]:
    bench = EngineBench("celery", tmp_path_factory.mktemp("celery"))
    try:
        with asyncio.Runner() as runner:
            runner.run(bench.open())
        bench.start_worker()
        yield bench
    finally:
        bench.end()


@pytest.fixture
def app(bench: EngineBench) -> EngineApp:
    return bench.app()


async def until(
    queue: CeleryQueue, id: str, fits: Callable[[ExternalStatus], bool]
) -> ExternalStatus:
    """Ask for the task *id* until its status *fits*."""
    async with asyncio.timeout(BOUND):
        while True:
            if fits(status := await queue.snapshot(id)):
                return status
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("how", ["cold shutdown", "terminate"])
async def test_job_of_a_terminated_process_is_handed_over(
    bench: EngineBench, app: EngineApp, tmp_path: Path, how: str
) -> None:
    """SIGQUIT to the worker, or `revoke(terminate=True)`: that is no crash."""
    log, (worker,) = JobLog(tmp_path), bench.workers
    async with bench.service(app) as service:
        job = Working(slow_end.job(log.folder))
        task = made(job, id=f"t-{how[:4]}", on_lost="fail", continuation=b"c", step=1)
        await service.create(task, b"call")
        await log.until(lambda log: log.lines("started"))
        if how == "terminate":
            (active,) = (await asyncio.to_thread(app.app.control.inspect().active)).values()
            (id,) = [each["id"] for each in active]
            await asyncio.to_thread(app.app.control.revoke, id, terminate=True)
        else:
            bench.start_worker()
            worker.send_signal(signal.SIGQUIT)
            await asyncio.to_thread(worker.wait, BOUND)
            bench.kill_worker(worker)
        await log.until(lambda log: len(log.lines("started")) == 2)
        assert (await ended(service, task.id)).result == b"2"


async def test_failed_attempt_has_one_traceback(
    bench: EngineBench, app: EngineApp, tmp_path: Path
) -> None:
    """That of the job; Celery notes the failure in one line, at INFO."""
    async with bench.service(app) as service:
        job = Working(work.job(str(tmp_path), fails=1))
        await service.create(made(job, id="failing", continuation=b"c", step=1), b"call")
        await ended(service, "failing")
    assert "ValueError: attempt 1 fails" in bench.output()
    assert "raise AttemptFailed" not in bench.output()


async def test_progress_of_a_task_is_read(app: EngineApp, tmp_path: Path) -> None:
    """What the task passes to `update_state`."""
    log, queue = JobLog(tmp_path), app.queue
    assert isinstance(queue, CeleryQueue)
    sent = await asyncio.to_thread(app.app.send_task, "counting", (log.folder,))
    status = await until(queue, sent.id, lambda status: status.phase == "working")
    assert status == ExternalStatus("working", progress=1, total=2, message="half")
    log.release()

    status = await until(queue, sent.id, lambda status: status.over)
    assert status == ExternalStatus("completed", result="plain")


async def test_waiting_task_is_revoked(app: EngineApp, tmp_path: Path) -> None:
    """A worker that is there remembers it, although the task has not begun."""
    log, queue = JobLog(tmp_path), app.queue
    assert isinstance(queue, CeleryQueue)
    first = await asyncio.to_thread(app.app.send_task, "plain", (log.folder,))
    await until(queue, first.id, lambda status: status.over)  # the worker has started
    sent = await asyncio.to_thread(app.app.send_task, "plain", (log.folder,), countdown=2)
    assert (await queue.snapshot(sent.id)).phase == "queued"

    await queue.cancel(sent.id)

    status = await until(queue, sent.id, lambda status: status.over)
    assert status.phase == "cancelled"
    assert len(log.lines("plain")) == 1
