"""The end of a client: by any task, and during any operation."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest

from genmcp.client.client import Client
from genmcp.client.errors import ClientClosed
from genmcp.client.handler import ClientHandler
from genmcp.client.options import ClientOptions, Command
from genmcp.client.transports.base import TransportSink
from genmcp.client.transports.memory import MemoryTransport
from genmcp.suite.suite import Suite
from tests.client.scripted import Asked, served

pytestmark = pytest.mark.slow

WELCOME = {
    "protocolVersion": "2025-06-18",
    "capabilities": {},
    "serverInfo": {"name": "s", "version": "1"},
}
SERVER = """
import json, os, sys
open(sys.argv[1], "a").write(f"{os.getpid()}\\n")
def out(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
for line in sys.stdin:
    message = json.loads(line)
    id, method = message.get("id"), message.get("method")
    if method == "initialize":
        out(id=id, result={"protocolVersion": "2025-06-18", "capabilities": {"logging": {}},
                           "serverInfo": {"name": "s", "version": "1"}})
    elif method == "tools/call":
        out(method="notifications/message", params={"level": "info", "data": "x"})
    elif id is not None:
        out(id=id, error={"code": -32601, "message": "no"})
"""


# It never answers, so that an opening cannot end by itself.
SILENT = """
import os, sys
open(sys.argv[1], "a").write(f"{os.getpid()}\\n")
for line in sys.stdin:
    pass
"""


@pytest.fixture
def pids(tmp_path: Path) -> Path:
    """Where servers write their numbers."""
    return tmp_path / "pids"


def command(pids: Path) -> Command:
    return Command(sys.executable, ["-c", SERVER, str(pids)])


def running(pids: Path) -> list[int]:
    """The numbers of the servers that were started and still run."""
    started = pids.read_text().split() if pids.exists() else []
    return [int(pid) for pid in started if Path(f"/proc/{pid}").exists()]


class Slow(ClientHandler):
    """Takes its time to end."""

    def __init__(self) -> None:
        self.ending = asyncio.Event()
        self.end = asyncio.Event()

    async def terminate(self, reason: BaseException | None) -> None:
        self.ending.set()
        await self.end.wait()


async def test_closing_that_is_left_goes_on(pids: Path) -> None:
    """Cancelling `aclose` leaves no process behind; another `aclose` waits for its end."""
    handler = Slow()
    client = Client(command(pids), handler=handler)
    await client.open()
    closing = asyncio.create_task(client.aclose())
    await handler.ending.wait()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    assert running(pids)

    handler.end.set()
    await client.aclose()

    assert not running(pids)


async def test_closing_twice_at_once_waits_twice(pids: Path) -> None:
    """The second `aclose` returns after the end of the process."""
    handler = Slow()
    client = Client(command(pids), handler=handler)
    await client.open()
    first = asyncio.create_task(client.aclose())
    await handler.ending.wait()
    second = asyncio.create_task(client.aclose())
    await asyncio.sleep(0)
    assert not second.done()
    handler.end.set()
    await second

    assert not running(pids)
    await first


async def test_closing_in_a_hook_does_not_wait_for_the_hook(pids: Path) -> None:
    """It returns at once, and the process is killed."""
    closed = asyncio.Event()

    class Closer(ClientHandler):
        async def handle_log(self, params: Any) -> None:
            await client.aclose()
            closed.set()

    client = Client(command(pids), handler=Closer())
    await client.open()
    with pytest.raises(ClientClosed):
        await client.call("t", timeout=8)
    async with asyncio.timeout(3):
        await closed.wait()
        await client.aclose()

    assert not running(pids)


async def test_closing_survives_a_hook_that_awaits_a_cancelled_task(pids: Path) -> None:
    """An exception in `terminate` is logged, also a CancelledError of another task."""

    class Broken(ClientHandler):
        async def terminate(self, reason: BaseException | None) -> None:
            other: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            other.cancel()
            await other

    client = Client(command(pids), handler=Broken())
    await client.open()
    await client.aclose()

    assert not running(pids)


@pytest.mark.parametrize("turns", [1, 2, 5, 50])
async def test_closing_while_it_is_opened_ends_both(pids: Path, turns: int) -> None:
    """`open` raises ClientClosed, and no process is left."""
    client = Client(Command(sys.executable, ["-c", SILENT, str(pids)]))
    opening = asyncio.create_task(client.open())
    for _ in range(turns):
        await asyncio.sleep(0)
    await client.aclose()
    with pytest.raises(ClientClosed):
        await opening

    assert not running(pids)
    assert not client.is_open


class Late(MemoryTransport):
    """Opens when it may, and counts that."""

    def __init__(self) -> None:
        super().__init__(Suite(name="s", version="1"))
        self.begun, self.go = asyncio.Event(), asyncio.Event()
        self.opened = 0

    async def open(self, sink: TransportSink) -> None:
        self.opened += 1
        self.begun.set()
        await self.go.wait()
        await super().open(sink)


async def test_closing_while_the_transport_opens_ends_it() -> None:
    """A transport that never gets ready does not keep the client from being closed."""
    client = Client(stuck := Late())
    opening = asyncio.create_task(client.open())
    await stuck.begun.wait()
    async with asyncio.timeout(5):
        await client.aclose()
        with pytest.raises(ClientClosed):
            await opening


async def test_opening_twice_at_once_waits_twice() -> None:
    """The second `open` returns when the client is open; and it is opened once."""
    client = Client(late := Late())
    first = asyncio.create_task(client.open())
    await late.begun.wait()
    second = asyncio.create_task(client.open())
    await asyncio.sleep(0)
    late.go.set()
    await second
    assert client.revision == "2026-07-28"
    await first
    assert late.opened == 1
    await client.aclose()


async def test_opening_anew_in_two_tasks_makes_one_connection() -> None:
    """After a close, too; and a close while one waits for the other closes both."""
    client = Client(Suite(name="s", version="1"))
    await client.open()
    await client.aclose()
    await asyncio.gather(client.open(), client.open())
    assert client.is_open
    await client.aclose()

    openings = [asyncio.create_task(client.open()) for _ in range(2)]
    await asyncio.sleep(0)
    await client.aclose()
    for opening in openings:
        with pytest.raises(ClientClosed):
            await opening
    assert not client.is_open


async def test_closing_during_the_handshake_raises_closed() -> None:
    """Nothing of the machine below is seen."""
    greeted = asyncio.Event()

    async def script(asked: Asked) -> None:
        if asked.rpc == "initialize":
            await asked.reply(200, {"jsonrpc": "2.0", "id": 1, "result": WELCOME})
        elif asked.rpc == "notifications/initialized":
            greeted.set()
            await asked.receive()
        else:
            await asked.reply(405)

    async with served(script) as url:
        client = Client(url, options=ClientOptions(revision="2025-06-18"))
        opening = asyncio.create_task(client.open())
        await greeted.wait()
        asking = asyncio.create_task(client.ping())
        await asyncio.sleep(0)
        await client.aclose()
        for task in (opening, asking):
            with pytest.raises(ClientClosed):
                await task
