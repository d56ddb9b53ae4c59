"""Records are written completely, and eventually, although the store or its queue fails."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from genmcp.core.outcome import Done, Failed, Outcome
from genmcp.core.task import Task
from genmcp.core.waiting import (
    Awaiting,
    ExternalJob,
    Finished,
    Following,
    Job,
    Running,
    Suspended,
    Working,
)
from genmcp.errors import IllegalTransition, StoreUnavailable, TaskNotFound
from genmcp.stores.memory import MemoryStore
from genmcp.stores.store import Delete, Op, Put
from genmcp.tasks.jobs import Run, job
from genmcp.tasks.options import JobOptions
from genmcp.tasks.queues import ExternalQueue, ExternalStatus
from genmcp.tasks.records import TaskRecords
from genmcp.tasks.service import Resume, TaskService
from tests.tasks.bench import BOUND, Bench, as_result, ended, made, opened

pytestmark = pytest.mark.slow

Fault: TypeAlias = Callable[[Task], bool]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with opened("memory", tmp_path) as bench:
        yield bench


class Flaky(MemoryStore):
    """A store that fails at chosen writes of a task: before the write, or after it."""

    def __init__(self) -> None:
        super().__init__()
        self.before = self.after = 0
        self.of: Fault = lambda task: True
        self.discards = 0
        self.failed = asyncio.Event()

    async def apply(self, *ops: Op) -> None:
        after = False
        for op in ops:
            if isinstance(op, Put) and op.key == "task:t1" and self.of(Task.unpack(op.value)):
                after, self.after = self.after > 0, max(0, self.after - 1)
                if self.before:
                    self.before -= 1
                    self._fail()
            elif isinstance(op, Delete) and op.key == "task:t1" and self.discards:
                self.discards -= 1
                self._fail()
        await super().apply(*ops)
        if after:
            self._fail()

    def _fail(self) -> None:
        self.failed.set()
        raise StoreUnavailable("the disk is full")


class Halting:
    """Lets a store queue an id only when it may, or refuse the next ones."""

    def __init__(self, store: MemoryStore) -> None:
        self.asked: asyncio.Queue[str] = asyncio.Queue()
        self.go = asyncio.Event()
        self.go.set()
        self.refuses: list[str] = []
        self.took: list[str] = []
        put = store.deliveries.put

        async def put_if_allowed(
            id: str, queue: str = "default", delay: float = 0.0, *, owner: str = ""
        ) -> None:
            self.asked.put_nowait(id)
            await self.go.wait()
            if id in self.refuses:
                self.refuses.remove(id)
                raise StoreUnavailable("the queue is away")
            await put(id, queue, delay, owner=owner)
            self.took.append(id)

        store.deliveries.put = put_if_allowed  # type: ignore[method-assign]

    async def is_asked(self, wanted: str) -> None:
        async with asyncio.timeout(BOUND):
            while await self.asked.get() != wanted:
                pass


@job
async def gives_one(run: Run) -> int:
    return 1


def process(store: MemoryStore, resume: Resume, *external: ExternalQueue) -> TaskService:
    return TaskService(
        store,
        process_name=lambda: "n1",
        resume=resume,
        external=external,
        options=JobOptions(lease=0.3),
    )


class Awaits:
    """A `continue_` that awaits something, in the process it runs in."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, Outcome]] = []
        self.parked = asyncio.Event()
        self.go = asyncio.Event()
        self.go.set()
        self.then: Exception | None = None
        self.jobs: TaskService

    async def __call__(self, task: Task, call: bytes, outcome: Outcome) -> Finished:
        self.seen.append((task.step, outcome))
        if task.step == 1:
            await self.jobs.suspend(
                "t1", Suspended(2, b"c2", Awaiting("n1")), fencing_token=task.fencing_token
            )
            self.parked.set()
            await self.go.wait()
            if self.then is not None:
                raise self.then
            return Finished(result=b'"awaited"')
        return as_result(outcome)


WAITS = made(Working(Job(name=gives_one.name, arguments={})), step=1, continuation=b"c1")


# Waits of `continue_`


async def test_wait_starts_when_the_queue_is_back() -> None:
    """The record is written, no check was scheduled: the call must not hang."""
    store, awaits = MemoryStore(), Awaits()
    queue = Halting(store)
    queue.refuses = ["t1:1.0"]
    awaits.jobs = jobs = process(store, awaits)
    await jobs.create(WAITS, b"")

    assert (await ended(jobs)).result == b'"awaited"'
    assert awaits.seen == [(1, Done(1))]
    await jobs.aclose()


@pytest.mark.parametrize("fault", ["before", "after"])
async def test_wait_starts_when_the_store_is_back(fault: str) -> None:
    """Also if the record was written although the store reported a failure."""
    store, awaits = Flaky(), Awaits()
    setattr(store, fault, 1)
    store.of = lambda task: isinstance(task.work, Awaiting)
    awaits.jobs = jobs = process(store, awaits)
    await jobs.create(WAITS, b"")

    assert (await ended(jobs)).result == b'"awaited"'
    assert store.failed.is_set()
    assert awaits.seen == [(1, Done(1))]
    await jobs.aclose()


async def test_wait_in_a_step_that_fails_ends_the_call() -> None:
    """An error of the store in a hook is one of the hook: the step is not repeated."""
    store, awaits = MemoryStore(), Awaits()
    awaits.then = StoreUnavailable("something else of the store failed")
    awaits.jobs = jobs = process(store, awaits)
    await jobs.create(WAITS, b"")

    assert (await ended(jobs)).end == "failed"
    assert awaits.seen == [(1, Done(1))]
    await jobs.aclose()


@pytest.mark.parametrize("delivered", ["t1:0", "t1:1.4"])
async def test_wait_that_no_step_here_knows_of_is_lost(bench: Bench, delivered: str) -> None:
    """For example, its step was cancelled while the store failed; its delivery is repeated."""
    jobs = bench.jobs()
    records = TaskRecords(bench.store(), JobOptions())
    await records.create(
        made(Awaiting("n1"), held_delivery=0, delivery_id=1, step=2, continuation=b"c2"), b"call"
    )

    await jobs.runner.handle(delivered)
    await jobs.start()

    assert (await ended(jobs)).result == b'"WorkerLost"'


@pytest.mark.parametrize("delivered", ["t1:0", "t1:1.4"])
async def test_wait_that_a_step_here_knows_of_goes_on(delivered: str) -> None:
    """An id may be delivered twice."""
    store, awaits = MemoryStore(), Awaits()
    awaits.go.clear()
    awaits.jobs = jobs = process(store, awaits)
    await jobs.create(WAITS, b"")
    async with asyncio.timeout(BOUND):
        await awaits.parked.wait()

    await jobs.runner.handle(delivered)
    awaits.go.set()

    assert (await ended(jobs)).result == b'"awaited"'
    await jobs.aclose()


# Who writes is cancelled between a record and its submission


async def cancelled_at(queue: Halting, id: str, writing: Coroutine[Any, Any, Any]) -> None:
    """Cancel *writing* while *id* is submitted to the queue."""
    queue.go.clear()
    task = asyncio.create_task(writing)
    await queue.is_asked(id)
    task.cancel()
    await asyncio.sleep(0)
    queue.go.set()
    async with asyncio.timeout(BOUND):
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_task_is_submitted_if_its_creator_is_cancelled(bench: Bench) -> None:
    """The record is written and its step is submitted, although the caller was cancelled."""
    store = MemoryStore()
    queue = Halting(store)
    jobs = process(store, bench.resumed)
    await jobs.start()

    await cancelled_at(queue, "t1:0", jobs.create(made(Working(gives_one.job())), b""))

    assert queue.took == ["t1:0"]
    assert (await ended(jobs)).result == b"1"
    await jobs.aclose()


async def test_task_is_submitted_if_its_hook_is_cancelled(
    bench: Bench,
) -> None:
    """A hook returns a job, and is cancelled during the write."""
    store = MemoryStore()
    queue = Halting(store)
    jobs = process(store, bench.resumed)
    task = await jobs.create(made(Running("n1")), b"")

    parking = jobs.suspend(
        "t1", Suspended(1, b"c", Working(gives_one.job())), fencing_token=task.fencing_token
    )
    await cancelled_at(queue, "t1:1", parking)

    assert "t1:1" in queue.took
    assert (await ended(jobs)).result == b"1"
    await jobs.aclose()


# An external job has ended, and its follower is not notified


class FollowResult(ExternalQueue):
    """A queue without a status, until the test releases it."""

    scheme = "watched"

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.go = asyncio.Event()

    async def snapshot(self, ref: str) -> ExternalStatus:
        self.begun.set()
        await self.go.wait()
        return ExternalStatus("completed", result="too late")

    async def cancel(self, ref: str) -> None: ...


@pytest.mark.parametrize("by", ["who tells it again", "who follows it"])
async def test_ended_external_job_is_continued_after_failures(bench: Bench, by: str) -> None:
    """By a webhook that comes a second time, or by the step that it was to end."""
    ref, store, watched = ExternalJob("watched", "7"), MemoryStore(), FollowResult()
    queue = Halting(store)
    queue.refuses = ["t1:1"]
    jobs = process(store, bench.resumed, watched)
    await jobs.create(made(Following(ref)), b"")
    async with asyncio.timeout(BOUND):
        await watched.begun.wait()
        with pytest.raises(StoreUnavailable):
            await jobs.settle(ref, ExternalStatus("completed", result=1))
        if by == "who follows it":
            watched.go.set()
        else:
            await jobs.settle(ref, ExternalStatus("completed", result=1))
        await queue.is_asked("t1:1")  # in vain
        await queue.is_asked("t1:1")

    assert (await ended(jobs)).result == b"1"
    await jobs.aclose()


# The result of a hook


@pytest.mark.parametrize("fault", ["before", "after"])
async def test_result_of_a_hook_is_written_again(bench: Bench, fault: str) -> None:
    """One failure of the store does not lose it, whether it was written or not."""
    store = Flaky()
    jobs = process(store, bench.resumed)
    task = await jobs.create(made(Running("n1")), b"")
    setattr(store, fault, 1)

    over = await jobs.finish("t1", Finished(result=b"1"), fencing_token=task.fencing_token)

    assert store.failed.is_set()
    assert over == await jobs.get("t1", None)
    assert over.result == b"1"
    with pytest.raises(IllegalTransition):
        await jobs.finish("t1", Finished(result=b"2"), fencing_token=task.fencing_token)
    await jobs.aclose()


@pytest.mark.parametrize("fault", ["before", "after"])
async def test_task_is_abandoned_after_a_store_failure(bench: Bench, fault: str) -> None:
    """It continues without its process."""
    store = Flaky()
    jobs = process(store, bench.resumed)
    task = await jobs.create(made(Awaiting("n1"), step=1, continuation=b"c"), b"")
    setattr(store, fault, 1)

    await jobs.abandon("t1", fencing_token=task.fencing_token)

    assert (await ended(jobs)).result == b'"WorkerLost"'
    await jobs.aclose()


async def test_task_is_discarded_though_the_store_failed(bench: Bench) -> None:
    """A task without a known id must not stay in the store."""
    store = Flaky()
    jobs = process(store, bench.resumed)
    await jobs.create(made(Running("n1")), b"")
    store.discards = 1

    await jobs.discard("t1")

    with pytest.raises(TaskNotFound):
        await jobs.get("t1", None)
    await jobs.aclose()


async def test_result_is_written_after_the_caller_left(bench: Bench) -> None:
    """A request does not hang for a store that is away; that has it as soon as it is back."""
    store = Flaky()
    jobs = process(store, bench.resumed)
    task = await jobs.create(made(Running("n1")), b"")
    store.before = 1_000_000

    async with asyncio.timeout(BOUND):
        with pytest.raises(StoreUnavailable):
            await jobs.finish("t1", Finished(result=b"1"), fencing_token=task.fencing_token)
    assert (await jobs.get("t1", None)).status == "working"
    store.before = 0

    assert (await ended(jobs)).result == b"1"
    await jobs.aclose()


async def test_stopped_process_does_not_retry_a_result(bench: Bench) -> None:
    """Others detect that it is dead, and that its call is lost."""
    store = Flaky()
    jobs = process(store, bench.resumed)
    task = await jobs.create(made(Running("n1")), b"")
    await jobs.aclose()
    store.before = 1_000_000

    async with asyncio.timeout(0.2):
        with pytest.raises(StoreUnavailable, match="disk"):
            await jobs.finish("t1", Finished(result=b"1"), fencing_token=task.fencing_token)


# Exceptions that would end the process


def leaves(error: BaseException) -> None:
    raise error


async def leaves_in_loop(run: Run) -> None:
    leaves(SystemExit(3))


async def interrupts_in_loop(run: Run) -> None:
    leaves(KeyboardInterrupt())


def leaves_in_thread(run: Run) -> None:
    leaves(SystemExit(3))


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (leaves_in_loop, "SystemExit"),
        (interrupts_in_loop, "KeyboardInterrupt"),
        (leaves_in_thread, "SystemExit"),
    ],
)
async def test_job_that_exits_ends_nothing_but_itself(
    bench: Bench, function: Any, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It has failed, as by any other exception, and the process continues."""
    exits = job(name=f"tests.{function.__name__}")(function)
    jobs = bench.jobs()
    await jobs.create(made(Working(exits.job())), b"")
    await ended(jobs)
    await jobs.create(made(Working(gives_one.job()), id="t2"), b"")

    assert (await ended(jobs, "t2")).result == b"1"
    failed, _ = bench.resumed.outcomes
    assert isinstance(failed, Failed)
    assert name == failed.error.type_name  # type: ignore[attr-defined]
    assert name in caplog.text
