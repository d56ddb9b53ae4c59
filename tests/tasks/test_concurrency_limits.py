"""Limits on how many jobs run at once in all processes that share a store."""

import asyncio
import signal
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from genmcp.core.task import Task
from genmcp.core.waiting import Job, Working
from genmcp.errors import ConfigurationError, StoreUnavailable
from genmcp.stores.memory import MemoryStore
from genmcp.stores.store import Put, Store
from genmcp.tasks.job_limits import Slot
from genmcp.tasks.jobs import Run, job
from genmcp.tasks.options import JobOptions
from genmcp.tasks.service import TaskService
from tests.support.asgi import until as until_true
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


begun: list[str] = []
go = threading.Event()


@pytest.fixture(autouse=True)
async def _room() -> None:
    global room
    room = Room()


@pytest.fixture(autouse=True)
def _released() -> Iterator[None]:
    go.clear()
    begun.clear()
    yield
    go.set()


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


@job(limit=1)
def scan(run: Run, name: str) -> None:
    begun.append(name)
    go.wait(BOUND)


@job(limit=1, timeout=0.05)
def late(run: Run, name: str) -> None:
    begun.append(name)
    go.wait(BOUND)


@job(limit=1)
async def stubborn(run: Run, name: str) -> None:
    """Ignore each cancellation."""
    begun.append(name)
    while not go.is_set():
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0.01)


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


@pytest.mark.parametrize("work", [scan, late, stubborn])
async def test_slot_is_kept_until_the_function_ends(tmp_path: Path, work: Any) -> None:
    """It runs on in its thread, or ignores that it was cancelled or has timed out."""
    async with opened("memory", tmp_path) as bench:
        jobs = bench.jobs(lease=0.3, cancel_grace=0.05)
        await create(jobs, "t1", work.job("a"))
        await until_true(lambda: begun == ["a"], pause=0.01)
        if work is not late:
            await jobs.cancel("t1", None)
        await ended(jobs, "t1")

        await create(jobs, "t2", work.job("b"))
        await until(jobs, lambda task: waited(task) > 0.9, "t2")
        assert begun == ["a"]

        go.set()
        await until_true(lambda: begun == ["a", "b"], pause=0.01)


async def test_lost_worker_leaves_the_slot_of_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was suspended, another process has taken its job over, and it ends the job afterwards."""
    async with opened("sqlite", tmp_path) as bench:
        one, other = bench.jobs("n1", lease=0.3), bench.jobs("n2", lease=0.3)
        await create(one, "t1", index.job("report", "a"))
        assert await room.next() == "a"
        with monkeypatch.context() as suspended:
            suspend(one.records.store, suspended)
            await other.start()
            assert await room.next() == "a"
            assert room.inside == 2
        await until_true(lambda: room.inside == 1, pause=0.01)

        await create(other, "t2", index.job("report", "b"))
        await until(other, lambda task: waited(task) > 0.9, "t2")
        assert room.inside == 1

        room.leave("a")
        assert await room.next() == "b"


def suspend(store: Store, patch: pytest.MonkeyPatch) -> None:
    """Let a process neither read nor write, as if it did not run."""

    async def away(*_: object, **options: object) -> None:
        raise StoreUnavailable("suspended")

    for part, names in (
        (store, ("get", "apply", "touch")),
        (store.deliveries, ("claim", "renew", "lost")),
    ):
        for name in names:
            patch.setattr(part, name, away)


async def test_slot_of_a_dead_process_lapses(bench: Bench) -> None:
    """Although its job waits for another process."""
    jobs = bench.jobs(lease=0.3)
    work = index.job("report", "a")
    (limit,) = jobs.runner.jobs.limits.of(made(Working(work)))
    slot = Slot("t0.0", 1, jobs.records.now() + 0.3)
    await jobs.records.store.apply(Put(limit.key, msgspec.msgpack.encode([slot])))

    await create(jobs, "t1", work)

    assert await room.next() == "a"
    assert jobs.records.now() >= slot.until


async def test_slot_outlives_the_retention(tmp_path: Path) -> None:
    """A job may run for weeks."""
    async with opened("memory", tmp_path) as bench:
        jobs = bench.jobs(retention=1.0)
        await create(jobs, "t1", index.job("report", "a"))
        assert await room.next() == "a"
        await create(jobs, "t2", index.job("report", "b"))
        await until(jobs, lambda task: waited(task) > 1.5, "t2")

        assert room.entered.empty()


async def test_slot_of_a_job_that_is_lost_expires() -> None:
    """Its process was killed, and no other job of its key comes."""
    now = 1000.0
    store = MemoryStore(clock=lambda: now)
    bench = Bench(lambda: store)
    jobs = bench.jobs(retention=60.0)
    task = made(Working(index.job("report", "a"))).claim(now, max_crashes=0)
    (limit,) = jobs.runner.jobs.limits.of(task)
    assert await jobs.runner.jobs.limits.acquire(task)
    now += 59.0
    assert await store.get(limit.key) is not None
    now += 2.0

    assert await store.get(limit.key) is None
    await bench.aclose()


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
