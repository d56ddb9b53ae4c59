"""Messages between processes that share a store."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec
import pytest

from genmcp import Mux, Suite
from genmcp._mux.bus import EVERYBODY, MessageBus
from genmcp.core.request import ClientInfo, Request
from genmcp.errors import ContractError, LogTruncated, StoreUnavailable
from genmcp.protocol.client_features import ListRootsRequestParams
from genmcp.protocol.params import RequestParams
from genmcp.protocol.revisions.v2025_11_25 import REVISION
from genmcp.stores.memory import MemoryStore
from genmcp.stores.store import Append, LogEvent
from genmcp.wire.jsonrpc import Message
from tests.support.asgi import PATIENCE, until


class Word(msgspec.Struct, frozen=True, array_like=True, tag="word"):
    text: str


class Shared(MemoryStore):
    """A shared store; following it raises *faults* first."""

    shared = True

    def __init__(self, *faults: Exception) -> None:
        super().__init__()
        self.faults = list(faults)

    async def follow(self, log: str, after: str | None = None) -> AsyncGenerator[LogEvent, None]:
        if self.faults:
            raise self.faults.pop(0)
        async with aclosing(super().follow(log, after)) as events:
            async for event in events:
                yield event


class Process(MessageBus):
    """A bus that records the messages it has handled."""

    def __init__(self, store: MemoryStore, *, handles: bool = True) -> None:
        super().__init__(store, "audience", 60, 100)
        self.handled: list[str] = []
        if handles:
            self.subscribe(Word, lambda word: self.handled.append(word.text))


@asynccontextmanager
async def opened(*buses: Process) -> AsyncIterator[None]:
    for bus in buses:
        bus.open()
    try:
        yield
    finally:
        for bus in buses:
            await bus.aclose()


async def test_bus_handles_messages_for_its_process() -> None:
    """Not those for another process. Messages sent before it was opened are not lost."""
    store = Shared()
    one, two, three = Process(store), Process(store), Process(store)
    await one.send(two.node, Word("early"))
    async with opened(two, three):
        await one.send(two.node, Word("late"))
        await one.send(three.node, Word("for three"))
        await until(lambda: len(two.handled) == 2 and three.handled)

    assert (two.handled, three.handled) == (["early", "late"], ["for three"])


async def test_bus_handles_messages_for_everybody() -> None:
    """The sender handles them too, at once."""
    store = Shared()
    one, two = Process(store), Process(store)
    async with opened(one, two):
        await one.send(EVERYBODY, Word("all"))
        assert one.handled == ["all"]
        await until(lambda: two.handled)

    assert two.handled == ["all"]


async def test_bus_of_one_process_needs_no_log() -> None:
    """It handles its own messages at once, and no asyncio.Task runs."""
    bus = Process(MemoryStore())
    bus.open()

    await bus.send(bus.node, Word("self"))
    await bus.send("somebody else", Word("nobody"))

    assert bus.handled == ["self"]


async def test_bus_skips_unreadable_messages(caplog: Any) -> None:
    """Another release may have another format: it is logged, and the next message is handled."""
    store = Shared()
    one, two = Process(store), Process(store)
    for letter in (b"\xc1", msgspec.msgpack.encode(["New", "word"])):
        await store.apply(Append("inbox:audience", letter, ttl=60))
    async with opened(two):
        await one.send(two.node, Word("plain"))
        await until(lambda: two.handled)

    assert two.handled == ["plain"]
    assert caplog.text.count("a message of another release cannot be read") == 2


@pytest.mark.parametrize(
    "fault", [LogTruncated("inbox:audience", "1"), StoreUnavailable("it is full")]
)
async def test_bus_continues_after_a_failure(
    fault: Exception, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gap is followed by the oldest message, which may then be handled twice. It is logged.

    The store logs its outages itself, once for all its followers.
    """
    monkeypatch.setattr("genmcp.stores.following.RETRY_DELAY", 0)
    caplog.set_level(logging.INFO)
    store = Shared(fault)
    one, two = Process(store), Process(store)
    async with opened(two), asyncio.timeout(PATIENCE):
        await one.send(two.node, Word("again"))
        await until(lambda: two.handled)

    assert {*two.handled} == {"again"}
    dropped = isinstance(fault, LogTruncated)
    assert ("were dropped before they were read" in caplog.text) is dropped


def test_bus_of_a_closed_loop_continues_on_the_next() -> None:
    """A host may be started a second time."""
    store = Shared()
    bus, other = Process(store), Process(store)

    async def hear(text: str) -> None:
        bus.open()
        bus.open()  # once is enough
        await other.send(bus.node, Word(text))
        await until(lambda: text in bus.handled)

    for text in ("first", "second"):
        asyncio.run(hear(text))
    asyncio.run(bus.aclose())

    assert bus.handled[-1] == "second"


@pytest.mark.parametrize("store", [Shared, MemoryStore])
async def test_bus_is_used_by_one_event_loop_at_a_time(store: type[MemoryStore]) -> None:
    """A second one, while the first still runs, gets an error."""
    bus = Process(store())

    async def hear() -> None:
        with pytest.raises(ContractError, match="two event loops at the same time"):
            bus.open()

    async with opened(bus):
        await asyncio.to_thread(asyncio.run, hear())


def test_bus_follows_on_the_loop_that_runs() -> None:
    """The loop before was stopped, and not closed: what it reads later is not handled twice."""
    bus, other = Process(store := Shared()), Process(store)
    first, second = asyncio.new_event_loop(), asyncio.new_event_loop()

    async def hear(text: str) -> None:
        bus.open()
        await other.send(bus.node, Word(text))
        await until(lambda: text in bus.handled)
        await asyncio.sleep(0)

    for loop, text in ((first, "a"), (second, "b"), (first, "c")):
        loop.run_until_complete(hear(text))
    first.run_until_complete(bus.aclose())
    second.run_until_complete(asyncio.sleep(0))
    for loop in (first, second):
        for task in asyncio.all_tasks(loop):
            task.cancel()
            loop.run_until_complete(asyncio.wait({task}))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    assert [*dict.fromkeys(bus.handled)][-1] == "c"


# Requests of the server.


async def test_response_that_comes_twice_is_used_once() -> None:
    """The second one finds no call."""
    mux = Mux(Suite(name="test", version="1"))
    asking = Request(
        id=1,
        method="tools/call",
        params=RequestParams(),
        revision=REVISION,
        client=ClientInfo(REVISION.version),
        session="key",
    )
    sent: list[bytes] = []
    call = asyncio.create_task(
        mux.server_requests.ask(asking, None, "roots/list", ListRootsRequestParams(), sent.append)
    )
    await until(lambda: sent)
    id = msgspec.json.decode(sent[0])["id"]
    response = Message("2.0", id=id, result=msgspec.Raw(b'{"roots":[]}'))

    for _ in range(2):
        await mux.server_requests.deliver("key", None, response)

    assert await asyncio.wait_for(call, PATIENCE) == b'{"roots":[]}'
