"""A thousand clients disconnect: calls are cancelled or complete, and no resource is leaked."""

import asyncio
import gc
import os
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from genmcp import Channel, Endpoint, Limits, Mux, Suite, tool
from tests.support.serving import serve
from tests.support.sockets import Connection, called, http, initialize

pytestmark = pytest.mark.e2e

CLIENTS = 1000
CALLS = 6000
AT_ONCE = 50
PATIENCE = 10.0  # seconds


class Counted:
    """An app that records the open requests and the tasks in its event loop."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint
        self.loop: asyncio.AbstractEventLoop | None = None
        self.open: set[object] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._endpoint(scope, receive, send)
            return
        self.loop = asyncio.get_running_loop()
        request = object()
        self.open.add(request)
        try:
            await self._endpoint(scope, receive, send)
        finally:
            self.open.discard(request)

    def tasks(self) -> set[str]:
        """Return the tasks in the event loop, without the server's own."""
        names = set()
        for task in asyncio.all_tasks(self.loop):
            name = task.get_coro().__qualname__  # type: ignore[union-attr]
            if (
                task is not asyncio.current_task()
                and "Server" not in name
                and "Lifespan" not in name
            ):
                names.add(name)
        return names


async def holds(condition: Callable[[], bool]) -> bool:
    """Poll until *condition* is true; return False after a timeout."""
    until = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > until:
            return False
        await asyncio.sleep(0.01)  # it becomes true in another thread, without an event
    return True


def files() -> int:
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208  # Path.iterdir keeps it open


async def leave(url: str, random: Random, request: bytes) -> None:
    """Send *request*, or a part of it, and disconnect at a random point."""
    async with await Connection.open(url) as connection:
        if random.random() < 0.1:
            await connection.send(request[: random.randrange(len(request))])
            return
        await connection.send(request)
        point = random.random()
        if point < 0.4:
            await asyncio.sleep(point / 100)
            return
        chunks = (await connection.response()).chunks()
        for _ in range(random.randrange(4)):
            # The response may end before that many chunks.
            with suppress(StopAsyncIteration):
                await anext(chunks)


async def test_disconnects_leave_nothing_and_cancel_by_revision(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """On 2026-07-28 each hook is cancelled; before, each completes. No asyncio.Task remains."""
    ended: Counter[str] = Counter()

    def count(channel: Channel, step: str) -> None:
        era = "legacy" if channel.request.session else "modern"
        ended[f"{era} {step}"] += 1

    async def counted(channel: Channel, work: Any) -> str:
        count(channel, "begun")
        try:
            await channel.progress(1)
            await work
        except asyncio.CancelledError:
            count(channel, "cancelled")
            raise
        count(channel, "finished")
        return "done"

    @tool
    async def wait(channel: Channel) -> str:
        """Ends only by being cancelled."""
        return await counted(channel, asyncio.Event().wait())

    @tool
    async def linger(channel: Channel) -> str:
        """Completes without cancellation."""

        async def work() -> None:
            for step in range(2, 6):
                await asyncio.sleep(0.003)
                await channel.progress(step)

        return await counted(channel, work())

    limits = Limits(replay_ttl=0.5)
    mux = Mux(Suite(name="test", version="1", tools=[wait, linger]), limits=limits)
    app = Counted(Endpoint(mux, heartbeat=0.02))
    random = Random(1)
    turn = asyncio.Semaphore(AT_ONCE)

    async def client(number: int, url: str) -> None:
        """Call as a client of either era, and disconnect before the response ends."""
        async with turn:
            session = None
            if number % 2:
                async with await Connection.open(url) as connection:
                    session = (await connection.ask(initialize())).headers["mcp-session-id"]
            for id in range(CALLS // CLIENTS):
                name = "linger" if session else "wait"
                request = called(name, {}, id=id, session=session)
                if session and random.random() < 0.1:
                    request = http("GET", {"mcp-session-id": session})
                await leave(url, random, request)

    async with serve(app, timeout_graceful_shutdown=PATIENCE) as url:
        await client(1, url)
        assert await holds(lambda: not app.open and not app.tasks())
        before, ended = files(), Counter()
        async with asyncio.TaskGroup() as group:
            for number in range(CLIENTS):
                group.create_task(client(number, url))

        assert await holds(lambda: not app.open), len(app.open)
        assert await holds(lambda: not app.tasks()), app.tasks()
        assert await holds(lambda: files() <= before), (before, files())
    gc.collect()  # asyncio logs a future whose exception was never retrieved

    assert ended["modern begun"] == ended["modern cancelled"] > CALLS / 4
    assert ended["legacy begun"] == ended["legacy finished"] > CALLS / 4
    assert ended.keys() == {"modern begun", "modern cancelled", "legacy begun", "legacy finished"}
    assert len(mux.replay.writers) == 0
    assert "0 sessions with open calls" in repr(mux)
    assert [record for record in caplog.records if record.levelno >= 40] == []
