"""What a plain job costs: operations of the store, and bytes in it."""

from collections import Counter
from collections.abc import Sequence

import pytest

from genmcp.core.task import Task
from genmcp.core.waiting import Working
from genmcp.stores.memory import MemoryStore
from genmcp.stores.store import Op, StoreEntry
from genmcp.tasks.jobs import Run, job
from tests.tasks.bench import Bench, ended, made


class Counting(MemoryStore):
    """Counts the operations on records of tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.counted: Counter[str] = Counter()

    async def get(self, key: str) -> StoreEntry | None:
        if "task:" in key:
            self.counted["get"] += 1
        return await super().get(key)

    async def apply(self, *ops: Op) -> None:
        self.counted["apply"] += 1
        await super().apply(*ops)

    async def find(self, *arguments: object, **options: object) -> Sequence[object]:  # type: ignore[override]
        raise AssertionError("a plain job is not searched for")


@job
async def double(run: Run, number: int) -> int:
    return number * 2


@pytest.mark.parametrize("calls", [1, 20])
async def test_plain_job_costs_four_writes(calls: int) -> None:
    """It is created, claimed, settled and finished. Limits, deadlines, groups and schedules cost
    nothing where they are not used."""
    store = Counting()
    bench = Bench(lambda: store)
    jobs = bench.jobs()
    await jobs.start()
    store.counted.clear()

    for number in range(calls):
        await jobs.create(made(Working(double.job(number)), id=f"t{number}"), b"call")
        assert (await ended(jobs, f"t{number}")).status == "completed"
    counted = store.counted
    await bench.aclose()

    assert counted["apply"] <= 4 * calls + 2  # a heartbeat may fall into the time


def test_options_of_jobs_cost_no_bytes_by_default() -> None:
    """A record contains only what differs from the defaults."""
    task = made(Working(double.job(21)), step=1, continuation=b"c")

    packed = task.pack()

    for name in (
        b"limit",
        b"expires",
        b"delay",
        b"parent",
        b"schedule",
        b"failed",
        b"retry",
    ):
        assert name not in packed
    assert Task.unpack(packed) == task
