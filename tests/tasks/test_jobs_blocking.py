"""`def` jobs run in threads, which cannot be stopped: attempts must not overlap in a process."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from genmcp.core.outcome import Failed
from genmcp.core.waiting import Working
from genmcp.errors import WaitTimedOut
from genmcp.tasks.jobs import Run, job
from tests.support.asgi import until as until_true
from tests.tasks.bench import BOUND, Bench, ended, made, opened

pytestmark = pytest.mark.slow


class Threads:
    """Events that the threads of the jobs wait for, and the number of running threads."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.begun: list[int] = []
        self.now = 0
        self.most = 0
        self.lock = threading.Lock()

    def blocks(self, run: Run) -> str:
        """Block in the first attempt, until it is released."""
        with self.lock:
            self.begun.append(run.attempt)
            self.now += 1
            self.most = max(self.most, self.now)
        if run.attempt == 1:
            self.go.wait(BOUND)
        with self.lock:
            self.now -= 1
        return f"attempt {run.attempt}"


threads: Threads


@pytest.fixture(autouse=True)
def _threads() -> Iterator[None]:
    global threads
    threads = Threads()
    yield
    threads.go.set()


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with opened("memory", tmp_path) as bench:
        yield bench


@job(timeout=0.05, retries=2, backoff=0.0)
def late(run: Run) -> str:
    return threads.blocks(run)


@job
def held(run: Run) -> str:
    return threads.blocks(run)


@job
def reporting(run: Run) -> str:
    threads.begun.append(run.attempt)
    while run.attempt == 1:
        run.in_loop(run.progress(1))
    return f"attempt {run.attempt}"


async def begun(count: int = 1) -> None:
    await until_true(lambda: len(threads.begun) == count, pause=0.01)


async def test_retry_waits_for_the_thread_before(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """The attempt that timed out continues in its thread; the next begins after its end."""
    jobs = bench.jobs()
    await jobs.create(made(Working(late.job())), b"")
    await until_true(lambda: "the next attempt waits" in caplog.text, pause=0.01)
    assert threads.begun == [1]
    threads.go.set()

    assert (await ended(jobs)).result == b'"attempt 2"'
    assert (threads.begun, threads.most) == ([1, 2], 1)


async def test_retry_waits_for_a_thread_for_a_time(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """A thread that does not end ends the job, which has timed out."""
    jobs = bench.jobs(linger=0.05)
    await jobs.create(made(Working(late.job())), b"")
    await ended(jobs)

    (outcome,) = bench.resumed.outcomes
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, WaitTimedOut)
    assert threads.begun == [1]
    assert "its thread has not ended in 0.05 seconds" in caplog.text


async def test_job_cut_off_in_its_thread_is_lost_at_once(bench: Bench) -> None:
    """A process that shuts down cannot end it in good order: it does not run a second time."""
    jobs, other = bench.jobs("n1", lease=60.0), bench.jobs("n2", lease=60.0)
    await jobs.create(made(Working(held.job()), on_lost="fail"), b"")
    await begun()
    await jobs.aclose()
    await other.start()

    assert (await ended(other)).result == b'"WorkerLost"'
    assert threads.begun == [1]


async def test_job_that_reports_ends_at_its_report(bench: Bench) -> None:
    """It is handed over in order, and starts again elsewhere, also with `on_lost="fail"`."""
    jobs, other = bench.jobs("n1", lease=60.0), bench.jobs("n2", lease=60.0)
    await jobs.create(made(Working(reporting.job()), on_lost="fail"), b"")
    await begun()
    await jobs.aclose()
    await other.start()

    assert (await ended(other)).result == b'"attempt 2"'


async def test_job_that_waits_for_a_thread_may_be_cancelled(bench: Bench) -> None:
    """It never begins."""
    free: asyncio.Event = asyncio.Event()
    waits = asyncio.Event()

    async def full(*_: object) -> None:
        waits.set()
        await free.wait()

    jobs = bench.jobs(in_thread=full)
    await jobs.create(made(Working(held.job())), b"")
    await waits.wait()
    await jobs.cancel("t1", None)
    assert (await ended(jobs)).status == "cancelled"
    assert threads.begun == []
