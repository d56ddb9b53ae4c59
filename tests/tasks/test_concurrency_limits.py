"""Limits on how many jobs run at once in all processes that share a store."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from genmcp.core.task import Task
from genmcp.core.waiting import Job, Working
from genmcp.errors import ConfigurationError
from genmcp.stores.store import Put
from genmcp.tasks.job_limits import JobLimit, Slot
from genmcp.tasks.jobs import Run, job
from genmcp.tasks.options import JobOptions
from genmcp.tasks.service import TaskService
from tests.tasks.bench import ALL_STORES, BOUND, Bench, ended, made, opened, until
from tests.tasks.test_jobs_processes import client, running


@pytest.fixture(params=ALL_STORES)
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    async with opened(request.param, tmp_path) as bench:
        yield bench


class Room:
    """The jobs that run: counts them, and ends them one by one."""

    def __init__(self) -> None:
        self.entered: asyncio.Queue[str] = asyncio.Queue()
        self.inside = 0
        self.most = 0
        self.out: dict[str, asyncio.Event] = {}

    async def enter(self, name: str) -> None:
        self.inside += 1
        self.most = max(self.most, self.inside)
        self.entered.put_nowait(name)
        try:
            await self.out.setdefault(name, asyncio.Event()).wait()
        finally:
            self.inside -= 1

    async def next(self) -> str:
        async with asyncio.timeout(BOUND):
            return await self.entered.get()

    def leave(self, name: str) -> None:
        self.out.setdefault(name, asyncio.Event()).set()


room: Room


@pytest.fixture(autouse=True)
async def _room() -> None:
    global room
    room = Room()


@job(limit_key="document")
async def index(run: Run, document: str, name: str) -> int:
    await room.enter(name)
    return run.attempt


@job(limit=2)
async def render(run: Run, name: str) -> str:
    await room.enter(name)
    return name


@job(queue="gpu")
async def train(run: Run, name: str) -> str:
    await room.enter(name)
    return name


@job
async def quick(run: Run) -> str:
    return "quick"


async def create(jobs: TaskService, id: str, work: Job[Any], created: float = 1.0) -> None:
    await jobs.create(made(Working(work), id=id, created=created), b"")


async def parked(jobs: TaskService, id: str) -> None:
    """Wait until the job of a task waits for a slot."""
    await until(jobs, lambda task: task.due > task.updated, id)


async def test_jobs_of_one_key_run_one_at_a_time(bench: Bench) -> None:
    """In any process; a wait for a slot is no attempt."""
    one, other = bench.jobs("n1"), bench.jobs("n2")
    await other.start()
    await create(one, "t1", index.job("report", "a"))
    assert await room.next() == "a"
    for number, name in enumerate(("b", "c", "d"), 2):
        jobs = (one, other)[number % 2]
        await create(jobs, f"t{number}", index.job("report", name), created=float(number))
        await parked(jobs, f"t{number}")

    ran = ["a"]
    for _ in "bcd":
        assert room.entered.empty()
        room.leave(ran[-1])
        ran.append(await room.next())
    room.leave(ran[-1])

    assert sorted(ran) == ["a", "b", "c", "d"]
    assert [(await ended(one, f"t{n}")).result for n in range(1, 5)] == [b"1"] * 4
    assert room.most == 1


async def test_jobs_of_other_keys_run_meanwhile(bench: Bench) -> None:
    """A job that waits for a slot takes no slot of a worker."""
    jobs = bench.jobs(concurrency=2)
    await create(jobs, "t1", index.job("report", "a"))
    assert await room.next() == "a"
    for name in ("b", "c", "d"):
        await create(jobs, name, index.job("report", name))
        await parked(jobs, name)

    await create(jobs, "t2", index.job("invoice", "x"))
    assert await room.next() == "x"
    room.leave("x")
    await create(jobs, "t3", quick.job())

    assert (await ended(jobs, "t3")).result == b'"quick"'
    assert room.entered.empty()


@pytest.mark.parametrize(
    ("work", "options"), [(render, {}), (train, {"queues": ["gpu"], "queue_limits": {"gpu": 2}})]
)
async def test_limit_of_a_job_or_a_queue_holds(bench: Bench, work: Any, options: Any) -> None:
    """Over all processes together."""
    one, other = bench.jobs("n1", **options), bench.jobs("n2", **options)
    await other.start()
    names = [f"t{number}" for number in range(6)]
    for name in names:
        await create(one, name, work.job(name))

    inside = [await room.next(), await room.next()]
    assert room.entered.empty()
    for _ in names[2:]:
        room.leave(inside.pop())
        inside.append(await room.next())
    for name in inside:
        room.leave(name)
    for name in names:
        assert (await ended(one, name)).status == "completed"

    assert room.most == 2


async def test_slot_of_a_cancelled_job_is_given_to_the_next(bench: Bench) -> None:
    """As soon as its function has ended. One that was cancelled while it waited gets no slot."""
    jobs = bench.jobs()
    await create(jobs, "t1", index.job("report", "a"))
    await room.next()
    for number, name in ((2, "b"), (3, "c")):
        await create(jobs, f"t{number}", index.job("report", name), created=float(number))
        await parked(jobs, f"t{number}")

    await jobs.cancel("t2", None)
    await jobs.cancel("t1", None)

    assert await room.next() == "c"
    assert room.most == 1


async def test_slot_of_a_lost_job_is_taken(bench: Bench) -> None:
    """Its task has expired, or ended in a process that died before it released the slot."""
    jobs = bench.jobs(lease=0.3)
    work = index.job("report", "a")
    (limit,) = jobs.runner.jobs.limits.of(made(Working(work)))
    await hold(jobs, limit, Slot("gone.1", "n1"))

    await create(jobs, "t1", work)

    assert await room.next() == "a"


async def test_slot_of_a_dead_process_is_free(bench: Bench) -> None:
    """Although its job waits for another process that serves its queue."""
    jobs = bench.jobs(lease=0.3)
    lost = made(Working(index.options(queue="unserved").job("report", "lost")), id="t0")
    (limit,) = jobs.runner.jobs.limits.of(lost)
    await jobs.records.create(lost.claim(1.0, max_crashes=3), None)
    await hold(jobs, limit, Slot("t0.0", "a dead process"))

    await create(jobs, "t1", index.job("report", "a"))

    assert await room.next() == "a"


async def hold(jobs: TaskService, limit: JobLimit, slot: Slot) -> None:
    """Write the record of a limit as the process of *slot* has left it."""
    await jobs.records.store.apply(Put(limit.key, msgspec.msgpack.encode([slot])))


async def test_keys_with_spaces_are_kept_apart(tmp_path: Path) -> None:
    """The tool may take them from its arguments: no client waits for the job of another."""
    async with opened("memory", tmp_path) as bench:
        jobs = bench.jobs()
        for number, document in enumerate(("report", "report ", "report\n")):
            await create(jobs, f"t{number}", index.job(document, str(number)))

        assert sorted([await room.next() for _ in range(3)]) == ["0", "1", "2"]


async def test_limits_leave_no_records(bench: Bench) -> None:
    """There may be a key for each document."""
    jobs = bench.jobs()
    (limit,) = jobs.runner.jobs.limits.of(made(Working(index.job("report", "a"))))
    for name in ("a", "b"):
        await create(jobs, name, index.job("report", name))
    for _ in range(2):
        room.leave(await room.next())
    for name in ("a", "b"):
        await ended(jobs, name)

    assert await jobs.records.store.get(limit.key) is None


def waited(task: Task) -> float:
    assert isinstance(task.work, Working)
    return task.work.waited


async def test_limit_holds_after_a_killed_worker(tmp_path: Path) -> None:
    """The job that it ran and the one that waited run in another worker, one after the other."""
    ends = {"t1": tmp_path / "first", "t2": tmp_path / "second"}
    async with (
        opened("sqlite", tmp_path) as bench,
        running(tmp_path / "jobs.db", "w1") as first,
    ):
        jobs = client(bench)
        for id, end in ends.items():
            await create(jobs, id, Job(name="held", arguments={"end": str(end)}, limit=1))
            if id == "t1":
                await first.says("attempt 1")
        await parked(jobs, "t2")
        first.signal(signal.SIGKILL)
        async with running(tmp_path / "jobs.db", "w2") as second:
            line = await second.line()
            runs, waits = ("t1", "t2") if line == "attempt 2" else ("t2", "t1")
            before = waited(await jobs.get(waits, None))
            await until(jobs, lambda task: waited(task) > before, waits)
            ends[runs].touch()
            await second.says("attempt 1" if waits == "t2" else "attempt 2")
            ends[waits].touch()
            assert [(await ended(jobs, id)).status for id in ends] == ["completed"] * 2
        await jobs.aclose()


@pytest.mark.parametrize(
    ("options", "message"),
    [({"limit": 0}, "limit must be"), ({"limit_key": "colour"}, "no parameter 'colour'")],
)
def test_wrong_limit_is_rejected(options: Any, message: str) -> None:
    """When the function is decorated."""

    async def limited(run: Run, document: str) -> None: ...

    with pytest.raises(ConfigurationError, match=message):
        job(name="limited", **options)(limited)


def test_key_is_made_of_the_arguments() -> None:
    """Defaults included. It has to be a text or a number, which is equal in every process."""

    async def limited(run: Run, document: str, page: int = 1) -> None: ...

    by_name: Any = job(name="by_name", limit_key="page", limit=3)(limited)
    limited.__qualname__ = "other"
    by_function: Any = job(name="by_function", limit_key=lambda document, page: document[:1])(
        limited
    )
    wrong: Any = job(name="wrong", limit_key=lambda **_: None)(limited)

    assert (by_name.job("d").limit_key, by_name.job("d").limit) == ("1", 3)
    assert (by_function.job("d").limit_key, by_function.job("d").limit) == ("d", 1)
    with pytest.raises(TypeError, match="limit_key"):
        wrong.job("d")


def test_wrong_limit_of_a_queue_is_rejected() -> None:
    """The message names the queue."""
    with pytest.raises(ConfigurationError, match="queue_limits\\['gpu'\\]"):
        JobOptions(queue_limits={"gpu": 0})
