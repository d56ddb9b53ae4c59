"""A worker that is suspended for longer than its lease, as clients see it."""

import asyncio
import signal
from pathlib import Path
from random import Random

import httpx
import pytest

from tests.chaos.callers import BOUND, ENDS, Caller
from tests.chaos.processes import Fleet, running, until

pytestmark = pytest.mark.chaos

LOOKS = 20


@pytest.mark.parametrize(
    ("tool", "value"), [("rerun_held", {"n": 1, "attempt": 2}), ("fail_held", {"lost": "held"})]
)
async def test_frozen_worker_overwrites_no_newer_outcome(
    tmp_path: Path, tool: str, value: dict[str, object]
) -> None:
    """When it resumes, its result is rejected, whether the job ran again or failed meanwhile."""
    async with (
        running(Fleet(tmp_path, servers=1, workers=2, queues="none")) as fleet,
        httpx.AsyncClient(timeout=20) as http,
    ):
        caller = Caller(http, fleet, Random(0))
        task = (await caller.begin(1, tool))["taskId"]
        (first,) = await fleet.noted("held")
        first.send(signal.SIGSTOP)
        if tool == "rerun_held":
            _, second = await fleet.noted("held", 2)
            assert first is not second
        else:
            await caller.until(task, *ENDS)
        (tmp_path / "go").touch()
        ended = await caller.until(task, *ENDS)

        first.send(signal.SIGCONT)
        async with asyncio.timeout(BOUND):
            await until(lambda: (1, "let go", first.lives[0].pid) in fleet.notes())
        # The rejected result must not appear later.
        for _ in range(LOOKS):
            assert ended == await caller.task(task)
            await asyncio.sleep(0.05)

    assert value == ended["result"]["structuredContent"]
