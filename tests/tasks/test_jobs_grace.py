"""Shutdown of a worker: running steps have a grace period, and others take the rest."""

import asyncio
from collections.abc import Collection
from contextlib import AsyncExitStack
from typing import Any

import pytest

from genmcp.errors import ConfigurationError
from genmcp.stores.memory import MemoryStore
from genmcp.tasks.heartbeats import Heartbeats
from genmcp.tasks.options import JobOptions
from genmcp.tasks.worker import TaskWorker, WorkerLifecycle
from tests.tasks.bench import BOUND
from tests.tasks.engine_worker import Engine


def worker(store: MemoryStore, steps: "Steps", **options: Any) -> TaskWorker:
    beats = Heartbeats(store, lambda: "n", 30.0)
    given = JobOptions(**options)
    return TaskWorker(store.deliveries, beats, steps, given, WorkerLifecycle(), schedules=no_jobs)


async def no_jobs() -> None:
    """Stub for the periodic jobs."""


class Steps:
    """Steps that wait until they may end."""

    def __init__(self) -> None:
        self.begun: asyncio.Queue[str] = asyncio.Queue()
        self.ended: list[str] = []
        self.go = asyncio.Event()

    async def __call__(self, id: str) -> None:
        self.begun.put_nowait(id)
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.ended.append(f"{id} cancelled")
            raise
        self.ended.append(f"{id} done")

    async def begins(self) -> str:
        async with asyncio.timeout(BOUND):
            return await self.begun.get()


async def test_what_runs_ends_within_the_grace() -> None:
    """Meanwhile nothing more is taken: that is left to others."""
    steps, store = Steps(), MemoryStore()
    service = worker(store, steps, shutdown_grace=BOUND)
    await service.start()
    await store.deliveries.put("a")
    assert await steps.begins() == "a"
    ending = asyncio.create_task(service.aclose())
    for _ in range(5):
        await asyncio.sleep(0)
    await store.deliveries.put("b")
    steps.go.set()
    async with asyncio.timeout(BOUND):
        await ending

    assert steps.ended == ["a done"]
    assert [id for id, *_ in await store.deliveries.claim(["default"], "n2", 1.0, 9)] == ["b"]


async def test_running_steps_are_cancelled_after_the_grace() -> None:
    """It is delivered to another process at once."""
    steps, store = Steps(), MemoryStore()
    engine = Engine(store)
    async with asyncio.timeout(BOUND), AsyncExitStack() as stack:
        serving = engine.serve(steps, queues=["q"], concurrency=1, lease=60.0, grace=0.01)
        await stack.enter_async_context(serving)
        await engine.submit("a", queue="q")
        await steps.begins()

    assert steps.ended == ["a cancelled"]
    assert [id for id, *_ in await store.deliveries.claim(["q"], "n2", 1.0, 9)] == ["a"]


async def test_what_is_claimed_at_the_end_is_handed_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim that is in flight is released, rather than lost until its lease expires."""
    claiming, go = asyncio.Event(), asyncio.Event()

    store = MemoryStore()
    claim = store.deliveries.claim

    async def slow(queues: Collection[str], node: str, *how: Any, **options: Any) -> Any:
        claiming.set()
        if node != "n2":
            await go.wait()
        return await claim(queues, node, *how, **options)

    monkeypatch.setattr(store.deliveries, "claim", slow)
    engine = Engine(store)
    async with asyncio.timeout(BOUND):
        async with engine.serve(Steps(), queues=["q"], concurrency=1, lease=60.0):
            await claiming.wait()
            await engine.submit("a", queue="q")
            asyncio.get_running_loop().call_soon(go.set)

        assert [id for id, *_ in await engine.deliveries.claim(["q"], "n2", 1.0, 9)] == ["a"]


async def test_options_count_from_the_next_start_on() -> None:
    """A worker takes other queues than those its mux was made with."""
    steps, store = Steps(), MemoryStore()
    service = worker(store, steps, queues=["a"])
    await service.ended()  # there is nothing to wait for
    await service.start()
    service.options = JobOptions(queues=["b"])
    await service.aclose()
    await service.start()
    await store.deliveries.put("b", "b")
    assert await steps.begins() == "b"
    steps.go.set()
    await service.aclose()


@pytest.mark.parametrize("grace", [-1.0, float("nan")])
def test_grace_is_not_negative(grace: float) -> None:
    """The option is named."""
    with pytest.raises(ConfigurationError, match=r"JobOptions.shutdown_grace"):
        JobOptions(shutdown_grace=grace)
