"""Measure how fast queued ids are delivered: by a library, by its engine, and by LocalEngine.

    python -m benchmarks.engines docket            # rounds with 10,000 ids each
    python -m benchmarks.engines procrastinate --ids 3000

All of them run in turn, in this process, with the same server and the same number of slots.
"""

import argparse
import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from datetime import timedelta
from statistics import median

from docket import Docket, Worker
from procrastinate import App, PsycopgConnector

from genmcp.stores.postgres import PostgresStore
from genmcp.stores.redis import RedisStore
from genmcp.stores.store import Store
from genmcp.tasks.docket import DocketEngine
from genmcp.tasks.engine import Engine, LocalEngine
from genmcp.tasks.procrastinate import ProcrastinateEngine
from tests.support.postgres_server import PostgresServer
from tests.support.redis_server import RedisServer

SLOTS = 10
SUBMITTERS = 50
PATIENCE = 300.0  # seconds for one drain

Drain = Callable[[int], Awaitable[float]]
"""Queues as many ids as given, delivers them, and returns the seconds of the deliveries."""


class Counter:
    """Counts deliveries; `done` is set at the last one."""

    def __init__(self, count: int) -> None:
        self._left = count
        self.done = asyncio.Event()

    async def handle(self, id: str) -> None:
        """Count a delivery."""
        self._left -= 1
        if not self._left:
            self.done.set()

    async def wait(self) -> None:
        """Wait for the last delivery."""
        async with asyncio.timeout(PATIENCE):
            await self.done.wait()


async def submit(count: int, one: Callable[[int], Awaitable[object]]) -> None:
    """Call *one* for each number, some of them at once."""
    numbers = iter(range(count))

    async def some() -> None:
        for number in numbers:
            await one(number)

    await asyncio.gather(*(some() for _ in range(SUBMITTERS)))


def by_engine(engine: Engine) -> Drain:
    """Return the drain of an engine of genmcp."""

    async def drain(count: int) -> float:
        await submit(count, lambda number: engine.submit(f"id-{number}"))
        counter = Counter(count)
        began = time.perf_counter()
        async with engine.serve(
            counter.handle, queues=["default"], concurrency=SLOTS, lease=30.0, grace=1.0
        ):
            await counter.wait()
            return time.perf_counter() - began

    return drain


def by_docket(url: str) -> Drain:
    """Return the drain of Docket's own worker."""

    async def drain(count: int) -> float:
        counter = Counter(count)
        async with Docket(name="raw", url=f"{url}?max_connections=256") as docket:
            docket.register(counter.handle)
            await submit(
                count, lambda number: docket.add(counter.handle, key=f"id-{number}")(str(number))
            )
            # Without free slots a worker of Docket sleeps for this interval (by default 0.25 s,
            # which allows 40 tasks a second); 1 ms is the fastest setting.
            interval = timedelta(milliseconds=1)
            began = time.perf_counter()
            async with Worker(docket, concurrency=SLOTS, minimum_check_interval=interval) as worker:
                running = asyncio.create_task(worker.run_forever())
                await counter.wait()
                seconds = time.perf_counter() - began
                running.cancel()
                await asyncio.wait({running})
        return seconds

    return drain


def by_procrastinate(url: str) -> Drain:
    """Return the drain of procrastinate's own worker."""

    async def drain(count: int) -> float:
        counter = Counter(count)
        app = App(connector=PsycopgConnector(conninfo=url))
        task = app.task(name="raw", queue="raw")(counter.handle)
        async with app.open_async():
            await submit(count, lambda number: task.defer_async(id=str(number)))
            began = time.perf_counter()
            running = asyncio.create_task(
                app.run_worker_async(
                    queues=["raw"],
                    concurrency=SLOTS,
                    install_signal_handlers=False,
                    delete_jobs="always",
                )
            )
            await counter.wait()
            seconds = time.perf_counter() - began
            running.cancel()
            await asyncio.wait({running})
        return seconds

    return drain


@asynccontextmanager
async def drains(name: str) -> AsyncIterator[dict[str, Drain]]:
    """Yield the drains of a library, its engine, and LocalEngine on the same server."""
    async with AsyncExitStack() as stack:
        store: Store
        engine: Engine
        if name == "docket":
            server = RedisServer({"appendfsync": "everysec"})
            url = (await stack.enter_async_context(server)).url
            raw, engine, store = by_docket(url), DocketEngine(url), RedisStore(url)
        else:
            url = (await stack.enter_async_context(PostgresServer())).url
            raw, engine, store = by_procrastinate(url), ProcrastinateEngine(url), PostgresStore(url)
            await store.migrate()
            await engine.migrate()
        await stack.enter_async_context(aclosing(store))
        stack.push_async_callback(engine.aclose)
        deliveries = store.deliveries
        assert deliveries is not None
        yield {
            name: raw,
            type(engine).__name__: by_engine(engine),
            "LocalEngine": by_engine(LocalEngine(deliveries)),
        }


async def main() -> None:
    """Measure in turn, and print the rates and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", choices=["docket", "procrastinate"])
    parser.add_argument("--ids", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rates: dict[str, list[float]] = {}
    async with drains(options.library) as measured:
        for _ in range(options.rounds):
            for name, drain in measured.items():
                rate = options.ids / await drain(options.ids)
                rates.setdefault(name, []).append(rate)
                print(f"{name}: {rate:.0f}/s", flush=True)
    own = rates[options.library]
    for name, found in rates.items():
        ratios = [mine / theirs for mine, theirs in zip(found, own, strict=True)]
        print(f"{name}: median {median(found):.0f}/s, {median(ratios):.2f} of {options.library}")


if __name__ == "__main__":
    asyncio.run(main())
