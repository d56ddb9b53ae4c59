"""The application of `benchmarks.distributed`: a plain tool, and tools that run jobs.

In the environment: GENMCP_STORE, BENCHMARK_QUEUES (the queues of this process),
BENCHMARK_LEASE (seconds), and BENCHMARK_NOTES, a file that gets one byte for each completed job.
Values of `time.time` are compared between processes of one machine.
"""

import asyncio
import os
import time
from typing import Any

from genmcp import (
    Channel,
    Continue,
    Done,
    Endpoint,
    JobOptions,
    Limits,
    Mux,
    Outcome,
    Run,
    Suite,
    Tool,
    ToolRequest,
    job,
)

NOTES = os.environ["BENCHMARK_NOTES"]


def note(data: bytes) -> None:
    """Append *data* to the notes, in one write."""
    file = os.open(NOTES, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(file, data)
    finally:
        os.close(file)


@job
async def trivial(run: Run) -> None:
    """Do nothing."""


@job
async def stamp(run: Run, submitted: float) -> list[float]:
    """Return the times of submission, start and end, after a short time."""
    began = time.time()
    await asyncio.sleep(0.02)
    return [submitted, began, time.time()]


@job
async def long(run: Run) -> float:
    """Note the process and the time of the start; run until this is cancelled."""
    note(f"{os.getpid()} {time.time()}\n".encode())
    await asyncio.sleep(600)
    return 0.0


class Echo(Tool):
    """Returns its message."""

    name = "echo"
    input_schema = {"type": "object", "properties": {"message": {"type": "string"}}}

    async def call(self, request: ToolRequest, channel: Channel) -> str:
        message: str = request.arguments["message"]
        return message


class Stamped(Tool):
    """Runs a short job, and returns its times."""

    name = "stamped"

    async def call(self, request: ToolRequest, channel: Channel) -> Continue:
        return Continue("done", stamp.job(submitted=time.time()))

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> Any:
        assert isinstance(outcome, Done), outcome
        return {"times": outcome.value}


class Trivial(Tool):
    """Runs a job that does nothing, and notes that it is over."""

    name = "trivial"
    promote_after = 0.001

    async def call(self, request: ToolRequest, channel: Channel) -> Continue:
        return Continue("done", trivial.job())

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> str:
        note(b".")
        return "done"


class Long(Tool):
    """Runs a job that is taken over by another worker when its worker dies."""

    name = "long"
    promote_after = 0.001
    on_worker_lost = "rerun"

    async def call(self, request: ToolRequest, channel: Channel) -> Continue:
        return Continue("done", long.job())

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> str:
        return str(outcome)


mux = Mux(
    Suite(name="distributed", version="1", tools=[Echo, Stamped, Trivial, Long]),
    secret="the secret of all processes of a benchmark",
    limits=Limits(anonymous_share=1.0),
    jobs=JobOptions(
        queues=os.environ["BENCHMARK_QUEUES"].split(),
        lease=float(os.environ.get("BENCHMARK_LEASE", 30)),
        tasks_of_client=100_000,
    ),
)
app = Endpoint(mux)
