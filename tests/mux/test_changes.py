"""The log of changes: its writers, its followers, and its faults."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

import pytest

from genmcp import Mux, Suite, prompt, tool
from genmcp._mux import changes as module
from genmcp._mux.changes import Subscription, Subscriptions
from genmcp._mux.limits import Limits
from genmcp.core.subscription import PROMPTS, RESOURCES, TOOLS, ServerChange, updated
from genmcp.errors import LogTruncated, StoreUnavailable
from genmcp.stores.memory import MemoryStore
from genmcp.stores.store import Append, LogEvent, Op
from tests.mux.test_sessions import PARAMS

LOG = "changes:test"


@tool
def nothing() -> None:
    """Does nothing."""


class Faulty(MemoryStore):
    """Fails a given number of times, and counts its followers."""

    def __init__(self) -> None:
        super().__init__()
        self.faults: list[Exception] = []
        self.writes: list[Exception] = []
        self.reads: list[Exception] = []
        self.followers = 0

    async def apply(self, *ops: Op) -> None:
        if self.writes:
            raise self.writes.pop()
        await super().apply(*ops)

    async def read(
        self, log: str, after: str | None = None, limit: int = 100
    ) -> Sequence[LogEvent]:
        if after is not None and self.reads:
            raise self.reads.pop()
        return await super().read(log, after, limit)

    async def follow(self, log: str, after: str | None = None) -> AsyncGenerator[LogEvent, None]:
        self.followers += 1
        async for event in super().follow(log, after):
            yield event
            if self.faults:
                raise self.faults.pop()


def subscriptions(store: MemoryStore, keep: int = 100) -> Subscriptions:
    return Subscriptions(store, LOG, Limits(replay_ttl=60, max_replay_events=keep))


async def news(subscription: Subscription) -> list[ServerChange]:
    changes, _ = await asyncio.wait_for(subscription.receive(), 5)
    return [*changes]


async def test_one_follower_serves_every_listener() -> None:
    """A hundred listeners read the log once, and end with it."""
    store = Faulty()
    changes = subscriptions(store)
    before = asyncio.all_tasks()
    async with changes.listening([TOOLS]) as first, changes.listening([TOOLS, PROMPTS]) as second:
        changes.announce(TOOLS)
        assert [await news(first), await news(second)] == [[TOOLS], [TOOLS]]
        changes.announce(PROMPTS)
        assert await news(second) == [PROMPTS]
        assert {store.followers} == {1}
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert before == asyncio.all_tasks()
    assert "0 logs" not in repr(store)  # the changes are kept for slow subscribers


async def test_changes_of_one_turn_are_written_once() -> None:
    """Pending changes are a set."""
    store = MemoryStore()
    changes = subscriptions(store)
    for _ in range(1000):
        changes.announce(TOOLS)
        changes.announce(updated("a:b"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    assert len(await store.read(LOG)) == 2


async def test_listener_replaces_its_wanted_changes() -> None:
    """From then on the subscriber gets that change."""
    changes = subscriptions(MemoryStore())
    async with changes.listening([TOOLS]) as subscription:
        changes.change(subscription, [PROMPTS])
        changes.announce(TOOLS)
        changes.announce(PROMPTS)
        assert await news(subscription) == [PROMPTS]


@pytest.mark.parametrize("fault", [LogTruncated(LOG, "x"), StoreUnavailable("gone")])
async def test_listeners_of_a_lost_log_get_every_change(
    fault: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The missed changes are unknown; the subscription continues."""
    monkeypatch.setattr("genmcp.stores.following.RETRY_DELAY", 0.0)
    store = Faulty()
    store.faults.append(fault)
    changes = subscriptions(store)

    async with changes.listening([TOOLS, updated("a:b")]) as subscription:
        changes.announce(PROMPTS)  # the log fails after it
        assert {TOOLS, updated("a:b")} == {*await news(subscription)}
        changes.announce(TOOLS)
        assert await news(subscription) == [TOOLS]


async def test_listener_starts_after_a_log_dropped_during_the_read() -> None:
    """It looks again where the log ends."""
    store = Faulty()
    changes = subscriptions(store)
    changes.announce(TOOLS)
    await asyncio.sleep(0)
    store.reads.append(LogTruncated(LOG, "x"))

    async with changes.listening([TOOLS, PROMPTS]) as subscription:
        changes.announce(PROMPTS)
        assert await news(subscription) == [PROMPTS]


async def test_change_in_the_words_of_another_release_is_every_change() -> None:
    """An event that cannot be read is not passed over in silence."""
    store = MemoryStore()
    async with subscriptions(store).listening([TOOLS]) as subscription:
        await store.apply(Append(LOG, b"?", ttl=60))
        assert await news(subscription) == [TOOLS]


async def test_changes_are_written_again_after_a_failure(
    caplog: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure is logged. Changes that come meanwhile are written together with the first."""
    monkeypatch.setattr("genmcp._mux.changes.RETRY_DELAY", 0.01)
    store = Faulty()
    store.writes += [StoreUnavailable("gone"), StoreUnavailable("gone")]
    changes = subscriptions(store)
    async with changes.listening([TOOLS, PROMPTS]) as subscription:
        changes.announce(TOOLS)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        changes.announce(PROMPTS)
        assert await news(subscription) == [TOOLS, PROMPTS]

    assert "1 changes cannot be announced yet: gone" in caplog.text
    assert "2 changes cannot be announced yet: gone" in caplog.text


async def test_writes_that_fail_end_with_the_mux(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is left that repeats them; they are written with a change that comes later."""
    monkeypatch.setattr(module, "_CLOSE_TIMEOUT", 0.01)
    store = Faulty()
    store.writes += [StoreUnavailable("gone")]
    changes = subscriptions(store)
    before = asyncio.all_tasks()
    changes.announce(TOOLS)
    await asyncio.sleep(0)
    await changes.aclose()
    assert before == asyncio.all_tasks()

    changes.announce(PROMPTS)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(await store.read(LOG)) == 2


async def test_change_after_the_store_was_closed_is_not_retried(caplog: Any) -> None:
    """A suite may change after its mux was closed."""
    store = MemoryStore()
    heard = subscriptions(store)
    await store.aclose()
    heard.announce(TOOLS)
    assert heard._writer is not None
    await asyncio.wait_for(heard._writer, 5)

    assert not caplog.messages


def test_changes_without_an_event_loop_are_written_with_the_next(caplog: Any) -> None:
    """Nothing waits for the store there."""
    store = Faulty()
    store.writes.append(StoreUnavailable("gone"))
    changes = subscriptions(store)
    changes.announce(TOOLS)
    changes.announce(PROMPTS)

    assert len(asyncio.run(store.read(LOG))) == 2


def test_changes_are_announced_where_no_event_loop_runs() -> None:
    """When `announce` returns they are in the store, and later loops continue from there."""
    store = MemoryStore()
    changes = subscriptions(store)

    async def listen() -> list[ServerChange]:
        async with changes.listening([TOOLS, PROMPTS]) as subscription:
            await asyncio.to_thread(changes.announce, PROMPTS)
            return await news(subscription)

    changes.announce(TOOLS)
    assert [asyncio.run(listen()) for _ in range(2)] == [[PROMPTS], [PROMPTS]]
    assert len(asyncio.run(store.read(LOG))) == 3


def test_change_of_a_closed_loop_is_written_by_the_next() -> None:
    """No resource of a closed loop remains."""
    store = MemoryStore()
    changes = subscriptions(store)

    async def announce() -> None:
        changes.announce(TOOLS)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(announce())
    loop.close()
    changes.announce(PROMPTS)

    assert len(asyncio.run(store.read(LOG))) == 2


class Restarting(MemoryStore):
    """A store that fails the followers of a session after each event."""

    async def follow(self, log: str, after: str | None = None) -> AsyncGenerator[LogEvent, None]:
        async with aclosing(super().follow(log, after)) as events:
            async for event in events:
                yield event
                if log.startswith("session:"):
                    raise StoreUnavailable("it is restarted")


async def test_listening_stream_continues_after_failures_of_the_store(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each message comes once; the client does not notice."""
    monkeypatch.setattr("genmcp.stores.following.RETRY_DELAY", 0)
    mux = Mux(Suite(name="test", version="1"), store=(store := Restarting()))
    session, _ = mux.sessions.open_new(PARAMS, None)
    messages = await mux.session_streams.listen(session, opening=b"open", as_events=False)
    async with aclosing(messages), asyncio.timeout(5):
        found = [await anext(messages)]
        for number in range(3):
            await mux.session_streams.append(session.key, b"%d" % number)
            found.append(await anext(messages))
    await store.aclose()

    assert found == [b"open", b"0", b"1", b"2"]


async def test_change_between_two_listeners_is_not_missed() -> None:
    """The second listens before the first has ended."""

    class Slow(MemoryStore):
        """Returns from the announcement of a listener once the one before has ended."""

        async def apply(self, *ops: Op) -> None:
            await super().apply(*ops)
            if first and any(isinstance(each, Append) for each in ops):
                messages = first.pop()
                assert [each async for each in messages] == []
                mux.subscriptions.announce(TOOLS)

    first: list[AsyncGenerator[bytes, None]] = []
    mux = Mux(Suite(name="test", version="1", tools=[nothing]), store=Slow())
    session, _ = mux.sessions.open_new(PARAMS, None)
    messages = await mux.session_streams.listen(session, opening=b"open", as_events=False)
    assert await anext(messages) == b"open"
    first.append(messages)

    async with asyncio.timeout(5):
        async with aclosing(await mux.session_streams.listen(session, as_events=False)) as second:
            assert b"tools/list_changed" in await anext(second)
    await mux.aclose()


async def test_session_resumes_after_any_of_several_changes() -> None:
    """All but the last have the position before them: none is lost if the connection breaks."""

    @prompt
    def review() -> str:
        return ""

    mux = Mux(Suite(name="test", version="1", prompts=[review]))
    session, _ = mux.sessions.open_new(PARAMS, None)
    mux.subscriptions.announce(RESOURCES)
    await asyncio.sleep(0)

    async def listened(after: str | None, *announced: ServerChange) -> list[bytes]:
        async with aclosing(await mux.session_streams.listen(session, after, opening=b":")) as got:
            await anext(got)
            for change in announced:
                mux.subscriptions.announce(change)
            return [await asyncio.wait_for(anext(got), 5) for _ in range(2)]

    def id_of(event: bytes) -> str:
        return event.partition(b"\n")[0].decode().removeprefix("id: listener/")

    def data_of(event: bytes) -> bytes:
        return event.partition(b"data: ")[2]

    first, second = await listened(None, TOOLS, PROMPTS)
    again = await listened(id_of(first))
    assert [*map(data_of, again)] == [data_of(first), data_of(second)]
    prompts, _ = await listened(id_of(second), PROMPTS, TOOLS)
    assert data_of(prompts) == data_of(second)
    await mux.aclose()


async def test_notification_of_nothing_ends_no_wait() -> None:
    """A subscription may want no changes, and is notified of all that it wants."""
    subscription = Subscription(frozenset())
    receiving = asyncio.create_task(subscription.receive())
    await asyncio.sleep(0)
    subscription.notify(subscription.wanted)
    subscription.notify([TOOLS])

    assert await receiving == ([TOOLS], [])
