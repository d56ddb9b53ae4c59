"""Third-party servers, the official SDK's and FastMCP's, with the same few components.

As a command, `python -m tests.client.peer_servers sdk` (or `fastmcp`) serves over stdio.
"""

import sys
from typing import Any

from fastmcp import Context as FastContext
from fastmcp import FastMCP
from mcp.server.mcpserver import Context, MCPServer
from pydantic import BaseModel


class Sure(BaseModel):
    sure: bool


def sdk() -> MCPServer:
    server = MCPServer("peer", instructions="Be kind.")

    @server.tool()
    async def add(a: float, b: float) -> float:
        """Adds."""
        return a + b

    @server.tool()
    async def climb(ctx: Context[Any, Any]) -> str:
        """Reports progress."""
        for step in (1, 2, 3):
            await ctx.report_progress(step, 3, f"step {step}")
        return "up"

    @server.tool()
    async def fail() -> str:
        """Fails."""
        raise ValueError("It broke.")

    @server.tool()
    async def tell(ctx: Context[Any, Any]) -> str:
        """Writes to the log."""
        await ctx.info("It rains.")
        return "told"

    @server.tool()
    async def ask(ctx: Context[Any, Any]) -> str:
        """Asks."""
        answer = await ctx.elicit("Sure?", Sure)
        return f"{answer.action}: {answer.data.sure}" if answer.action == "accept" else "no"

    @server.resource("note://today")
    def today() -> str:
        """Today."""
        return "Rain."

    @server.resource("note://{day}/{hour}")
    def hourly(day: str, hour: str) -> str:
        """An hour of a day."""
        return f"Sun at {hour} on {day}."

    @server.prompt()
    def greet(name: str) -> str:
        """Greets."""
        return f"Say hello to {name}."

    return server


def fastmcp() -> FastMCP[Any]:
    server: FastMCP[Any] = FastMCP("peer", instructions="Be kind.")

    @server.tool
    async def add(a: float, b: float) -> float:
        """Adds."""
        return a + b

    @server.tool
    async def climb(ctx: FastContext) -> str:
        """Reports progress."""
        for step in (1, 2, 3):
            await ctx.report_progress(step, 3, f"step {step}")
        return "up"

    @server.tool
    async def fail() -> str:
        """Fails."""
        raise ValueError("It broke.")

    @server.tool
    async def tell(ctx: FastContext) -> str:
        """Writes to the log."""
        await ctx.info("It rains.")
        return "told"

    @server.tool
    async def ask(ctx: FastContext) -> str:
        """Asks."""
        answer = await ctx.elicit("Sure?", Sure)
        return f"{answer.action}: {answer.data.sure}" if answer.action == "accept" else "no"

    @server.resource("note://today")
    def today() -> str:
        """Today."""
        return "Rain."

    @server.resource("note://{day}/{hour}")
    def hourly(day: str, hour: str) -> str:
        """An hour of a day."""
        return f"Sun at {hour} on {day}."

    @server.prompt
    def greet(name: str) -> str:
        """Greets."""
        return f"Say hello to {name}."

    return server


if __name__ == "__main__":
    match sys.argv[1]:
        case "sdk":
            sdk().run("stdio")
        case "fastmcp":
            fastmcp().run("stdio", show_banner=False)
