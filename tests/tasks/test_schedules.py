"""Jobs that run periodically, and the times at which they do."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from genmcp import MemoryStore, Mux, Suite
from genmcp.core.task import Task
from genmcp.errors import ConfigurationError
from genmcp.stores.store import Put
from genmcp.tasks.cron import Schedule
from genmcp.tasks.inspection import TaskInspector
from genmcp.tasks.jobs import Run, job
from genmcp.tasks.options import JobOptions
from genmcp.tasks.schedules import ScheduledJobs, occurrence_id
from genmcp.tasks.service import TaskService
from genmcp.testing import connect
from tests.tasks.bench import ALL_STORES, BOUND, Bench, opened


@pytest.fixture(params=ALL_STORES)
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    async with opened(request.param, tmp_path) as bench:
        yield bench


ran: "asyncio.Queue[str]"


@pytest.fixture(autouse=True)
async def _ran() -> None:
    global ran
    ran = asyncio.Queue()


@job
async def clean(run: Run) -> str:
    ran.put_nowait(run.id)
    return "clean"


@job
async def fails(run: Run) -> None:
    ran.put_nowait(run.id)
    raise ValueError("no space")


@job
async def other(run: Run) -> str:
    ran.put_nowait("other")
    return "other"


HOURLY = Schedule(clean.job(), every=3600)


async def next_run() -> str:
    async with asyncio.timeout(BOUND):
        return await ran.get()


def schedules_of(jobs: TaskService) -> ScheduledJobs:
    return jobs.runner.jobs.schedules


async def missed(jobs: TaskService, schedule: Schedule, ago: float) -> str:
    """Let an occurrence wait since *ago* seconds, as after a downtime; return its run id."""
    occurrence = schedule.after(time.time() - ago)
    await schedules_of(jobs).create(schedule, occurrence)
    return f"{occurrence_id(schedule, occurrence)}.0"


async def pending(jobs: TaskService, schedule: Schedule) -> Task:
    """Return the next occurrence of *schedule* once it is stored."""
    id = occurrence_id(schedule, schedule.after(time.time()))
    async with asyncio.timeout(BOUND):
        while True:
            if (stored := await jobs.records.find(id)) is not None:
                return stored.task
            await asyncio.sleep(0.01)


async def ended(jobs: TaskService, run: str) -> Task:
    async with asyncio.timeout(BOUND):
        while True:
            stored = await jobs.records.find(run.rpartition(".")[0])
            if stored is not None and stored.task.ended:
                return stored.task
            await asyncio.sleep(0.01)


async def test_occurrence_runs_once_in_all_processes(bench: Bench) -> None:
    """Each of them begins to serve at its own time, and creates the same next occurrence."""
    schedule = Schedule(clean.job(), every=0.3)
    processes = [bench.jobs(f"n{number}", schedules=[schedule]) for number in range(3)]
    for each in processes:
        await each.start()

    runs = [await next_run() for _ in range(4)]

    assert len(set(runs)) == 4


async def test_missed_occurrence_runs_late(bench: Bench) -> None:
    """After a downtime of ten hours, the job runs, and is then due at the next full hour."""
    jobs = bench.jobs(schedules=[HOURLY])
    await missed(jobs, HOURLY, 36000)

    await jobs.start()
    task = await ended(jobs, await next_run())

    assert task.status == "completed"
    assert task.owner is None
    assert not (await pending(jobs, HOURLY)).ended
    assert ran.empty()


async def test_last_of_several_missed_occurrences_runs(bench: Bench) -> None:
    """A queue was full for hours: the earlier ones are cancelled when they are claimed."""
    jobs = bench.jobs(schedules=[HOURLY], concurrency=1)
    first, second, last = [await missed(jobs, HOURLY, ago) for ago in (10800, 7200, 3600)]

    await jobs.start()

    assert (await ended(jobs, last)).status == "completed"
    assert [(await ended(jobs, run)).status for run in (first, second)] == ["cancelled"] * 2
    assert await next_run() == last
    assert ran.empty()


async def test_missed_occurrence_may_expire(bench: Bench) -> None:
    """A job with `expires` does not run late; the next occurrence is pending all the same."""
    schedule = Schedule(clean.options(expires=60).job(), every=3600)
    jobs = bench.jobs(schedules=[schedule])
    run = await missed(jobs, schedule, 36000)

    await jobs.start()

    assert (await ended(jobs, run)).status == "failed"
    assert not (await pending(jobs, schedule)).ended
    assert ran.empty()


async def test_occurrence_of_changed_times_does_not_run(bench: Bench) -> None:
    """No process of this release knows it. Those of another release have their time for it."""
    jobs = bench.jobs(schedules=[Schedule(clean.job(), cron="30 3 * * *")], unknown_timeout=0)
    run = await missed(jobs, HOURLY, 36000)

    await jobs.start()

    assert (await ended(jobs, run)).status == "failed"
    assert ran.empty()


async def test_cancelled_occurrence_does_not_end_its_schedule(bench: Bench) -> None:
    """An operator may cancel one while it waits. The next one comes at its time."""
    schedule = Schedule(clean.job(), every=2)
    jobs = bench.jobs(schedules=[schedule])
    await jobs.start()
    task = await pending(jobs, schedule)

    cancelled = await TaskInspector(jobs).cancel(task.id)

    assert cancelled.end == "cancelled"
    assert (await next_run()).rpartition(".")[0] != task.id


async def test_unreadable_occurrence_does_not_end_its_schedule(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """Another release has written the records of the next occurrences: later ones run."""
    schedule = Schedule(clean.job(), every=0.5)
    jobs = bench.jobs(schedules=[schedule])
    moment = time.time()
    for _ in range(3):
        moment = schedule.after(moment)
        key = jobs.records.key(occurrence_id(schedule, moment))
        await jobs.records.store.apply(Put(key, b"\xff", ttl=60.0))

    await jobs.start()

    assert await next_run() != await next_run()
    assert f"the occurrence of {schedule.id}" in caplog.text


async def test_failure_of_a_scheduled_job_is_logged(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    """No client gets it. The record has the failure."""
    schedule = Schedule(fails.job(), every=3600)
    jobs = bench.jobs(schedules=[schedule])
    await missed(jobs, schedule, 7200)

    await jobs.start()
    task = await ended(jobs, await next_run())

    assert task.status == "failed"
    assert "has failed" in caplog.text


async def test_server_runs_schedules_without_a_call() -> None:
    """Also with a store that has no work of earlier processes."""
    options = JobOptions(schedules=[Schedule(other.job(), every=0.1)])
    mux = Mux(Suite(name="s", version="1.0"), store=MemoryStore(), jobs=options)
    async with connect(mux):
        assert await next_run() == "other"
    await mux.aclose()


# Times


def at(text: str, zone: str = "UTC") -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


@pytest.mark.parametrize(
    ("cron", "after", "expected"),
    [
        ("* * * * *", "2026-11-23 06:00:00", "2026-11-23 06:01:00"),
        ("*/15 * * * *", "2026-11-23 06:50:00", "2026-11-23 07:00:00"),
        ("5,35 8-18/2 * * *", "2026-11-23 18:35:00", "2026-11-24 08:05:00"),
        ("0 3 * * *", "2026-11-23 03:00:00", "2026-11-24 03:00:00"),
        ("0 0 1 * *", "2026-11-23 06:00:00", "2026-12-01 00:00:00"),
        ("0 0 29 2 *", "2026-11-23 06:00:00", "2028-02-29 00:00:00"),
        ("0 0 29 2 *", "2096-03-01 00:00:00", "2104-02-29 00:00:00"),
        ("30 9 * * 1-5", "2026-11-20 10:00:00", "2026-11-23 09:30:00"),
        ("0 9 * * 7", "2026-11-23 06:00:00", "2026-11-29 09:00:00"),
        ("0 9 13 * 5", "2026-11-07 00:00:00", "2026-11-13 09:00:00"),
        ("0 9 13 * 5", "2026-11-13 09:00:00", "2026-11-20 09:00:00"),
        ("0 9 * * mon-fri", "2026-11-20 10:00:00", "2026-11-23 09:00:00"),
        ("0 9 L * *", "2026-11-23 06:00:00", "2026-11-30 09:00:00"),
        ("30 0 9 * * *", "2026-11-23 09:00:00", "2026-11-23 09:00:30"),
    ],
)
def test_cron_expression_stands_for_its_times(cron: str, after: str, expected: str) -> None:
    """As in crontab(5): a day of the month and one of the week are alternatives.

    With the names, last days and seconds of cronsim."""
    assert Schedule(clean.job(), cron=cron).after(at(after)) == at(expected)


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        ("2026-03-28 12:00:00", "2026-03-30 02:30:00"),  # 02:30 does not exist on the 29th
        ("2026-10-24 12:00:00", "2026-10-25 02:30:00"),
        ("2026-10-25 02:30:00", "2026-10-26 02:30:00"),  # 02:30 exists twice on the 25th
    ],
)
def test_cron_expression_has_a_time_zone(after: str, expected: str) -> None:
    """A time that does not exist is skipped; one that occurs twice counts once."""
    schedule = Schedule(clean.job(), cron="30 2 * * *", time_zone="Europe/Vienna")

    assert schedule.after(at(after, "Europe/Vienna")) == at(expected, "Europe/Vienna")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "either every= or cron="),
        ({"every": 60, "cron": "* * * * *"}, "either every= or cron="),
        ({"every": 0}, "every must be a number of at least 0.1"),
        ({"cron": "* * * *"}, r"cron '\* \* \* \*': Wrong number of fields"),
        ({"cron": "60 * * * *"}, "Bad minute"),
        ({"cron": "* * 0 * *"}, "Bad day-of-month"),
        ({"cron": "*/0 * * * *"}, "Bad minute"),
        ({"cron": "0 0 31 2 *"}, "Bad day-of-month"),
        ({"cron": "0 0 */20 * 1L"}, "no such day"),
        ({"cron": "* * * * *", "time_zone": "Mars/Olympus"}, "no time zone 'Mars/Olympus'"),
    ],
)
def test_wrong_schedule_is_rejected(options: Any, message: str) -> None:
    """When it is made; the message names the part."""
    with pytest.raises(ConfigurationError, match=message):
        Schedule(clean.job(), **options)


async def test_schedule_needs_a_job_and_a_name_of_its_own(bench: Bench) -> None:
    """Two schedules of one job are distinguished by a name."""
    given: Any = clean
    with pytest.raises(ConfigurationError, match=r"clean\.job"):
        Schedule(given, every=60)
    with pytest.raises(ConfigurationError, match="same name"):
        bench.jobs(schedules=[HOURLY, Schedule(clean.job(), every=60)])
