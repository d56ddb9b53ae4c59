"""A store that is away for several leases while jobs end."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing
from inspect import iscoroutinefunction
from pathlib import Path
from typing import Any

import pytest

from genmcp import Continue, Done, Run, SQLiteStore, Tool, job
from genmcp.errors import StoreUnavailable
from genmcp.stores.store import LogEvent, Op, StoreEntry
from tests.support.asgi import LEGACIES, MODERN, TASKS, until
from tests.support.keyed import begin, close_all, over, said, serving

LEASE = 1.0  # seconds: far longer than a write of a file on a busy machine
BEATS = 9  # a process renews its heartbeat so often per lease


class Outage:
    """An outage of the store for all processes, which fails their operations."""

    def __init__(self) -> None:
        self.away = False
        self.beats: Counter[int] = Counter()  # failed heartbeats, by store

    def check(self) -> None:
        if self.away:
            raise StoreUnavailable("the store is away")


class Deliveries:
    """The deliveries of a store, which fail during an outage."""

    def __init__(self, inner: Any, outage: Outage) -> None:
        self._inner = inner
        self._outage = outage

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if not iscoroutinefunction(found):
            return found

        async def checked(*arguments: Any, **options: Any) -> Any:
            self._outage.check()
            return await found(*arguments, **options)

        return checked


class Reachable(SQLiteStore):
    """A file that cannot be reached during an outage."""

    def __init__(self, path: Path, outage: Outage) -> None:
        super().__init__(path)
        self.outage = outage
        self._checked: Any = Deliveries(super().deliveries, outage)

    @property
    def deliveries(self) -> Any:
        return self._checked

    async def get(self, key: str) -> StoreEntry | None:
        self.outage.check()
        return await super().get(key)

    async def apply(self, *ops: Op) -> None:
        self.outage.check()
        await super().apply(*ops)

    async def touch(self, key: str, ttl: float) -> bool:
        if "node:" in key and self.outage.away:
            self.outage.beats[id(self)] += 1
        self.outage.check()
        return await super().touch(key, ttl)

    async def read(self, *arguments: Any, **options: Any) -> list[LogEvent]:
        self.outage.check()
        return [*await super().read(*arguments, **options)]

    async def follow(self, log: str, after: str | None = None) -> AsyncGenerator[LogEvent, None]:
        self.outage.check()
        async with aclosing(super().follow(log, after)) as events:
            async for event in events:
                self.outage.check()
                yield event


class Bench:
    """The jobs of a test: how often each began, and whether they may end."""

    go: asyncio.Event
    runs: Counter[int]


@job(name="outage.work")
async def work(run: Run, n: int) -> str:
    Bench.runs[n] += 1
    await Bench.go.wait()
    return f"worked {n}"


class Works(Tool):
    """Has a job done, which must not run twice."""

    name = "works"
    on_worker_lost = "fail"

    async def call(self, request: Any, channel: Any) -> Any:
        return Continue("done", work.job(n=request.arguments["n"]))

    async def continue_(self, tag: str, outcome: Any, channel: Any) -> Any:
        assert isinstance(outcome, Done), outcome
        return outcome.value


@pytest.mark.parametrize("version", [MODERN, LEGACIES[0]])
async def test_jobs_that_end_during_an_outage(tmp_path: Path, version: str) -> None:
    """Every result arrives, each job ran once, and no response came before its write."""
    Bench.go, Bench.runs = asyncio.Event(), Counter()
    outage = Outage()
    stores = [Reachable(tmp_path / "a.db", outage) for _ in range(2)]
    apps = [serving(Works(), store=store, lease=LEASE) for store in stores]
    clients = [await begin(app, version) for app in apps]
    owner = await begin(apps[0], capabilities=TASKS)
    handles = [
        (await owner.send(owner.call("works", {"n": n}))).json["result"] for n in range(100, 103)
    ]
    calls = [client.open(client.call("works", {"n": n})) for n, client in enumerate(clients * 3)]
    try:
        for call in calls:
            await call.__aenter__()
        await until(lambda: len(Bench.runs) == 9, pause=0.01)
        outage.away = True
        Bench.go.set()
        await until(
            lambda: all(outage.beats[id(store)] >= 3 * BEATS for store in stores), pause=0.01
        )
        assert not any(call.complete for call in calls)
        outage.away = False
        await asyncio.gather(*(call.over() for call in calls))
        texts = [said(call) for call in calls]
        tasks = [await over(owner, each["taskId"]) for each in handles]
    finally:
        outage.away = False
        await asyncio.gather(*(call.__aexit__() for call in calls))
        await close_all()

    assert texts == [f"worked {n}" for n in range(6)]
    assert [task["result"]["content"][0]["text"] for task in tasks] == [
        f"worked {n}" for n in range(100, 103)
    ]
    assert set(Bench.runs.values()) == {1}
