"""Jobs on the workers of Celery, procrastinate, Docket and Temporal: real brokers and workers."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from genmcp.core.task import Task
from genmcp.core.waiting import Following, Work, Working
from genmcp.tasks.service import TaskChange, TaskService
from tests.tasks.bench import made
from tests.tasks.engine_apps import ENGINES, LEASE, EngineApp, block, endless, work
from tests.tasks.engine_bench import BOUND, EngineBench, JobLog

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(scope="module", params=ENGINES)
def bench(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EngineBench]:
    """An engine with one worker."""
    bench = EngineBench(request.param, tmp_path_factory.mktemp(request.param))
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


@pytest.fixture
async def service(bench: EngineBench, app: EngineApp) -> AsyncIterator[TaskService]:
    async with bench.service(app) as service:
        yield service


@pytest.fixture
def log(tmp_path: Path) -> JobLog:
    return JobLog(tmp_path)


class Call:
    """A call that waits for *work*."""

    def __init__(self, service: TaskService, work: Work, **fields: Any) -> None:
        self._service = service
        self.id = secrets.token_hex(8)
        fields = {"continuation": b"c", "step": 1, "ttl": 600.0, **fields}
        self._task = made(work, id=self.id, created=service.records.now(), **fields)
        self.progress: list[tuple[float | None, float | None, str | None]] = []

    async def begin(self) -> "Call":
        await self._service.create(self._task, b"call")
        return self

    async def result(self) -> Task:
        """Return the task after its end."""
        async with asyncio.timeout(BOUND):
            async for each in self._service.follow(self.id, None):
                if isinstance(each, TaskChange):
                    self.progress.append((each.task.progress, each.task.total, each.task.message))
        return each.task  # type: ignore[union-attr]

    async def cancel(self) -> None:
        await self._service.cancel(self.id, None)


async def test_job_runs_on_a_worker(service: TaskService, log: JobLog) -> None:
    """Its progress is that of the call, and its result is the result."""
    call = await Call(service, Working(work.job(log.folder, 3, 0.2))).begin()
    task = await call.result()

    assert task.result == f'["{call.id}.1",1,3]'.encode()
    assert (3, 3, "item 2") in call.progress


async def test_blocking_job_does_not_hold_the_worker(service: TaskService, log: JobLog) -> None:
    """A `def` job runs in a thread of the worker, which stays alive to the others."""
    call = await Call(service, Working(block.job(1.5 * LEASE)), on_lost="fail").begin()
    task = await call.result()
    assert (task.result or b"").isdigit()


async def test_failed_job_is_retried(service: TaskService, log: JobLog) -> None:
    """The retry continues from what was saved."""
    call = await Call(service, Working(work.job(log.folder, fails=1))).begin()
    task = await call.result()

    assert task.result == f'["{call.id}.1",2,2]'.encode()
    assert [words[1:] for words in log.lines("started")] == [["1", "0"], ["2", "2"]]


async def test_time_limit_ends_a_job(service: TaskService) -> None:
    task = await (await Call(service, Working(endless.job())).begin()).result()
    assert task.result == b'"WaitTimedOut"'


async def test_running_job_is_cancelled_within_5_seconds(service: TaskService, log: JobLog) -> None:
    call = await Call(service, Working(work.job(log.folder, holds=True))).begin()
    await log.until(lambda log: log.lines("started"))
    await call.cancel()

    await log.until(lambda log: log.lines("cancelled"), bound=5)
    assert (await call.result()).end == "cancelled"


async def test_repeated_submission_runs_once(
    service: TaskService, app: EngineApp, log: JobLog
) -> None:
    """While the job runs, and after its end."""
    call = await Call(service, Working(work.job(log.folder, holds=True))).begin()
    await log.until(lambda log: log.lines("started"))
    for number in range(3):
        await app.queue.submit(f"{call.id}:0.{7 + number}", "engines.work")
    other = await Call(service, Working(work.job(log.folder))).begin()
    await other.result()  # what was submitted before it has been delivered
    log.release()
    await call.result()
    await app.queue.submit(f"{call.id}:0.11", "engines.work")
    await (await Call(service, Working(work.job(log.folder))).begin()).result()

    started = [words[0] for words in log.lines("started")]
    assert started.count(f"{call.id}.1") == 1


async def test_lost_submission_is_repeated(
    service: TaskService, app: EngineApp, log: JobLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker has accepted the id, and lost it."""
    submitted: list[str] = []

    async def lose(id: str, job: str) -> None:
        submitted.append(id)

    with monkeypatch.context() as patched:
        patched.setattr(app.queue, "submit", lose)
        call = await Call(service, Working(work.job(log.folder))).begin()
        await log.until(lambda log: submitted)
    assert (await call.result()).end == "completed"


async def test_job_of_a_killed_worker_continues_elsewhere(
    bench: EngineBench, service: TaskService, log: JobLog
) -> None:
    """From what it saved. A job that must not run again ends with WorkerLost."""
    again = await Call(service, Working(work.job(log.folder, 4, holds=True))).begin()
    once = Call(service, Working(work.job(log.folder, 4, holds=True)), on_lost="fail")
    await once.begin()
    await log.until(lambda log: len(log.lines("saved")) == 8)
    bench.kill_worker(bench.workers[0])
    log.release()
    bench.start_worker()

    assert (await again.result()).result == f'["{again.id}.1",2,4]'.encode()
    assert (await once.result()).result == b'"WorkerLost"'


async def test_job_of_a_stopped_worker_is_not_lost(
    bench: EngineBench, service: TaskService, log: JobLog
) -> None:
    """SIGTERM: the engine waits for the job, or cancels it, and then another worker runs it."""
    call = Call(service, Working(work.job(log.folder, 2, 1.0)), on_lost="fail")
    await call.begin()
    await log.until(lambda log: log.lines("started"))
    (worker,) = bench.workers
    bench.start_worker()
    await asyncio.to_thread(bench.stop_worker, worker)

    task = await call.result()
    assert task.result in [f'["{call.id}.1",{attempt},2]'.encode() for attempt in (1, 2)]


# Work of the engine that is not an `@job`


def plain(bench: EngineBench, app: EngineApp, log: JobLog, how: str = "") -> Following:
    if bench.kind == "temporal":  # which passes arguments by position
        return Following(app.queue.job("plain", log.folder, how))
    return Following(app.queue.job("plain", folder=log.folder, how=how))


async def test_call_waits_for_work_of_the_engine(
    bench: EngineBench, service: TaskService, app: EngineApp, log: JobLog
) -> None:
    """It is submitted when the wait is stored, and followed to its end."""
    call = await Call(service, plain(bench, app, log)).begin()
    task = await call.result()

    # procrastinate keeps no results.
    assert task.result == (b"null" if bench.kind == "procrastinate" else b'"plain"')
    assert len(log.lines("plain")) == 1


async def test_work_of_the_engine_that_fails(
    bench: EngineBench,
    service: TaskService,
    app: EngineApp,
    log: JobLog,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its error is in the log of the server or of the engine, and not in the result."""
    call = await Call(service, plain(bench, app, log, "fails")).begin()

    assert (await call.result()).result == b'"WorkRaised"'
    if bench.kind != "procrastinate":  # which does not store it
        assert "a secret of the work" in caplog.text


async def test_unknown_work_has_failed(bench: EngineBench, app: EngineApp) -> None:
    """Its id is wrong, or its record at the engine has expired. Celery cannot tell."""
    status = await app.queue.snapshot("123456789")
    if bench.kind == "celery":
        assert status.phase == "queued"
    else:
        assert status.phase == "failed"
    await app.queue.aclose()


async def test_work_of_the_engine_is_cancelled_with_its_call(
    bench: EngineBench, service: TaskService, app: EngineApp, log: JobLog
) -> None:
    call = await Call(service, plain(bench, app, log, "holds")).begin()
    await log.until(lambda log: log.lines("plain"))
    await call.cancel()
    log.release()

    assert (await call.result()).end == "cancelled"


async def test_call_that_was_cancelled_submits_nothing(
    bench: EngineBench,
    service: TaskService,
    app: EngineApp,
    log: JobLog,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker was away until then."""
    refused = asyncio.Event()

    async def refuse(ref: str, call: Any) -> str:
        refused.set()
        raise OSError("the broker is away")

    with monkeypatch.context() as patched:
        patched.setattr(app.queue, "start", refuse)
        call = await Call(service, plain(bench, app, log)).begin()
        await refused.wait()
        await call.cancel()
    await asyncio.sleep(1.5 * LEASE)  # the next attempt would have been made by now
    assert not log.lines("plain")
