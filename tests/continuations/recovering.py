"""A process whose calls another completes: `python -m tests.continuations.recovering FD FOLDER`.

FD is a listening socket inherited from the parent. FOLDER has the store, the notes of the jobs, and
the file `go`, for which the jobs wait.
"""

import asyncio
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

import uvicorn
from msgspec import Struct

from genmcp import (
    Accepted,
    Channel,
    Continue,
    Done,
    Endpoint,
    JobOptions,
    Mux,
    Outcome,
    Run,
    SQLiteStore,
    Suite,
    Tool,
    ToolRequest,
    elicit,
    job,
)

FOLDER = Path(sys.argv[2])


class Name(Struct):
    name: str


@job(name="recovering.work")
def work(run: Run) -> str:
    (FOLDER / f"began.{os.getpid()}").touch()
    while not (FOLDER / "go").exists():
        time.sleep(0.01)
    return "worked"


class Works(Tool):
    """Runs a job, and then asks a question if requested."""

    on_worker_lost = "rerun"

    def __init__(self, name: str, *, asks: bool) -> None:
        self.name = name
        self.asks = asks

    async def call(self, request: ToolRequest, channel: Channel) -> Continue:
        channel.start_stream()
        return Continue("worked", work.job())

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> Any:
        match tag, outcome:
            case "worked", Done(value):
                channel.assigns["value"] = value
                return Continue("named", elicit("Who?", Name)) if self.asks else value
            case "named", Done(Accepted(Name(name))):
                return f"{channel.assigns['value']} for {name}"
        raise ValueError(outcome)


class Waits(Tool):
    """Waits in this process for ever."""

    name = "waits"

    async def call(self, request: ToolRequest, channel: Channel) -> None:
        channel.start_stream()
        await asyncio.Event().wait()


def main(fd: str) -> None:
    """Serve until the process is killed."""
    mux = Mux(
        Suite(
            name="recovering",
            version="1",
            tools=[Works("works", asks=False), Works("asks", asks=True), Waits],
        ),
        secret="a secret that both processes have",
        store=SQLiteStore(FOLDER / "store.db"),
        jobs=JobOptions(lease=1.0),
    )
    config = uvicorn.Config(Endpoint(mux), log_level="warning", timeout_graceful_shutdown=1)
    with socket.socket(fileno=int(fd)) as listener:
        uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main(sys.argv[1])
