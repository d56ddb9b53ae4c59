"""The content of the store after a chaos run, read through its interface."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from typing import Final

import msgspec

from genmcp.core.task import Task
from genmcp.stores import open_store
from genmcp.stores.store import Store
from genmcp.tasks.writer import CONTINUATIONS, delivery_queue
from tests.chaos.callers import Caller, is_end

NAMESPACE: Final = "chaos/"  # the prefix of the mux in tests.chaos.app
QUEUES: Final = ("default", CONTINUATIONS)
WORKING: Final = ("queued", "working")
STATES: Final = (*WORKING, "input_required", "completed", "failed", "cancelled")
SETTLE: Final = 30.0  # seconds until unattended work must have ended
_PAGE: Final = 100
_POLL: Final = 0.1


class Stored:
    """The tasks in *store*, and the steps in its queues."""

    def __init__(self, store: Store) -> None:
        assert store.deliveries is not None
        self._store, self._deliveries = store, store.deliveries

    async def tasks(self, *states: str) -> list[Task]:
        """Return the tasks in one of *states*."""
        found: list[Task] = []
        for state in states:
            after: str | None = None
            label = f"{NAMESPACE}state:{state}"
            while page := await self._store.find(label, after, _PAGE):
                found += [Task.unpack(entry.value) for entry in page]
                after = page[-1].key
        return found

    async def carried(self) -> int:
        """Return the number of steps that are queued or claimed by a worker."""
        queues = [delivery_queue(NAMESPACE, each) for each in QUEUES]
        counts = [await self._deliveries.backlog(each) for each in queues]
        return sum(each.waiting + each.held for each in counts)

    async def settled(self) -> Sequence[Task]:
        """Return the tasks that need a request to continue, once no step is queued or claimed."""
        quiet = 0
        for _ in range(int(SETTLE / _POLL)):
            # A task is written first, and its step submitted a moment later.
            carried = await self.carried()
            quiet = 0 if carried else quiet + 1
            if quiet == 5:
                return await self.tasks(*WORKING)
            await asyncio.sleep(_POLL)
        tasks = await self.tasks(*WORKING)
        raise AssertionError(f"{carried} steps are not done after {SETTLE} s: {tasks}")


@asynccontextmanager
async def stored(url: str) -> AsyncIterator[Stored]:
    """Open the store at *url*, to look into it."""
    async with aclosing(open_store(url)) as store:
        yield Stored(store)


async def check_store(url: str, caller: Caller, unanswered: int) -> int:
    """Check that every task ends; return the number of tasks.

    At most *unanswered* tasks may still wait for an answer: those of clients that disconnected, or
    never got a handle. A process may die between writing a task and submitting it
    it. Its client got no handle, and a request for the task continues it.
    """
    async with stored(url) as found:
        waiting = await found.settled()
        assert len(waiting) <= unanswered, f"tasks are left without an end: {waiting}"
        for task in waiting:
            await caller.task(task.id)
        assert not (left := await found.settled()), f"tasks are left without an end: {left}"
        asking = await found.tasks("input_required")
        assert len(asking) <= unanswered, asking
        ended = await found.tasks("completed")
        for task in ended:
            assert task.result is not None, task
            value = msgspec.json.decode(task.result)["structuredContent"]
            if task.tool in ("rerun", "fail"):
                assert is_end(value["argument"], task.tool, value), task
        return len(ended) + len(asking)
