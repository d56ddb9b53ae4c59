"""The application under test: genmcp with the tools of the benchmark."""

import asyncio
import os
import time
from typing import Any

from genmcp import Channel, Endpoint, Suite, Tool, ToolRequest


class Echo(Tool):
    """Returns its message."""

    input_schema = {
        "type": "object",
        "properties": {"message": {"type": "string"}},
        "required": ["message"],
    }

    def __init__(self, name: str = "echo") -> None:
        self.name = name

    async def call(self, request: ToolRequest, channel: Channel) -> str:
        message: str = request.arguments["message"]
        return message


class Count(Tool):
    """Counts numbers."""

    name = "count"
    input_schema = {
        "type": "object",
        "properties": {"numbers": {"type": "array", "items": {"type": "number"}}},
        "required": ["numbers"],
    }

    async def call(self, request: ToolRequest, channel: Channel) -> str:
        return str(len(request.arguments["numbers"]))


class Sleep(Tool):
    """Sleeps for as many seconds as requested; with 0 it yields to the event loop once."""

    name = "sleep"

    async def call(self, request: ToolRequest, channel: Channel) -> str:
        seconds: float = request.arguments["seconds"]
        await asyncio.sleep(seconds)
        return "slept"


class Progress(Tool):
    """Reports progress the requested number of times."""

    name = "progress"

    async def call(self, request: ToolRequest, channel: Channel) -> str:
        times: Any = request.arguments["times"]
        for number in range(times):
            await channel.progress(number)
        return "done"


class Tick(Tool):
    """Reports progress 1,000 times a second."""

    name = "tick"
    message = "x" * 500  # in a minute far more than the socket buffers hold
    reported = 0

    async def call(self, request: ToolRequest, channel: Channel) -> str:
        began = time.monotonic()
        for number in range(1000 * request.arguments["seconds"]):
            await channel.progress(number, message=self.message)
            Tick.reported += 1
            await asyncio.sleep(max(0.0, began + number / 1000 - time.monotonic()))
        return "done"


class Change(Tool):
    """Notifies clients that the list of tools has changed."""

    name = "change"

    async def call(self, request: ToolRequest, channel: Channel) -> str:
        channel.changes.tools_list_changed()
        return "said"


class Ticks(Tool):
    """Returns the number of reports of `tick`."""

    name = "ticks"

    async def call(self, request: ToolRequest, channel: Channel) -> str:
        return str(Tick.reported)


echoes = [Echo(), *(Echo(f"echo_{number}") for number in range(1, int(os.environ.get("TOOLS", 1))))]
others = [] if "TOOLS" in os.environ else [Count, Sleep, Progress, Tick, Ticks, Change]
app = Endpoint(Suite(name="benchmark", version="1", tools=[*echoes, *others]))
