"""What processes that share a store tell each other."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import msgspec
import pytest

from genmcp.errors import Gap, Unavailable
from genmcp.mux.inbox import EVERYBODY, Inbox
from genmcp.stores.memory import MemoryStore
from genmcp.stores.store import Append, Event
from tests.asgi import PATIENCE, until


class Word(msgspec.Struct, frozen=True, array_like=True):
    text: str


class Shared(MemoryStore):
    """A store that others may see; *faults* are what following it raises first."""

    shared = True

    def __init__(self, *faults: Exception) -> None:
        super().__init__()
        self.faults = list(faults)

    async def follow(self, log: str, after: str | None = None) -> AsyncGenerator[Event, None]:
        if self.faults:
            raise self.faults.pop(0)
        async with aclosing(super().follow(log, after)) as events:
            async for event in events:
                yield event


class Ear(Inbox):
    """An inbox that remembers what it has heard."""

    def __init__(self, store: MemoryStore, *, knows: bool = True) -> None:
        super().__init__(store, "audience", ttl=60, keep=100)
        self.heard: list[str] = []
        if knows:
            self.take(Word, lambda word: self.heard.append(word.text))


@asynccontextmanager
async def ears(store: MemoryStore, *ears: Ear) -> AsyncIterator[None]:
    for ear in ears:
        ear.open()
    try:
        yield
    finally:
        for ear in ears:
            await ear.aclose()


async def test_inbox_is_told_what_is_for_it() -> None:
    """And not what is for another; what was said before it began to hear is not lost."""
    store = Shared()
    one, two, three = Ear(store), Ear(store), Ear(store)
    await one.send(two.node, Word("early"))
    async with ears(store, two, three):
        await one.send(two.node, Word("late"))
        await one.send(three.node, Word("for three"))
        await until(lambda: len(two.heard) == 2 and three.heard)

    assert (["early", "late"], ["for three"]) == (two.heard, three.heard)


async def test_inbox_of_everybody_is_told_what_is_for_all() -> None:
    """Whoever says it as well, at once."""
    store = Shared()
    one, two = Ear(store), Ear(store)
    async with ears(store, one, two):
        await one.send(EVERYBODY, Word("all"))
        assert one.heard == ["all"]
        await until(lambda: two.heard)

    assert two.heard == ["all"]


async def test_inbox_of_one_process_needs_no_store() -> None:
    """What it tells itself it hears at once; nobody else is there, and nothing runs."""
    ear = Ear(MemoryStore())
    ear.open()

    await ear.send(ear.node, Word("self"))
    await ear.send("somebody else", Word("nobody"))

    assert ear.heard == ["self"]


async def test_inbox_leaves_alone_what_it_cannot_read(caplog: Any) -> None:
    """Another release may speak differently: it is logged, and the next message is heard."""
    store = Shared()
    one, two = Ear(store), Ear(store)
    for letter in (b"\xc1", msgspec.msgpack.encode([two.node, "Word", b"\x93"])):
        await store.apply(Append("inbox:audience", letter, ttl=60))
    await store.apply(
        Append("inbox:audience", msgspec.msgpack.encode([two.node, "New", b""]), ttl=60)
    )
    async with ears(store, two):
        await one.send(two.node, Word("plain"))
        await until(lambda: two.heard)

    assert two.heard == ["plain"]
    assert 2 == caplog.text.count("a message of another release cannot be read")


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (Gap("inbox:audience", "1"), "were dropped before they were read"),
        (Unavailable("it is full"), "cannot be heard: it is full"),
    ],
)
async def test_inbox_hears_again_after_a_failure(
    fault: Exception, said: str, caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a gap it begins with the oldest message, so that one may come twice; and logs it."""
    monkeypatch.setattr("genmcp.mux.inbox._AGAIN", 0)
    caplog.set_level(logging.WARNING)
    store = Shared(fault)
    one, two = Ear(store), Ear(store)
    async with ears(store, two), asyncio.timeout(PATIENCE):
        await one.send(two.node, Word("again"))
        await until(lambda: two.heard)

    assert {*two.heard} == {"again"}
    assert said in caplog.text


def test_inbox_of_a_loop_that_has_ended_is_heard_on_the_next() -> None:
    """A host may be started a second time."""
    store = Shared()
    ear, other = Ear(store), Ear(store)

    async def hear(text: str) -> None:
        ear.open()
        ear.open()  # once is enough
        await other.send(ear.node, Word(text))
        await until(lambda: text in ear.heard)

    for text in ("first", "second"):
        asyncio.run(hear(text))
    asyncio.run(ear.aclose())

    assert ear.heard[-1] == "second"


async def test_inboxes_over_a_store_of_one_process_tell_each_other_at_once() -> None:
    """Those that are open, and take the same messages; the store has none of them."""
    store = MemoryStore()
    one, two, closed = Ear(store), Ear(store), Ear(store)
    other = Inbox(store, "another audience", ttl=60, keep=100)
    async with ears(store, one, two):
        other.open()
        await closed.aclose()
        await one.send(two.node, Word("two"))
        await one.send(EVERYBODY, Word("all"))
        await one.send(closed.node, Word("closed"))
    await one.send(two.node, Word("late"))

    assert (["all"], ["two", "all"], []) == (one.heard, two.heard, closed.heard)
    assert "0 events" in repr(store)
