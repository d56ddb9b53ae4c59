"""The application for the benchmark of waiting calls.

Values of `time.monotonic` are compared between processes of one machine: they share its clock.
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
    Run,
    Suite,
    Tool,
    ToolRequest,
    job,
)
from genmcp.core.outcome import Outcome

NAP = 0.005  # seconds that work takes


async def nap() -> str:
    """Work for a moment, and return the time of the end."""
    await asyncio.sleep(NAP)
    return str(time.monotonic())


@job
async def stamp(run: Run, submitted: float) -> list[float]:
    """Return the times of submission, start and end."""
    began = time.monotonic()
    await asyncio.sleep(NAP)
    return [submitted, began, time.monotonic()]


class Inline(Tool):
    """Awaits its work."""

    name = "inline"

    async def call(self, request: ToolRequest, channel: Channel) -> str:
        return await nap()


class Continued(Tool):
    """Continues when its work is done."""

    name = "continued"

    async def call(self, request: ToolRequest, channel: Channel) -> Continue:
        return Continue("done", nap())

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> Any:
        assert isinstance(outcome, Done)
        return outcome.value


class Stamped(Continued):
    """Works in a job."""

    name = "stamped"

    async def call(self, request: ToolRequest, channel: Channel) -> Continue:
        return Continue("done", stamp.job(submitted=time.monotonic()))


class Wait(Continued):
    """Waits for a future of its own until all are released."""

    name = "wait"
    waiting: list["asyncio.Future[str]"] = []

    async def call(self, request: ToolRequest, channel: Channel) -> Continue:
        future = asyncio.get_running_loop().create_future()
        self.waiting.append(future)
        return Continue("done", future)


class Release(Tool):
    """Ends all waits."""

    name = "release"

    async def call(self, request: ToolRequest, channel: Channel) -> str:
        for future in Wait.waiting:
            future.set_result("released")
        return str(len(Wait.waiting))


MANY = 20_000
limits = Limits(max_waiting_calls=MANY, client_share=1)
suite = Suite(name="benchmark", version="1", tools=[Inline, Continued, Stamped, Wait, Release])
# A server that leaves jobs to workers takes those of an unused queue.
queues = ("none",) if "ONLY_SERVES" in os.environ else ("default",)
store = os.environ.get("GENMCP_STORE", "memory://")
mux = Mux(
    suite,
    secret="for this benchmark only",
    limits=limits,
    store=store,
    jobs=JobOptions(queues=queues),
)
app = Endpoint(mux)
