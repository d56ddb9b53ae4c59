"""Streams that are stored for clients that reconnect."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing
from typing import Any

import pytest

from genmcp._mux.limits import Limits
from genmcp._mux.replay import OpenCall, Replay, StoredStream, log_of
from genmcp.core.exchange import StreamRecord
from genmcp.core.request import ClientInfo, Request
from genmcp.errors import InvalidRequest, StoreUnavailable
from genmcp.protocol.params import RequestParams
from genmcp.protocol.revisions.v2025_11_25 import REVISION
from genmcp.stores.memory import MemoryStore
from genmcp.stores.store import Op, Store


class Writer:
    def __init__(self) -> None:
        self.released: list[int] = []

    def hand_over(self) -> None:
        self.released.append(0)


async def lives(node: str) -> bool:
    return True


def replaying(*, keep: int = 100, lives: Callable[[str], Awaitable[bool]] = lives) -> Replay:
    return Replay(MemoryStore(), Limits(max_replay_events=keep), lambda: "me", lives, 0.01)


def request(id: int) -> Request:
    client = ClientInfo(REVISION.version)
    params = RequestParams()
    return Request(id=id, method="tools/call", params=params, revision=REVISION, client=client)


CALL = request(7)


def stream_of(
    replay: Replay, *requests: Request, session: str = "k", stream: str = "s"
) -> StoredStream:
    return StoredStream(replay, log_of(session, stream), dict.fromkeys(requests or [CALL]))


async def lost(calls: Sequence[OpenCall]) -> AsyncGenerator[bytes, None]:
    for each in calls:
        yield b"%b waits for %b" % (str(each.id).encode(), str(each.task).encode())


def record(index: int, *, last: bool = False) -> StreamRecord:
    return StreamRecord("s", index, b"%d" % index if index else b"", last)


async def received(replay: Replay, after: int = 0) -> list[bytes]:
    async with aclosing(replay.resume("k", "s", after, Writer(), lost)) as events:
        async with asyncio.timeout(5):
            return [event async for event in events]


async def test_replay_yields_the_events_after_a_place() -> None:
    """In order, with the ids they had, to the end of the stream."""
    replay = replaying()
    await stream_of(replay).keep([record(0), record(1), record(2), record(3, last=True)])

    assert [event.split()[1] for event in await received(replay, 1)] == [b"s/2", b"s/3"]
    assert await received(replay, 3) == []
    assert await received(replay, 99) == []


async def test_replay_of_a_stream_that_was_given_up_ends() -> None:
    """A stream without an answer has an end all the same."""
    replay = replaying()
    stream = stream_of(replay)
    await stream.keep([record(0), record(1)])
    await stream.end()

    assert len(await received(replay)) == 1
    assert await received(replay, 1) == []


async def test_replay_knows_the_streams_of_a_session() -> None:
    """A stream of another session, or one never begun, does not exist; one being written does."""
    replay = replaying()
    await stream_of(replay).keep([record(0)])

    await replay.check("k", "s")
    for session, stream in (("k", "t"), ("other", "s")):
        with pytest.raises(InvalidRequest):
            await replay.check(session, stream)
    written, writer = stream_of(replay, stream="t"), Writer()
    written.add(writer)
    await replay.check("k", "t")
    with pytest.raises(InvalidRequest):
        await replay.check("other", "t")
    written.discard(writer)
    with pytest.raises(InvalidRequest):
        await replay.check("k", "t")


async def test_replay_is_read_by_one_connection_at_a_time() -> None:
    """A resumption releases all writers and readers of the stream, and no others."""
    replay = replaying()
    await stream_of(replay).keep([record(0), record(1)])
    first, second, third, stranger = [Writer() for _ in range(4)]

    mine, other = stream_of(replay), stream_of(replay, session="other")
    mine.add(first)
    other.add(stranger)
    async with aclosing(replay.resume("k", "s", 0, second, lost)) as one:
        await anext(one)
        async with aclosing(replay.resume("k", "s", 0, third, lost)) as two:
            await anext(two)
            assert (
                first.released,
                second.released,
                third.released,
                stranger.released,
            ) == ([0, 0], [0], [], [])
    mine.discard(first)
    other.discard(stranger)
    assert len(replay.writers) == 0


async def test_replay_continues_after_a_dropped_place() -> None:
    """A slow reader gets the number of missed events, and continues with the rest."""
    replay = replaying(keep=2)
    await stream_of(replay).keep([record(1)])
    async with aclosing(replay.resume("k", "s", 0, Writer(), lost)) as events:
        first = await anext(events)
        for index in (2, 3, 4, 5):
            await stream_of(replay).keep([record(index, last=index == 5)])
        rest = [event async for event in events]

    assert b"s/1" in first
    assert rest[0] == b": 2 events have been dropped\n\n"
    assert [event.split()[1] for event in rest[1:]] == [b"s/4", b"s/5"]


async def test_stream_whose_process_is_gone_is_recovered() -> None:
    """Without an id, so that a client that loses this connection too comes back as before."""
    alive: Iterator[bool | StoreUnavailable] = iter([StoreUnavailable("locked"), True, False])

    async def lives(node: str) -> bool:
        assert node == "me"
        found = next(alive)
        if isinstance(found, Exception):
            raise found
        return found

    replay = replaying(lives=lives)
    stream = stream_of(replay)
    await stream.keep([record(0), record(1)])
    await stream.follow(CALL, "t")
    await stream_of(replay).keep([record(2)])  # it was in flight when the task was stored

    events = await received(replay, 1)

    assert b"id: s/2\n" in events[0]
    assert events[1:] == [b"event: message\ndata: 7 waits for t\n\n"]


# The calls that another process answers, if that of the stream dies.


class Failing(MemoryStore):
    """A store that fails while *fails* is set."""

    fails: Exception | None = None

    async def apply(self, *ops: Op) -> None:
        if self.fails is not None:
            raise self.fails
        await super().apply(*ops)


def replay_over(store: Store) -> Replay:
    """Return the replay of a process for which all others are dead."""

    async def lives(node: str) -> bool:
        return False

    return Replay(store, Limits(), lambda: "gone", lives, 0.01)


async def recovered(store: Store) -> list[tuple[Any, str | None]]:
    """Resume the stream in another process; return the calls that are answered anew."""
    calls: list[tuple[Any, str | None]] = []

    async def recover(left: Sequence[OpenCall]) -> AsyncGenerator[bytes, None]:
        calls.extend((each.id, each.task) for each in left)
        return
        yield

    async with aclosing(replay_over(store).resume("k", "s", 0, Writer(), recover)) as events:
        async for _ in events:
            pass
    return calls


async def test_call_is_open_until_its_response_is_stored() -> None:
    """A slow client delays the write; a process killed by then leaves a call without response."""
    store = MemoryStore()
    first, second = request(1), request(2)
    kept = stream_of(replay_over(store), first, second)
    await kept.keep([record(0)])
    kept.responded(first, [record(1)])
    await kept.follow(second, "task")
    assert await recovered(store) == [(1, None), (2, "task")]

    await kept.keep([record(1)])
    assert await recovered(store) == [(2, "task")]


async def test_response_held_back_is_stored_with_the_first_event() -> None:
    """A batch collects its responses until something makes it a stream."""
    store = MemoryStore()
    first, second = request(1), request(2)
    kept = stream_of(replay_over(store), first, second)
    kept.responded(first, [])
    await kept.keep([record(0), record(1)])

    assert await recovered(store) == [(2, None)]


async def test_call_whose_response_could_not_be_stored_is_open() -> None:
    """The client may not have received it either."""
    store = Failing()
    first, second = request(1), request(2)
    kept = stream_of(replay_over(store), first, second)
    await kept.keep([record(0)])
    kept.responded(first, [record(1)])
    store.fails = StoreUnavailable("locked")
    await kept.keep([record(1)])
    store.fails = None
    await kept.follow(second, "task")

    assert await recovered(store) == [(1, None), (2, "task")]
