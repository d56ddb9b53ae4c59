"""Two workers that were forked from one process: `python -m tests.stores.preforked FILE`.

The application is made before the fork, as by gunicorn with `--preload`. Prints the port of each
worker, and `checked` whenever a worker reads the heartbeat of the other one. Ends with its input.
"""

import asyncio
import os
import signal
import socket
import sys

import uvicorn

from genmcp import (
    Continue,
    Endpoint,
    JobOptions,
    Mux,
    Run,
    Security,
    SQLiteStore,
    Suite,
    elicit,
    job,
    tool,
    wait_for,
)
from genmcp.stores.store import StoreEntry

FORM = {"type": "object", "properties": {"word": {"type": "string"}}}
go = asyncio.Event()  # of each worker


class Store(SQLiteStore):
    async def get(self, key: str) -> StoreEntry | None:
        if "/node:" in key:
            sys.stdout.write("checked\n")
            sys.stdout.flush()
        return await super().get(key)


@tool
async def ask(name: str) -> Continue:
    """Asks its user."""
    return elicit(f"{name}?", FORM).then(answered)


@ask.step
async def answered(answer: dict[str, str]) -> str:
    return answer["word"]


@job(name="begin")
async def begin(run: Run) -> None:
    pass


@tool
async def wait() -> Continue:
    """Waits in one of the workers, as a task."""
    return begin.job().then(begun)


@wait.step
async def begun(value: None) -> Continue:
    return wait_for(go.wait()).then(gone)


@wait.step
async def gone(value: bool) -> str:
    return "it has waited"


@tool
async def release() -> None:
    """Ends what waits in this worker."""
    go.set()


def main() -> None:
    suite = Suite(name="test", version="1", tools=[ask, wait, release])
    mux = Mux(suite, store=Store(sys.argv[1]), secret="s" * 16, jobs=JobOptions(lease=0.6))
    app = Endpoint(mux, security=Security(allowed_hosts=["test"]))
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    workers = []
    for listener in listeners:
        worker = os.fork()
        if not worker:
            config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
            uvicorn.Server(config).run(sockets=[listener])
            os._exit(0)
        workers.append(worker)
    sys.stdout.write("".join(f"{each.getsockname()[1]}\n" for each in listeners))
    sys.stdout.flush()
    sys.stdin.read()
    for worker in workers:
        os.kill(worker, signal.SIGTERM)
    for worker in workers:
        os.waitpid(worker, 0)


if __name__ == "__main__":
    main()
