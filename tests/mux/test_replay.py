"""Streams that are kept for clients that come back."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import aclosing

import pytest

from genmcp.core.exchange import Record
from genmcp.errors import InvalidRequest, Unavailable
from genmcp.mux.replay import OpenCall, Replay
from genmcp.stores.memory import MemoryStore


class Writer:
    def __init__(self) -> None:
        self.released: list[int] = []

    def hand_over(self) -> None:
        self.released.append(0)


CALLS = (OpenCall(7, "tools/call"),)


async def lives(node: str) -> bool:
    return True


def replaying(*, keep: int = 100, lives: Callable[[str], Awaitable[bool]] = lives) -> Replay:
    return Replay(MemoryStore(), ttl=60, keep=keep, node="me", lives=lives, look=0.01)


async def lost(calls: Sequence[OpenCall]) -> AsyncGenerator[bytes, None]:
    for each in calls:
        yield b"%b waits for %b" % (str(each.id).encode(), str(each.task).encode())


def record(index: int, *, last: bool = False) -> Record:
    return Record("s", index, b"%d" % index if index else b"", last)


async def heard(replay: Replay, after: int = 0) -> list[bytes]:
    async with aclosing(replay.resume("k", "s", after, Writer(), lost)) as events:
        async with asyncio.timeout(5):
            return [event async for event in events]


async def test_replay_gives_what_came_behind_a_place() -> None:
    """In order, with the ids they had, to the end of the stream."""
    replay = replaying()
    await replay.keep("k", [record(0), record(1), record(2), record(3, last=True)], CALLS)

    assert [b"s/2", b"s/3"] == [event.split()[1] for event in await heard(replay, 1)]
    assert [] == await heard(replay, 3)
    assert [] == await heard(replay, 99)


async def test_replay_of_a_stream_that_was_given_up_ends() -> None:
    """A stream without an answer has an end all the same."""
    replay = replaying()
    await replay.keep("k", [record(0), record(1)], CALLS)
    await replay.end("k", "s")

    assert 1 == len(await heard(replay))
    assert [] == await heard(replay, 1)


async def test_replay_knows_the_streams_of_a_session() -> None:
    """Of another session, or never begun, there is none; while it is written, there is."""
    replay = replaying()
    await replay.keep("k", [record(0)], CALLS)

    await replay.check("k", "s")
    for session, stream in (("k", "t"), ("other", "s")):
        with pytest.raises(InvalidRequest):
            await replay.check(session, stream)
    with replay.written("k", "t", Writer()):
        await replay.check("k", "t")
        with pytest.raises(InvalidRequest):
            await replay.check("other", "t")
    with pytest.raises(InvalidRequest):
        await replay.check("k", "t")


async def test_replay_is_read_by_one_connection_at_a_time() -> None:
    """Whoever resumes releases all that write or resume the stream, but nobody else's."""
    replay = replaying()
    await replay.keep("k", [record(0), record(1)], CALLS)
    first, second, third, stranger = [Writer() for _ in range(4)]

    with replay.written("k", "s", first), replay.written("other", "s", stranger):
        async with aclosing(replay.resume("k", "s", 0, second, lost)) as one:
            await anext(one)
            async with aclosing(replay.resume("k", "s", 0, third, lost)) as two:
                await anext(two)
                assert ([0, 0], [0], [], []) == (
                    first.released,
                    second.released,
                    third.released,
                    stranger.released,
                )
    assert {} == replay._writers


async def test_replay_goes_on_when_its_place_was_dropped() -> None:
    """A reader that is too slow is told how much it missed, and goes on with the rest."""
    replay = replaying(keep=2)
    await replay.keep("k", [record(1)], CALLS)
    async with aclosing(replay.resume("k", "s", 0, Writer(), lost)) as events:
        first = await anext(events)
        for index in (2, 3, 4, 5):
            await replay.keep("k", [record(index, last=index == 5)], CALLS)
        rest = [event async for event in events]

    assert b"s/1" in first
    assert b": 2 events are not kept any more\n\n" == rest[0]
    assert [b"s/4", b"s/5"] == [event.split()[1] for event in rest[1:]]


async def test_stream_whose_process_is_gone_is_recovered() -> None:
    """Without an id, so that a client that loses this connection too comes back as before."""
    alive: Iterator[bool | Unavailable] = iter([Unavailable("locked"), True, False])

    async def lives(node: str) -> bool:
        assert "me" == node
        found = next(alive)
        if isinstance(found, Exception):
            raise found
        return found

    replay = replaying(lives=lives)
    await replay.keep("k", [record(0), record(1)], CALLS)
    await replay.note("k", "s", (OpenCall(7, "tools/call", "t"), OpenCall(8, "tools/call")))
    await replay.keep("k", [record(2)], CALLS)  # it was on its way when the task was noted

    events = await heard(replay, 1)

    assert b"id: s/2\n" in events[0]
    assert [b"event: message\ndata: 7 waits for t\n\n"] == events[1:]
