"""A worker in a process of its own: `python -m tests.tasks.worker_process FILE NODE`.

It prints its events, a line each, and works until it is killed.
"""

import asyncio
import sys
from pathlib import Path

from genmcp.core.outcome import Outcome
from genmcp.core.task import Task
from genmcp.core.waiting import Finished
from genmcp.stores.sqlite.store import SQLiteStore
from genmcp.tasks.jobs import Run, job
from genmcp.tasks.options import JobOptions
from genmcp.tasks.service import TaskService
from tests.tasks.bench import as_result

LEASE = 1.0


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


@job(name="patient")
async def patient(run: Run, until: int) -> str:
    """Works in each attempt before *until*, without end, and reports meanwhile."""
    say(f"attempt {run.attempt}")
    try:
        while run.attempt < until:
            await run.progress(run.attempt)
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        say(f"cancelled {run.attempt}")
        raise
    return f"attempt {run.attempt}"


@job(name="held")
async def held(run: Run, end: str) -> str:
    """Work until the file *end* is there."""
    say(f"attempt {run.attempt}")
    while not is_there(end):
        await run.progress(run.attempt)
        await asyncio.sleep(0.02)
    return f"attempt {run.attempt}"


@job(name="saving")
async def saving(run: Run, items: int, stop: int) -> str:
    """Save after each item. The first attempt never gets behind the item *stop*."""
    for item in range(run.saved or 0, items):
        say(f"item {item}")
        await run.save(item + 1)
        if run.attempt == 1 and item == stop:
            say("saved")
            await asyncio.Event().wait()
    return f"{run.saved} items"


@job(name="overwriting")
async def overwriting(run: Run, end: str) -> str:
    """Save its attempt's number, the first attempt again and again."""
    say(f"attempt {run.attempt}")
    await run.save(run.attempt)
    say("saved")
    try:
        while not is_there(end):
            if run.attempt == 1:
                await run.save(run.attempt)
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        say(f"cancelled {run.attempt}")
        raise
    return f"saved by {run.saved}"


def is_there(file: str) -> bool:
    return Path(file).exists()


async def resume(task: Task, call: bytes, outcome: Outcome) -> Finished:
    """Stub that runs `continue_`; a call with the request "hang" never ends."""
    say(f"continued {call.decode()}")
    if call == b"hang" and not task.crashes:
        await asyncio.Event().wait()
    return as_result(outcome)


async def main(path: Path, node: str) -> None:
    store = SQLiteStore(path)
    options = JobOptions(lease=LEASE)
    jobs = TaskService(store, process_name=lambda: node, resume=resume, options=options)
    await jobs.start()
    say("ready")
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2]))
