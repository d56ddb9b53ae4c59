"""The server of the chaos runs: a tool with two jobs and a question, for each `on_worker_lost`.

Environment variables: CHAOS is a folder for notes about which process started which job,
CHAOS_STORE the URL of the store, and CHAOS_QUEUES the queues that a process serves. Each call has a
number, which is in its arguments, its assigns, its jobs and its result.
"""

import asyncio
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from msgspec import Struct

from genmcp import (
    Accepted,
    Channel,
    Continue,
    Done,
    Endpoint,
    Failed,
    JobOptions,
    Mux,
    Outcome,
    Run,
    Suite,
    Tool,
    ToolRequest,
    WorkerLost,
    elicit,
    job,
)

FOLDER = Path(os.environ["CHAOS"])
QUEUES = os.environ.get("CHAOS_QUEUES", "default").split()
LEASE = 2.0
CRASHES = 1000  # so many that no job runs out of attempts


class Arguments(Struct):
    n: int
    seconds: float


class Number(Struct):
    n: int


@job
def hold(run: Run, n: int) -> dict[str, Any]:
    """Block a thread until the test allows the job to end; return the number of the attempt."""
    note(n, "held")
    while not (FOLDER / "go").exists():
        time.sleep(0.01)
    note(n, "let go")
    return {"n": n, "attempt": run.attempt}


@job
async def work(run: Run, n: int, step: str, seconds: float) -> dict[str, Any]:
    """Work for a while, and return the argument."""
    note(n, step)
    for turn in range(5):
        await run.progress(turn, 5, f"{step} of {n}")
        await asyncio.sleep(seconds / 5)
    return {"n": n, "step": step}


def note(n: int, what: str) -> None:
    """Record a step of a call, in one write, which survives this process.

    If the disk is full, the note is omitted, and the job does not fail.
    """
    file = os.open(FOLDER / "noted", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        with suppress(OSError):
            os.write(file, f"{n}:{what}:{os.getpid()}\n".encode())
    finally:
        os.close(file)


class Steps(Tool[Arguments]):
    """Runs a job, asks, runs another job, and returns every number it has received."""

    def call(self, request: ToolRequest[Arguments], channel: Channel) -> Continue:
        n, seconds = request.arguments.n, request.arguments.seconds
        channel.assigns["seen"] = {"assigned": n}
        return Continue("first", work.job(n=n, step="first", seconds=seconds))

    def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> Any:
        arguments: Arguments = channel.request.arguments
        seen = channel.assigns["seen"]
        match tag, outcome:
            case "first", Done(value):
                channel.assigns["seen"] = {**seen, "first": value}
                return Continue("asked", elicit(f"Go on with {arguments.n}?", Number))
            case "asked", Done(Accepted(Number(n))):
                channel.assigns["seen"] = {**seen, "answered": n}
                second = work.job(n=arguments.n, step="second", seconds=arguments.seconds)
                return Continue("second", second)
            case "second", Done(value):
                return {**seen, "second": value, "argument": arguments.n}
            case _, Failed(WorkerLost()):
                return {"lost": tag, "argument": arguments.n}


class Rerun(Steps):
    name = "rerun"
    on_worker_lost = "rerun"


class Fail(Steps):
    name = "fail"
    on_worker_lost = "fail"


class Hold(Tool[Arguments]):
    """Runs one job, which ends when the test allows it."""

    def call(self, request: ToolRequest[Arguments], channel: Channel) -> Continue:
        return Continue("held", hold.job(n=request.arguments.n))

    def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> Any:
        match outcome:
            case Done(value):
                return value
            case Failed(WorkerLost()):
                return {"lost": tag}


class RerunHeld(Hold):
    name = "rerun_held"
    on_worker_lost = "rerun"


class FailHeld(Hold):
    name = "fail_held"
    on_worker_lost = "fail"


class Edge(Tool[Arguments]):
    """Takes about as long as a call is held before it becomes a task."""

    name = "edge"
    promote_after = 0.3
    on_worker_lost = "rerun"

    async def call(self, request: ToolRequest[Arguments], channel: Channel) -> dict[str, int]:
        note(request.arguments.n, "edge")
        await asyncio.sleep(request.arguments.seconds)
        return {"n": request.arguments.n}


def principal(scope: Mapping[str, Any]) -> str | None:
    """Return the client's name, because idempotency keys belong to a principal."""
    return next((value.decode() for name, value in scope["headers"] if name == b"x-who"), None)


mux = Mux(
    Suite(name="chaos", version="1", tools=[Rerun, Fail, RerunHeld, FailHeld, Edge]),
    secret="known to every process, and long enough",
    store=os.environ["CHAOS_STORE"],
    jobs=JobOptions(queues=QUEUES, lease=LEASE, max_crashes=CRASHES),
)
app = Endpoint(mux, principal=principal)
