"""A process with two large results: `python -m tests.overflow.exports FD STORE`.

FD is a listening socket inherited from the parent.
"""

import socket
import sys
from functools import cache

import uvicorn
from starlette.applications import Starlette

from genmcp import Continue, Endpoint, Mux, Run, Suite, job, tool

LIMIT = 64_000


@cache
def text() -> str:
    """Return more than 50 MB."""
    return "".join(f"{number:09} é is a line of the export\n" for number in range(1_250_000))


@tool
async def export() -> str:
    """Returns all at once."""
    return text()


@job(name="exports.write")
async def write(run: Run) -> str:
    return text()


@tool
async def report() -> Continue:
    """Waits for a job."""
    return write.job().then(written)


@report.step
async def written(value: str) -> str:
    return value


def main(fd: str, store: str) -> None:
    """Serve until the process is killed."""
    text()  # before the memory is measured
    mux = Mux(
        Suite("exports", tools=[export, report], overflow=LIMIT),
        secret="a secret that both processes have",
        store=store,
    )
    app = Starlette(routes=[Endpoint(mux).route("/mcp")])
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1))
    with socket.socket(fileno=int(fd)) as listener:
        server.run(sockets=[listener])


if __name__ == "__main__":
    main(*sys.argv[1:])
