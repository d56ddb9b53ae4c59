"""TaskService on workers that are processes: killed, frozen, and one taking over from another."""

import asyncio
import signal
import sqlite3
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager, closing
from pathlib import Path
from typing import Any, TypeAlias

import pytest

from genmcp.core.task import Task, run_id
from genmcp.core.waiting import Job, Working
from genmcp.tasks.service import TaskService
from tests.tasks.bench import BOUND, Bench, ended, made, opened, until
from tests.tasks.worker_process import LEASE

pytestmark = pytest.mark.slow


class Worker:
    """A worker process, which reports its steps on standard output."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def freeze(self, path: Path) -> None:
        """Suspend the process, but not within a transaction: it would hold SQLite's write lock."""
        for _ in range(50):
            self.signal(signal.SIGSTOP)
            # The signal takes effect later: a thread in a system call completes that first, and on
            # a loaded machine it may then take the lock that has just been found free.
            while not self._is_suspended():
                time.sleep(0.001)
            try:
                with closing(sqlite3.connect(path, timeout=0.2)) as connection:
                    connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                self.signal(signal.SIGCONT)
            else:
                return
        raise AssertionError("the process was in a transaction at each attempt")

    def _is_suspended(self) -> bool:
        """Return whether all threads are stopped; True where the system has no /proc."""
        threads = Path(f"/proc/{self._process.pid}/task").glob("*/stat")
        return all(each.read_text().rpartition(")")[2].split()[0] in "tT" for each in threads)

    async def line(self) -> str:
        """Return the next line; "" at the end."""
        assert self._process.stdout is not None
        async with asyncio.timeout(BOUND):
            return (await self._process.stdout.readline()).decode().strip()

    async def says(self, line: str) -> None:
        """Read on to a line."""
        heard: list[str] = []
        async with asyncio.timeout(BOUND):
            while (said := await self.line()) != line:
                assert said, f"it ended without {line!r}, after {heard}"
                heard.append(said)


@asynccontextmanager
async def running(path: Path, node: str) -> AsyncIterator[Worker]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.tasks.worker_process", str(path), node, stdout=PIPE
    )
    try:
        worker = Worker(process)
        await worker.says("ready")
        yield worker
    finally:
        if process.returncode is None:
            process.kill()
        # To the end of its output, so that the pipe is closed.
        await process.communicate()


Start: TypeAlias = Callable[[str], Awaitable[Worker]]


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with opened("sqlite", tmp_path) as bench:
        yield bench


@pytest.fixture
async def start(tmp_path: Path, bench: Bench) -> AsyncIterator[Start]:
    async with AsyncExitStack() as stack:
        yield lambda node: stack.enter_async_context(running(tmp_path / "jobs.db", node))


def client(bench: Bench) -> TaskService:
    """A process that serves requests, and works on nothing itself."""

    async def resume(*_: Any) -> Any:
        raise AssertionError("the call goes on in a worker")

    return bench.jobs(
        "client", queues=["none"], continuation_concurrency=1, lease=1.0, resume=resume
    )


async def submitted(bench: Bench, until: int, call: bytes = b"call", **fields: Any) -> TaskService:
    """Submit a job as a process that has exited before the job is delivered."""
    jobs = client(bench)
    job = Job(name="patient", arguments={"until": until})
    await jobs.create(made(Working(job), **fields), call)
    await jobs.aclose()
    return jobs


async def test_job_of_a_worker_that_is_killed_runs_again(bench: Bench, start: Start) -> None:
    """Another worker takes it over when the lease has run out."""
    one, other = await start("w1"), await start("w2")
    jobs = await submitted(bench, until=2)
    first, second = await whoever(one, other, "attempt 1")

    first.signal(signal.SIGKILL)

    await second.says("attempt 2")
    await second.says("continued call")
    assert (await over(jobs)).result == b'"attempt 2"'


async def test_job_without_rerun_is_lost_with_its_worker(bench: Bench, start: Start) -> None:
    """Another worker continues its call, with that."""
    one, other = await start("w1"), await start("w2")
    jobs = await submitted(bench, until=2, on_lost="fail")
    first, second = await whoever(one, other, "attempt 1")

    first.signal(signal.SIGKILL)

    await second.says("continued call")
    assert (await over(jobs)).result == b'"WorkerLost"'


async def test_job_of_a_suspended_worker_is_taken_over(
    bench: Bench, start: Start, tmp_path: Path
) -> None:
    """When it thaws its attempt is refused and cancelled, and overwrites nothing."""
    one, other = await start("w1"), await start("w2")
    jobs = await submitted(bench, until=2)
    first, second = await whoever(one, other, "attempt 1")

    first.freeze(tmp_path / "jobs.db")
    await second.says("continued call")
    task = await over(jobs)
    first.signal(signal.SIGCONT)

    await first.says("cancelled 1")
    assert task.result == b'"attempt 2"'
    assert task == await over(jobs)


async def test_job_outlives_a_freeze_of_all_processes(
    bench: Bench, start: Start, tmp_path: Path
) -> None:
    """A sleeping laptop, a snapshot of a machine: every lease has expired, and no process is
    dead. The first process to return gives the holder a lease to show that it is alive."""
    one, other = await start("w1"), await start("w2")
    jobs = client(bench)
    work = Job(name="held", arguments={"end": str(tmp_path / "end")})
    await jobs.create(made(Working(work), on_lost="fail"), b"call")
    await jobs.aclose()
    first, second = await whoever(one, other, "attempt 1")

    for worker in (first, second):
        worker.freeze(tmp_path / "jobs.db")
    await asyncio.sleep(1.5 * LEASE)
    second.signal(signal.SIGCONT)
    await asyncio.sleep(LEASE / 4)  # it would have taken the job at once
    first.signal(signal.SIGCONT)
    (tmp_path / "end").touch()

    assert (await over(jobs)).result == b'"attempt 1"'


async def test_job_survives_a_process_started_after_suspension(
    bench: Bench, start: Start, tmp_path: Path
) -> None:
    """A rolling deploy or an autoscaler starts it, and it finds expired leases. It takes
    unclaimed deliveries, and leaves the holders of others time to renew."""
    holder = await start("w1")
    jobs = client(bench)
    work = Job(name="held", arguments={"end": str(tmp_path / "end")})
    await jobs.create(made(Working(work), on_lost="fail"), b"call")
    await jobs.aclose()
    await holder.says("attempt 1")

    holder.freeze(tmp_path / "jobs.db")
    await asyncio.sleep(1.5 * LEASE)
    new = bench.jobs("new")
    await new.create(made(Working(Job(name="patient", arguments={"until": 1})), id="t2"), b"")
    assert (await ended(new, "t2")).result == b'"attempt 1"'
    holder.signal(signal.SIGCONT)
    (tmp_path / "end").touch()

    assert (await ended(new)).result == b'"attempt 1"'


async def test_job_continues_from_state_of_a_killed_worker(bench: Bench, start: Start) -> None:
    """No item that was saved is done again."""
    one, other = await start("w1"), await start("w2")
    jobs = client(bench)
    work = Job(name="saving", arguments={"items": 5, "stop": 2})
    await jobs.create(made(Working(work)), b"call")
    await jobs.aclose()
    first, second = await whoever(one, other, "saved")

    first.signal(signal.SIGKILL)

    for line in ("item 3", "item 4", "continued call"):
        assert line == await second.line()
    assert (await over(jobs)).result == b'"5 items"'


async def test_resumed_worker_cannot_overwrite_saved_state(
    bench: Bench, start: Start, tmp_path: Path
) -> None:
    """Another one has the job: the save of the first is rejected, and its attempt cancelled."""
    one, other = await start("w1"), await start("w2")
    jobs = client(bench)
    work = Job(name="overwriting", arguments={"end": str(tmp_path / "end")})
    await jobs.create(made(Working(work)), b"call")
    await jobs.aclose()
    first, second = await whoever(one, other, "saved")

    first.freeze(tmp_path / "jobs.db")
    await second.says("saved")
    first.signal(signal.SIGCONT)

    await first.says("cancelled 1")
    task = await jobs.get("t1", None)
    assert isinstance(task.work, Working)
    assert task.work.saved == b"2"
    (tmp_path / "end").touch()
    assert (await over(jobs)).result == b'"saved by 2"'


async def test_killed_continuation_does_not_rerun_its_job(bench: Bench, start: Start) -> None:
    """The outcome was stored before `continue_` began: another worker continues with it."""
    one, other = await start("w1"), await start("w2")
    jobs = await submitted(bench, until=1, call=b"hang")
    first, second = await whoever(one, other, "continued hang")

    first.signal(signal.SIGKILL)

    await second.says("continued hang")
    assert (await over(jobs)).result == b'"attempt 1"'


async def test_tool_is_notified_although_the_worker_has_died(bench: Bench, start: Start) -> None:
    """Its worker would have called `on_cancel` after the step: another process does that."""
    worker = await start("w1")
    await submitted(bench, until=1, call=b"hang", step=1, continuation=b"step")
    await worker.says("continued hang")
    notified = asyncio.Queue[Task]()
    jobs = bench.jobs("client", queues=["none"], lease=LEASE, cancelled=notified.put)

    worker.signal(signal.SIGKILL)
    await jobs.cancel("t1", None)
    await jobs.start()

    async with asyncio.timeout(BOUND):
        task = await notified.get()
    assert (task.status, run_id(task), task.continuation) == ("cancelled", "t1.1", b"step")


async def test_job_in_another_process_can_be_cancelled(bench: Bench, start: Start) -> None:
    """A client's process sees its progress, and stops it."""
    worker = await start("w1")
    jobs = await submitted(bench, until=2)
    await worker.says("attempt 1")
    await until(jobs, lambda task: task.progress == 1)

    await jobs.cancel("t1", None)

    await worker.says("cancelled 1")
    assert (await over(jobs)).status == "cancelled"


async def whoever(one: Worker, other: Worker, says: str) -> tuple[Worker, Worker]:
    """Return the worker that prints the line first, and the other one."""
    saying = {asyncio.create_task(each.says(says)): each for each in (one, other)}
    async with asyncio.timeout(BOUND):
        done, waiting = await asyncio.wait(saying, return_when=asyncio.FIRST_COMPLETED)
    for each in waiting:
        each.cancel()
    await asyncio.wait(waiting)
    (first,), (second,) = done, waiting
    await first
    return saying[first], saying[second]


async def over(jobs: TaskService) -> Task:
    """Return the task when it is over, and leave all work on it to the workers."""
    task = await ended(jobs)
    await jobs.aclose()
    return task
