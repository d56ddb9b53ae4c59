"""Single figures with a bound: memory, start-up, waiting calls, listeners, a slow reader."""

import asyncio
import json
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.cases import MESSAGE, Subject
from benchmarks.load import Load, begin, check, connected, measure, modern, post, repeat
from benchmarks.processes import LOAD_CORE, ROOT, SERVER_CORE, Served, pinned, served, surroundings

__all__ = [
    "Figure",
    "calls",
    "cold_process",
    "importing",
    "listeners",
    "number",
    "sessions",
    "slow_reader",
    "waiting",
]

ECHO = modern("tools/call", name="echo", arguments=MESSAGE)
_SETTLE = 0.5  # seconds after which a server without requests is idle

_IMPORT = """
import time
import starlette, msgspec
began = time.perf_counter()
import genmcp
print(time.perf_counter() - began)
"""


@dataclass(frozen=True)
class Figure:
    """A figure, its upper bound, and details to compare it with."""

    name: str
    found: float
    bound: float
    beside: str = ""

    @property
    def reached(self) -> bool:
        """Whether the figure is within its bound."""
        return self.found < self.bound


def number(value: float) -> str:
    """Return *value* with no more digits than it is good for."""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


def cold_process(floor: Subject, genmcp: Subject, *, times: int = 5) -> Sequence[Figure]:
    """Measure the time to the first response of a new process, and its memory."""
    began: dict[str, list[float]] = {"floor": [], "genmcp": []}
    weighed: dict[str, list[float]] = {"floor": [], "genmcp": []}
    for _ in range(times):
        for subject in (floor, genmcp):
            with served(subject.app, python=subject.python) as server:
                check(server, ECHO)
                began[subject.name].append(time.perf_counter() - server.began)
                time.sleep(_SETTLE)
                weighed[subject.name].append(server.memory())
    first = {name: min(all_) for name, all_ in began.items()}
    idle = {name: median(all_) for name, all_ in weighed.items()}
    return [
        Figure(
            "first answer of a cold process, s",
            first["genmcp"],
            0.35,
            f"floor: {number(first['floor'])}",
        ),
        Figure(
            "memory, idle after one call, MiB",
            idle["genmcp"],
            1.6 * idle["floor"],
            f"floor: {number(idle['floor'])}",
        ),
    ]


def sessions(_: Subject, genmcp: Subject, *, count: int = 10_000) -> Sequence[Figure]:
    """Measure the growth of the process over legacy sessions."""
    with served(genmcp.app, python=genmcp.python) as server, connected(server) as connection:
        for _number in range(100):  # warm-up: imports and caches
            begin(connection)
        before = _idle(server)
        begun = {begin(connection) for _number in range(count)} - {None}
        growth = _idle(server) - before
    if len(begun) != count:
        raise RuntimeError(f"only {len(begun)} sessions were begun")
    return [
        Figure(f"growth over {count:,} initialized idle legacy sessions, KiB", growth * 1024, 1024)
    ]


def calls(
    _: Subject, genmcp: Subject, *, first: int = 10_000, last: int = 100_000
) -> Sequence[Figure]:
    """Measure the growth of the process from the *first* calls of echo to the *last*."""
    with served(genmcp.app, python=genmcp.python) as server:
        repeat(server, ECHO, first)
        before = _idle(server)
        repeat(server, ECHO, last - first)
        growth = _idle(server) - before
    return [
        Figure(
            f"growth from {first:,} to {last:,} calls, KiB",
            growth * 1024,
            2048,
            f"after {first:,}: {number(before)} MiB",
        )
    ]


def importing(_: Subject, genmcp: Subject, *, times: int = 7) -> Sequence[Figure]:
    """Measure the import of genmcp after starlette and msgspec, in new processes."""
    command = pinned(SERVER_CORE, genmcp.python, "-c", _IMPORT)
    took = [
        float(subprocess.run(command, capture_output=True, check=True, env=surroundings({})).stdout)
        for _number in range(times)
    ]
    return [Figure("importing genmcp above starlette and msgspec, ms", min(took) * 1000, 150)]


def _idle(server: Served) -> float:
    """Return the memory of *server* in MiB, after a pause."""
    time.sleep(_SETTLE)
    return server.memory()


_ACKNOWLEDGED = b"subscriptions/acknowledged"
_CHANGED = b"tools/list_changed"
_LISTEN = modern("subscriptions/listen", notifications={"toolsListChanged": True})
_LISTENERS_SETTLE = 1.0


def listeners(floor: Subject, genmcp: Subject, *, count: int = 1000) -> Sequence[Figure]:
    """Measure the cost of *count* subscription streams, and the delay of a notification to all."""
    with served(floor.app, python=floor.python) as server:
        bare, _ = asyncio.run(_hold_streams(server, count, None))
    with served(genmcp.app, python=genmcp.python) as server:
        ours, took = asyncio.run(_hold_streams(server, count, modern("tools/call", name="change")))
    return [
        Figure(
            f"an open listener above one of a bare application, KiB ({count:,} of them)",
            ours - bare,
            16,
            f"bare: {number(bare)}",
        ),
        Figure(f"one change told to all of {count:,} listeners, s", took, 1),
    ]


async def _hold_streams(server: Served, count: int, change: Load | None) -> tuple[float, float]:
    """Return the memory of a listener in KiB, and the seconds until all had the change."""
    first = await _open_stream(server)
    await asyncio.sleep(_LISTENERS_SETTLE)
    before = server.memory()
    streams = [await _open_stream(server) for _ in range(count)]
    await asyncio.sleep(_LISTENERS_SETTLE)
    each = (server.memory() - before) * 1024 / count
    took = 0.0
    if change is not None:
        waiting = [asyncio.create_task(reader.readuntil(_CHANGED)) for reader, _ in streams]
        began = time.perf_counter()
        await asyncio.to_thread(_post_once, server, change)
        async with asyncio.timeout(30):
            await asyncio.gather(*waiting)
        took = time.perf_counter() - began
    for _, writer in (first, *streams):
        writer.close()
    return each, took


async def _open_stream(server: Served) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a subscription stream, and return it after its acknowledgement."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    headers = {**_LISTEN.headers, "host": "127.0.0.1", "content-length": str(len(_LISTEN.body))}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"POST /mcp HTTP/1.1\r\n{head}\r\n{_LISTEN.body}".encode())
    async with asyncio.timeout(10):
        await reader.readuntil(_ACKNOWLEDGED)
    return reader, writer


def _post_once(server: Served, change: Load) -> None:
    with connected(server) as connection:
        post(connection, change)


_HEAD = b"HTTP/1.1 200 "


def slow_reader(_: Subject, genmcp: Subject, *, seconds: int = 60) -> Sequence[Figure]:
    """Measure the effect of a client that reads a byte a second of 1,000 notifications a second.

    Other clients call echo meanwhile. Their p99 is the median of time slices, so that a moment in
    which the machine is busy otherwise does not decide.
    """
    part = max(1.0, seconds / 12)
    with served(genmcp.app, python=genmcp.python) as server, ThreadPoolExecutor(1) as pool:
        check(server, modern("tools/call", token="t", name="tick", arguments={"seconds": 1}), 1000)
        before = [_p99(server, part, warm_up=1) for _ in range(6)]
        memory = server.memory()
        reading = pool.submit(_read_slowly, server, seconds)
        during = [_p99(server, part)]
        while not reading.done():
            during.append(_p99(server, part))
        growth = reading.result() - memory
        with connected(server) as connection:
            asked = modern("tools/call", name="ticks", arguments={})
            reports = int(post(connection, asked).body.partition(b'"text":"')[2].split(b'"')[0])
    if len(during) > 1:
        during.pop()  # this slice ended after the reader
    usual, disturbed = median(before), median(during)
    reported = f"{reports - 1000:,} of {seconds * 1000:,} reports made"
    return [
        Figure(f"growth beside a slow reader, {seconds} s, KiB", growth * 1024, 1024, reported),
        Figure(
            f"p99 of others beside a slow reader, {seconds} s, ms",
            disturbed,
            1.5 * usual,
            f"before: {number(usual)}",
        ),
    ]


def _p99(server: Served, seconds: float, warm_up: float = 0) -> float:
    return measure(server, ECHO, seconds=seconds, warm_up=warm_up).p99


def _read_slowly(server: Served, seconds: int) -> float:
    """Read a byte a second for *seconds*; return the peak memory of the server in MiB.

    Raises:
        RuntimeError: the bytes are not the beginning of a successful response.
    """
    load = modern("tools/call", token="t", name="tick", arguments={"seconds": seconds})
    connection = HTTPConnection("127.0.0.1", server.port)
    until = time.monotonic() + seconds
    read, most = b"", 0.0
    with socket.socket() as line:
        line.setsockopt(
            socket.SOL_SOCKET, socket.SO_RCVBUF, 4096
        )  # a small buffer, so that the kernel does not read ahead
        line.settimeout(10)
        line.connect(("127.0.0.1", server.port))
        connection.sock = line
        connection.request("POST", "/mcp", load.body.encode(), dict(load.headers))
        while time.monotonic() < until:
            read += line.recv(1)
            most = max(most, server.memory())
            time.sleep(1)
    if not read or not read.startswith(_HEAD[: len(read)]):
        raise RuntimeError(f"the slow reader received {read!r}")
    return most


_WAITS_APP = "benchmarks.waits:app"
_WAIT, _RELEASE = modern("tools/call", name="wait"), modern("tools/call", name="release")
_CALLS_SETTLE = 2.0
_REPETITIONS = 200


def waiting(floor: Subject, genmcp: Subject, *, count: int = 10_000) -> Sequence[Figure]:
    """Measure the cost of *count* waiting calls, and the latency of each kind of wait."""
    with served(floor.app, python=floor.python) as server:
        bare, _ = asyncio.run(_hold_calls(server, count))
    with served(_WAITS_APP, python=genmcp.python) as server:
        ours, took = asyncio.run(_hold_calls(server, count))
        inline, continued = (
            median(_time_answers(server, name)) for name in ("inline", "continued")
        )
        began, ended = map(median, zip(*_time_jobs(server), strict=True))
    with _two_processes(genmcp) as server:
        far_began, far_ended = map(median, zip(*_time_jobs(server), strict=True))
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


async def _hold_calls(server: Served, count: int) -> tuple[float, float]:
    """Return the memory of a waiting call in KiB, and the seconds until all were answered."""
    first = await _send_call(server)
    await asyncio.sleep(_CALLS_SETTLE)
    before = server.memory()
    calls = [await _send_call(server) for _ in range(count)]
    await asyncio.sleep(_CALLS_SETTLE)
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


async def _send_call(server: Served) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Send a call that waits, and return its connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    headers = {**_WAIT.headers, "host": "127.0.0.1", "content-length": str(len(_WAIT.body))}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"POST /mcp HTTP/1.1\r\n{head}\r\n{_WAIT.body}".encode())
    return reader, writer


def _release(server: Served) -> None:
    with connected(server) as connection:
        post(connection, _RELEASE)


def _time_answers(server: Served, name: str) -> Iterator[float]:
    """Yield the seconds from the end of a tool's work to the response."""
    load = modern("tools/call", name=name)
    with connected(server) as connection:
        for _ in range(_REPETITIONS):
            yield -float(_result_text(connection, load)) + time.monotonic()


def _time_jobs(server: Served) -> Iterator[tuple[float, float]]:
    """Yield the seconds from submission to start of a job, and from its end to the response."""
    load = modern("tools/call", name="stamped")
    with connected(server) as connection:
        for _ in range(_REPETITIONS):
            submitted, began, ended = json.loads(_result_text(connection, load))
            yield began - submitted, time.monotonic() - ended


def _result_text(connection: Any, load: Load) -> str:
    body = post(connection, load).body
    answer = body.rpartition(b"data: ")[2] if body.startswith(b"event:") else body
    text: str = json.loads(answer)["result"]["content"][0]["text"]
    return text


@contextmanager
def _two_processes(genmcp: Subject) -> Iterator[Served]:
    """Run a server and a worker that share one SQLite file."""
    with tempfile.TemporaryDirectory() as folder:
        env = {"GENMCP_STORE": f"sqlite:///{Path(folder) / 'store.db'}"}
        command = pinned(LOAD_CORE, genmcp.python, "-m", "genmcp", "worker", "benchmarks.waits:mux")
        with served(_WAITS_APP, python=genmcp.python, env={**env, "ONLY_SERVES": "1"}) as server:
            worker = subprocess.Popen(command, env=surroundings(env), cwd=ROOT)
            try:
                yield server
            finally:
                worker.terminate()
                worker.wait(10)
