"""When jobs start and end: delays, deadlines, time limits and the errors that are retried."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from genmcp.core.outcome import Done, Failed
from genmcp.core.waiting import Gathering, JobGroup, Suspended, Working, scheduled
from genmcp.errors import JobExpired, WaitTimedOut, WorkRaised
from genmcp.tasks.jobs import Run, job
from tests.tasks.bench import BOUND, STORES, Bench, ended, made, opened, until


@pytest.fixture(params=STORES)
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    async with opened(request.param, tmp_path) as bench:
        yield bench


started: "asyncio.Queue[Run]"


@pytest.fixture(autouse=True)
async def _queues() -> None:
    global started
    started = asyncio.Queue()


@job
async def quick(run: Run) -> int:
    started.put_nowait(run)
    return run.attempt


@job(timeout=20)
def blocks(run: Run) -> float:
    assert run.time_left is not None
    return run.time_left


@job(retries=5, backoff=0.01, retry_on=(OSError, ValueError), do_not_retry=FileNotFoundError)
async def raises(run: Run, errors: list[str]) -> int:
    started.put_nowait(run)
    names = {"OSError": OSError, "FileNotFoundError": FileNotFoundError, "KeyError": KeyError}
    if run.failures < len(errors):
        raise names[errors[run.failures]]
    return run.failures


@job(retries=1, backoff=30.0, expires=10.0)
async def fails_late(run: Run) -> None:
    started.put_nowait(run)
    raise ValueError("secret")


async def run_of() -> Run:
    async with asyncio.timeout(BOUND):
        return await started.get()


async def outcome(bench: Bench, work: Any, **options: Any) -> Any:
    jobs = bench.jobs(**options)
    await jobs.create(made(work, step=1, continuation=b"c"), b"")
    await ended(jobs)
    (outcome,) = bench.resumed.outcomes
    return outcome


# When a job starts


async def test_delayed_job_starts_at_its_time(bench: Bench) -> None:
    """Not before, and the record says when."""
    jobs = bench.jobs()
    now = jobs.records.now()
    bench.resumed.gives = [Suspended(2, b"c", Working(quick.options(delay=0.3).job()))]

    await jobs.create(made(Working(quick.job()), step=1, continuation=b"c"), b"")
    await run_of()
    waiting = await until(jobs, lambda task: task.step == 2)
    await ended(jobs)

    assert waiting.due >= now + 0.3
    assert jobs.records.now() >= waiting.due - 0.01


async def test_delay_of_a_job_in_a_group_is_its_own(bench: Bench) -> None:
    """The others start at once."""
    jobs = bench.jobs()
    group = JobGroup([quick.job(), quick.options(delay=3600).job()], "all")

    await jobs.create(made(Gathering.of(group), step=1, continuation=b"c"), b"")
    await run_of()

    assert started.empty()
    assert not (await jobs.get("t1", None)).ended


async def test_job_expires_in_a_queue_without_a_worker(bench: Bench) -> None:
    """Its call continues soon after the deadline, although no process serves the queue."""
    work = quick.options(queue="unserved", expires=0.05).job()
    waiting, _ = scheduled(Working(work), bench.store().now())

    result = await outcome(bench, waiting, lease=0.4)

    assert result == Failed(JobExpired())
    assert isinstance(result.error, WaitTimedOut)
    assert str(result.error) == "it was not started in time"


async def test_job_that_comes_too_late_does_not_start(bench: Bench) -> None:
    """A worker that claims it after its deadline does not run it."""
    waiting, _ = scheduled(Working(quick.options(expires=1.0).job()), bench.store().now() - 5.0)

    assert await outcome(bench, waiting) == Failed(JobExpired())
    assert started.empty()


async def test_deadline_ends_a_running_attempt(bench: Bench) -> None:
    """It bounds the time of all attempts together."""
    waiting, _ = scheduled(Working(hangs.options(expires=0.5).job()), bench.store().now())

    assert await outcome(bench, waiting) == Failed(WaitTimedOut())
    assert (await run_of()).time_left == 0.0


@job(timeout=600, retries=3, backoff=0.01)
async def hangs(run: Run) -> None:
    started.put_nowait(run)
    await asyncio.Event().wait()


async def test_job_fails_at_once_if_its_retry_would_be_late(bench: Bench) -> None:
    """The job fails at once, with the error of the attempt that was made."""
    waiting, _ = scheduled(Working(fails_late.job()), bench.store().now())

    result = await outcome(bench, waiting)

    assert isinstance(result.error, WorkRaised)
    assert result.error.type_name == "ValueError"


async def test_blocking_job_sees_the_time_it_has(bench: Bench) -> None:
    """No exception can be raised in its thread."""
    result = await outcome(bench, Working(blocks.job()))

    assert 10 < result.value <= 20


# Retries


async def test_error_is_retried_if_its_type_is_listed(bench: Bench) -> None:
    """The job sees how often it has failed, and how often it may."""
    assert await outcome(bench, Working(raises.job(["OSError", "OSError"]))) == Done(2)
    runs = [await run_of() for _ in range(3)]
    assert [(each.attempt, each.failures, each.retries) for each in runs] == [
        (1, 0, 5),
        (2, 1, 5),
        (3, 2, 5),
    ]


@pytest.mark.parametrize("error", ["FileNotFoundError", "KeyError"])
async def test_other_errors_are_not_retried(bench: Bench, error: str) -> None:
    """A type that is excluded, and one that is not listed."""
    result = await outcome(bench, Working(raises.job([error])))

    assert result.error.type_name == error
    assert started.qsize() == 1
