"""A process that is killed between any two writes of a call leaves no task that stays open."""

import asyncio
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import pytest

from genmcp import (
    Channel,
    Continue,
    Endpoint,
    JobOptions,
    Mux,
    Run,
    Store,
    Suite,
    Tool,
    job,
    wait_for,
)
from genmcp.core.task import Task
from genmcp.errors import StoreUnavailable
from genmcp.stores import open_store
from tests.support.asgi import TASKS, Client
from tests.support.stores import KINDS, shared_store

LEASE = 1.0
BOUND = 30.0  # seconds for the leases of dead processes, and for their tasks after that
WRITES = 6  # a promotion, a wait here, and a wait for a job: each has a record and a submission


@job(name="killed.work")
async def work(run: Run) -> str:
    return "worked"


class Works(Tool):
    """Is a task from the beginning, waits in its process, then for a job."""

    name = "works"
    task = "always"
    on_worker_lost = "rerun"

    async def call(self, request: Any, channel: Channel) -> Continue:
        return wait_for(asyncio.sleep(0)).then(self.waited)

    async def waited(self, request: Any, value: None, channel: Channel) -> Continue:
        return work.job().then(self.worked)

    async def worked(self, request: Any, value: str, channel: Channel) -> str:
        return value


class Killed:
    """Ends the writes of a process: its store fails from a write on, for good.

    reached: set when the process has made its last write of a task.
    """

    def __init__(self, store: Store, writes: int) -> None:
        self.left = writes
        self.reached = asyncio.Event()
        deliveries: Any = store.deliveries
        for owner, names in (store, ("apply", "touch")), (deliveries, ("put", "claim", "renew")):
            for name in names:
                setattr(owner, name, self._counted(name, getattr(owner, name)))

    def _counted(self, name: str, write: Any) -> Any:
        async def counted(*args: Any, **options: Any) -> Any:
            # Heartbeats are not counted, since their number depends on time.
            counts = name == "put" or (name == "apply" and "/task:" in _subject(args[0]))
            if not self.left:
                raise StoreUnavailable("the process was killed")
            self.left -= counts
            try:
                return await write(*args, **options)
            finally:
                if not self.left:
                    self.reached.set()

        return counted


def _subject(op: Any) -> str:
    found: str = getattr(op, "key", "") or op.log
    return found


def process(store: Store, *queues: str) -> Mux:
    return Mux(
        Suite(name="killed", version="1", tools=[Works]),
        store=store,
        secret="a secret of all processes",
        jobs=JobOptions(lease=LEASE, shutdown_grace=0, queues=queues),
    )


async def open_tasks(mux: Mux) -> list[Task]:
    """Return the open tasks as an operator finds them, without reading any as its client."""
    records = mux.tasks.service.records
    labels = [f"{records.prefix}state:{state}" for state in ("queued", "working")]
    pages = [await records.store.find(label) for label in labels]
    return [Task.unpack(each.value) for page in pages for each in page]


@pytest.mark.parametrize("kind", KINDS)
async def test_killed_process_leaves_no_open_task(kind: str, tmp_path: Path) -> None:
    """No client has the id of the task, so that nothing reads it, and reading does not repair it.

    One process for each number of writes after which it is killed.
    """
    async with AsyncExitStack() as stack:
        url = (await stack.enter_async_context(shared_store(kind, tmp_path))).url

        def opened() -> Store:
            store = open_store(url)
            stack.push_async_callback(store.aclose)
            return store

        for writes in range(1, WRITES + 1):
            killed = Killed(store := opened(), writes)
            mux = process(store, "nothing")
            endpoint = Endpoint(mux, grace=0)
            client = Client(endpoint, capabilities=TASKS)
            await stack.enter_async_context(client.open(client.call("works")))
            stack.push_async_callback(mux.aclose)  # first, so that no write is repeated any more
            stack.push_async_callback(endpoint.aclose)
            async with asyncio.timeout(BOUND):
                await killed.reached.wait()
        other = await stack.enter_async_context(aclosing(process(opened(), "default")))
        assert len(await open_tasks(other)) == WRITES
        await other.tasks.service.start()

        try:
            async with asyncio.timeout(BOUND):
                while True:
                    if not await open_tasks(other):
                        break
                    await asyncio.sleep(0.05)
        except TimeoutError:
            pytest.fail(f"these stay open: {await open_tasks(other)}")
