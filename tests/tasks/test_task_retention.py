"""How long tasks are retained, and in which order their changes are reported."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from genmcp import gather
from genmcp._mux.task_results import advertised_ttl
from genmcp.core.gathering import new_parts, start_parts
from genmcp.core.outcome import Done, pack
from genmcp.core.task import record_ttl as kept_for
from genmcp.core.waiting import (
    Asking,
    Finished,
    Gathering,
    JobGroup,
    Running,
    Suspended,
    Work,
    Working,
)
from genmcp.errors import StoreUnavailable, TaskNotFound, UnknownFormat
from genmcp.stores.memory import MemoryStore
from genmcp.stores.store import Put, StoreEntry
from genmcp.tasks.jobs import Run, job
from genmcp.tasks.options import JobOptions
from genmcp.tasks.progress import JobProgress
from genmcp.tasks.records import TaskRecords
from genmcp.tasks.service import TaskChange, TaskMessage, TaskService
from tests.support.clock import Clock
from tests.tasks.bench import BOUND, Bench, ended, made, opened


class Timed(MemoryStore):
    """A store in memory with a clock of its own, which may refuse to keep something for longer."""

    def __init__(self) -> None:
        self.time = Clock()
        super().__init__(clock=self.time)
        self.touchable = True

    async def get(self, key: str) -> StoreEntry | None:
        if not self.touchable and key.endswith("#call"):
            raise StoreUnavailable("the store is away")
        return await super().get(key)


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with opened("memory", tmp_path) as bench:
        yield bench


@job(name="tests.kept")
async def kept(run: Run) -> str:
    return "kept"


# How long


@pytest.mark.parametrize("work", [Working(kept.job()), Running("n1")])
async def test_waiting_task_is_retained_for_its_retention(work: Work) -> None:
    """Not for its `ttl`, which is its client's: a queue may be longer than that."""
    store = Timed()
    records = TaskRecords(store, JobOptions(retention=100.0))
    await records.create(made(work, created=0.0, updated=0.0, ttl=1.0), b"call")

    store.time.now = 99.0
    assert await records.find("t1") is not None
    assert await records.call("t1") == b"call"
    store.time.now = 101.0
    assert await records.find("t1") is None


async def test_task_is_kept_for_its_ttl_from_its_end_on(bench: Bench) -> None:
    """And its request no longer than until then: the call does not continue."""
    store = Timed()
    jobs = bench.jobs(store=store, retention=100.0)
    await jobs.create(made(Working(kept.job()), created=0.0, updated=0.0, ttl=5.0), b"call")

    assert (await ended(jobs)).result == b'"kept"'
    assert await jobs.records.call("t1") is None
    store.time.now += 4.9
    assert (await jobs.get("t1", None)).result == b'"kept"'
    store.time.now += 0.2
    with pytest.raises(TaskNotFound):
        await jobs.get("t1", None)


@pytest.mark.parametrize("touchable", [True, False])
async def test_request_of_a_cancelled_task_is_retained(bench: Bench, touchable: bool) -> None:
    """`on_cancel` needs it; it does not outlive the task, if the store accepts that write."""
    store = Timed()
    jobs = bench.jobs(store=store, retention=100.0)
    await jobs.create(made(Running("n1"), ttl=5.0), b"call")
    store.touchable = touchable

    await jobs.cancel("t1", None)

    store.touchable = True
    assert await jobs.records.call("t1") == b"call"
    store.time.now = 6.0
    assert (None if touchable else b"call") == await jobs.records.call("t1")


async def test_question_is_kept_for_its_ttl() -> None:
    """The next step is the client's, which may never come."""
    store = Timed()
    records = TaskRecords(store, JobOptions(retention=100.0))
    await records.create(made(Running("n1"), ttl=5.0), b"call")
    asked = await records.change(
        "t1", lambda task, now: task.suspend(Suspended(1, b"c", Asking({"q": b"{}"})), now)
    )
    await records.touch(asked)

    store.time.now = 4.9
    assert await records.call("t1") == b"call"
    store.time.now = 5.1
    assert await records.find("t1") is None
    assert await records.call("t1") is None


def test_task_is_kept_from_when_it_is_due_on() -> None:
    """A retry may be due after its retention; and a task without expiry keeps none."""
    task = made(Working(kept.job(), failures=0), ttl=5.0, updated=10.0, due=10.0)

    assert kept_for(task, 100.0) == 100.0
    assert kept_for(task, 1.0) == 5.0
    assert kept_for(task.resubmit(20.0, 40.0), 100.0) == 140.0
    assert kept_for(task.finish(Finished(), 20.0), 100.0) == 5.0
    assert kept_for(made(Running("n1")), 100.0) is None


def test_ended_part_outlives_the_others() -> None:
    """The outcomes of several jobs are read after the last one, which may begin late."""
    group = gather(kept.job(), kept.options(delay=500.0).job())
    assert isinstance(group, JobGroup)
    task = made(Gathering.of(group), ttl=5.0, updated=0.0)
    part = new_parts(task, "n1", 0.0)[0].finish(Finished(), 10.0)

    assert kept_for(part, 100.0) == 505.0
    assert kept_for(part, 1000.0) == 1000.0
    assert kept_for(start_parts(task, 0.0), 100.0) == 600.0


def test_client_is_promised_its_ttl_from_now_on() -> None:
    """A task may end at any moment: the advertised ttl grows, and never shrinks."""
    task = made(Working(kept.job()), ttl=5.0, created=10.0, updated=10.0)
    settled = task.settle(pack(Done(1)), 12.5)

    told = [
        advertised_ttl(task, 10.4),
        advertised_ttl(task, 12.6),
        advertised_ttl(settled, 12.4),
        advertised_ttl(settled, 13.2),
        advertised_ttl(settled.finish(Finished(), 13.5), 99.0),
    ]

    assert told == [5.0, 7.0, 7.0, 8.0, 8.5]
    assert advertised_ttl(made(Running("n1")), 2.0) is None


# Events, and their order


async def told(
    jobs: TaskService, count: int, after: str | None = None
) -> Sequence[TaskChange | TaskMessage]:
    """Return the first items of a task."""
    async with asyncio.timeout(BOUND):
        following = jobs.follow("t1", None, after)
        each = [await anext(following) for _ in range(count)]
        await following.aclose()
    return each


def said(told: Sequence[TaskChange | TaskMessage]) -> list[object]:
    return [each.data if isinstance(each, TaskMessage) else each.task.status for each in told]


async def asking(bench: Bench) -> TaskService:
    """Return a service with a task that has a message, a question, and another message."""
    jobs = bench.jobs()
    task = await jobs.create(made(Running("n1")), b"")
    await jobs.records.log_message("t1", b"before")
    await jobs.suspend(
        "t1", Suspended(1, b"c", Asking({"q": b"{}"})), fencing_token=task.fencing_token
    )
    await jobs.records.log_message("t1", b"behind")
    return jobs


async def test_messages_and_changes_are_told_in_their_order(bench: Bench) -> None:
    """A message before a question is not reported after it."""
    jobs = await asking(bench)

    assert said(await told(jobs, 3)) == [b"before", "input_required", b"behind"]


async def test_follow_after_a_change_repeats_nothing(bench: Bench) -> None:
    """Each message and each change has its place."""
    jobs = await asking(bench)
    _, question, _ = await told(jobs, 3)
    await jobs.answer("t1", None, {"q": pack(Done(1))})

    rest = [each async for each in jobs.follow("t1", None, question.id)]

    assert said(rest)[0] == b"behind"
    assert said(rest)[-1] == "completed"
    assert "input_required" not in said(rest)


async def test_who_goes_on_behind_the_end_is_told_it_again(bench: Bench) -> None:
    """The last to come is the task, always."""
    jobs = await asking(bench)
    await jobs.cancel("t1", None)
    *_, end = [each async for each in jobs.follow("t1", None)]

    assert [end] == [each async for each in jobs.follow("t1", None, end.id)]


async def test_dropped_change_is_reported_after_stored_events(bench: Bench) -> None:
    """More messages were logged since than are retained."""
    jobs = bench.jobs(max_events=2)
    await jobs.create(made(Running("n1")), b"")
    for data in (b"1", b"2", b"3"):
        await jobs.records.log_message("t1", data)

    assert said(await told(jobs, 3)) == [b"2", b"3", "working"]


async def test_fast_changes_are_reported_once(bench: Bench) -> None:
    """A late follower gets the present state, not an earlier one."""
    jobs = bench.jobs()
    task = await jobs.create(made(Running("n1")), b"")
    async with asyncio.timeout(BOUND):
        following = jobs.follow("t1", None)
        await anext(following)
        await jobs.progress("t1", JobProgress(1.0), fencing_token=task.fencing_token)
        await jobs.records.log_message("t1", b"between")
        await jobs.progress("t1", JobProgress(2.0), fencing_token=task.fencing_token)
        note, change = await anext(following), await anext(following)
        await following.aclose()

    assert isinstance(note, TaskMessage)
    assert isinstance(change, TaskChange)
    assert change.task.progress == 2.0


async def test_record_of_another_format_is_not_handled(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """The error names both formats; the step is delivered again, and nothing is overwritten."""
    store = bench.store()
    jobs = bench.jobs(store=store)
    await store.apply(Put("task:t1", b"\x01old"))

    with pytest.raises(UnknownFormat, match="has the format 01, and this release of genmcp reads"):
        await jobs.get("t1", None)
    with pytest.raises(UnknownFormat):
        await jobs.runner.handle("t1:0")
    entry = await store.get("task:t1")
    assert entry is not None and entry.value == b"\x01old"
