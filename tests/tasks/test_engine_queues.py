"""Jobs in a queue with an engine: the record decides, whatever the engine loses or repeats.

The engine here is a list of ids, and the test is its worker. Real engines: test_engines.py.
"""

import asyncio
import os
import re
import threading
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from pathlib import Path
from socket import gethostname
from typing import Any

import pytest

from genmcp import ConfigurationError, JobOptions, MemoryStore, Mux, Suite
from genmcp.core.outcome import Done, Failed
from genmcp.core.task import Task
from genmcp.core.waiting import Gathering, JobGroup, Working
from genmcp.errors import WaitTimedOut, WorkerLost
from genmcp.stores.sqlite.store import SQLiteStore
from genmcp.tasks.heartbeats import Heartbeats
from genmcp.tasks.inspection import TaskInspector, TaskSummary
from genmcp.tasks.jobs import Run, job
from genmcp.tasks.options import StepObserver
from genmcp.tasks.queues import AttemptFailed, EngineQueue, ExternalStatus, RunJob
from genmcp.tasks.records import HeldTask
from genmcp.tasks.service import TaskService
from tests.support.asgi import until as until_true
from tests.tasks.bench import BOUND, Bench, ended, made, opened, until

LEASE = 0.6  # seconds


class Ids(EngineQueue):
    """An engine that passes ids to the test."""

    scheme = "ids"

    def __init__(self) -> None:
        self.submitted: asyncio.Queue[str] = asyncio.Queue()
        self.refuses = 0

    def register(self, name: str) -> None: ...

    async def submit(self, id: str, job: str) -> None:
        if self.refuses:
            self.refuses -= 1
            raise OSError("the broker is away")
        self.submitted.put_nowait(id)

    async def next_id(self) -> str:
        async with asyncio.timeout(BOUND):
            return await self.submitted.get()

    async def snapshot(self, ref: str) -> ExternalStatus:
        raise NotImplementedError

    def watch(self, ref: str) -> AsyncGenerator[ExternalStatus, None]:
        raise NotImplementedError

    async def cancel(self, ref: str) -> None: ...


@pytest.fixture
async def bench(tmp_path: Path) -> AsyncIterator[Bench]:
    async with opened("sqlite", tmp_path) as bench:
        yield bench


@pytest.fixture
def queue() -> Ids:
    return Ids()


@pytest.fixture
async def server(bench: Bench, queue: Ids) -> TaskService:
    """A process of the server."""
    queues = {"default": 2, "heavy": queue}
    jobs = bench.jobs(queues=queues, lease=LEASE, observer=Losses())
    await jobs.start()
    return jobs


@pytest.fixture
def run(bench: Bench, queue: Ids, server: TaskService) -> RunJob:
    """The function that the engine calls in a process of its own."""
    return worker(bench)


def worker(bench: Bench) -> RunJob:
    elsewhere = Ids()
    bench.jobs("n2", queues={"default": 1, "heavy": elsewhere}, lease=LEASE)
    return elsewhere.run


class Losses(StepObserver):
    """Counts the takeovers that a process of the server reports."""

    def lease_lost(self, task: Task) -> None:
        lost.append(task.engine_node)


lost: list[str | None] = []
released = threading.Event()
started: "asyncio.Queue[int]"
go: asyncio.Event


@pytest.fixture(autouse=True)
async def _signals() -> None:
    global started, go
    started, go = asyncio.Queue(), asyncio.Event()
    lost.clear()


@job(queue="heavy", retries=1, backoff=0.0)
async def heavy(run: Run, fails: bool = False) -> str:
    """Save the attempt, and wait for the test."""
    before = run.saved
    await run.save(run.attempt)
    await run.progress(run.attempt, 10, "working")
    started.put_nowait(run.attempt)
    await go.wait()
    if fails and run.attempt == 1:
        raise ValueError("the first attempt fails")
    return f"attempt {run.attempt} after {before}"


@job(queue="heavy", timeout=0.05)
async def endless(run: Run) -> None:
    await asyncio.Event().wait()


@job(queue="heavy", limit=1, timeout=0.05)
def blocking(run: Run) -> None:
    released.wait(BOUND)


@job(queue="heavy", limit=1)
async def limited(run: Run) -> str:
    started.put_nowait(run.attempt)
    await go.wait()
    return "limited"


async def begin(server: TaskService, **fields: Any) -> None:
    work = fields.pop("work", None) or Working(heavy.job())
    await server.create(made(work, **{"continuation": b"c", "step": 1, **fields}), b"call")


async def has_started() -> int:
    async with asyncio.timeout(BOUND):
        return await started.get()


async def test_job_runs_on_the_engine(
    bench: Bench, queue: Ids, server: TaskService, run: RunJob
) -> None:
    """Its progress is seen in the server, where its call continues."""
    await begin(server)
    running = asyncio.create_task(run(await queue.next_id()))
    await has_started()
    task = await until(server, lambda task: task.progress == 1)
    assert (task.status, task.total, task.message) == ("working", 10, "working")
    go.set()

    assert await running == "completed"
    assert (await ended(server)).result == b'"attempt 1 after None"'
    assert bench.resumed.outcomes == [Done("attempt 1 after None")]


async def test_repeated_id_runs_once(queue: Ids, server: TaskService, run: RunJob) -> None:
    """An engine may deliver an id twice: while its job waits, runs, and after its end."""
    await begin(server)
    id = await queue.next_id()
    running = [asyncio.create_task(run(id)) for _ in range(2)]
    await has_started()
    assert await run(id) == "runs elsewhere"
    go.set()

    assert sorted(await asyncio.gather(*running))[0] == "completed"
    await ended(server)
    assert await run(id) == "ended before"
    assert started.empty()


async def test_lost_id_is_submitted_again(queue: Ids, server: TaskService, run: RunJob) -> None:
    """With the same delivery, so that each copy may run the job; less and less often."""
    await begin(server)
    first, second, third = [await queue.next_id() for _ in range(3)]
    assert [first, second, third] == ["t1:0.0", "t1:0.1", "t1:0.2"]
    assert (await server.records.get("t1")).due == 0.0
    go.set()

    assert await run(first) == "completed"
    assert (await ended(server)).result == b'"attempt 1 after None"'


async def test_job_that_no_worker_takes_is_seen(
    queue: Ids, server: TaskService, run: RunJob, caplog: pytest.LogCaptureFixture
) -> None:
    """In the backlog of its queue, also as a part of a group; by its client; once in the log."""
    await begin(server, work=Gathering.of(JobGroup([heavy.job(), heavy.job()], "all")), id="g")
    await begin(server)
    first, *_ = [await queue.next_id() for _ in range(5)]  # at least one for the second time
    waiting, held, age = await server.backlog("heavy")
    assert (waiting, held) == (3, 0)
    assert age > LEASE / 2
    await until(server, lambda task: task.submissions > 1)
    assert caplog.text.count("no worker of <") == 1

    message = (await server.get("t1", None)).message or ""
    assert re.match(r"Waiting for a worker: submitted \d times, not taken since 1970-", message)
    inspector = TaskInspector(server)
    (summary,) = [each for each in await inspector.queues() if each.name == "heavy"]
    assert (summary.served, summary.backlog.waiting) == (None, 3)
    (shown,) = [each async for each in inspector.tasks(queue="heavy")]
    assert "not taken since 1970-" in (TaskSummary.of(shown, "").message or "")

    ids = [first, *(queue.submitted.get_nowait() for _ in range(queue.submitted.qsize()))]
    running = asyncio.create_task(run(next(id for id in ids if id.startswith("t1:"))))
    await has_started()
    (summary,) = [each for each in await inspector.queues() if each.name == "heavy"]
    assert (summary.served, summary.backlog[:2]) == (True, (2, 1))
    await until(server, lambda task: task.message == "working")
    go.set()
    await running


async def test_job_waits_for_an_engine_that_is_away(
    queue: Ids, server: TaskService, run: RunJob, caplog: pytest.LogCaptureFixture
) -> None:
    """Its call is accepted meanwhile."""
    queue.refuses = 2
    go.set()
    await begin(server)

    assert await run(await queue.next_id()) == "completed"
    await ended(server)
    assert "does not accept the job: OSError('the broker is away')" in caplog.text


async def test_failed_attempt_is_reported_and_repeated(
    queue: Ids, server: TaskService, run: RunJob
) -> None:
    """The engine shows it as failed; the retry is a submission of its own, with what was saved."""
    go.set()
    await begin(server, work=Working(heavy.job(fails=True)))
    first = await queue.next_id()
    with pytest.raises(AttemptFailed, match="heavy: another attempt follows"):
        await run(first)
    second = await queue.next_id()
    assert second != first
    assert await run(first) == "runs elsewhere"

    assert await run(second) == "completed"
    assert (await ended(server)).result == b'"attempt 2 after 1"'


async def test_time_limit_holds_on_an_engine(
    bench: Bench, queue: Ids, server: TaskService, run: RunJob
) -> None:
    await begin(server, work=Working(endless.job()))
    with pytest.raises(AttemptFailed, match="WaitTimedOut"):
        await run(await queue.next_id())
    await ended(server)
    assert bench.resumed.outcomes == [Failed(WaitTimedOut())]


async def test_limit_on_jobs_holds_on_an_engine(
    queue: Ids, server: TaskService, run: RunJob
) -> None:
    """A job without a slot takes no worker of the engine: it comes again."""
    for id in "t1", "t2":
        await begin(server, id=id, work=Working(limited.job()))
    running = asyncio.create_task(run(await queue.next_id()))
    await has_started()
    assert await run(await queue.next_id()) == "deferred"
    go.set()
    assert await running == "completed"
    while (state := await run(await queue.next_id())) != "completed":
        assert state in ("deferred", "runs elsewhere", "ended before")
    for id in "t1", "t2":
        assert (await ended(server, id)).result == b'"limited"'


async def test_thread_on_an_engine_keeps_its_slot(
    queue: Ids, server: TaskService, run: RunJob
) -> None:
    """Its job has timed out, and its process may run no other job meanwhile."""
    released.clear()
    await begin(server, work=Working(blocking.job()))
    with pytest.raises(AttemptFailed):
        await run(await queue.next_id())
    kept_until = (await ended(server)).updated + 2 * LEASE

    await begin(server, id="t2", work=Working(blocking.job()))
    while (await server.records.get("t2")).updated < kept_until:
        assert await run(await queue.next_id()) != "completed"
    released.set()
    while await run(await queue.next_id()) != "completed":
        pass
    await ended(server, "t2")


async def test_limit_counts_jobs_on_engines_and_servers(
    queue: Ids, server: TaskService, run: RunJob
) -> None:
    """A server does not take the slot of a job that runs in a process of the engine."""
    await begin(server, work=Working(limited.job()))
    running = asyncio.create_task(run(await queue.next_id()))
    await has_started()
    await until_true(lambda: not server.heartbeats.presence.is_unsure, pause=0.01)
    await begin(server, id="t2", work=Working(limited.options(queue="default").job()))
    await until(server, lambda task: task.delivery_id > 1 or not started.empty(), "t2")
    assert started.empty()
    go.set()
    assert await running == "completed"
    for id in "t1", "t2":
        assert (await ended(server, id)).result == b'"limited"'


async def test_job_of_another_store_is_logged(
    tmp_path: Path, queue: Ids, server: TaskService, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, with the store that the process uses; the engine shows it, too."""
    caplog.set_level("INFO")
    await begin(server)
    id = await queue.next_id()
    (tmp_path / "other").mkdir()
    async with opened("sqlite", tmp_path / "other") as other:
        run = worker(other)
        for _ in range(2):
            assert (await run(id)).startswith("no such task in <SQLiteStore: '")
    assert caplog.text.count("delivered task t1, which is not in <SQLiteStore: '") == 1
    assert caplog.text.count("runs jobs of an engine, store: <SQLiteStore: '") == 1


async def test_running_job_is_cancelled(queue: Ids, server: TaskService, run: RunJob) -> None:
    """The process of the engine follows the record."""
    await begin(server)
    running = asyncio.create_task(run(await queue.next_id()))
    await has_started()
    await server.cancel("t1", None)

    async with asyncio.timeout(5):
        assert await running == "cancelled"
    assert (await server.get("t1", None)).end == "cancelled"


async def test_cancelled_job_does_not_start(queue: Ids, server: TaskService, run: RunJob) -> None:
    await begin(server)
    id = await queue.next_id()
    await server.cancel("t1", None)

    assert await run(id) == "ended before"
    assert started.empty()


async def test_part_of_a_group_is_cancelled(queue: Ids, server: TaskService, run: RunJob) -> None:
    """A part has no followers of its own; its process follows it nevertheless."""
    await begin(server, work=Gathering.of(JobGroup([heavy.job(), heavy.job()], "all")))
    running = [asyncio.create_task(run(await queue.next_id())) for _ in range(2)]
    for _ in running:
        await has_started()
    await server.cancel("t1", None)

    async with asyncio.timeout(5):
        assert await asyncio.gather(*running) == ["cancelled", "cancelled"]


async def test_parts_of_a_group_run_on_the_engine(
    queue: Ids, server: TaskService, run: RunJob
) -> None:
    go.set()
    await begin(server, work=Gathering.of(JobGroup([heavy.job(), heavy.job()], "all")))
    for _ in range(2):
        assert await run(await queue.next_id()) == "completed"
    assert (await ended(server)).result == b'["attempt 1 after None","attempt 1 after None"]'


async def test_lost_parts_of_a_group_are_submitted_again(
    queue: Ids, server: TaskService, run: RunJob
) -> None:
    """A part that the engine has lost, and one whose process has died."""
    await begin(server, work=Gathering.of(JobGroup([heavy.job(), heavy.job()], "all")))
    dead, _ = [await queue.next_id() for _ in range(2)]
    part = await server.records.get(dead.split(":")[0])
    held = HeldTask(server.records, part.id, part.fencing_token)
    await held.claim(3, "a dead process")
    go.set()
    states = [await run(await queue.next_id())]
    while states.count("completed") < 2:
        states.append(await run(await queue.next_id()))
    assert (await ended(server)).result == b'["attempt 2 after None","attempt 1 after None"]'


async def test_engine_that_stops_hands_its_job_over(
    bench: Bench, queue: Ids, server: TaskService, run: RunJob
) -> None:
    """At once, and it is no crash: the job runs again, although it must not after a crash."""
    await begin(server, on_lost="fail")
    running = asyncio.create_task(run(await queue.next_id()))
    await has_started()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    go.set()

    assert await run(await queue.next_id()) == "completed"
    assert (await ended(server)).result == b'"attempt 2 after 1"'


@pytest.fixture
async def frozen(
    request: pytest.FixtureRequest,
    bench: Bench,
    queue: Ids,
    server: TaskService,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator["asyncio.Task[str]"]:
    """A job that was started in a process which does not renew its heartbeat any more."""

    beat = Heartbeats.beat

    async def silent(self: Heartbeats) -> None:
        if not self.own.startswith("engine-"):
            await beat(self)

    await begin(server, on_lost=getattr(request, "param", "rerun"))
    running = asyncio.create_task(worker(bench)(await queue.next_id()))
    await has_started()
    with monkeypatch.context() as patched:
        patched.setattr(Heartbeats, "beat", silent)
        yield running


async def test_job_of_a_dead_process_runs_again(
    queue: Ids,
    server: TaskService,
    run: RunJob,
    frozen: "asyncio.Task[str]",
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It continues from what it saved. A process that was only suspended stops its attempt.

    The server that notices it counts it, and logs the machine and the process.
    """
    id = await queue.next_id()
    assert id == "t1:1.0"
    assert len(lost) == 1
    assert f"process engine-{gethostname()}-{os.getpid()}-" in caplog.text
    async with asyncio.timeout(BOUND):
        assert await frozen == "cancelled"
    go.set()

    assert await run(id) == "completed"
    task = await ended(server)
    assert task.result == b'"attempt 2 after 1"'


@pytest.mark.parametrize("frozen", ["fail"], indirect=True)
async def test_job_that_must_not_run_again_is_lost_with_its_process(
    bench: Bench, queue: Ids, server: TaskService, frozen: "asyncio.Task[str]"
) -> None:
    """`on_worker_lost="fail"`."""
    async with asyncio.timeout(BOUND):
        assert await frozen == "cancelled"
    await ended(server)
    assert bench.resumed.outcomes == [Failed(WorkerLost())]
    assert queue.submitted.empty()


async def test_job_that_kills_its_processes_is_lost(
    bench: Bench, queue: Ids, server: TaskService
) -> None:
    """After `max_crashes`, as on the queue of the store."""
    await server.records.create(
        made(
            Working(heavy.job()),
            held_delivery=0,
            engine_node="dead",
            crashes=3,
            continuation=b"c",
            step=1,
        ),
        b"call",
    )

    await ended(server)
    assert bench.resumed.outcomes == [Failed(WorkerLost())]
    assert queue.submitted.empty()


async def test_operator_retries_without_the_engine(
    bench: Bench, queue: Ids, server: TaskService, run: RunJob
) -> None:
    """A process that does not know the engine submits to the queue of the store, as always."""
    operator = bench.jobs("operator")
    go.set()
    await operator.writer.create(made(Working(heavy.job()), continuation=b"c", step=1), b"call")

    assert await run(await queue.next_id()) == "completed"
    await ended(server)


def test_engine_needs_a_shared_store() -> None:
    """Its workers are other processes."""
    options = JobOptions(queues={"default": 1, "heavy": Ids()})
    with pytest.raises(ConfigurationError, match=r"queues\['heavy'\].*is not shared"):
        Mux(Suite(name="s", version="1"), store=MemoryStore(), jobs=options)


async def test_queue_belongs_to_one_mux(tmp_path: Path) -> None:
    """The function that it registers with the engine runs the jobs of one."""
    queue = Ids()
    async with aclosing(SQLiteStore(tmp_path / "jobs.db")) as store:
        options = JobOptions(queues={"heavy": queue})
        Mux(Suite(name="one", version="1"), store=store, jobs=options, secret="x" * 16)
        assert queue.name == "genmcp.one.heavy"
        with pytest.raises(ConfigurationError, match=r"make one more for genmcp\.two\.heavy"):
            Mux(Suite(name="two", version="1"), store=store, jobs=options, secret="x" * 16)


def test_record_has_no_bytes_for_engines_by_default() -> None:
    """Otherwise it has the names that other releases know."""
    task = made(Working(heavy.job()))
    assert b"holder" in task.claim(1.0, max_crashes=3, engine_node="e").pack()
    assert b"holder" not in task.pack()
    assert b"submissions" not in task.pack()
    assert isinstance(task, Task)


def test_work_of_an_engine_is_named() -> None:
    """The function itself, as Celery's `delay` has it, is refused before the call waits."""
    with pytest.raises(TypeError, match="takes the name of a function of the queue, not <built-in"):
        Ids().job(print)  # type: ignore[arg-type]
