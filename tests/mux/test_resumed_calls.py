"""Calls resumed without a request: their messages, the bounds on these, and their channel."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from genmcp import (
    Channel,
    Continue,
    Endpoint,
    Limits,
    MemoryStore,
    Mux,
    Run,
    Store,
    Suite,
    Tool,
    job,
)
from genmcp._mux.task_sink import flush
from genmcp.errors import AssignUnavailable, StoreFull, StoreUnavailable
from genmcp.stores.store import Op
from tests.support.asgi import PATIENCE, TASKS, Client


@job(name="resumed.work")
async def work(run: Run) -> int:
    return 1


class Works(Tool):
    """Waits for a job, if requested, and returns *size* letters."""

    name = "works"

    def __init__(self, size: int = 1) -> None:
        self.size = size

    async def call(self, request: Any, channel: Channel) -> Any:
        return Continue("done", work.job()) if request.arguments else "y" * self.size

    async def continue_(self, tag: str, outcome: Any, channel: Channel) -> Any:
        return "y" * self.size


class Failing(MemoryStore):
    """A store that has no room for some operations."""

    def __init__(self, fails: Callable[[Op], bool]) -> None:
        super().__init__()
        self._fails = fails

    async def apply(self, *ops: Op) -> None:
        if any(map(self._fails, ops)):
            raise StoreFull("no room")
        await super().apply(*ops)


@asynccontextmanager
async def serving(*tools: Tool, store: Store | None = None, **limits: Any) -> AsyncIterator[Mux]:
    suite = Suite(name="test", version="1", tools=tools)
    mux = Mux(suite, store=store, limits=Limits(**limits))
    try:
        yield mux
    finally:
        await mux.aclose()


async def over(client: Client, id: str) -> Any:
    """Return how a task has ended."""
    async with asyncio.timeout(PATIENCE):
        while True:
            answer = await client.send(client.request("tasks/get", {"taskId": id}))
            task = answer.json["result"]
            if task["status"] != "working":
                return task
            await asyncio.sleep(0.005)


async def test_result_that_is_too_large_ends_its_task() -> None:
    """With an error that names the limit."""
    async with serving(Works(5000), max_result_bytes=1000) as mux:
        client = Client(Endpoint(mux), capabilities=TASKS)
        begun = await client.send(client.call("works", {"job": True}))
        ended = (await over(client, begun.json["result"]["taskId"]))["result"]

    assert ended["isError"]
    assert "limit: max_result_bytes" in ended["content"][0]["text"]


async def test_resumed_call_may_not_have_a_larger_result_than_another() -> None:
    """It ends with the error of a result that is too large, for every reader."""
    async with serving(Works(5000), max_result_bytes=1000) as mux:
        able, without = (Client(Endpoint(mux), capabilities=each) for each in (TASKS, {}))
        direct = await able.send(able.call("works"))
        begun = await able.send(able.call("works", {"job": True}))
        task = await over(able, begun.json["result"]["taskId"])
        followed = await without.send(without.call("works", {"job": True}))

    response = direct.json["result"]
    assert "(limit: max_result_bytes)" in response["content"][0]["text"]
    assert task["status"] == "completed"
    for result in (response, task["result"], followed.messages[-1]["result"]):
        assert result["isError"]
        assert result["content"][0]["text"] == response["content"][0]["text"]


async def test_task_tells_a_result_that_is_just_small_enough() -> None:
    """The envelope of tasks/get does not count."""
    async with serving(Works(950), max_result_bytes=1000) as mux:
        client = Client(Endpoint(mux), capabilities=TASKS)
        begun = await client.send(client.call("works", {"job": True}))
        task = await over(client, begun.json["result"]["taskId"])

    assert task["result"]["content"][0]["text"] == "y" * 950


class Counting(MemoryStore):
    """Counts writes, and fails while it is *down*."""

    writes = 0
    down = False

    async def apply(self, *ops: Op) -> None:
        self.writes += 1
        if self.down:
            raise StoreUnavailable("full")
        await super().apply(*ops)


class Reports(Tool):
    """Reports its progress, as a task; perhaps in `continue_`."""

    name = "reports"
    task = "always"

    def __init__(self, store: Counting, *, fails: bool = False) -> None:
        self.store = store
        self.fails = fails
        self.writes = 0

    async def call(self, request: Any, channel: Channel) -> Any:
        return Continue("done", work.job()) if request.arguments else await self.report(channel)

    async def continue_(self, tag: str, outcome: Any, channel: Channel) -> Any:
        return await self.report(channel)

    async def report(self, channel: Channel) -> str:
        before = self.store.writes
        for done in range(500):
            assert await channel.progress(done, 500)
        self.writes = self.store.writes - before
        if self.fails:
            raise ValueError("no")
        return "done"


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("arguments", [{}, {"job": True}])
async def test_progress_of_a_task_is_not_written_for_each_report(
    arguments: dict[str, Any], fails: bool
) -> None:
    """But the last one is, whether the call runs in its request or is resumed."""
    tool = Reports(store := Counting(), fails=fails)
    async with serving(tool, store=store) as mux:
        client = Client(Endpoint(mux), capabilities=TASKS)
        begun = await client.send(client.call("reports", arguments, progressToken="p"))
        task = await over(client, begun.json["result"]["taskId"])

    assert task["_meta"]["io.genmcp/progress"] == {"progress": 499, "total": 500}
    assert tool.writes <= 10


async def test_progress_that_cannot_be_written_costs_no_work() -> None:
    """The call ends as it would have; a cancelled one reports nothing more."""

    class Down(Reports):
        """Reports while the store is down."""

        async def call(self, request: Any, channel: Channel) -> Any:
            self.store.down = True
            assert await channel.progress(1, 2)
            await flush(channel)
            self.store.down = False
            await mux.tasks.service.cancel(channel.task or "", None)
            done = 2
            while await channel.progress(done):  # until nothing needs it any more
                done += 1
                await asyncio.sleep(0.005)
            await flush(channel)
            return "done"

    store = Counting()
    async with serving(tool := Down(store), store=store) as mux:
        client = Client(Endpoint(mux), capabilities=TASKS)
        begun = await client.send(client.call("reports", progressToken="p"))
        assert (await over(client, begun.json["result"]["taskId"]))["status"] == "cancelled"
    assert tool.writes == 0


async def test_lost_assign_is_absent_and_raises_when_read() -> None:
    """It was copied from a request that is over. Others are as they were, and it may be set."""
    said: dict[str, Any] = {}

    class Looks(Works):
        """Looks at its assigns."""

        async def continue_(self, tag: str, outcome: Any, channel: Channel) -> str:
            assigns = channel.assigns
            said["in"] = "secret" in assigns
            said["all"] = dict(assigns)
            for how, read in (("get", assigns.get), ("[]", assigns.__getitem__)):
                with pytest.raises(AssignUnavailable, match="keep_assigns"):
                    read("secret")
                said[how] = True
            said["other"] = assigns.get("other", "default")
            with pytest.raises(KeyError):
                assigns["other"]
            assigns["secret"] = "new"
            said["set"] = assigns.get("secret")
            return "done"

    async with serving(Looks()) as mux:
        app = Endpoint(mux, copy_assigns=["secret", "kept"], keep_assigns=["kept"])
        state = {"secret": object(), "kept": 1}
        client = Client(app, capabilities=TASKS, state=state)
        begun = await client.send(client.call("works", {"job": True}))
        task = await over(client, begun.json["result"]["taskId"])

    assert task["result"]["content"][0]["text"] == "done", task
    assert said == {
        "in": False,
        "all": {"kept": 1},
        "get": True,
        "[]": True,
        "other": "default",
        "set": "new",
    }
