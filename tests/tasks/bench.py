"""Fixtures for the tests of jobs: processes that share a store, and a stub for hooks."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import pytest

from genmcp.core.outcome import Done, Outcome
from genmcp.core.task import Task
from genmcp.core.waiting import Finished, Suspended, Work
from genmcp.stores import open_store
from genmcp.stores.memory import MemoryStore
from genmcp.stores.sqlite.store import SQLiteStore
from genmcp.stores.store import Store
from genmcp.tasks.options import JobEnvironment, JobOptions
from genmcp.tasks.queues import ExternalQueue
from genmcp.tasks.service import Resume, TaskChange, TaskMessage, TaskService
from tests.support.stores import shared_store

BOUND = 8.0
"""Seconds that a test waits for an event."""

STORES = ["memory", "sqlite"]
ALL_STORES = [*STORES, "redis", "postgres"]
"""For what depends on the order of writes, finds records by their labels, or needs delayed
deliveries."""

_BOUNDS = {
    "cancel_grace": "genmcp.tasks.attempt._CANCEL_GRACE",
    "continuation_concurrency": "genmcp.tasks.worker._CONTINUATION_CONCURRENCY",
    "external_concurrency": "genmcp.tasks.worker._EXTERNAL_CONCURRENCY",
    "external_turn": "genmcp.tasks.external._TURN",
    "queue_timeout": "genmcp.tasks.external._QUEUE_TIMEOUT",
    "linger": "genmcp.tasks.job_runner._LINGER",
    "max_events": "genmcp.tasks.records._MAX_EVENTS",
}
"""Constants that a test may lower until the end of its bench."""

_ENVIRONMENT = {*JobEnvironment.__struct_fields__}

Gives: TypeAlias = Suspended | Finished | Exception


class Resumed:
    """Stub that runs `continue_`: records the outcomes that it gets, and returns prepared results.

    When that is used up, the outcome is the result.
    """

    def __init__(self, *gives: Gives) -> None:
        self.gives = list(gives)
        self.seen: list[tuple[int, bytes, Outcome]] = []

    async def __call__(self, task: Task, call: bytes, outcome: Outcome) -> Suspended | Finished:
        self.seen.append((task.step, call, outcome))
        if not self.gives:
            return as_result(outcome)
        give = self.gives.pop(0)
        if isinstance(give, Exception):
            raise give
        return give

    @property
    def outcomes(self) -> list[Outcome]:
        return [outcome for _, _, outcome in self.seen]


def as_result(outcome: Outcome) -> Finished:
    shown = outcome.value if isinstance(outcome, Done) else type(outcome.error).__name__
    return Finished(result=msgspec.json.encode(shown))


class Bench:
    """Creates processes that share data: one store in memory, or one SQLite file each."""

    def __init__(self, open_store: Callable[[], Store]) -> None:
        self._open_store = open_store
        self._jobs: list[TaskService] = []
        self._stores: list[Store] = []
        self.resumed = Resumed()
        self._patch = pytest.MonkeyPatch()
        self._patch.setattr("genmcp.tasks.retrying._DELAYS", (0.01,))

    def store(self) -> Store:
        store = self._open_store()
        self._stores.append(store)
        return store

    def jobs(
        self,
        node: str = "n1",
        *,
        resume: Resume | None = None,
        external: Sequence[ExternalQueue] = (),
        store: Store | None = None,
        **options: Any,
    ) -> TaskService:
        store = store or self.store()
        for name in _BOUNDS.keys() & options.keys():
            self._patch.setattr(_BOUNDS[name], options.pop(name))
        environment = {name: options.pop(name) for name in _ENVIRONMENT & options.keys()}
        jobs = TaskService(
            store,
            process_name=lambda: node,
            resume=resume or self.resumed,
            external=external,
            options=JobOptions(**{"shutdown_grace": 0.0, **options}),
            environment=JobEnvironment(**environment),
        )
        self._jobs.append(jobs)
        return jobs

    async def aclose(self) -> None:
        for jobs in self._jobs:
            await jobs.aclose()
        for store in self._stores:
            await store.aclose()
        self._patch.undo()


@asynccontextmanager
async def opened(kind: str, folder: Path) -> AsyncIterator[Bench]:
    memory = MemoryStore()
    async with AsyncExitStack() as stack:
        open_one: Callable[[], Store] = lambda: memory  # noqa: E731
        if kind == "sqlite":
            open_one = partial(SQLiteStore, folder / "jobs.db")
        elif kind != "memory":
            shared = await stack.enter_async_context(shared_store(kind, folder))
            open_one = partial(open_store, shared.url)
        bench = Bench(open_one)
        stack.push_async_callback(bench.aclose)
        yield bench


def made(work: Work, **fields: Any) -> Task:
    fields = {"id": "t1", "tool": "t", "node": "n1", "created": 1.0, "updated": 1.0, **fields}
    return Task(work=work, **fields)


async def followed(
    jobs: TaskService, id: str = "t1", owner: str | None = None
) -> list[TaskChange | TaskMessage]:
    """Return all changes and messages of a task, to its end."""
    async with asyncio.timeout(BOUND):
        return [each async for each in jobs.follow(id, owner)]


async def ended(jobs: TaskService, id: str = "t1", owner: str | None = None) -> Task:
    """Return a task when it is over."""
    *_, last = await followed(jobs, id, owner)
    assert isinstance(last, TaskChange)
    return last.task


async def until(jobs: TaskService, true: Callable[[Task], bool], id: str = "t1") -> Task:
    """Return a task when something is true of it: not every change wakes a follower."""
    async with asyncio.timeout(BOUND):
        while True:
            if true(task := await jobs.records.get(id)):
                return task
            assert not task.ended
            await asyncio.sleep(0.01)
