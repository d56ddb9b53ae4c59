"""A server over stdio: `python stdio_server.py [FOLDER]`; files in FOLDER control it.

A file `broken` there ends it at once, and a file `extra` adds a tool.
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from genmcp import (
    Accepted,
    Channel,
    Continue,
    Done,
    Outcome,
    PromptTemplate,
    Resource,
    Suite,
    Tool,
    ToolRequest,
    elicit,
    tool,
)
from genmcp._transports.stdio import serve_stdio

FOLDER = Path(sys.argv[1]) if len(sys.argv) > 1 else Path("/nowhere")


@tool
async def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@tool
async def pid() -> int:
    """Returns the id of this process."""
    return os.getpid()


@tool
async def variable(name: str) -> str:
    """Returns a variable of the environment."""
    return os.environ.get(name, "")


@tool
async def crash() -> str:
    """Ends this process."""
    os._exit(7)


@tool
async def hang(mark: str = "") -> str:
    """Never answers; writes a file when it is called."""
    if mark:
        (FOLDER / mark).touch()
    await asyncio.Event().wait()
    return "never"


@tool
async def large(size: int) -> str:
    """Returns a long text."""
    return "x" * size


class Ask(Tool):
    """Asks before it answers."""

    name = "ask"

    async def call(self, request: ToolRequest, channel: Channel) -> Continue:
        """Ask."""
        return Continue("asked", elicit("Sure?"))

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> Any:
        """Answer."""
        return "agreed" if outcome == Done(Accepted({})) else f"refused: {outcome}"


class Note(Resource):
    """A note."""

    name = "note"
    uri = "note://today"

    async def read(self, uri: str, channel: Channel) -> str:
        """Return it."""
        return f"note of {os.getpid()}"


@tool
async def touch(channel: Channel) -> str:
    """Announces the update of the note."""
    channel.changes.resource_updated(Note.uri)
    return "touched"


@tool
async def extra() -> str:
    """Is added by `grow`."""
    return "here"


suite = Suite(
    name="stdio",
    version="1",
    tools=[add, pid, variable, crash, hang, large, touch, Ask],
    resources=[Note],
    prompts=[PromptTemplate(name="greet", messages="Hello {name}.")],
)


@tool
async def grow() -> str:
    """Adds a tool."""
    suite.add(extra)
    return "grown"


if __name__ == "__main__":
    if (FOLDER / "broken").exists():
        sys.exit("it is broken")
    suite.add(grow)
    if (FOLDER / "extra").exists():
        suite.add(extra)
    asyncio.run(serve_stdio(suite))
