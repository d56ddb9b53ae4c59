"""Floods: many requests at once, whose clients then read nothing.

Each flood comes without authentication, from one address or from 120. Meanwhile other clients work
as in `benchmarks/attack.py`: none of their requests may be rejected. The server must stay below
200 MiB, and must have closed every connection of the flood when its write timeout has passed.

    python -m benchmarks.floods
"""

import argparse
import asyncio
import socket
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from functools import cache
from itertools import cycle, islice
from typing import Any

from benchmarks.attack import (
    ABLE,
    MEMORY,
    batch_of,
    cancel,
    connected,
    modern,
    opened_session,
    others,
    watch,
)
from benchmarks.processes import Served, served
from benchmarks.soak import look
from tests.support.sockets import http

WRITE_TIMEOUT = 2.0  # seconds, of the attacked server
CLOSE = 30.0  # seconds beyond it in which all connections of a flood must be closed
SIZE = 4_000_000  # bytes of one unread response
ARGUMENTS = 3_000_000  # bytes of the arguments of one task
WINDOW = 4096  # bytes, the receive buffer of a client that reads nothing


@dataclass(frozen=True)
class Flood:
    """A number of requests that are sent at once; *request* makes one for a source address.

    unread: whether each connection has a response to read, and must be closed.
    """

    name: str
    number: int
    request: Callable[[str, str], Awaitable[bytes]]
    unread: bool = True


async def _large_result(url: str, address: str) -> bytes:
    return modern("tools/call", name="large", arguments={"size": SIZE})


async def _batch_of_lists(url: str, address: str) -> bytes:
    """Return a batch of 4 KB whose answers take 4 MB."""
    async with connected(url, address) as connection:
        session = await opened_session(connection, "2025-03-26")
    return http("POST", {"mcp-session-id": session}, batch_of('{"method":"tools/list"}', 100))


async def _task(url: str, address: str) -> bytes:
    return _large_task()


@cache
def _large_task() -> bytes:
    arguments = {"seconds": 3600, "text": "x" * ARGUMENTS}
    return modern("tools/call", able=ABLE, name="work", arguments=arguments)


FLOODS = (
    Flood("responses", 500, _large_result),
    Flood("batches", 300, _batch_of_lists),
    Flood("tasks", 240, _task, unread=False),
)


def addresses(number: int) -> Sequence[str]:
    """Return *number* source addresses on the loopback interface."""
    return [f"127.0.1.{1 + each}" for each in range(number)]


async def _send(port: int, address: str, request: bytes, stack: ExitStack) -> None:
    """Send *request* on a connection of its own, which stays open, and read nothing."""
    loop = asyncio.get_running_loop()
    client = stack.enter_context(closing(socket.socket()))
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, WINDOW)
    client.setblocking(False)
    client.bind((address, 0))
    with suppress(OSError):  # refused: the server has closed it before all was sent
        await loop.sock_connect(client, ("127.0.0.1", port))
        await loop.sock_sendall(client, request)


async def _settled(url: str, before: dict[str, Any]) -> dict[str, Any]:
    """Return the state of the server once all connections of the flood are closed, or too late."""
    until = time.monotonic() + WRITE_TIMEOUT + CLOSE
    while True:
        found = await look(url)
        if found["files"] <= before["files"] or time.monotonic() > until:
            return found
        await asyncio.sleep(0.1)


async def flooded(server: Served, flood: Flood, sources: Sequence[str]) -> tuple[list[str], str]:
    """Send *flood* from *sources*; return the faults that were found, and a report."""
    url = f"http://127.0.0.1:{server.port}"
    faults: list[str] = []
    before = await look(url)
    made = {each: await flood.request(url, each) for each in sources}
    requests = [(each, made[each]) for each in islice(cycle(sources), flood.number)]
    most = [server.memory()]
    watching = asyncio.create_task(watch(server, most))
    with ExitStack() as stack:
        sending = [
            asyncio.create_task(_send(server.port, address, request, stack))
            for address, request in requests
        ]
        await others(url, 2 * WRITE_TIMEOUT, faults)
        await cancel(sending)
        after = await _settled(url, before) if flood.unread else await look(url)
    await cancel([watching])
    open_ones = after["files"] - before["files"]
    if flood.unread and open_ones > 0:
        faults.append(f"{open_ones} connections were not closed")
    if most[0] > MEMORY:
        faults.append(f"the server took {most[0]:.0f} MiB, more than {MEMORY:.0f}")
    faults += after["errors"]
    sent = f"{flood.number} {flood.name} from {len(sources)} addresses"
    return faults, f"{sent:36} most {most[0]:4.0f} MiB, {open_ones} connections open after it"


def main() -> None:
    """Send every flood to every kind of server, and exit with status 1 if there are faults."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("floods", nargs="*", help="names of floods; default: all")
    options = parser.parse_args()
    faulty = False
    for kind in ("uvicorn", "uvicorn-h11"):
        for flood in FLOODS:
            if options.floods and flood.name not in options.floods:
                continue
            for number in (1, 120):
                env = {"ATTACKED_WRITE_TIMEOUT": str(WRITE_TIMEOUT)}
                with served("benchmarks.attacked:app", server=kind, env=env) as server:
                    faults, figures = asyncio.run(flooded(server, flood, addresses(number)))
                print(f"{kind:12} {figures}")
                for fault, count in Counter(faults).most_common(10):
                    print(f"{'':12} {count} times: {fault}")
                faulty = faulty or bool(faults)
    sys.exit(faulty)


if __name__ == "__main__":
    main()
