"""Working on jobs: when a process begins and ends it, and a store that is not always there."""

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from genmcp.core.outcome import Done, Failed, Outcome
from genmcp.core.task import Task
from genmcp.core.waiting import (
    Awaiting,
    ExternalJob,
    Finished,
    Following,
    Running,
    Suspended,
    Working,
)
from genmcp.errors import StoreUnavailable, TaskNotFound
from genmcp.stores.memory import MemoryStore
from genmcp.stores.store import Append, Delete, Op, Put
from genmcp.tasks.jobs import Run, job
from genmcp.tasks.options import JobOptions
from genmcp.tasks.progress import JobProgress, ProgressWriter
from genmcp.tasks.queues import ExternalQueue, ExternalStatus
from genmcp.tasks.records import TaskRecords
from genmcp.tasks.service import TaskChange
from tests.tasks.bench import BOUND, Bench, as_result, ended, made, opened, until
from tests.tasks.engine_worker import Engine


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with opened("memory", tmp_path) as bench:
        yield bench


class Flaky(MemoryStore):
    """A store that fails a given number of times, for one kind of writes."""

    def __init__(self) -> None:
        super().__init__()
        self.fails: dict[str, int] = {}
        self.touched: asyncio.Queue[str] = asyncio.Queue()

    async def apply(self, *ops: Op) -> None:
        for op in ops:
            if isinstance(op, Put) and op.key.startswith("task:") and not op.key.endswith("#call"):
                task = Task.unpack(op.value)
                self.fail("settle" if task.settled else "progress" if task.progress else "other")
        await super().apply(*ops)

    async def touch(self, key: str, ttl: float) -> bool:
        self.touched.put_nowait(key)
        self.fail("touch")
        self.fail(key)
        return await super().touch(key, ttl)

    def fail(self, kind: str) -> None:
        if self.fails.get(kind, 0) > 0:
            self.fails[kind] -= 1
            raise StoreUnavailable(f"{kind} failed")

    async def touches(self, key: str) -> None:
        """Wait until a record is kept for longer."""
        async with asyncio.timeout(BOUND):
            while await self.touched.get() != key:
                pass


@job
async def reports(run: Run) -> int:
    await run.progress(1, 2)
    await asyncio.sleep(0.01)
    return run.attempt


def test_next_loop_serves_after_one_was_closed() -> None:
    """A host that makes a loop for each test, or restarts, has them served again."""
    bench = Bench(MemoryStore)
    jobs = bench.jobs(store=MemoryStore())

    async def once(id: str) -> Task:
        await jobs.create(made(Working(reports.job()), id=id), b"")
        return await ended(jobs, id)

    assert [asyncio.run(once(id)).result for id in ("a", "b")] == [b"1", b"1"]


async def test_jobs_may_be_closed_from_another_loop(bench: Bench) -> None:
    """The caller of `aclose` need not be in the loop that serves."""
    jobs = bench.jobs()
    await jobs.start()
    await jobs.start()

    closing = threading.Thread(target=lambda: asyncio.run(jobs.aclose()))
    closing.start()
    async with asyncio.timeout(BOUND):
        await asyncio.to_thread(closing.join)

    assert [asyncio.current_task()] == [each for each in asyncio.all_tasks() if belongs(each)]


def belongs(task: asyncio.Task[Any]) -> bool:
    """Whether a task is of the test, or of jobs."""
    return task is asyncio.current_task() or "jobs" in repr(task)


async def test_stopped_loop_is_not_waited_for() -> None:
    """A loop that is neither closed nor running can end nothing."""
    jobs = Bench(MemoryStore).jobs(store=MemoryStore())
    loop = asyncio.new_event_loop()
    await asyncio.to_thread(loop.run_until_complete, jobs.start())

    async with asyncio.timeout(BOUND):
        await jobs.aclose()

    def end() -> None:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.close()

    await asyncio.to_thread(end)


async def test_no_jobs_start_without_the_store(bench: Bench) -> None:
    """The caller gets the error, and may try again."""
    store = MemoryStore()
    jobs = bench.jobs(store=store)
    await store.aclose()

    for _ in range(2):
        with pytest.raises(StoreUnavailable):
            await jobs.create(made(Working(reports.job())), b"")


async def test_process_that_cannot_say_it_lives_goes_on(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, and progress is reported again."""
    store = Flaky()
    jobs = bench.jobs(store=store, lease=0.03)
    await jobs.start()
    store.fails["touch"] = 1
    store.touched = asyncio.Queue()

    for _ in range(2):
        await store.touches("node:n1")
    await jobs.create(made(Running("n1")), b"")

    assert (await jobs.get("t1", None)).status == "working"
    assert "touch failed" in caplog.text


async def test_unwritten_progress_does_not_fail_the_job(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, and comes with the outcome."""
    store = Flaky()
    store.fails["progress"] = 1
    jobs = bench.jobs(store=store)
    await jobs.create(made(Working(reports.job())), b"")

    task = await ended(jobs)

    assert (task.result, task.progress, task.total) == (b"1", 1.0, 2.0)
    assert "progress failed" in caplog.text


async def test_write_of_an_outcome_is_retried(bench: Bench) -> None:
    """The result of an hour of work must not be lost because of a short failure."""
    store = Flaky()
    store.fails["settle"] = 2
    jobs = bench.jobs(store=store)
    await jobs.create(made(Working(reports.job())), b"")

    await ended(jobs)

    assert bench.resumed.outcomes == [Done(1)]


async def test_worker_goes_on_when_the_store_is_back(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claim that fails is made again."""
    store = MemoryStore()
    failing = 1
    claim = store.deliveries.claim

    async def fails_once(*arguments: Any, **options: Any) -> Any:
        nonlocal failing
        if failing:
            failing -= 1
            raise StoreUnavailable("claim failed")
        return await claim(*arguments, **options)

    monkeypatch.setattr(store.deliveries, "claim", fails_once)
    jobs = bench.jobs(store=store)
    await jobs.create(made(Working(reports.job())), b"")

    assert (await ended(jobs)).result == b"1"
    assert "claim failed" in caplog.text


async def test_worker_has_no_more_steps_at_once_than_it_may(bench: Bench) -> None:
    """The next begins when one has ended."""
    at_once = most = 0
    both = asyncio.Barrier(2)

    @job
    async def counted(run: Run) -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        await both.wait()
        at_once -= 1

    jobs = bench.jobs(concurrency=2)
    for number in range(6):
        await jobs.create(made(Working(counted.job()), id=f"t{number}"), b"")
    for number in range(6):
        await ended(jobs, f"t{number}")

    assert most == 2


async def test_answer_does_not_wait_for_long_jobs(bench: Bench) -> None:
    """Steps that are not jobs have a queue of their own."""
    begun = asyncio.Event()

    @job
    async def long(run: Run) -> None:
        begun.set()
        await asyncio.Event().wait()

    jobs = bench.jobs(concurrency=1)
    await jobs.create(made(Working(long.job())), b"")
    async with asyncio.timeout(BOUND):
        await begun.wait()
    task = await jobs.create(made(Awaiting("n1"), id="t2", continuation=b"c", step=1), b"")
    await jobs.abandon("t2", fencing_token=task.fencing_token)

    assert (await ended(jobs, "t2")).result == b'"WorkerLost"'


async def test_job_that_ignores_cancellation_is_given_up(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """It continues; its result is rejected, and an error is logged."""
    free = asyncio.Event()

    @job(timeout=0.01)
    async def stubborn(run: Run) -> None:
        while not free.is_set():
            try:
                await free.wait()
            except asyncio.CancelledError:
                continue

    jobs = bench.jobs(cancel_grace=0.01)
    await jobs.create(made(Working(stubborn.job())), b"")
    await ended(jobs)
    free.set()

    (outcome,) = bench.resumed.outcomes
    assert isinstance(outcome, Failed)
    assert "continues although it was cancelled" in caplog.text


async def test_step_that_ignores_cancellation_is_not_released(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the end of a worker it is still held, until its lease has run out."""
    monkeypatch.setattr("genmcp.tasks.consumer._CANCEL_GRACE", 0.01)
    free, begun = asyncio.Event(), asyncio.Event()

    async def step(id: str) -> None:
        begun.set()
        while not free.is_set():
            try:
                await free.wait()
            except asyncio.CancelledError:
                continue

    store = MemoryStore()
    engine = Engine(store)
    async with asyncio.timeout(BOUND):
        async with engine.serve(step, queues=["default"], concurrency=1, lease=60.0):
            await engine.submit("a")
            await begun.wait()
        due = await store.deliveries.next_due(["default"])
        free.set()

    assert due is not None
    assert due > 10
    assert "continues although it was cancelled" in caplog.text


async def test_job_that_raises_on_cancellation_is_cancelled(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """An exception during its cleanup is logged, and is not its outcome."""

    @job(timeout=0.01)
    async def untidy(run: Run) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("while cleaning up")

    jobs = bench.jobs()
    await jobs.create(made(Working(untidy.job())), b"")

    await ended(jobs)
    assert "raised when it was cancelled" in caplog.text


async def test_progress_is_refused_when_the_work_is_over() -> None:
    """A thread that continues after its timeout is stopped by its next report."""
    written: list[JobProgress] = []

    async def write(progress: JobProgress) -> None:
        written.append(progress)

    reporter = ProgressWriter(write)
    reporter.write_soon(1.0, float("inf"), None)
    await reporter.close()

    with pytest.raises(asyncio.CancelledError):
        reporter.write_soon(2.0)
    with pytest.raises(ValueError, match="many"):
        ProgressWriter(write).write_soon("many")  # type: ignore[arg-type]


async def test_progress_is_written_again_after_a_silence() -> None:
    """Each report after a pause is written at once."""
    written: asyncio.Queue[JobProgress] = asyncio.Queue()
    reporter = ProgressWriter(written.put)

    async with asyncio.timeout(BOUND):
        for number in (1.0, 2.0):
            reporter.write_soon(number)
            assert JobProgress(number) == await written.get()
    await reporter.close()


async def test_progress_needs_no_writer_in_a_silence() -> None:
    """The writing task ends when there is nothing to write, and starts with the next report."""
    written: asyncio.Queue[JobProgress] = asyncio.Queue()
    reporter = ProgressWriter(written.put, interval=0)
    before = asyncio.all_tasks()

    async with asyncio.timeout(BOUND):
        for number in (1.0, 2.0):
            reporter.write_soon(number)
            (writer,) = asyncio.all_tasks() - before
            await asyncio.wait({writer})
            assert JobProgress(number) == await written.get()

    assert await reporter.close() is None


async def test_outcome_is_written_after_a_long_outage(bench: Bench) -> None:
    """The outcome stays in memory meanwhile: it is not lost, and the job does not run again."""
    store = Flaky()
    store.fails["settle"] = 5
    jobs = bench.jobs(store=store)
    await jobs.create(made(Working(reports.job()), on_lost="fail"), b"")

    assert (await ended(jobs)).result == b"1"
    assert store.fails["settle"] == 0


async def test_next_job_runs_after_a_failed_submission(bench: Bench) -> None:
    """The record is written, the submission is not: a repeated delivery submits it."""
    store = Flaky()

    async def resume(task: Task, call: bytes, outcome: Outcome) -> Suspended | Finished:
        if task.step:
            return as_result(outcome)
        store.fails["touch"] = 1
        return Suspended(1, b"asked", Working(reports.job()))

    jobs = bench.jobs(store=store, resume=resume)
    await jobs.create(made(Working(reports.job()), ttl=60.0), b"")

    task = await ended(jobs)
    assert (task.result, task.step, store.fails["touch"]) == (b"1", 1, 0)


async def test_task_can_be_read_where_nothing_can_be_written(bench: Bench) -> None:
    """The step that a dead process left is submitted when the store accepts writes again."""
    store = Flaky()
    records = TaskRecords(store, JobOptions())
    await records.create(made(Working(reports.job())), b"")
    store.fails["touch"] = 1
    jobs = bench.jobs(store=store)

    assert not (await jobs.get("t1", None)).ended
    assert (await ended(jobs)).result == b"1"


async def test_worker_restarts_after_a_defect(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is logged; the next job is worked on."""
    store = MemoryStore()
    jobs = bench.jobs(store=store, lease=0.03)
    broken = asyncio.Event()

    async def touch(key: str, ttl: float) -> bool:
        broken.set()
        raise AttributeError("a defect")

    await jobs.start()
    with monkeypatch.context() as patch:
        patch.setattr(store, "touch", touch)
        (serving,) = [each for each in asyncio.all_tasks() if "TaskWorker._serve()" in repr(each)]
        async with asyncio.timeout(BOUND):
            await broken.wait()
            await asyncio.wait({serving})
    await jobs.create(made(Working(reports.job())), b"")

    assert (await ended(jobs)).result == b"1"
    assert "does not work on jobs any more" in caplog.text


async def test_worker_restarts_after_its_queue_has_failed(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would otherwise appear to serve, and run no jobs any more."""
    store = MemoryStore()
    jobs = bench.jobs(store=store)

    def news(queues: object = ()) -> Any:
        raise AttributeError("a defect")

    with monkeypatch.context() as patch:
        patch.setattr(store.deliveries, "news", news)
        await jobs.start()
        async with asyncio.timeout(BOUND):
            await jobs.worker.ended()
    assert jobs.worker.problem == "failed"
    await jobs.create(made(Working(reports.job())), b"")

    assert (await ended(jobs)).result == b"1"
    assert "does not work on jobs any more" in caplog.text


async def test_worker_keeps_hold_of_what_it_works_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """It renews its leases well before they run out."""
    store, free, renewed = MemoryStore(), asyncio.Event(), asyncio.Event()
    renew = store.deliveries.renew

    async def renews(*arguments: Any) -> Any:
        renewed.set()
        return await renew(*arguments)

    async def step(id: str) -> None:
        await free.wait()

    monkeypatch.setattr(store.deliveries, "renew", renews)
    engine = Engine(store)
    async with asyncio.timeout(BOUND):
        async with engine.serve(step, queues=["default"], concurrency=2, lease=0.06):
            await engine.submit("a")
            await renewed.wait()
            assert not free.is_set()


async def test_worker_does_not_begin_twice_what_it_works_on() -> None:
    """A process that was frozen past its lease may be given its own deliveries once more."""
    now = 0.0
    store, free = MemoryStore(clock=lambda: now), asyncio.Event()
    begun: asyncio.Queue[str] = asyncio.Queue()

    async def step(id: str) -> None:
        begun.put_nowait(id)
        await free.wait()

    engine = Engine(store)
    async with asyncio.timeout(BOUND):
        async with engine.serve(step, queues=["default"], concurrency=3, lease=60.0):
            await engine.submit("a")
            assert await begun.get() == "a"
            now = 100.0
            await engine.submit("b")
            assert await begun.get() == "b"
            assert begun.empty()


async def test_task_that_expires_while_followed_is_not_found(bench: Bench) -> None:
    """Its follower gets TaskNotFound."""
    store = bench.store()
    jobs = bench.jobs()
    await jobs.create(made(Running("n1")), b"")
    following = jobs.follow("t1", None)
    assert isinstance(await anext(following), TaskChange)

    await store.apply(Delete("task:t1"))
    await store.apply(Append("task:t1", b"c1", ttl=9.0))

    with pytest.raises(TaskNotFound):
        async with asyncio.timeout(BOUND):
            await anext(following)
    with pytest.raises(TaskNotFound):
        await jobs.answer("t1", None, {})


async def test_followers_of_a_task_share_its_record(bench: Bench) -> None:
    """A record may be large, and one task may have thousands of followers."""
    jobs = bench.jobs()
    await jobs.create(made(Running("n1"), message="x"), b"")
    following = [jobs.follow("t1", None) for _ in range(2)]

    first, second = [await anext(each) for each in following]

    assert isinstance(first, TaskChange) and isinstance(second, TaskChange)
    assert first.task is second.task
    for each in following:
        await each.aclose()


async def test_hook_that_ends_may_have_its_task_end(bench: Bench) -> None:
    """A late follower reads a long list of messages to its end."""
    jobs = bench.jobs()
    task = await jobs.create(made(Running("n1")), b"")
    for number in range(150):
        await jobs.records.log_message("t1", b"%d" % number)
    await jobs.finish("t1", Finished(result=b"1"), fencing_token=task.fencing_token)

    told = [each async for each in jobs.follow("t1", None)]
    assert len(told) == 151


class Endless(ExternalQueue):
    """An external queue with a job that makes progress and never ends. left: it is not followed."""

    scheme = "endless"
    poll_interval = 0.01

    def __init__(self) -> None:
        self.left, self.reads = asyncio.Event(), 0

    async def snapshot(self, ref: str) -> ExternalStatus:
        self.reads += 1
        try:
            await asyncio.sleep(0 if self.reads == 1 else 3600)
        finally:
            if self.reads > 1:
                self.left.set()
        return ExternalStatus("working", progress=1.0)

    async def cancel(self, ref: str) -> None: ...


async def test_foreign_job_is_kept_while_it_is_followed(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """A touch of its task that fails is repeated."""
    store = Flaky()
    jobs = bench.jobs(store=store, external=[Endless()], retention=1.0)
    store.fails["task:t1"] = 1
    await jobs.create(made(Following(ExternalJob("endless", "7")), ttl=1.0), b"")

    await store.touches("task:t1")

    assert "may expire too early" in caplog.text
    await jobs.settle(ExternalJob("endless", "7"), ExternalStatus("completed", result=1))
    assert (await ended(jobs)).result == b"1"


async def test_external_job_ends_after_a_lost_cancellation(
    bench: Bench, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record decides: the process that follows the job reads it."""

    async def fails(id: str) -> None:
        raise StoreUnavailable("cancel failed")

    endless, store = Endless(), MemoryStore()
    monkeypatch.setattr(store.deliveries, "cancel", fails)
    jobs = bench.jobs(store=store, external=[endless], lease=1.0)
    await jobs.create(made(Following(ExternalJob("endless", "7"))), b"")
    await until(jobs, lambda task: task.progress == 1)

    await jobs.cancel("t1", None)

    async with asyncio.timeout(BOUND):
        await endless.left.wait()
    assert "cancel failed" in caplog.text
