"""The server of the soak test: tools that count how they end, and the state of the process."""

import asyncio
import gc
import json
import logging
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from genmcp import Channel, Endpoint, Limits, MemoryStore, Mux, Suite, Tool, ToolRequest

ended: Counter[str] = Counter()
"""How hooks ended, by tool."""

errors: list[str] = []
"""The log records at ERROR or above."""


class Echo(Tool):
    """Returns its text."""

    name = "echo"
    input_schema = {"type": "object", "properties": {"text": {"type": "string"}}}

    async def call(self, request: ToolRequest, channel: Channel) -> Any:
        return request.arguments["text"]


class Steps(Tool):
    """Reports progress, and returns its text."""

    name = "steps"

    async def call(self, request: ToolRequest, channel: Channel) -> Any:
        for number in range(request.arguments["times"]):
            await channel.progress(number)
            await asyncio.sleep(0.001)
        return request.arguments["text"]


class Wait(Tool):
    """Waits until it is cancelled."""

    name = "wait"

    async def call(self, request: ToolRequest, channel: Channel) -> Any:
        return await _counted(self.name, asyncio.Event().wait(), channel)


class Linger(Tool):
    """Takes 20 ms; in a session it continues after a disconnect."""

    name = "linger"

    async def call(self, request: ToolRequest, channel: Channel) -> Any:
        return await _counted(self.name, asyncio.sleep(0.02), channel)


async def _counted(name: str, work: Any, channel: Channel) -> str:
    era = "legacy" if channel.request.session else "modern"
    ended[f"{name} {era} begun"] += 1
    await channel.progress(1)
    try:
        await work
    except asyncio.CancelledError:
        ended[f"{name} {era} cancelled"] += 1
        raise
    ended[f"{name} {era} finished"] += 1
    return name


class _Errors(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        errors.append(self.format(record)[:2000])


for logger in (logging.getLogger(), logging.getLogger("uvicorn")):
    logger.addHandler(_Errors(logging.ERROR))

HURRY = 60
"""How fast the clock of the store is: what it keeps for an hour must be gone within the soak."""

began = time.monotonic()
store = MemoryStore(clock=lambda: 1e9 + HURRY * (time.monotonic() - began))
suite = Suite(name="soak", version="1", tools=[Echo, Steps, Wait, Linger])
mux = Mux(suite, store=store, limits=Limits(replay_ttl=5 * HURRY))


def memory() -> float:
    """Return the resident memory of this process, in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def look(request: Request) -> Response:
    """Respond with the state of this process, including the task of this request."""
    gc.collect()
    state = {
        "tasks": len(asyncio.all_tasks()),
        "files": len(os.listdir("/proc/self/fd")) - 1,  # noqa: PTH208  # paths of open files vanish
        "memory": memory(),
        "calls": repr(mux),
        "ended": ended,
        "errors": errors[:10],
    }
    return Response(json.dumps(state), media_type="application/json")


app = Starlette(routes=[Route("/look", look), Endpoint(mux).route("/mcp")])
