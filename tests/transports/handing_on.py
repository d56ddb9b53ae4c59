"""Servers for the tests of a shutdown with a running job, each mounted in another way.

Of the environment, FOLDER is where notes and the store are.
"""

import asyncio
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette

from genmcp import Continue, Done, Endpoint, JobOptions, Mux, Run, Suite, Tool, job

SECRET = "a secret of at least 16 bytes"


@job(name="handing_on.work")
async def work(run: Run, folder: str) -> str:
    """Note which process begins which attempt; end when there is a file called `go`."""
    note(folder, run.attempt)
    while not may_end(folder):
        await run.progress(run.attempt)
        await asyncio.sleep(0.01)
    return f"attempt {run.attempt}"


def note(folder: str, attempt: int) -> None:
    Path(folder, f"attempt {attempt}").write_text(str(os.getpid()))


def may_end(folder: str) -> bool:
    return Path(folder, "go").exists()


class Work(Tool):
    """Has a job done."""

    name = "work"

    async def call(self, request: Any, channel: Any) -> Continue:
        return Continue("done", work.job(folder=request.arguments["folder"]))

    async def continue_(self, tag: str, outcome: Any, channel: Any) -> str:
        return str(outcome.value if isinstance(outcome, Done) else outcome.error)


def suite() -> Suite:
    return Suite(name="handing on", version="1", tools=[Work])


def mux(folder: Path) -> Mux:
    # The default of on_worker_lost, and a lease that no test waits for.
    return Mux(
        suite(),
        store=f"sqlite:///{folder}/jobs.db",
        jobs=JobOptions(lease=60.0, shutdown_grace=0.1),
        secret=SECRET,
    )


if folder := os.environ.get("FOLDER"):  # in a process of its own
    shared = mux(Path(folder))
    bare = Endpoint(shared)
    routed = Starlette(routes=[Endpoint(shared).route("/")])
    twice = Starlette(routes=[Endpoint(shared).route("/"), Endpoint(shared).route("/other")])
    os.environ["GENMCP_STORE"], os.environ["GENMCP_SECRET"] = f"sqlite:///{folder}/jobs.db", SECRET
    of_suite_alone = suite()
    of_suite = Starlette(routes=[Endpoint(of_suite_alone).route("/")])

if __name__ == "__main__":  # a host that is started a second time
    for _ in range(2):
        with suppress(KeyboardInterrupt):
            uvicorn.Server(uvicorn.Config(routed, port=int(os.environ["PORT"]))).run()
