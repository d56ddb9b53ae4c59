"""Calls that wait: what each of them costs, and how soon its client hears that the wait is over."""

import asyncio
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.cases import Subject
from benchmarks.client import connected, post
from benchmarks.figures import Figure, number
from benchmarks.load import Load, modern
from benchmarks.processes import LOAD_CORE, ROOT, Served, pinned, served, surroundings

__all__ = ["waiting"]

APP = "benchmarks.waits:app"
WAIT, RELEASE = modern("tools/call", name="wait"), modern("tools/call", name="release")
SETTLED = 2.0
TIMES = 200


def waiting(floor: Subject, genmcp: Subject, *, count: int = 10_000) -> Sequence[Figure]:
    """Hold *count* calls that wait for futures, and let a wait end in each way there is."""
    with served(floor.app, python=floor.python) as server:
        bare, _ = asyncio.run(_held(server, count))
    with served(APP, python=genmcp.python) as server:
        ours, took = asyncio.run(_held(server, count))
        inline, continued = (median(_stamps(server, name)) for name in ("inline", "continued"))
        began, ended = map(median, zip(*_jobs(server), strict=True))
    with _two_processes(genmcp) as server:
        far_began, far_ended = map(median, zip(*_jobs(server), strict=True))
    return [
        Figure(
            f"a waiting call above one of a bare application, KiB ({count:,} of them)",
            ours - bare,
            8,
            f"bare: {number(bare)}",
        ),
        Figure(f"all of {count:,} waits over to the last answer, s", took, 3),
        Figure(
            "a finished awaitable to its client, later than inline, ms",
            (continued - inline) * 1000,
            1,
            f"inline: {number(inline * 1000)}",
        ),
        Figure("in memory, a job submitted to its start, ms", began * 1000, 5),
        Figure("in memory, a job finished to its client, ms", ended * 1000, 2),
        Figure("two processes on SQLite, a job submitted to its start, ms", far_began * 1000, 25),
        Figure("two processes on SQLite, a job finished to its client, ms", far_ended * 1000, 25),
    ]


async def _held(server: Served, count: int) -> tuple[float, float]:
    """Return what a waiting call adds to the memory of *server* in KiB, and how long all took."""
    first = await _sent(server)
    await asyncio.sleep(SETTLED)
    before = server.memory()
    calls = [await _sent(server) for _ in range(count)]
    await asyncio.sleep(SETTLED)
    each = (server.memory() - before) * 1024 / count
    answers = [asyncio.create_task(reader.readuntil(b"released")) for reader, _ in calls]
    began = time.perf_counter()
    await asyncio.to_thread(_release, server)
    async with asyncio.timeout(60):
        await asyncio.gather(*answers)
    took = time.perf_counter() - began
    for _, writer in (first, *calls):
        writer.close()
    return each, took


async def _sent(server: Served) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a call that waits."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    headers = {**WAIT.headers, "host": "127.0.0.1", "content-length": str(len(WAIT.body))}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"POST /mcp HTTP/1.1\r\n{head}\r\n{WAIT.body}".encode())
    return reader, writer


def _release(server: Served) -> None:
    with connected(server) as connection:
        post(connection, RELEASE)


def _stamps(server: Served, name: str) -> Iterator[float]:
    """Yield how long after the work of a tool its client had the answer, in seconds."""
    load = modern("tools/call", name=name)
    with connected(server) as connection:
        for _ in range(TIMES):
            yield -float(_text(connection, load)) + time.monotonic()


def _jobs(server: Served) -> Iterator[tuple[float, float]]:
    """Yield how soon a job began, and how long after its end its client had the answer."""
    load = modern("tools/call", name="stamped")
    with connected(server) as connection:
        for _ in range(TIMES):
            submitted, began, ended = json.loads(_text(connection, load))
            yield began - submitted, time.monotonic() - ended


def _text(connection: Any, load: Load) -> str:
    body = post(connection, load).body
    answer = body.rpartition(b"data: ")[2] if body.startswith(b"event:") else body
    text: str = json.loads(answer)["result"]["content"][0]["text"]
    return text


@contextmanager
def _two_processes(genmcp: Subject) -> Iterator[Served]:
    """Serve with a worker beside, over one SQLite file."""
    with tempfile.TemporaryDirectory() as folder:
        env = {"GENMCP_STORE": f"sqlite:///{Path(folder) / 'store.db'}"}
        command = pinned(LOAD_CORE, genmcp.python, "-m", "genmcp", "worker", "benchmarks.waits:mux")
        with served(APP, python=genmcp.python, env={**env, "ONLY_SERVES": "1"}) as server:
            worker = subprocess.Popen(command, env=surroundings(env), cwd=ROOT)
            try:
                yield server
            finally:
                worker.terminate()
                worker.wait(10)
