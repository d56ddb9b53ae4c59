"""Many who listen for changes: what each of them costs, and how soon all know of one."""

import asyncio
import time
from collections.abc import Sequence

from benchmarks.cases import Subject
from benchmarks.client import connected, post
from benchmarks.figures import Figure, number
from benchmarks.load import Load, modern
from benchmarks.processes import Served, served

__all__ = ["listeners"]

ACKNOWLEDGED = b"subscriptions/acknowledged"
CHANGED = b"tools/list_changed"
LISTEN = modern("subscriptions/listen", notifications={"toolsListChanged": True})
SETTLED = 1.0


def listeners(floor: Subject, genmcp: Subject, *, count: int = 1000) -> Sequence[Figure]:
    """Hold *count* streams of `subscriptions/listen`, and change the list of tools once."""
    with served(floor.app, python=floor.python) as server:
        bare, _ = asyncio.run(_held(server, count, None))
    with served(genmcp.app, python=genmcp.python) as server:
        ours, took = asyncio.run(_held(server, count, modern("tools/call", name="change")))
    return [
        Figure(
            f"an open listener above one of a bare application, KiB ({count:,} of them)",
            ours - bare,
            16,
            f"bare: {number(bare)}",
        ),
        Figure(f"one change told to all of {count:,} listeners, s", took, 1),
    ]


async def _held(server: Served, count: int, change: Load | None) -> tuple[float, float]:
    """Return what a listener adds to the memory of *server* in KiB, and how long a change took."""
    first = await _listening(server)
    await asyncio.sleep(SETTLED)
    before = server.memory()
    streams = [await _listening(server) for _ in range(count)]
    await asyncio.sleep(SETTLED)
    each = (server.memory() - before) * 1024 / count
    took = 0.0
    if change is not None:
        told = [asyncio.create_task(reader.readuntil(CHANGED)) for reader, _ in streams]
        began = time.perf_counter()
        await asyncio.to_thread(_make, server, change)
        async with asyncio.timeout(30):
            await asyncio.gather(*told)
        took = time.perf_counter() - began
    for _, writer in (first, *streams):
        writer.close()
    return each, took


async def _listening(server: Served) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a stream, and return it once it is acknowledged."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    headers = {**LISTEN.headers, "host": "127.0.0.1", "content-length": str(len(LISTEN.body))}
    head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    writer.write(f"POST /mcp HTTP/1.1\r\n{head}\r\n{LISTEN.body}".encode())
    async with asyncio.timeout(10):
        await reader.readuntil(ACKNOWLEDGED)
    return reader, writer


def _make(server: Served, change: Load) -> None:
    with connected(server) as connection:
        post(connection, change)
