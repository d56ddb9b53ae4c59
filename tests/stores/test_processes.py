"""Several processes on one store: they wake each other, race for versions, and are killed."""

import asyncio
import signal
import sqlite3
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, closing, suppress
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from genmcp.stores import open_store
from genmcp.stores.deliveries import Delivery
from genmcp.stores.store import Append, Put
from tests.contracts.bench import BOUND, entry_of, take
from tests.support.stores import KINDS, shared_store

ROOT = Path(__file__).parents[2]

LEASE = 0.5
"""Seconds of a lease that has to expire."""

PRELUDE = f"""
import asyncio, sys
from genmcp.errors import Conflict
from genmcp.stores import open_store
from genmcp.stores.store import Append, Put

LEASE = {LEASE}

def report(*words):
    print(" ".join(map(str, words)) + "\\n", end="", flush=True)  # one write: others report, too

async def main():
    store = open_store(sys.argv[1])
    await work(store)
    await store.aclose()
"""


@pytest.fixture(
    params=[KINDS[0], *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS[1:])]
)
async def url(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[str]:
    """The URL of an empty store."""
    async with shared_store(request.param, tmp_path) as shared:
        yield shared.url


@pytest.fixture
async def store(url: str) -> AsyncIterator[Any]:
    async with aclosing(open_store(url)) as store:
        yield store


@asynccontextmanager
async def python(script: str, url: str) -> AsyncIterator[Process]:
    """Run *script*, which defines `work`, in a process that is killed at the end."""
    script = f"{PRELUDE}\n{script}\nasyncio.run(main())"
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, url, stdin=PIPE, stdout=PIPE, cwd=ROOT
    )
    try:
        async with asyncio.timeout(BOUND):
            yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def line(process: Process) -> str:
    assert process.stdout is not None
    return (await process.stdout.readline()).decode().strip()


async def lines(process: Process) -> list[str]:
    """Return the remaining output of a process that ends successfully."""
    output, _ = await process.communicate()
    assert process.returncode == 0
    return output.decode().splitlines()


RESPONDS = """
async def work(store):
    requests = store.follow("requests")
    report("ready")
    async for event in requests:
        await store.apply(Append("responses", event.data, ttl=60))
        if event.data == b"9":
            break
    await requests.aclose()
"""


async def test_followers_in_other_processes_are_woken(url: str, store: Any) -> None:
    """Another process follows a log, and its responses are followed here."""
    async with python(RESPONDS, url) as process, aclosing(store.follow("responses")) as responses:
        assert await line(process) == "ready"
        for number in range(10):
            await store.apply(Append("requests", b"%d" % number, ttl=60))
            assert await take(responses, 1) == [b"%d" % number]
        assert await lines(process) == []


CLAIMS = """
async def work(store):
    with store.deliveries.news(["q"]) as news:
        report("ready")
        while True:
            news.clear()
            for id, *_ in await store.deliveries.claim(["q"], "child", LEASE, 10):
                report(id)
                if id != "kept":
                    await store.deliveries.drop("child", id)
            await news.wait()
"""


async def test_delivery_of_a_killed_process_is_due_again(url: str, store: Any) -> None:
    """A worker in another process is woken. When it is killed, its lease expires."""
    deliveries = store.deliveries
    async with python(CLAIMS, url) as process:
        assert await line(process) == "ready"
        for id in ("1", "2", "kept"):
            await deliveries.put(id, "q")
            assert await line(process) == id
        process.kill()
        await process.wait()

    with deliveries.news(["q"]) as news:
        while not (claimed := await deliveries.claim(["q"], "node", 30, 10)):
            news.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(await deliveries.next_due(["q"])):
                    await news.wait()
    assert claimed == [Delivery("kept", "q")]


INCREMENTS = """
async def work(store):
    for _ in range(30):
        while True:
            read = await store.get("count")
            value = b"%d" % (int(read.value) + 1)
            try:
                put = Put("count", value, expect=read.version)
                await store.apply(put, Append("count", value, ttl=60))
            except Conflict:
                continue
            report(read.version)
            break
"""


async def test_version_has_one_winner_among_processes(url: str, store: Any) -> None:
    """Of the increments of two processes none is lost, and a follower sees each one once."""
    await store.apply(Put("count", b"0"))
    async with aclosing(store.follow("count")) as followed:
        following = asyncio.ensure_future(take(followed, 60))
        async with python(INCREMENTS, url) as a, python(INCREMENTS, url) as b:
            won = [*chain(*await asyncio.gather(lines(a), lines(b)))]
        assert await following == [b"%d" % number for number in range(1, 61)]

    assert len(set(won)) == 60
    assert (await entry_of(store, "count")).value == b"60"


WRITES = """
async def write(store, name):
    for number in range(1_000_000):
        key = f"{name}:{number}"
        await store.apply(Put(key, b"x" * 500, expect=0), Append(key, b"made", ttl=600))
        report(key)

async def work(store):
    await asyncio.gather(*(write(store, name) for name in range(8)))
"""


async def test_acknowledged_write_survives_its_process(url: str, store: Any) -> None:
    """`kill -9` during many writes loses none of them, and leaves no half of one."""
    async with python(WRITES, url) as process:
        acknowledged = [await line(process) for _ in range(300)]
        process.send_signal(signal.SIGKILL)
        output, _ = await process.communicate()
        acknowledged += output.decode().split("\n")[:-1]  # the last one may be half a line

    for key in acknowledged:
        assert await store.get(key)
        assert [event.data for event in await store.read(key)] == [b"made"]
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
            records = file.execute("SELECT key FROM records ORDER BY key").fetchall()
            assert records == file.execute("SELECT name FROM logs ORDER BY name").fetchall()
            assert file.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
