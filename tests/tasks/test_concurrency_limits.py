"""Limits on how many jobs run at once in all processes that share a store."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from genmcp._core.waiting import Job, Working
from genmcp.errors import ConfigurationError
from genmcp.stores.store import Put
from genmcp.tasks.job_limits import LimitHolders
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
    """Counts who is in, and lets them out one by one."""

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
    """In any process, in the order of their calls; a wait for a slot is no attempt."""
    one, other = bench.jobs("n1"), bench.jobs("n2")
    await other.start()
    await create(one, "t1", index.job("report", "a"))
    assert await room.next() == "a"
    for number, name in enumerate(("b", "c", "d"), 2):
        jobs = (one, other)[number % 2]
        await create(jobs, f"t{number}", index.job("report", name), created=float(number))
        await parked(jobs, f"t{number}")

    for name, following in zip("abc", "bcd", strict=True):
        assert room.entered.empty()
        room.leave(name)
        assert await room.next() == following
    room.leave("d")

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
    """Of one that runs as soon as its function has ended; one that waits leaves the line."""
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
    held = LimitHolders(limit.name, ("gone.1",))
    await jobs.records.store.apply(Put(limit.key, msgspec.msgpack.encode(held)))

    await create(jobs, "t1", work)

    assert await room.next() == "a"


async def test_job_with_a_slot_that_was_not_woken_runs(bench: Bench) -> None:
    """The process that gave it the slot has died before it could submit the job."""
    jobs = bench.jobs(lease=0.3)
    work = index.job("report", "a")
    (limit,) = jobs.runner.jobs.limits.of(made(Working(work)))
    await create(jobs, "t0", index.job("report", "z"))
    await room.next()
    await create(jobs, "t1", work)
    await parked(jobs, "t1")

    held = LimitHolders(limit.name, ("t1.0",))
    await jobs.records.store.apply(Put(limit.key, msgspec.msgpack.encode(held)))

    assert await room.next() == "a"


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
    assert list(await jobs.records.store.find(limit.key)) == []


async def test_key_survives_a_killed_worker(tmp_path: Path) -> None:
    """The job keeps its slot while another worker takes it over; the next one runs after it."""
    async with (
        opened("sqlite", tmp_path) as bench,
        running(tmp_path / "jobs.db", "w1") as first,
    ):
        jobs = client(bench)
        work = Job(name="patient", arguments={"until": 2}, limit=1)
        await create(jobs, "t1", work)
        await first.says("attempt 1")
        await create(jobs, "t2", work, created=2.0)
        await parked(jobs, "t2")
        first.signal(signal.SIGKILL)
        async with running(tmp_path / "jobs.db", "w2") as second:
            await second.says("attempt 2")
            await second.says("attempt 1")
        await jobs.aclose()


@pytest.mark.parametrize(
    ("options", "says"),
    [({"limit": 0}, "limit must be"), ({"limit_key": "colour"}, "no parameter 'colour'")],
)
def test_wrong_limit_is_rejected(options: Any, says: str) -> None:
    """When the function is decorated."""

    async def limited(run: Run, document: str) -> None: ...

    with pytest.raises(ConfigurationError, match=says):
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
