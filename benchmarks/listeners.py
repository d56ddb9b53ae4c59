"""Measure streams of `subscriptions/listen` at several replicas: memory, and delay of a change.

    python -m benchmarks.listeners                          # 10,000 listeners, 3 replicas, SQLite
    python -m benchmarks.listeners --store redis --count 3000

The change is announced by a call at one replica. Its delay is measured from the call to the last
listener that has got it; all listeners are in one process, which needs a part of the time.
"""

import argparse
import asyncio
import json
import os
import resource
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.load import modern
from benchmarks.processes import memory_of
from tests.support.replicas import Replicas, replicas
from tests.support.stores import shared_store

BAR_SECONDS = 1.0
BAR_KIB = 40.0
_AT_ONCE = 100  # connections that are opened at a time
_SETTLE = 3.0  # seconds
_TIMEOUT = 60.0  # seconds until all listeners have got a change
_CHANGED = b"notifications/tools/list_changed"
_ACKNOWLEDGED = b"subscriptions/acknowledged"
_LISTEN = modern("subscriptions/listen", notifications={"toolsListChanged": True})
_CHANGE = modern("tools/call", name="change", arguments={})


class Crowd:
    """All listeners: how many have got the acknowledgement, and how many the latest change."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.acknowledged = 0
        self.changed = 0
        self.times: list[float] = []
        self.complete = asyncio.Event()

    def change(self) -> None:
        """Count from zero again."""
        self.changed = 0
        self.times.clear()
        self.complete.clear()


class Listener(asyncio.Protocol):
    """A connection that listens for changes."""

    def __init__(self, crowd: Crowd) -> None:
        self._crowd = crowd
        self._rest = b""
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        headers = {**_LISTEN.headers, "host": "127.0.0.1"}
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        size = len(_LISTEN.body)
        head = f"POST / HTTP/1.1\r\n{lines}content-length: {size}\r\n\r\n"
        transport.write((head + _LISTEN.body).encode())

    def data_received(self, data: bytes) -> None:
        self._rest += data
        if not self.ready.done() and _ACKNOWLEDGED in self._rest:
            self.ready.set_result(None)
            self._rest = b""
        elif _CHANGED in self._rest:
            self._rest = b""
            crowd = self._crowd
            crowd.changed += 1
            crowd.times.append(time.perf_counter())
            if crowd.changed == crowd.count:
                crowd.complete.set()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.ready.done():
            self.ready.set_exception(RuntimeError(f"a listener was rejected: {self._rest!r}"))


async def measure(servers: Replicas, count: int, changes: int) -> tuple[float, list[float]]:
    """Return the KiB of a listener, and the seconds until all listeners had each change."""
    crowd, loop = Crowd(count), asyncio.get_running_loop()
    await announce(servers.ports[0])
    await asyncio.sleep(_SETTLE)
    before = sum(map(memory_of, servers.pids))
    for first in range(0, count, _AT_ONCE):
        opened = [
            loop.create_connection(
                lambda: Listener(crowd), "127.0.0.1", servers.ports[n % len(servers.ports)]
            )
            for n in range(first, min(first + _AT_ONCE, count))
        ]
        async with asyncio.timeout(_TIMEOUT):
            listeners = [protocol for _, protocol in await asyncio.gather(*opened)]
            await asyncio.gather(*(each.ready for each in listeners))
    await asyncio.sleep(_SETTLE)
    kib = (sum(map(memory_of, servers.pids)) - before) * 1024 / count
    delays = []
    for _ in range(changes):
        crowd.change()
        began = time.perf_counter()
        await announce(servers.ports[0])
        async with asyncio.timeout(_TIMEOUT):
            await crowd.complete.wait()
        delays.append(max(crowd.times) - began)
        await asyncio.sleep(1)
    return kib, delays


async def announce(port: int) -> None:
    """Call the tool that announces a change."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    headers = {**_CHANGE.headers, "host": "127.0.0.1", "connection": "close"}
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    head = f"POST / HTTP/1.1\r\n{lines}content-length: {len(_CHANGE.body)}\r\n\r\n"
    writer.write((head + _CHANGE.body).encode())
    answer = await reader.read()
    writer.close()
    assert b" 200 " in answer, answer


async def main() -> None:
    """Measure, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", default="sqlite", help="sqlite, redis, postgres or a URL")
    parser.add_argument("--count", type=int, default=10_000)
    parser.add_argument("--replicas", type=int, default=3)
    parser.add_argument("--changes", type=int, default=5)
    args = parser.parse_args()
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    with tempfile.TemporaryDirectory() as folder:
        async with (
            shared_store(args.store, Path(folder)) as store,
            replicas("benchmarks.listened", store.url, args.replicas) as servers,
        ):
            kib, delays = await measure(servers, args.count, args.changes)
    figures = {
        "store": args.store,
        "listeners": args.count,
        "replicas": args.replicas,
        "KiB per listener": round(kib, 1),
        "seconds until all have a change, median": round(median(delays), 2),
        "seconds until all have a change, worst": round(max(delays), 2),
        "load of the machine": os.getloadavg()[0],
    }
    print(json.dumps(figures, indent=2))
    reached = kib <= BAR_KIB and median(delays) <= BAR_SECONDS
    print(f"bars: {BAR_KIB:g} KiB, {BAR_SECONDS:g} s: {'reached' if reached else 'missed'}")


if __name__ == "__main__":
    asyncio.run(main())
