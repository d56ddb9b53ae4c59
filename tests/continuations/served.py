"""A process with a tool that asks: `python -m tests.continuations.served FD STORE`.

FD is a listening socket inherited from the parent.
"""

import os
import socket
import sys
from typing import Any

import uvicorn
from starlette.applications import Starlette

from genmcp import Channel, Continue, Done, Endpoint, Mux, Outcome, Suite, Tool, ToolRequest, roots


class Ask(Tool):
    """Asks for the roots, and returns the ids of the processes in which its hooks ran."""

    name = "ask"

    async def call(self, request: ToolRequest, channel: Channel) -> Any:
        return Continue(str(os.getpid()), roots())

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> str:
        match outcome:
            case Done([root]):
                return f"{root.uri} {tag} {os.getpid()}"
        return f"{outcome}"


def main(fd: str, store: str) -> None:
    """Serve until the process is killed."""
    mux = Mux(
        Suite(name="asking", version="1", tools=[Ask]),
        secret="a secret that both processes have",
        store=f"sqlite:///{store}",
    )
    app = Starlette(routes=[Endpoint(mux).route("/mcp")])
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
    with socket.socket(fileno=int(fd)) as listener:
        server.run(sockets=[listener])


if __name__ == "__main__":
    main(*sys.argv[1:])
