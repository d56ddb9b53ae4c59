"""genmcp, with the tools the benchmark calls."""

import asyncio
import os
from typing import Any

from genmcp import Call, Channel, Endpoint, Suite, Tool


class Echo(Tool):
    """Returns its message."""

    input_schema = {
        "type": "object",
        "properties": {"message": {"type": "string"}},
        "required": ["message"],
    }

    def __init__(self, name: str = "echo") -> None:
        self.name = name

    async def call(self, request: Call, channel: Channel) -> str:
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

    async def call(self, request: Call, channel: Channel) -> str:
        return str(len(request.arguments["numbers"]))


class Sleep(Tool):
    """Sleeps for 100 ms."""

    name = "sleep"

    async def call(self, request: Call, channel: Channel) -> str:
        await asyncio.sleep(0.1)
        return "slept"


class Progress(Tool):
    """Reports progress as often as asked for."""

    name = "progress"

    async def call(self, request: Call, channel: Channel) -> str:
        times: Any = request.arguments["times"]
        for number in range(times):
            await channel.progress(number)
        return "done"


names = [f"echo_{number}" for number in range(1, int(os.environ.get("TOOLS", "1")))]
others = [Count, Sleep, Progress] if not names else []
suite = Suite(name="benchmark", version="1", tools=[Echo(), *map(Echo, names), *others])
app = Endpoint(suite)
