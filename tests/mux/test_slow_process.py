"""A process that fell behind: messages wait for it, and the log of changes has dropped some."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from genmcp import (
    Channel,
    Continue,
    Endpoint,
    JobOptions,
    Limits,
    Mux,
    SQLiteStore,
    Suite,
    Tool,
    elicit,
)
from genmcp._mux.bus import EVERYBODY
from genmcp._mux.sessions import CancelInSession
from genmcp._mux.tasks import StopTask
from genmcp.core.outcome import Outcome
from genmcp.core.subscription import TOOLS, ServerChange, updated
from genmcp.errors import StoreUnavailable
from genmcp.stores.store import Append, LogEvent, Op
from tests.support.asgi import PATIENCE, TASKS, Client, until
from tests.support.asking import YES, AnsweringClient

LEGACY = "2025-11-25"
KEEP = 5
LEASE = 2.0


class Slow(SQLiteStore):
    """A store that stops its followers while *running* is not set, and may fail writes.

    fails: whether all writes fail. sends_nothing: whether those of messages fail.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.running = asyncio.Event()
        self.running.set()
        self.fails = False
        self.sends_nothing = False

    async def follow(self, log: str, after: str | None = None) -> AsyncGenerator[LogEvent, None]:
        async with aclosing(super().follow(log, after)) as events:
            async for event in events:
                if log.startswith(("inbox:", "changes:")):
                    await self.running.wait()
                yield event

    async def apply(self, *ops: Op) -> None:
        sends = any(isinstance(op, Append) and op.log.startswith("inbox:") for op in ops)
        if self.fails or (self.sends_nothing and sends):
            raise StoreUnavailable("it is away")
        await super().apply(*ops)


class Runs(Tool):
    """Runs until it is cancelled, or asks."""

    name = "runs"
    promote_after = 0.01

    def __init__(self) -> None:
        self.running = 0
        self.cancelled: list[Any] = []

    async def call(self, request: Any, channel: Channel) -> Any:
        if request.arguments:
            return Continue("sure", elicit("Sure?"))
        self.running += 1
        return await asyncio.Event().wait()

    def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> str:
        return type(outcome).__name__

    def on_cancel(self, channel: Channel) -> None:
        self.cancelled.append(channel.request.id)


class Pair:
    """Two processes of one service: *slow* is held up while `store.running` is not set."""

    def __init__(self, path: Path) -> None:
        self.tool = Runs()
        self.suite = Suite(name="test", version="1", tools=[self.tool])
        self.stores = Slow(path), Slow(path)
        self.slow, self.other = (
            Mux(
                self.suite,
                store=store,
                secret="a secret of both of them",
                limits=Limits(max_replay_events=KEEP),
                jobs=JobOptions(lease=LEASE),
            )
            for store in self.stores
        )
        self.at_slow, self.at_other = Endpoint(self.slow), Endpoint(self.other)

    @asynccontextmanager
    async def held_up(self) -> AsyncIterator[None]:
        """Hold up the slow process, and send it more changes than their log retains."""
        self.stores[0].running.clear()
        await self._send_others(1)  # the follower holds the first message
        yield
        await self._send_others(2 * KEEP)
        self.stores[0].running.set()

    async def _send_others(self, count: int) -> None:
        for n in range(count):
            await self.other.bus.send(EVERYBODY, CancelInSession("another", b"%d" % n))
            await self.other.bus.send(self.slow.bus.node, StopTask("another", 0))
            self.other.changes.resource_updated(f"note://{n}")
            await self.changes_written()  # each change is an event of its own

    async def changes_written(self) -> None:
        """Wait until the other process has written its changes."""
        await until(lambda: self.other.subscriptions._writer is None, pause=0.001)


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    pair = Pair(tmp_path / "store.db")
    yield pair
    for mux in (pair.slow, pair.other):
        await mux.aclose()


async def test_slow_process_cancels_calls(pair: Pair) -> None:
    """Only those of the session that were cancelled; another call continues."""
    client = await Client.begin(pair.at_slow, LEGACY)
    async with client.open(client.call("runs", id=1)), client.open(client.call("runs", id=2)):
        await until(lambda: pair.tool.running == 2)
        async with pair.held_up():
            client.app = pair.at_other
            message = client.notification("notifications/cancelled", requestId=1)
            assert (await client.send(message)).status == 202
        await until(lambda: pair.tool.cancelled, pause=0.01)
        await asyncio.sleep(0.05)

        assert pair.tool.cancelled == [1]
        client.app = pair.at_other
        await client.send(client.notification("notifications/cancelled", requestId=2))


async def test_slow_process_ends_sessions(pair: Pair) -> None:
    """Its calls are cancelled, and requests with its id rejected."""
    client = await Client.begin(pair.at_slow, LEGACY)
    async with client.open(client.call("runs")):
        await until(lambda: pair.tool.running)
        async with pair.held_up():
            client.app = pair.at_other
            assert (await client.send(method="DELETE")).status == 204
        await until(lambda: pair.tool.cancelled, pause=0.01)
        client.app = pair.at_slow

        assert (await client.send(client.request("ping"))).status == 404


async def test_slow_process_gets_answers(pair: Pair) -> None:
    """The answer to its question reached the other process."""
    asked = await AnsweringClient.begin(pair.at_slow, LEGACY)
    async with asked.open(asked.call("runs", {"ask": True})) as call:
        while "method" not in (question := await call.message()):
            pass
        async with pair.held_up():
            asked.app = pair.at_other
            await asked.respond(question, YES)
        answer = await call.message()

    assert answer["result"]["content"][0]["text"] == "Done"


async def test_slow_process_stops_cancelled_tasks(pair: Pair) -> None:
    """The call runs there, and is a task for its client."""
    client = Client(pair.at_slow, capabilities=TASKS)
    async with client.open(client.call("runs")) as call:
        await until(lambda: call.complete, pause=0.01)
        id = call.json["result"]["taskId"]
        async with pair.held_up():
            client.app = pair.at_other
            await client.send(client.request("tasks/cancel", {"taskId": id}))
        await until(lambda: pair.tool.cancelled, pause=0.01)


@asynccontextmanager
async def cancelled_without_message(pair: Pair) -> AsyncIterator[None]:
    """Run a call in one process, and cancel it in another one that cannot send its message."""
    client = Client(pair.at_slow, capabilities=TASKS)
    async with client.open(client.call("runs")) as call:
        await until(lambda: call.complete, pause=0.01)
        id = call.json["result"]["taskId"]
        client.app, pair.stores[1].sends_nothing = pair.at_other, True
        answer = await client.send(client.request("tasks/cancel", {"taskId": id}))
        assert answer.status == 200
        assert not pair.tool.cancelled
        yield


async def test_message_to_stop_is_sent_again(pair: Pair) -> None:
    """The task was cancelled, and the message that stops its hook could not be written."""
    async with cancelled_without_message(pair):
        pair.stores[1].sends_nothing = False
        await until(lambda: pair.tool.cancelled, pause=0.01, bound=LEASE / 2)


async def test_hook_stops_without_a_message(pair: Pair) -> None:
    """The process that has cancelled the task may die before it has sent the message."""
    async with cancelled_without_message(pair):
        await until(lambda: pair.tool.cancelled, pause=0.01, bound=2 * LEASE)


async def test_listeners_of_a_slow_process_get_all_changes(pair: Pair) -> None:
    """Each gets all of its changes, since any may be among those that were not read."""
    changes = {TOOLS, updated("note://mine")}
    received: set[ServerChange] = set()
    async with pair.slow.subscriptions.listening(changes) as subscription:
        async with pair.held_up():
            pair.other.changes.resource_updated("note://mine")
            await pair.changes_written()
        async with asyncio.timeout(PATIENCE):
            while received != changes:
                received.update((await subscription.receive())[0])


async def test_session_stays_open_if_its_end_cannot_be_written(pair: Pair) -> None:
    """Its client gets an error, and repeats the request; other processes would not know else."""
    client = await Client.begin(pair.at_slow, LEGACY)
    pair.stores[0].fails = True
    refused = await client.send(method="DELETE")
    pair.stores[0].fails = False

    assert (refused.status, refused.headers["retry-after"]) == (503, "1")
    assert (await client.send(client.request("ping"))).status == 200
    assert (await client.send(method="DELETE")).status == 204
