"""Calls that wait for a job of an external queue, watched or settled by a callback."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from genmcp.core.outcome import Done, Failed
from genmcp.core.task import Task
from genmcp.core.waiting import Awaiting, ExternalCall, ExternalJob, Following, Suspended, scheduled
from genmcp.errors import ConfigurationError, WaitCancelled, WorkRaised
from genmcp.tasks.options import JobOptions
from genmcp.tasks.queues import ExternalQueue, ExternalStatus
from genmcp.tasks.records import TaskRecords
from tests.tasks.bench import BOUND, STORES, Bench, ended, made, opened, until

REF = ExternalJob("celery", "7")
OVER = ExternalStatus("completed", result={"rows": 3})


@pytest.fixture(params=STORES)
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    async with opened(request.param, tmp_path) as bench:
        yield bench


class Celery(ExternalQueue):
    """An external queue controlled by the test: it has the statuses that it is given, in turn."""

    scheme = "celery"
    poll_interval = 0.01

    def __init__(self) -> None:
        self.told: asyncio.Queue[ExternalStatus | Exception] = asyncio.Queue()
        self.watched: asyncio.Queue[str] = asyncio.Queue()
        self.cancelled: list[str] = []

    async def snapshot(self, ref: str) -> ExternalStatus:
        self.watched.put_nowait(ref)
        told = await self.told.get()
        if isinstance(told, Exception):
            raise told
        return told

    async def cancel(self, ref: str) -> None:
        self.cancelled.append(ref)
        raise ConnectionError("the broker is away")

    async def is_watched(self) -> str:
        async with asyncio.timeout(BOUND):
            return await self.watched.get()


async def test_foreign_job_is_followed_to_its_end(bench: Bench) -> None:
    """Its progress is the task's, its result the outcome."""
    celery = Celery()
    jobs = bench.jobs(external=[celery])
    await jobs.create(made(Following(REF), ttl=60.0), b"")
    celery.told.put_nowait(ExternalStatus("working", progress=1, total=4, message="reading"))

    task = await until(jobs, lambda task: task.progress == 1)
    celery.told.put_nowait(OVER)

    assert (task.total, task.message) == (4.0, "reading")
    assert (await ended(jobs)).result == b'{"rows":3}'


@pytest.mark.parametrize(
    ("snapshot", "outcome"),
    [
        (ExternalStatus("failed", error="secret"), WorkRaised),
        (ExternalStatus("completed", result=object()), WorkRaised),
        (ExternalStatus("cancelled"), WaitCancelled),
    ],
)
async def test_foreign_job_may_bring_no_value(
    bench: Bench, snapshot: ExternalStatus, outcome: type, caplog: pytest.LogCaptureFixture
) -> None:
    """Its error goes to the log, and nowhere else."""
    celery = Celery()
    jobs = bench.jobs(external=[celery])
    await jobs.create(made(Following(REF)), b"")
    celery.told.put_nowait(snapshot)

    await ended(jobs)

    (failed,) = bench.resumed.outcomes
    assert isinstance(failed, Failed)
    assert outcome is type(failed.error)
    assert "secret" not in str(failed.error)
    if isinstance(failed.error, WorkRaised):
        assert failed.error.reference in caplog.text


async def test_external_job_is_followed_again_after_an_error(bench: Bench) -> None:
    """A queue that is unavailable for a while does not end the call."""
    celery = Celery()
    jobs = bench.jobs(external=[celery], lease=0.2)
    await jobs.create(made(Following(REF)), b"")
    celery.told.put_nowait(ConnectionError("away"))
    assert await celery.is_watched() == "7"

    assert await celery.is_watched() == "7"
    celery.told.put_nowait(OVER)

    assert (await ended(jobs)).result == b'{"rows":3}'


async def test_external_job_of_unknown_scheme_fails(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names the missing scheme. Another process may have it, but not for ever."""
    jobs = bench.jobs(unknown_timeout=0)
    await jobs.create(made(Following(REF)), b"")

    await ended(jobs)
    (failed,) = bench.resumed.outcomes
    assert isinstance(failed, Failed)
    assert "'celery'" in caplog.text


@pytest.mark.parametrize("process", ["same", "another"])
async def test_foreign_job_is_over_when_its_queue_says_so(bench: Bench, process: str) -> None:
    """The settled outcome counts, and the watch is closed."""
    celery = Celery()
    jobs = bench.jobs(external=[celery])
    await jobs.create(made(Following(REF)), b"")
    await celery.is_watched()

    await (jobs if process == "same" else bench.jobs("n2")).settle(REF, OVER)
    celery.told.put_nowait(ExternalStatus("failed", error="later"))

    assert (await ended(jobs)).result == b'{"rows":3}'
    assert bench.resumed.outcomes == [Done({"rows": 3})]


async def test_foreign_job_may_be_over_before_anybody_waits(bench: Bench) -> None:
    """A quick queue is not missed; a second word of it changes nothing."""
    jobs = bench.jobs(external=[Celery()])
    await jobs.settle(REF, OVER)
    await jobs.settle(REF, ExternalStatus("failed"))

    await jobs.create(made(Following(REF)), b"")

    assert (await ended(jobs)).result == b'{"rows":3}'


async def test_late_settle_of_external_job_is_ignored(
    bench: Bench,
) -> None:
    """Whichever comes first counts."""
    celery = Celery()
    jobs = bench.jobs(external=[celery])
    await jobs.create(made(Following(REF)), b"")
    celery.told.put_nowait(OVER)
    over = await ended(jobs)

    await jobs.settle(REF, ExternalStatus("failed"))

    assert over == await jobs.get("t1", None)


async def test_foreign_job_of_several_calls_ends_all_of_them(bench: Bench) -> None:
    """Two calls may wait for one job, and one may have continued with another wait."""
    celery = Celery()
    bench.resumed.gives = [Suspended(2, b"c", Following(ExternalJob("celery", "8")))]
    jobs = bench.jobs(external=[celery])
    for id in ("t1", "t2"):
        await jobs.create(made(Following(REF), id=id, step=1, continuation=b"c"), b"")

    await jobs.settle(REF, OVER)
    await jobs.settle(ExternalJob("celery", "8"), OVER)

    assert {(await ended(jobs, id)).status for id in ("t1", "t2")} == {"completed"}


async def test_external_job_may_outlive_its_call(bench: Bench) -> None:
    """No task waits any more, and that is not an error."""
    jobs = bench.jobs(external=[Celery()])
    await jobs.create(made(Following(REF)), b"")
    await jobs.discard("t1")

    await jobs.settle(REF, OVER)

    assert bench.resumed.seen == []


async def test_foreign_job_is_only_settled_when_it_is_over(bench: Bench) -> None:
    """Settling with progress is a mistake of the caller, and raises."""
    with pytest.raises(ValueError, match="working"):
        await bench.jobs().settle(REF, ExternalStatus("working"))


async def test_foreign_job_is_cancelled_with_its_call(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Its queue is notified; an error of the queue does not affect the call."""
    celery = Celery()
    jobs = bench.jobs(external=[celery])
    await jobs.create(made(Following(REF)), b"")
    await celery.is_watched()

    task = await jobs.cancel("t1", None)
    await bench.jobs("n2").settle(REF, OVER)

    assert isinstance(task, Task)
    assert celery.cancelled == ["7"]
    assert "the broker is away" in caplog.text
    assert (await ended(jobs)).status == "cancelled"


class Stuck(Celery):
    """A queue that does not respond to `cancel`, and to the first *ignored* submissions."""

    scheme = "stuck"
    ignored = 1

    def __init__(self) -> None:
        super().__init__()
        self.started: list[str] = []

    async def start(self, ref: str, call: ExternalCall) -> str:
        self.started.append(ref)
        if len(self.started) <= self.ignored:
            await asyncio.Event().wait()
        return "7"

    async def cancel(self, ref: str) -> None:
        self.cancelled.append(ref)
        await asyncio.Event().wait()


async def test_submission_that_takes_too_long_is_repeated(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """With the same name, by which the queue recognizes a job that it has."""
    stuck = Stuck()
    jobs = bench.jobs(external=[stuck], lease=0.2, queue_timeout=0.1)
    await jobs.create(made(Following(stuck.job("print"))), b"")

    assert await stuck.is_watched() == "7"
    stuck.told.put_nowait(OVER)

    assert (await ended(jobs)).result == b'{"rows":3}'
    assert len(stuck.started) == 2
    assert len({*stuck.started}) == 1
    assert "stuck job print is submitted again later: TimeoutError()" in caplog.text


@pytest.mark.parametrize("timeouts", [(30.0, 0.1), (0.2, 30.0)])
async def test_call_is_cancelled_whatever_its_queue_does(
    bench: Bench, timeouts: tuple[float, float]
) -> None:
    """A queue that does not respond does not hold its client, whose task is cancelled."""
    stuck = Stuck()
    lease, queue_timeout = timeouts
    jobs = bench.jobs(external=[stuck], lease=lease, queue_timeout=queue_timeout)
    await jobs.create(made(Following(ExternalJob("stuck", "7"))), b"")
    await stuck.is_watched()

    async with asyncio.timeout(BOUND):
        task = await jobs.cancel("t1", None)

    assert isinstance(task, Task)
    assert stuck.cancelled == ["7"]
    assert (await jobs.get("t1", None)).status == "cancelled"


async def test_external_job_is_cancelled_without_its_queue(bench: Bench) -> None:
    """The call is cancelled all the same."""
    records = TaskRecords(bench.store(), JobOptions())
    await records.create(made(Following(REF)), b"")
    jobs = bench.jobs()

    await jobs.cancel("t1", None)

    assert (await jobs.get("t1", None)).status == "cancelled"


async def test_foreign_queues_have_one_scheme_each(bench: Bench) -> None:
    """It would be ambiguous which of the two is meant."""
    with pytest.raises(ConfigurationError, match="celery"):
        bench.jobs(external=[Celery(), Celery()])


class Endless(ExternalQueue):
    """A queue controlled by the test; *watched* has the jobs that are followed now."""

    scheme = "endless"
    poll_interval = 0.0

    def __init__(self) -> None:
        self.watched: set[str] = set()
        self.most = 0
        self.over: set[str] = set()
        self.cancelled: list[str] = []

    async def snapshot(self, ref: str) -> ExternalStatus:
        self.watched.add(ref)
        self.most = max(self.most, len(self.watched))
        try:
            await asyncio.sleep(0.01)
            return OVER if ref in self.over else ExternalStatus("working", progress=1.0)
        finally:
            self.watched.discard(ref)

    async def cancel(self, ref: str) -> None:
        self.cancelled.append(ref)


async def test_jobs_of_others_hold_up_no_continuation(bench: Bench) -> None:
    """However many are followed: they have places of their own, and take turns in them."""
    endless = Endless()
    jobs = bench.jobs(
        external=[endless], continuation_concurrency=2, external_concurrency=3, external_turn=0.05
    )
    for number in range(8):
        await jobs.create(
            made(Following(ExternalJob("endless", f"{number}")), id=f"r{number}"), b""
        )
    task = await jobs.create(made(Awaiting("n1"), continuation=b"c", step=1), b"")
    await jobs.abandon("t1", fencing_token=task.fencing_token)
    assert (await ended(jobs)).result == b'"WorkerLost"'

    endless.over = {"7"}
    assert (await ended(jobs, "r7")).result == b'{"rows":3}'
    endless.over = {f"{number}" for number in range(8)}
    for number in range(8):
        await ended(jobs, f"r{number}")
    assert endless.most == 3


async def test_wait_for_an_external_job_ends_in_time(bench: Bench) -> None:
    """A job that its queue has lost counts as queued for ever; it is cancelled there."""
    endless = Endless()
    jobs = bench.jobs(external=[endless])
    work, _ = scheduled(
        Following(ExternalJob("endless", "7").options(expires=0.2)), jobs.records.now()
    )
    await jobs.create(made(work, continuation=b"c", step=1), b"")
    await until(jobs, lambda task: task.progress == 1)

    assert (await ended(jobs)).result == b'"WaitTimedOut"'
    assert endless.cancelled == ["7"]


async def test_wait_for_an_unknown_queue_ends_in_time(tmp_path: Path) -> None:
    """No process has the queue: any of them ends the wait, a lease later."""
    async with opened("sqlite", tmp_path) as bench:
        jobs = bench.jobs(lease=0.3)
        await jobs.start()
        now = jobs.records.now()
        work = Following(ExternalJob("endless", "7"), deadline=now + 0.1)
        await jobs.create(made(work, continuation=b"c", step=1, updated=now, due=now), b"")

        assert (await ended(jobs)).result == b'"WaitTimedOut"'


async def test_unchanged_status_is_not_written_again(bench: Bench) -> None:
    """A follower is not woken for it."""
    endless = Endless()
    jobs = bench.jobs(external=[endless])
    await jobs.create(made(Following(ExternalJob("endless", "1"))), b"")
    before = await until(jobs, lambda task: task.progress == 1.0)
    await asyncio.sleep(0.1)
    assert before == await jobs.get("t1", None)
    endless.over.add("1")
    await ended(jobs)
