"""The server of the attack, with a component for each resource that a client can consume."""

import asyncio
import gc
import json
import logging
import os
import time
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from benchmarks.soaked import memory
from genmcp import (
    Channel,
    Continue,
    Endpoint,
    Limits,
    Mux,
    Outcome,
    Run,
    Suite,
    Tool,
    ToolRequest,
    elicit,
    job,
    tool,
)
from genmcp.resources import ResourceRepo

errors: list[str] = []
"""The log records at ERROR or above."""


@tool
async def echo(text: str = "") -> str:
    """Returns its text."""
    return text


@tool
async def wait() -> None:
    """Waits until it is cancelled."""
    await asyncio.Event().wait()


@tool
async def talk(channel: Channel) -> str:
    """Reports progress with large messages, which are stored for clients that resume."""
    for step in range(20):
        await channel.progress(step, message="x" * 50_000)
    return "done"


@tool
def block(seconds: float) -> str:
    """Blocks a thread."""
    time.sleep(seconds)
    return "done"


@tool
async def large(size: int) -> str:
    """Returns a text of any size."""
    return "x" * size


def _shelved(number: int) -> Any:
    """Return one of the tools with which a list of all takes 40 KB."""

    @tool(name=f"shelved_{number}", description="x" * 1000)
    async def shelved() -> None: ...

    return shelved


@job
async def nap(run: Run, seconds: float) -> str:
    """Sleeps as a job."""
    await asyncio.sleep(seconds)
    return "slept"


class Work(Tool):
    """Runs a job."""

    name = "work"
    input_schema = {
        "type": "object",
        "properties": {"seconds": {"type": "number"}, "text": {"type": "string"}},
    }

    async def call(self, request: ToolRequest, channel: Channel) -> Any:
        return Continue("slept", nap.job(request.arguments["seconds"]))

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> Any:
        return "done"


class Ask(Tool):
    """Asks the user."""

    name = "ask"

    async def call(self, request: ToolRequest, channel: Channel) -> Any:
        return Continue("asked", elicit("Are you sure?"))

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> Any:
        return "done"


class Notes(ResourceRepo):
    """A note for every URI."""

    name = "notes"
    template = "note://{+path}"

    async def read(self, key: dict[str, str], channel: Channel) -> str | None:
        return "a note"


class _Errors(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        errors.append(self.format(record)[:2000])


for logger in (logging.getLogger(), logging.getLogger("uvicorn")):
    logger.addHandler(_Errors(logging.ERROR))

suite = Suite(
    name="attacked",
    version="1",
    tools=[echo, wait, talk, block, large, Work, Ask, *map(_shelved, range(33))],
    resources=[Notes()],
)
mux = Mux(
    suite,
    limits=Limits(write_timeout=float(os.environ.get("ATTACKED_WRITE_TIMEOUT", "60"))),
)


def of_header(scope: Any) -> str | None:
    """Return the principal: a stand-in for authentication."""
    user = dict(scope["headers"]).get(b"x-user")
    return None if user is None else user.decode()


async def look(request: Request) -> Response:
    """Respond with the memory, open calls and streams, and errors of this process."""
    gc.collect()
    shown = {
        "memory": memory(),
        "tasks": len(asyncio.all_tasks()),
        "files": len(os.listdir("/proc/self/fd")) - 1,  # noqa: PTH208  # paths of open files vanish
        "calls": len(mux.waiting_calls),
        "streams": len(mux.streams),
        "store": repr(mux.store),
        "errors": errors[:10],
    }
    return Response(json.dumps(shown), media_type="application/json")


app = Starlette(
    routes=[Route("/look", look), Endpoint(mux, principal=of_header).route("/mcp")],
)
