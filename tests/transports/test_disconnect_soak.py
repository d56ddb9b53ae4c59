"""Many clients that leave at any moment leave nothing behind, on a real server."""

import asyncio
import gc
import logging
import random
from pathlib import Path

import pytest

from genmcp import Channel, tool
from tests.support.asgi import Client, serving, until
from tests.support.serving import serve

pytestmark = pytest.mark.slow

CLIENTS = 200


async def leave(client: Client, url: str, message: object, moment: float) -> None:
    """Send a request byte by byte, as far as *moment* (0 to 1); read some; close."""
    host, _, port = url.removeprefix("http://").partition(":")
    async with client.open(message) as connection:  # for its scope: it is not used to talk
        scope = connection._scope
        body = connection._body[0]
        connection.task.cancel()
    lines = [b"%b: %b" % pair for pair in scope["headers"] if pair[0] != b"host"]
    lines += [b"host: localhost", b"content-length: %d" % len(body)]
    whole = b"POST / HTTP/1.1\r\n" + b"\r\n".join(lines) + b"\r\n\r\n" + body
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(whole[: int(len(whole) * min(1, moment * 1.5))])
    await writer.drain()
    if moment > 0.7:
        await reader.read(int((moment - 0.7) * 1000))
    if moment > 0.5:
        writer.transport.abort()
    else:
        writer.close()


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
async def test_clients_that_leave_leave_nothing(
    version: str, caplog: pytest.LogCaptureFixture
) -> None:
    """No task, no file descriptor, no open call, no log record at ERROR."""
    loops: list[asyncio.AbstractEventLoop] = []
    running = 0

    @tool
    async def work(steps: int, channel: Channel) -> str:
        nonlocal running
        loops[:] = [asyncio.get_running_loop()]
        running += 1
        try:
            for step in range(steps):
                await channel.progress(step)
                await asyncio.sleep(0.001)
        finally:
            running -= 1
        return "x" * 500

    endpoint = serving(work)
    client = await Client.begin(endpoint, version)
    chance = random.Random(7)

    async with serve(endpoint) as url:
        await leave(client, url, client.call("work", {"steps": 1}), 0.99)
        files = open_files()
        await asyncio.gather(
            *(
                leave(
                    client,
                    url,
                    client.call(
                        "work", {"steps": chance.choice([0, 3, 30])}, id=i, progressToken=i
                    ),
                    chance.random(),
                )
                for i in range(CLIENTS)
            )
        )

        def left() -> int:
            names = [getattr(t.get_coro(), "__qualname__", "") for t in asyncio.all_tasks(loops[0])]
            ours = [name for name in names if "OpenResponse" in name]
            return running + len(ours) + len(endpoint.mux.calls) + len(endpoint.shutdown._loops)

        await until(lambda: not left() and open_files() <= files, pause=0.02)
    gc.collect()

    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
    assert len(endpoint.mux.replay.writers) == 0
