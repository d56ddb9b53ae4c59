"""Waits for several jobs (`gather`), in memory and in a file."""

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import pytest

from genmcp import (
    Channel,
    Continue,
    Done,
    ExternalQueue,
    Failed,
    Outcome,
    Suite,
    Tool,
    ToolError,
    ToolRequest,
    WorkRaised,
    gather,
)
from genmcp.core.gathering import end_part, new_parts, part_ids, start_parts
from genmcp.core.outcome import pack
from genmcp.core.task import Task
from genmcp.core.waiting import (
    ExternalJob,
    Gathering,
    Job,
    JobGroup,
    Wait,
    Working,
)
from genmcp.errors import ContractError, StoreFull, TaskNotFound
from genmcp.stores.memory import MemoryStore
from genmcp.stores.store import Op, Put
from genmcp.tasks import ExternalStatus
from genmcp.tasks.jobs import Run, job
from genmcp.tasks.service import TaskService
from genmcp.testing import connect
from tests.tasks.bench import ALL_STORES, BOUND, Bench, ended, followed, made, opened, until
from tests.tasks.test_jobs_processes import client, running


@pytest.fixture(params=ALL_STORES)
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    async with opened(request.param, tmp_path) as bench:
        yield bench


class Signals:
    """What the jobs of a test report, and when they may end."""

    def __init__(self) -> None:
        self.started: asyncio.Queue[str] = asyncio.Queue()
        self.cancelled: asyncio.Queue[str] = asyncio.Queue()
        self.end: dict[str, asyncio.Event] = {}

    def of(self, name: str) -> asyncio.Event:
        return self.end.setdefault(name, asyncio.Event())


signals: Signals


@pytest.fixture(autouse=True)
async def _signals() -> None:
    global signals
    signals = Signals()


@job
async def times(run: Run, number: int, factor: int = 2) -> int:
    return number * factor


@job
async def waits(run: Run, name: str) -> str:
    signals.started.put_nowait(name)
    try:
        await signals.of(name).wait()
    except asyncio.CancelledError:
        signals.cancelled.put_nowait(name)
        raise
    return name


@job
async def half(run: Run, name: str) -> str:
    await run.progress(1, 2, f"{name} is half done")
    return await waits(run, name)


@job
async def fails(run: Run, text: str) -> None:
    raise ToolError(text)


@job
async def fails_when_told(run: Run, text: str) -> None:
    await signals.of("fail").wait()
    raise ToolError(text)


class Press(ExternalQueue):
    """A queue that reports the end of its jobs by a webhook only."""

    scheme = "press"

    async def snapshot(self, ref: str) -> ExternalStatus:
        return ExternalStatus("working")

    async def cancel(self, ref: str) -> None:
        signals.cancelled.put_nowait(ref)


def gathering(group: Wait[Any]) -> Gathering:
    assert isinstance(group, JobGroup)
    return Gathering.of(group)


async def submit(jobs: TaskService, group: Wait[Any], **fields: Any) -> None:
    await jobs.create(made(gathering(group), step=1, continuation=b"c", **fields), b"call")


async def got(queue: "asyncio.Queue[str]") -> str:
    async with asyncio.timeout(BOUND):
        return await queue.get()


# The outcome


@pytest.mark.parametrize(
    ("group", "outcome"),
    [
        (gather(times.job(1), times.job(2), times.job(3)), Done([2, 4, 6])),
        (gather({"a": times.job(1), "b": times.job(2, 5)}), Done({"a": 2, "b": 10})),
        (gather(times.job(4)), Done([8])),
        (gather(times.job(1), return_outcomes=True), Done([Done(2)])),
    ],
)
async def test_values_come_in_the_shape_of_the_jobs(
    bench: Bench, group: Wait[Any], outcome: Outcome
) -> None:
    """In their order and under their keys, whichever ends first."""
    jobs = bench.jobs()

    await submit(jobs, group)
    await ended(jobs)

    assert bench.resumed.outcomes == [outcome]


async def test_first_failure_fails_the_wait(bench: Bench) -> None:
    """The other jobs are cancelled: their values would not be used."""
    jobs = bench.jobs()

    await submit(jobs, gather(waits.job("slow"), fails_when_told.job("no paper")))
    assert await got(signals.started) == "slow"
    signals.of("fail").set()
    await ended(jobs)

    (outcome,) = bench.resumed.outcomes
    assert isinstance(outcome, Failed)
    assert str(outcome.error) == "no paper"
    assert await got(signals.cancelled) == "slow"


async def test_outcomes_contain_failures(bench: Bench) -> None:
    """With return_outcomes all jobs run to their end."""
    jobs = bench.jobs()

    await submit(
        jobs, gather({"good": times.job(1), "bad": fails.job("no ink")}, return_outcomes=True)
    )
    await ended(jobs)

    (outcome,) = bench.resumed.outcomes
    assert isinstance(outcome, Done)
    good, bad = outcome.value["good"], outcome.value["bad"]
    assert good == Done(2)
    assert isinstance(bad.error, WorkRaised)
    assert bad.error.message == "no ink"


async def test_parts_leave_no_records(bench: Bench) -> None:
    """The outcomes are in the record of the call; those of the parts are deleted."""
    jobs = bench.jobs()
    parts = part_ids(made(gathering(gather(times.job(1), times.job(2))), step=1))

    await submit(jobs, gather(times.job(1), times.job(2)))
    await ended(jobs)

    assert [await jobs.records.find(id) for id in parts] == [None, None]


async def test_outcome_is_retained_while_another_job_runs(tmp_path: Path) -> None:
    """Longer than a task is retained, and than its client wants the result to be."""
    async with opened("memory", tmp_path) as bench:
        jobs = bench.jobs(retention=1.5)
        await submit(jobs, gather(times.job(1), waits.job("b")), ttl=0.1)
        assert await got(signals.started) == "b"
        await asyncio.sleep(3)
        signals.of("b").set()
        await ended(jobs)

        assert bench.resumed.outcomes == [Done([2, "b"])]


async def test_external_job_can_be_a_part(bench: Bench) -> None:
    """Its end is reported to the part, whichever process gets it."""
    jobs = bench.jobs(external=[Press()])
    ref = ExternalJob("press", "7")

    await submit(jobs, gather(times.job(1), ref))
    await until(jobs, lambda task: task.progress == 1.0)
    await jobs.settle(ref, ExternalStatus("completed", result="printed"))
    await ended(jobs)

    assert bench.resumed.outcomes == [Done([2, "printed"])]


# Progress and cancellation


async def test_progress_is_the_number_of_ended_jobs(bench: Bench) -> None:
    """The call has it as the progress of one job."""
    jobs = bench.jobs()

    await submit(jobs, gather(half.job("a"), half.job("b")))
    signals.of("a").set()
    task = await until(jobs, lambda task: task.progress == 1.0)
    signals.of("b").set()
    end = await ended(jobs)

    assert task.total == 2.0
    assert end.progress == 2.0


async def test_cancelled_call_cancels_its_parts(bench: Bench) -> None:
    """Those that run, in any process, and those that wait for a worker."""
    here, there = bench.jobs("n1", queues=["none"]), bench.jobs("n2", concurrency=1)
    await there.start()
    await submit(here, gather(waits.job("a"), waits.job("b")))
    first = await got(signals.started)

    await here.cancel("t1", None)

    assert await got(signals.cancelled) == first
    parts = part_ids(made(gathering(gather(waits.job("a"), waits.job("b"))), step=1))
    stored = [await here.records.find(id) for id in parts]
    assert {each.task.end for each in stored if each} == {"cancelled"}
    assert signals.started.empty()


async def test_part_of_a_cancelled_call_does_not_start(bench: Bench) -> None:
    """The process that cancelled the call may have died before it cancelled its parts."""
    here, there = bench.jobs("n1", queues=["none"]), bench.jobs("n2", concurrency=1)
    await submit(here, gather(waits.job("a"), waits.job("b")))
    await until(here, lambda task: isinstance(task.work, Gathering) and task.work.started)
    await here.records.change("t1", Task.cancel)

    await there.start()
    await there.create(made(Working(times.job(1)), id="t2"), b"")  # behind them in the queue
    await ended(there, "t2")

    assert signals.started.empty()
    parts = part_ids(made(gathering(gather(waits.job("a"), waits.job("b"))), step=1))
    stored = [await here.records.find(id) for id in parts]
    assert {each.task.end for each in stored if each} == {"cancelled"}


async def test_part_is_not_found_by_clients(bench: Bench) -> None:
    """It has no request, and no client may read or cancel it."""
    jobs = bench.jobs()
    await submit(jobs, gather(waits.job("a"), waits.job("b")))
    await got(signals.started)

    for id in part_ids(made(gathering(gather(waits.job("a"), waits.job("b"))), step=1)):
        for reading in (jobs.get(id, None), jobs.cancel(id, None), jobs.answer(id, None, {})):
            with pytest.raises(TaskNotFound):
                await reading


# The transitions


def test_part_is_counted_once() -> None:
    """A repeated step counts its part again, which changes nothing."""
    parent = made(gathering(gather(times.job(1), times.job(2))), step=1)
    first, second = new_parts(parent, "n1", 1.0)
    assert first.parent is not None
    assert second.parent is not None

    once = end_part(parent, first.parent, True, 2.0)

    assert once is end_part(once, first.parent, True, 3.0)
    assert once is end_part(once, first.parent, False, 3.0)
    assert isinstance(once.work, Gathering)
    assert not once.work.complete
    both = end_part(once, second.parent, True, 3.0)
    assert isinstance(both.work, Gathering)
    assert both.work.complete


def test_part_of_an_earlier_step_is_not_counted() -> None:
    """The call has continued since, and waits for other jobs."""
    parent = made(gathering(gather(times.job(1), times.job(2))), step=1)
    part, _ = new_parts(parent, "n1", 1.0)
    assert part.parent is not None

    later = made(gathering(gather(times.job(1), times.job(2))), step=2)

    assert later is end_part(later, part.parent, True, 2.0)


# The death of processes


async def test_group_survives_a_killed_worker(tmp_path: Path) -> None:
    """Its jobs run again elsewhere, and each of them is counted once."""
    async with (
        opened("sqlite", tmp_path) as bench,
        running(tmp_path / "jobs.db", "w1") as first,
    ):
        jobs = client(bench)
        group = JobGroup([Job(name="patient", arguments={"until": 2}) for _ in range(3)], "all")
        await submit(jobs, group)
        await jobs.aclose()
        for _ in range(3):
            await first.says("attempt 1")
        first.signal(signal.SIGKILL)
        async with running(tmp_path / "jobs.db", "w2") as second:
            await second.says("continued call")
            await followed(client(bench))
        task = await client(bench).get("t1", None)

    assert task.result == b'["attempt 2","attempt 2","attempt 2"]'


async def test_settled_part_is_counted_despite_crashes(bench: Bench) -> None:
    """Each of its workers died before it had counted the part; the call does not wait for ever."""
    store = bench.store()
    asleep = bench.jobs("n2", store=store, queues=("unserved",))
    parent = made(gathering(gather(times.job(1), times.job(2))), step=1, continuation=b"c")
    await asleep.records.create(start_parts(parent, 1.0), b"call")
    for part in new_parts(parent, "n1", 1.0):
        assert part.parent is not None
        settled = part.claim(1.0, max_crashes=1).settle(pack(Done(part.parent.index)), 1.0)
        for _ in range(5):
            settled = settled.claim(1.0, max_crashes=1)
        await asleep.records.create(settled, None)
        await asleep.writer.submit(settled)

    await ended(bench.jobs("n1", store=store, max_crashes=1))

    assert bench.resumed.outcomes == [Done([0, 1])]


class FullAtTheEnd(MemoryStore):
    """A store without room for the end of a part, until that was written a number of times."""

    def __init__(self) -> None:
        super().__init__()
        self.refused = 60  # for longer than the lease below: each write is repeated after 0.01 s
        self.has_room = asyncio.Event()

    async def apply(self, *ops: Op) -> None:
        for op in ops:
            if isinstance(op, Put) and op.key == "task:t1.1.0" and Task.unpack(op.value).ended:
                if self.refused:
                    self.refused -= 1
                    raise StoreFull("out of memory")
                self.has_room.set()
        await super().apply(*ops)


async def test_full_store_does_not_replace_counted_outcomes(tmp_path: Path) -> None:
    """A store that is full for longer than a lease, and has room again."""
    async with opened("memory", tmp_path) as bench:
        store = FullAtTheEnd()
        jobs = bench.jobs(store=store, lease=0.3)

        await submit(jobs, gather(times.job(1), waits.job("slow")))
        async with asyncio.timeout(BOUND):
            await store.has_room.wait()
        signals.of("slow").set()
        await ended(jobs)
        await jobs.aclose()
        await store.aclose()

    assert bench.resumed.outcomes == [Done([2, "slow"])]


# Tools


class Summary(Tool):
    """Summarizes a text."""

    name = "summary"

    async def call(self, request: ToolRequest, channel: Channel) -> Continue:
        return gather({"x": times.job(2), "y": times.job(3)}).then(self.done)

    async def done(
        self, request: ToolRequest, values: dict[str, int], channel: Channel
    ) -> Continue:
        return gather(times.job(values["x"]), times.job(values["y"])).then(self.last)

    async def last(self, request: ToolRequest, values: tuple[int, int], channel: Channel) -> str:
        return f"{values[0]} and {values[1]}"


async def test_tool_continues_with_the_values_of_several_jobs() -> None:
    """The value has the type that the method annotates, in each step."""
    async with connect(Suite(name="s", version="1.0", tools=[Summary])) as client:
        assert (await client.call("summary")).text == "8 and 12"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: gather(), "gather\\(\\) needs at least one job"),
        (lambda: gather({}), "gather\\(\\) needs at least one job"),
        (lambda: gather(times.job(1), cast(Any, {"a": times.job(1)})), "not dict"),
        (lambda: gather(*[times.job(1)] * 101), "at most 100 jobs, not 101"),
        (lambda: gather(gather(times.job(1))), "not JobGroup"),
        (lambda: gather(cast(Any, {1: times.job(1)})), "keys of the jobs are texts"),
        (lambda: Continue("t", {"a": times.job(1)}), "gather\\({...}\\)"),
    ],
)
def test_wrong_groups_are_refused(make: Any, message: str) -> None:
    """When they are made, and not when the hook has returned them."""
    with pytest.raises(ContractError, match=message):
        make()


def test_parts_are_not_stored_twice() -> None:
    """Once they are tasks of their own, the record of the call does not contain them."""
    work = gathering(gather(times.job(1), times.job(2)))

    assert work.parts == (Working(times.job(1)), Working(times.job(2)))
    assert not work.started
