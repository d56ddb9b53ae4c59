"""A client that hardly reads, while its tool hardly stops talking: who pays for it?"""

import socket
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPConnection
from statistics import median

from benchmarks.cases import Subject
from benchmarks.client import check, connected, post
from benchmarks.figures import ECHO, Figure, number
from benchmarks.load import modern
from benchmarks.processes import Served, served
from benchmarks.wrk import measure

__all__ = ["slow_reader"]

HEAD = b"HTTP/1.1 200 "


def slow_reader(_: Subject, genmcp: Subject, *, seconds: int = 60) -> Sequence[Figure]:
    """Read a byte a second of a stream of 1,000 notifications a second.

    Others call echo meanwhile. Their p99 is the median of slices of time, so that a moment in
    which the machine does something else does not decide.
    """
    part = max(1.0, seconds / 12)
    with served(genmcp.app, python=genmcp.python) as server, ThreadPoolExecutor(1) as pool:
        check(server, modern("tools/call", token="t", name="tick", arguments={"seconds": 1}), 1000)
        before = [_p99(server, part, warm_up=1) for _ in range(6)]
        memory = server.memory()
        reading = pool.submit(_read, server, seconds)
        during = [_p99(server, part)]
        while not reading.done():
            during.append(_p99(server, part))
        growth = reading.result() - memory
        with connected(server) as connection:
            asked = modern("tools/call", name="ticks", arguments={})
            reports = int(post(connection, asked).body.partition(b'"text":"')[2].split(b'"')[0])
    if len(during) > 1:
        during.pop()  # it ended after the reader had
    usual, disturbed = median(before), median(during)
    told = f"{reports - 1000:,} of {seconds * 1000:,} reports made"
    return [
        Figure(f"growth beside a slow reader, {seconds} s, KiB", growth * 1024, 1024, told),
        Figure(
            f"p99 of others beside a slow reader, {seconds} s, ms",
            disturbed,
            1.5 * usual,
            f"before: {number(usual)}",
        ),
    ]


def _p99(server: Served, seconds: float, warm_up: float = 0) -> float:
    return measure(server, ECHO, seconds=seconds, warm_up=warm_up).p99


def _read(server: Served, seconds: int) -> float:
    """Read a byte a second for so long; return the most memory the server had, in MiB.

    Raises:
        RuntimeError: what was read is not the beginning of an answer.
    """
    load = modern("tools/call", token="t", name="tick", arguments={"seconds": seconds})
    connection = HTTPConnection("127.0.0.1", server.port)
    until = time.monotonic() + seconds
    read, most = b"", 0.0
    with socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # the kernel reads no more
        line.settimeout(10)
        line.connect(("127.0.0.1", server.port))
        connection.sock = line
        connection.request("POST", "/mcp", load.body.encode(), dict(load.headers))
        while time.monotonic() < until:
            read += line.recv(1)
            most = max(most, server.memory())
            time.sleep(1)
    if not read or not read.startswith(HEAD[: len(read)]):
        raise RuntimeError(f"the slow reader was answered {read!r}")
    return most
