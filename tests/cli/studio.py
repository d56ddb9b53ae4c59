"""The server of the worker tests: a tool whose job counts until it is stopped.

The server is in the test, and runs no jobs itself; workers are separate processes.
"""

import asyncio
import os
from pathlib import Path
from typing import Any

from genmcp import Continue, Done, JobOptions, Mux, Run, Suite, Tool, job

SECRET = "a secret of at least 16 bytes"


@job(name="studio.count", queue="studio")
async def count(run: Run, folder: str) -> str:
    """Write who works on it to *folder*, and end when there is a file called `go`."""
    tell(folder, run.attempt)
    while not may_end(folder):
        await run.progress(run.attempt)
        await asyncio.sleep(0.01)
    return f"attempt {run.attempt}"


def tell(folder: str, attempt: int) -> None:
    Path(folder, f"attempt {attempt}").write_text(str(os.getpid()))


def may_end(folder: str) -> bool:
    return Path(folder, "go").exists()


class Count(Tool):
    """Counts."""

    name = "count"
    on_worker_lost = "rerun"

    async def call(self, request: Any, channel: Any) -> Continue:
        return Continue("counted", count.job(folder=request.arguments["folder"]))

    async def continue_(self, tag: str, outcome: Any, channel: Any) -> str:
        return f"{tag}: {outcome.value if isinstance(outcome, Done) else outcome.error}"


def studio(path: Path, *queues: str, lease: float = 60.0) -> Mux:
    """Return a mux over the file at *path*, which works on the jobs of *queues*."""
    return Mux(
        Suite(name="studio", version="1", tools=[Count]),
        store=f"sqlite:///{path}",
        jobs=JobOptions(queues=queues, lease=lease),
        secret=SECRET,
    )


if path := os.environ.get("STUDIO"):  # in a worker
    mux = studio(Path(path), "studio", lease=float(os.environ["LEASE"]))

    idle = studio(Path(path), "none", lease=float(os.environ["LEASE"]))
