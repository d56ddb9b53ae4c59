"""TaskService from the submission of jobs to the end of calls, in memory and in a file."""

import asyncio
import logging
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from genmcp.core.outcome import Done, Failed, pack
from genmcp.core.task import Task
from genmcp.core.waiting import Asking, Awaiting, Finished, Job, Running, Suspended, Working
from genmcp.errors import (
    ConfigurationError,
    IllegalTransition,
    StoreUnavailable,
    TaskNotFound,
    ToolError,
    WaitCancelled,
    WaitTimedOut,
    WorkerLost,
    WorkRaised,
)
from genmcp.stores.store import Delete
from genmcp.tasks.follower import follow_task
from genmcp.tasks.jobs import Run, job
from genmcp.tasks.options import JobOptions
from genmcp.tasks.progress import JobProgress
from genmcp.tasks.records import TaskRecords
from genmcp.tasks.service import TaskChange, TaskMessage, TaskService
from tests.tasks.bench import BOUND, STORES, Bench, ended, followed, made, opened, until

pytestmark = pytest.mark.slow


@pytest.fixture(params=STORES)
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    async with opened(request.param, tmp_path) as bench:
        yield bench


class Gate:
    """Blocks a job until it is opened, and counts the attempts."""

    def __init__(self) -> None:
        self.came: asyncio.Queue[int] = asyncio.Queue()
        self.left: asyncio.Queue[str] = asyncio.Queue()
        self.opened = asyncio.Event()

    async def attempt(self) -> int:
        """Wait for the next attempt at the job."""
        async with asyncio.timeout(BOUND):
            return await self.came.get()

    async def end(self) -> str:
        """Wait until an attempt has ended, and return how."""
        async with asyncio.timeout(BOUND):
            return await self.left.get()


gate: Gate


@pytest.fixture(autouse=True)
async def _gate() -> None:
    global gate
    gate = Gate()


@job
async def double(run: Run, number: int) -> int:
    return number * 2


@job
async def held(run: Run) -> str:
    gate.came.put_nowait(run.attempt)
    try:
        await gate.opened.wait()
        await run.progress(1)
    except asyncio.CancelledError:
        gate.left.put_nowait("cancelled")
        raise
    return f"attempt {run.attempt}"


@job
async def thaws(run: Run) -> str:
    gate.came.put_nowait(run.attempt)
    try:
        while run.attempt == 1:
            await run.progress(1)
    except asyncio.CancelledError:
        gate.left.put_nowait("cancelled")
        raise
    return f"attempt {run.attempt}"


@job(retries=2, backoff=0.01)
async def third_time(run: Run) -> int:
    gate.came.put_nowait(run.attempt)
    if run.attempt < 3:
        raise ValueError("secret")
    return run.attempt


# The value of a job


async def test_job_brings_its_result_to_the_call_that_waits(bench: Bench) -> None:
    """The function runs with its arguments; the call continues with the outcome, and ends."""
    jobs = bench.jobs()

    await jobs.create(made(Working(double.job(number=21))), b"the call")
    task = await ended(jobs)

    assert (task.status, task.result) == ("completed", b"42")
    assert bench.resumed.seen == [(0, b"the call", Done(42))]


async def test_job_runs_in_a_process_that_serves_its_queue(bench: Bench) -> None:
    """A process that does not serve a queue only submits to it, and follows."""
    here, there = bench.jobs("n1"), bench.jobs("n2", queues=["gpu"])
    await there.start()

    await here.create(
        made(Working(Job(name=double.name, arguments={"number": 1}, queue="gpu"))), b""
    )

    assert (await ended(here)).result == b"2"


async def test_job_that_is_submitted_twice_runs_once(bench: Bench) -> None:
    """A replayed request attaches to the task there is."""
    jobs = bench.jobs()
    await jobs.create(made(Working(held.job()), created=1.0), b"")
    await gate.attempt()

    again = await jobs.create(made(Working(held.job()), created=2.0), b"")
    gate.opened.set()

    assert again.created == 1.0
    assert (await ended(jobs)).result == b'"attempt 1"'
    assert gate.came.empty()


async def test_job_in_a_thread_reports_and_gives(bench: Bench) -> None:
    """A `def` job runs in a thread, and reports through the event loop."""

    @job
    def blocking(run: Run) -> str:
        run.in_loop(run.progress(1, 2, "half"))
        return run.id

    jobs = bench.jobs()
    await jobs.create(made(Working(blocking.job())), b"")

    task = await ended(jobs)
    assert (task.result, task.progress, task.total, task.message) == (b'"t1.0"', 1.0, 2.0, "half")


async def test_job_has_what_its_call_assigned(bench: Bench) -> None:
    """The assigns of a run come from `JobOptions.assigns`."""

    @job
    async def assigned(run: Run) -> Any:
        return run.assigns["user"]

    jobs = bench.jobs(assigns=lambda task: {"user": task.tool})
    await jobs.create(made(Working(assigned.job()), tool="ada"), b"")

    assert (await ended(jobs)).result == b'"ada"'


async def test_job_is_tried_again_when_it_fails(bench: Bench) -> None:
    """A job that raises is delivered again, up to its number of retries."""
    jobs = bench.jobs()
    await jobs.create(made(Working(third_time.job())), b"")

    assert (await ended(jobs)).result == b"3"
    assert [await gate.attempt() for _ in range(3)] == [1, 2, 3]


async def test_job_error_is_shown_as_a_reference(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """The text is in the log under the reference; one that was raised to be shown is shown."""

    @job
    async def broken(run: Run, shown: bool) -> None:
        raise ToolError("no such file") if shown else ValueError("secret")

    jobs = bench.jobs()
    for id, shown in (("a", False), ("b", True)):
        await jobs.create(made(Working(broken.job(shown)), id=id), b"")
        await ended(jobs, id)

    hidden, told = (
        outcome.error for outcome in bench.resumed.outcomes if isinstance(outcome, Failed)
    )
    assert isinstance(hidden, WorkRaised)
    assert isinstance(told, WorkRaised)
    assert (hidden.type_name, hidden.message) == ("ValueError", None)
    assert (told.type_name, told.message) == ("ToolError", "no such file")
    assert any(hidden.reference in text and "broken" in text for text in caplog.messages)


async def test_job_that_takes_too_long_is_cancelled(bench: Bench) -> None:
    """Its time is an attempt's; then its function is cancelled."""
    jobs = bench.jobs()
    await jobs.create(made(Working(Job(name=held.name, arguments={}, timeout=0.02))), b"")

    await ended(jobs)

    assert bench.resumed.outcomes == [Failed(WaitTimedOut())]
    assert await gate.end() == "cancelled"


async def test_job_that_cancels_itself_is_cancelled(bench: Bench) -> None:
    """A function that raises CancelledError of its own accord has no value."""

    @job
    async def gives_up(run: Run) -> None:
        raise asyncio.CancelledError

    jobs = bench.jobs()
    await jobs.create(made(Working(gives_up.job())), b"")

    await ended(jobs)
    assert bench.resumed.outcomes == [Failed(WaitCancelled())]


@pytest.mark.parametrize("name", ["nobody:knows", "not JSON"])
async def test_job_that_cannot_be_run_or_kept_fails_clearly(
    bench: Bench, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An unknown function, or a result that is not JSON, is logged by the function's name."""

    @job(name="not JSON", retries=5, backoff=60)
    async def gives_an_object(run: Run) -> object:
        return object()

    jobs = bench.jobs(unknown_timeout=0)
    await jobs.create(made(Working(Job(name=name, arguments={}, retries=5, backoff=60))), b"")

    await ended(jobs)
    (outcome,) = bench.resumed.outcomes
    assert isinstance(outcome, Failed)
    assert any(name in text for text in caplog.messages)


async def test_job_may_raise_stop_iteration_in_a_thread(bench: Bench) -> None:
    """An exception that a future cannot carry is an error like any other."""

    @job
    def stops(run: Run) -> None:
        raise StopIteration

    jobs = bench.jobs()
    await jobs.create(made(Working(stops.job())), b"")

    await ended(jobs)
    (outcome,) = bench.resumed.outcomes
    assert isinstance(outcome, Failed)
    assert isinstance(outcome.error, WorkRaised)
    assert outcome.error.type_name == "RuntimeError"


# JobProgress and messages


async def test_progress_is_rate_limited_and_last_is_written(bench: Bench) -> None:
    """A thousand reports cost a few writes, and do not hold the job up."""

    @job
    async def counts(run: Run) -> None:
        for number in range(1000):
            await run.progress(number, 1000)
        await run.progress(1000, 1000, "done")

    jobs = bench.jobs()
    await jobs.create(made(Working(counts.job())), b"")

    told = [each.task.progress for each in await followed(jobs) if isinstance(each, TaskChange)]
    assert told[-1] == 1000.0
    assert len(told) < 20


async def test_messages_are_told_in_order_and_before_the_end(bench: Bench) -> None:
    """A later follower gets the same items; one with a position gets the rest."""
    jobs = bench.jobs()
    task = await jobs.create(made(Running("n1")), b"")
    for data in (b"1", b"2", b"3"):
        await jobs.records.log_message("t1", data)
    await jobs.finish("t1", Finished(result=b"{}"), fencing_token=task.fencing_token)

    notes = [each for each in await followed(jobs) if isinstance(each, TaskMessage)]
    after = [each async for each in jobs.follow("t1", None, notes[0].id)]

    assert [note.data for note in notes] == [b"1", b"2", b"3"]
    assert notes[1:] == after[:-1]
    assert isinstance(after[-1], TaskChange)
    assert await jobs.get("t1", None) == after[-1].task


async def test_messages_that_were_dropped_are_no_end(bench: Bench) -> None:
    """A follower that is too slow continues with the stored events, also of an ended task."""
    jobs = bench.jobs(max_events=2)
    task = await jobs.create(made(Running("n1")), b"")
    async with asyncio.timeout(BOUND):
        following = jobs.follow("t1", None)
        assert isinstance(await anext(following), TaskChange)
        await jobs.records.log_message("t1", b"0")
        first = await anext(following)
        assert isinstance(first, TaskMessage)
        for number in range(5):
            await jobs.records.log_message("t1", b"%d" % number)
        assert (await anext(following)).data == b"3"  # type: ignore[union-attr]
        await jobs.finish("t1", Finished(result=b"{}"), fencing_token=task.fencing_token)
        *_, last = [each async for each in following]
        late = [each async for each in jobs.follow("t1", None, first.id)]

    assert isinstance(last, TaskChange)
    assert last.task.ended
    assert last == late[-1]


async def test_unknown_task_rejects_messages_and_steps(bench: Bench) -> None:
    """Its time has run out, or it never was."""
    jobs = bench.jobs()

    with pytest.raises(TaskNotFound):
        await jobs.records.log_message("t1", b"")
    with pytest.raises(IllegalTransition):
        await jobs.progress("t1", JobProgress(message="hello"), fencing_token=0)


async def test_task_that_is_discarded_was_never_there(bench: Bench) -> None:
    """Its follower gets TaskNotFound."""
    jobs = bench.jobs()
    await jobs.create(made(Running("n1")), b"")
    following = jobs.follow("t1", None)
    assert isinstance(await anext(following), TaskChange)

    await jobs.discard("t1")

    with pytest.raises(TaskNotFound):
        async with asyncio.timeout(BOUND):
            await anext(following)


# The owner of a task


async def test_task_of_another_owner_is_not_found(bench: Bench) -> None:
    """It cannot be distinguished from a task that does not exist."""
    jobs = bench.jobs()
    await jobs.create(made(Asking({"q": b"{}"}), owner="ada"), b"")

    for other in ("bob", None):
        for asked in (
            jobs.get("t1", other),
            jobs.answer("t1", other, {"q": b"1"}),
            jobs.cancel("t1", other),
            anext(jobs.follow("t1", other)),
            jobs.create(made(Running("n1"), owner=other), b""),
        ):
            with pytest.raises(TaskNotFound):
                await asked
    assert (await jobs.get("t1", "ada")).status == "input_required"


# TaskRunner of a call


async def test_call_continues_from_job_to_question_to_job(bench: Bench) -> None:
    """Each wait is a step of one task; its answers come from any process."""
    bench.resumed.gives = [
        Suspended(2, b"c2", Asking({"q": b"{}"})),
        Suspended(3, b"c3", Working(double.job(5))),
    ]
    here, there = bench.jobs("n1"), bench.jobs("n2")

    await here.create(made(Working(double.job(1)), step=1, continuation=b"c1"), b"call")
    asked = await until(here, lambda task: task.status == "input_required")
    await there.answer("t1", None, {"other": b"0"})
    await there.answer("t1", None, {"q": b'"yes"'})

    assert asked.continuation == b"c2"
    assert (await ended(here)).result == b"10"
    assert [(step, outcome) for step, _, outcome in bench.resumed.seen] == [
        (1, Done(2)),
        (2, Done({"q": "yes"})),
        (3, Done(10)),
    ]


async def test_continuation_may_await_in_the_worker(bench: Bench) -> None:
    """An awaitable of `continue_` is a step of its own, bound to the process that runs it."""

    async def resume(task: Task, call: bytes, outcome: Any) -> Finished:
        await jobs.suspend(
            "t1", Suspended(2, b"c2", Awaiting("n1")), fencing_token=task.fencing_token
        )
        gate.came.put_nowait(0)
        await gate.opened.wait()
        return Finished(result=b'"awaited"')

    jobs = bench.jobs(resume=resume)
    await jobs.create(made(Working(double.job(1)), step=1, continuation=b"c1"), b"")
    await gate.attempt()

    assert (await jobs.get("t1", None)).bound_node == "n1"
    gate.opened.set()
    assert (await ended(jobs)).result == b'"awaited"'


async def test_call_that_awaits_in_a_worker_can_be_cancelled(bench: Bench) -> None:
    """The cancellation finds the step that the worker holds it by."""

    async def resume(task: Task, call: bytes, outcome: Any) -> Finished:
        await there.suspend(
            "t1", Suspended(2, b"c2", Awaiting("n2")), fencing_token=task.fencing_token
        )
        gate.came.put_nowait(0)
        try:
            await gate.opened.wait()
        finally:
            gate.left.put_nowait("stopped")
        return Finished()

    here, there = bench.jobs("n1", queues=["other"], resume=resume), bench.jobs("n2", resume=resume)
    await there.create(made(Working(double.job(1)), step=1, continuation=b"c1"), b"")
    await gate.attempt()

    await here.cancel("t1", None)

    assert await gate.end() == "stopped"
    assert (await ended(here)).status == "cancelled"


@pytest.mark.parametrize("given", [ValueError("secret"), IllegalTransition("a", "b")])
async def test_failed_continuation_ends_with_an_error(
    bench: Bench, given: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A failure around `continue_` is an internal error with a reference."""
    bench.resumed.gives = [given]
    jobs = bench.jobs()
    await jobs.create(made(Working(double.job(1))), b"")

    task = await ended(jobs)

    assert task.status == "failed"
    assert task.error is not None
    assert b"-32603" in task.error
    assert b"secret" not in task.error
    assert any(record.levelno == logging.ERROR for record in caplog.records)


async def test_call_whose_request_is_not_kept_is_lost(bench: Bench) -> None:
    """Without its arguments the call cannot continue."""
    jobs = bench.jobs()
    store = bench.store()
    await jobs.create(made(Working(held.job())), b"")
    await gate.attempt()
    await store.apply(Delete("task:t1#call"))
    gate.opened.set()

    task = await ended(jobs)
    assert b"lost" in (task.error or b"")


# Cancelling


async def test_cancel_before_start_prevents_the_job(bench: Bench) -> None:
    """A cancelled delivery reaches no worker."""
    jobs = bench.jobs(queues=["other"])
    await jobs.create(made(Working(double.job(1))), b"")

    was = await jobs.cancel("t1", None)
    worker = bench.jobs("n2")
    await worker.create(made(Working(double.job(1)), id="t2"), b"")
    await ended(worker, "t2")

    assert was is not None
    assert was.status == "working"
    assert (await jobs.get("t1", None)).status == "cancelled"
    assert len(bench.resumed.seen) == 1


async def test_cancel_while_it_runs_stops_the_job_elsewhere(bench: Bench) -> None:
    """The function is cancelled in its process, and the call does not continue."""
    here, there = bench.jobs("n1", queues=["other"]), bench.jobs("n2")
    await there.start()
    await here.create(made(Working(held.job())), b"")
    await gate.attempt()

    await here.cancel("t1", None)

    assert await gate.end() == "cancelled"
    assert (await ended(there)).status == "cancelled"
    assert bench.resumed.seen == []


async def test_cancel_after_the_end_changes_nothing(bench: Bench) -> None:
    """A result stays a result."""
    jobs = bench.jobs()
    await jobs.create(made(Working(double.job(1))), b"")
    over = await ended(jobs)

    assert await jobs.cancel("t1", None) is None
    assert over == await jobs.answer("t1", None, {"q": b"1"})
    assert over == await jobs.get("t1", None)


async def test_result_after_a_cancellation_is_refused(bench: Bench) -> None:
    """The hook in this process is notified that its result will be rejected."""
    jobs = bench.jobs()
    task = await jobs.create(made(Running("n1")), b"")
    await jobs.cancel("t1", None)

    for late in (
        jobs.finish("t1", Finished(result=b"{}"), fencing_token=task.fencing_token),
        jobs.progress("t1", JobProgress(1.0), fencing_token=task.fencing_token),
        jobs.suspend("t1", Suspended(1, b"", Awaiting("n1")), fencing_token=task.fencing_token),
        jobs.abandon("t1", fencing_token=task.fencing_token),
    ):
        with pytest.raises(IllegalTransition):
            await late


# Processes that go away


async def test_job_is_handed_on_by_a_process_that_shuts_down(bench: Bench) -> None:
    """Another process gets it at once, without waiting for the lease, and it counts as no crash."""
    here, there = bench.jobs("n1", lease=600.0), bench.jobs("n2", lease=600.0)
    await here.create(made(Working(held.job()), on_lost="fail"), b"")
    assert await gate.attempt() == 1

    await there.start()
    await here.aclose()

    assert await gate.end() == "cancelled"
    assert await gate.attempt() == 2
    gate.opened.set()
    assert (await ended(there)).result == b'"attempt 2"'


async def test_suspended_worker_is_fenced_off(bench: Bench) -> None:
    """The latest claim holds the job; the other function is cancelled."""
    here, there = bench.jobs("n1"), bench.jobs("n2")
    await here.create(made(Working(thaws.job())), b"")
    assert await gate.attempt() == 1

    await there.runner.handle("t1:0")  # as when the lease had run out

    assert await gate.attempt() == 2
    assert await gate.end() == "cancelled"
    assert (await ended(here)).result == b'"attempt 2"'
    assert bench.resumed.outcomes == [Done("attempt 2")]


@pytest.mark.parametrize(
    ("fields", "outcome"),
    [
        ({"on_lost": "rerun"}, Done("attempt 1")),
        ({"on_lost": "fail"}, Failed(WorkerLost())),
        ({"crashes": 3}, Failed(WorkerLost())),
        ({"crashes": 2}, Done("attempt 1")),
    ],
)
async def test_job_whose_worker_died_ends_as_it_says(
    bench: Bench, fields: dict[str, Any], outcome: Any
) -> None:
    """It runs again, up to a cap, or fails with WorkerLost."""
    jobs = bench.jobs()
    gate.opened.set()

    # A worker claimed delivery 0 before, and did not release it.
    await jobs.create(made(Working(held.job()), held_delivery=0, **fields), b"")

    await ended(jobs)
    assert [outcome] == bench.resumed.outcomes


async def test_continuation_that_kills_its_workers_ends(bench: Bench) -> None:
    """One past the cap, the call is lost."""
    jobs = bench.jobs()
    settled = made(Working(held.job()), held_delivery=0, crashes=3, outcome=pack(Done(1)))
    await jobs.create(settled, b"")

    assert b"lost" in ((await ended(jobs)).error or b"")
    assert bench.resumed.seen == []


async def test_awaiting_call_is_handed_over_at_shutdown(
    bench: Bench,
) -> None:
    """Its wait fails with WorkerLost at once, and another process resumes it."""

    async def resume(task: Task, call: bytes, outcome: Any) -> Finished:
        await here.suspend(
            "t1", Suspended(2, b"c2", Awaiting("n1")), fencing_token=task.fencing_token
        )
        gate.came.put_nowait(0)
        await asyncio.Event().wait()
        return Finished()

    here, there = bench.jobs("n1", resume=resume, lease=600.0), bench.jobs("n2", lease=600.0)
    await here.create(made(Working(double.job(1)), step=1, continuation=b"c1"), b"")
    await gate.attempt()
    await there.start()

    await here.aclose()

    assert (await ended(there)).result == b'"WorkerLost"'
    assert bench.resumed.seen == [(2, b"", Failed(WorkerLost()))]


async def test_unsubmitted_job_is_submitted_by_a_reader(bench: Bench) -> None:
    """The process died between the record and the engine."""
    jobs = bench.jobs()
    records = TaskRecords(bench.store(), JobOptions())
    assert await records.create(made(Working(double.job(4)), due=900.0), b"")

    await jobs.get("t1", None)

    assert (await ended(jobs)).result == b"8"


async def test_job_that_was_settled_is_only_continued(bench: Bench) -> None:
    """The process died between the outcome and `continue_`: the job does not run again."""
    jobs = bench.jobs()
    await jobs.create(made(Working(held.job()), held_delivery=0, outcome=pack(Done("kept"))), b"")

    assert (await ended(jobs)).result == b'"kept"'
    assert gate.came.empty()


async def test_unsubmitted_retry_follows_a_repeated_delivery(bench: Bench) -> None:
    """The process died between the record and the engine, and its delivery lapses."""
    jobs = bench.jobs()
    records = TaskRecords(bench.store(), JobOptions())
    await records.create(made(Working(double.job(4)), delivery_id=1, held_delivery=None), b"")
    await jobs.start()

    await jobs.runner.handle("t1:0")

    assert (await ended(jobs)).result == b"8"


@pytest.mark.parametrize("asks", [True, False])
async def test_call_is_lost_with_the_process_it_runs_in(bench: Bench, asks: bool) -> None:
    """A reader of the task detects it, and so does a liveness check of the process."""
    here, there = bench.jobs("n1", lease=0.3), bench.jobs("n2", lease=0.3)
    await there.start()
    await here.create(made(Running("n1")), b"")
    await here.aclose()

    if asks:
        await there.get("t1", None)
    records = TaskRecords(bench.store(), JobOptions())
    async with asyncio.timeout(BOUND):
        *_, task = [
            each async for each in follow_task(records, "t1", None, partial(records.get, "t1"))
        ]

    assert isinstance(task, TaskChange)
    assert task.task.status == "failed"
    assert bench.resumed.seen == []


async def judging(*several: TaskService) -> None:
    """Start them, and wait until they can judge which other processes are dead."""
    await asyncio.gather(*(each.start() for each in several))
    await asyncio.sleep(max(each.heartbeats.presence.takeover_delay for each in several))


async def test_continuation_outlives_the_process_it_waits_in(bench: Bench) -> None:
    """Its wait fails with WorkerLost; another process resumes it, and the first is refused."""
    here, there = bench.jobs("n1", lease=0.9), bench.jobs("n2", lease=0.9)
    task = await here.create(made(Awaiting("n1"), step=1, continuation=b"c"), b"call")
    await here.aclose()
    await judging(there)

    await there.get("t1", None)

    assert (await ended(there)).result == b'"WorkerLost"'
    with pytest.raises(IllegalTransition):
        await here.finish("t1", Finished(result=b"1"), fencing_token=task.fencing_token)


async def test_lost_continuation_is_resumed_once(bench: Bench) -> None:
    """The first one settles it; the others read the new state."""
    here = bench.jobs("n1", lease=0.9)
    await here.create(made(Awaiting("n1"), step=1, continuation=b"c"), b"call")
    await here.aclose()
    others = [bench.jobs(f"other {number}", lease=0.9) for number in range(3)]
    await judging(*others)

    await asyncio.gather(*(each.get("t1", None) for each in others))

    await ended(others[0])
    assert bench.resumed.outcomes == [Failed(WorkerLost())]


async def test_continuation_is_handed_over_at_shutdown(bench: Bench) -> None:
    """It does not wait until the process is missed."""
    here, there = bench.jobs("n1", lease=600.0), bench.jobs("n2", lease=600.0)
    task = await here.create(made(Awaiting("n1"), step=1, continuation=b"c"), b"call")
    await there.start()

    await here.abandon("t1", fencing_token=task.fencing_token)

    assert (await ended(there)).result == b'"WorkerLost"'


async def test_process_that_lives_keeps_its_call(bench: Bench) -> None:
    """It is looked after each lease, and found there."""
    here, there = bench.jobs("n1", lease=0.2), bench.jobs("n2", lease=0.2)
    await there.start()
    task = await here.create(made(Running("n1"), ttl=60.0), b"")
    store = bench.store()
    assert store.deliveries is not None

    async with asyncio.timeout(BOUND):
        with store.deliveries.news() as news:
            for _ in range(6):  # each look is a delivery claimed, and another put
                news.clear()
                await news.wait()

    assert (await there.get("t1", None)).status == "working"
    await here.finish("t1", Finished(result=b"1"), fencing_token=task.fencing_token)
    assert (await ended(there)).result == b"1"


async def test_store_error_of_a_hook_ends_its_call(bench: Bench) -> None:
    """Only the death of its process repeats a step: `continue_` may have had effects."""
    bench.resumed.gives = [StoreUnavailable("gone")]
    jobs = bench.jobs(lease=0.3)
    await jobs.create(made(Working(double.job(1))), b"")

    assert (await ended(jobs)).end == "failed"
    assert len(bench.resumed.seen) == 1


async def test_engine_may_deliver_what_is_no_step(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """A delivery that cannot be parsed is logged, one of an ended task is ignored."""
    jobs = bench.jobs()
    await jobs.runner.handle("nonsense")
    await jobs.runner.handle("gone:0")
    await jobs.create(made(Running("n1")), b"")
    await jobs.runner.handle("t1:7.0")

    assert [text.split()[3].strip(",") for text in caplog.messages] == ["'nonsense'"]


async def test_task_is_kept_while_it_is_worked_on(bench: Bench) -> None:
    """Its retention is extended while the job runs, also without progress."""
    jobs = bench.jobs()
    await jobs.create(made(Working(held.job()), ttl=0.6), b"call")
    await gate.attempt()

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1.0):
            await gate.end()
    gate.opened.set()

    assert (await ended(jobs)).result == b'"attempt 1"'


# Options


@pytest.mark.parametrize(
    "options", [{"lease": 0.0}, {"concurrency": 0}, {"queues": ()}, {"queues": "gpu"}]
)
def test_options_are_checked(options: dict[str, Any]) -> None:
    """An invalid option is rejected, and the error names it."""
    with pytest.raises(ConfigurationError, match=next(iter(options))):
        JobOptions(**options)
