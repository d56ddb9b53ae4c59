"""`notifications/tasks` by `subscriptions/listen`: SEP-2663, "Task Status Notifications"."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, aclosing
from pathlib import Path
from typing import Any

import pytest

from genmcp import (
    Accepted,
    Channel,
    Continue,
    Done,
    Endpoint,
    Limits,
    MemoryStore,
    Mux,
    Run,
    Suite,
    Tool,
    elicit,
    job,
)
from genmcp._mux.limits import MAX_SUBSCRIBED_BYTES
from genmcp.core.outcome import Outcome
from genmcp.errors import StoreUnavailable
from genmcp.stores import open_store
from tests.support.asgi import PATIENCE, TASKS, Client
from tests.support.stores import KINDS, shared_store

SUBSCRIPTION = "io.modelcontextprotocol/subscriptionId"
ABLE = {**TASKS, "elicitation": {}}


class Work:
    """The event for which the job of each test waits."""

    go: asyncio.Event


@job
async def listened(run: Run) -> str:
    await run.progress(1, 2, "half of it")
    await Work.go.wait()
    return "worked"


class Listened(Tool):
    """Works, asks, and is done."""

    name = "listened"

    def call(self, request: Any, channel: Channel) -> Continue:
        return Continue("worked", listened.job())

    def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> Any:
        match tag, outcome:
            case "worked", Done(text):
                channel.assigns["text"] = text
                return Continue("asked", elicit("Is that enough?"))
            case "asked", Done(Accepted()):
                return channel.assigns["text"]


@pytest.fixture
async def endpoint(_tasks_end: None) -> AsyncIterator[Endpoint]:
    Work.go = asyncio.Event()
    limits = Limits(max_subscriptions=2)
    mux = Mux(Suite(name="test", version="1", tools=[Listened]), limits=limits)
    yield Endpoint(mux, principal=lambda scope: scope.get("who"))
    await mux.aclose()


def listening(client: Client, *ids: str, id: Any = "s") -> Any:
    asked = {"notifications": {"taskIds": list(ids)}}
    return client.open(client.request("subscriptions/listen", asked, id=id))


async def begun(client: Client, id: int = 1) -> str:
    answer = await client.send(client.call("listened", id=id))
    task: str = answer.json["result"]["taskId"]
    return task


async def test_listener_hears_of_a_task_to_its_end(endpoint: Endpoint) -> None:
    """Each notification equals the result of `tasks/get`; the last one has the result."""
    client = Client(endpoint, capabilities=ABLE)
    id = await begun(client)
    async with listening(client, id) as stream:
        acknowledged = await stream.message()
        assert {"taskIds": [id]} == acknowledged["params"]["notifications"]

        while (said := await stream.message())["params"].get("statusMessage") != "half of it":
            pass
        assert ("notifications/tasks", id) == (said["method"], said["params"]["taskId"])
        assert said["params"]["_meta"][SUBSCRIPTION] == "s"
        progress = {"progress": 1, "total": 2, "message": "half of it"}
        assert progress == said["params"]["_meta"]["io.genmcp/progress"]

        Work.go.set()
        while (said := await stream.message())["params"]["status"] == "working":
            pass
        (key,) = said["params"]["inputRequests"]
        assert "statusMessage" not in said["params"]
        answers = {"taskId": id, "inputResponses": {key: {"action": "accept", "content": {}}}}
        await client.send(client.request("tasks/update", answers, id=2))

        while (said := await stream.message())["params"]["status"] != "completed":
            pass
        assert said["params"]["result"]["content"][0]["text"] == "worked"


async def test_listener_of_a_task_that_is_over_hears_of_it_at_once(endpoint: Endpoint) -> None:
    """A change before the subscription is not lost, and is sent once."""
    client = Client(endpoint, capabilities=ABLE)
    id = await begun(client)
    await client.send(client.request("tasks/cancel", {"taskId": id}, id=2))
    async with listening(client, id) as stream:
        await stream.message()
        assert (await stream.message())["params"]["status"] == "cancelled"


async def test_listener_hears_of_its_own_tasks_only(endpoint: Endpoint) -> None:
    """Another principal's task, and an unknown one, are left out of the acknowledgement."""
    anna = Client(endpoint, who="anna", capabilities=ABLE)
    bob = Client(endpoint, who="bob", capabilities=ABLE)
    hers = await begun(anna)
    async with listening(bob, hers, "nobody's") as stream:
        acknowledged = await stream.message()
        assert acknowledged["params"]["notifications"] == {}
        async with listening(anna, hers) as her_own:
            Work.go.set()
            while (await her_own.message())["params"].get("status") != "input_required":
                pass
        assert [acknowledged] == stream.messages


async def test_listener_without_the_extension_is_refused(endpoint: Endpoint) -> None:
    """-32021, with the capability that is missing; past the bound 429."""
    without, client = Client(endpoint), Client(endpoint, capabilities=ABLE)
    async with listening(without, "some") as refused, listening(client, "1", "2", "3") as many:
        await refused.over()
        await many.over()

    assert (refused.status, refused.json["error"]["code"]) == (400, -32021)
    assert refused.json["error"]["data"]["requiredCapabilities"] == TASKS
    assert (many.status, many.json["error"]["code"]) == (429, -32603)
    assert "subscriptions" in many.json["error"]["message"]


async def test_watched_tasks_count_with_their_followers(_tasks_end: None) -> None:
    """Each costs far more than its id; the share of a client is used up by their number."""
    Work.go = asyncio.Event()
    limits = Limits(client_share=0.75 * 12 * 1024 / MAX_SUBSCRIBED_BYTES, max_streams=10**6)
    suite = Suite(name="test", version="1", tools=[Listened])
    async with aclosing(Mux(suite, limits=limits)) as mux:
        client = Client(Endpoint(mux), capabilities=ABLE)
        async with listening(client, "unknown") as stream:
            await stream.message()  # left out, so that it is not watched
        async with listening(client, await begun(client)) as refused:
            await refused.over()

    assert refused.status == 429
    assert "subscribed bytes of one address" in refused.json["error"]["message"]


async def test_listener_hears_of_tasks_and_changes_on_one_stream(endpoint: Endpoint) -> None:
    """Notifications have the order of the changes."""
    client = Client(endpoint, capabilities=ABLE)
    id = await begun(client)
    wanted = {"notifications": {"taskIds": [id], "toolsListChanged": True}}
    async with client.open(client.request("subscriptions/listen", wanted, id="s")) as stream:
        await stream.message()
        while (said := await stream.message())["params"].get("statusMessage") != "half of it":
            pass
        endpoint.mux.changes.tools_list_changed()
        while (said := await stream.message())["method"] == "notifications/tasks":
            pass
        assert said["method"] == "notifications/tools/list_changed"
        Work.go.set()
        assert (await stream.message())["method"] == "notifications/tasks"


@pytest.mark.parametrize("kind", ["memory", *KINDS])
async def test_listener_gets_changes_after_the_store_failed(kind: str, tmp_path: Path) -> None:
    """A stream that stays open and silent would be worse than one that ends: its client waits."""
    Work.go = asyncio.Event()
    async with AsyncExitStack() as stack:
        store: Any = MemoryStore()
        if kind != "memory":
            shared = await stack.enter_async_context(shared_store(kind, tmp_path))
            store = open_store(shared.url)
        await stack.enter_async_context(aclosing(store))
        follow, failed = store.follow, asyncio.Event()

        async def follow_later(log: str, after: str | None = None) -> AsyncGenerator[Any, None]:
            if "task:" in log and not failed.is_set():
                failed.set()
                raise StoreUnavailable("it is away")
            async with aclosing(follow(log, after)) as events:
                async for event in events:
                    yield event

        store.follow = follow_later
        mux = Mux(Suite(name="test", version="1", tools=[Listened]), store=store, secret="s" * 16)
        await stack.enter_async_context(aclosing(mux))
        client = Client(Endpoint(mux), capabilities=ABLE)
        id = await begun(client)
        async with listening(client, id) as stream, asyncio.timeout(PATIENCE):
            await stream.message()
            await failed.wait()
            Work.go.set()
            while (await stream.message())["params"].get("status") != "input_required":
                pass
