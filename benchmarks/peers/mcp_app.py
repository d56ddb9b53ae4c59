"""The official SDK, as one deploys it: no sessions, JSON answers, warnings only."""

import asyncio
import os

from mcp.server import MCPServer
from mcp.server.mcpserver import Context

server = MCPServer("benchmark", log_level="WARNING")


def echo(message: str) -> str:
    """Returns its message."""
    return message


for name in ["echo", *(f"echo_{number}" for number in range(1, int(os.environ.get("TOOLS", "1"))))]:
    server.add_tool(echo, name=name)


def count(numbers: list[float]) -> str:
    """Counts numbers."""
    return str(len(numbers))


async def sleep(seconds: float) -> str:
    """Sleeps for as many seconds as requested."""
    await asyncio.sleep(seconds)
    return "slept"


async def progress(times: int, context: Context) -> str:
    """Reports progress the requested number of times."""
    for number in range(times):
        await context.report_progress(number)
    return "done"


for tool in [] if "TOOLS" in os.environ else [count, sleep, progress]:
    server.add_tool(tool)

app = server.streamable_http_app(stateless_http=True, json_response=True)
