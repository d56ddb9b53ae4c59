"""Streams that are kept for clients that come back."""

import asyncio
from contextlib import aclosing

import pytest

from genmcp.core.actions import Record
from genmcp.errors import InvalidRequest
from genmcp.mux.replay import Replay
from genmcp.stores.memory import MemoryStore


class Writer:
    def __init__(self) -> None:
        self.released: list[int] = []

    def hand_over(self) -> None:
        self.released.append(0)


def record(index: int, *, last: bool = False) -> Record:
    return Record("s", index, b"%d" % index if index else b"", last)


async def heard(replay: Replay, after: int = 0) -> list[bytes]:
    async with aclosing(replay.resume("k", "s", after, Writer())) as events:
        async with asyncio.timeout(5):
            return [event async for event in events]


async def test_replay_gives_what_came_behind_a_place() -> None:
    """In order, with the ids they had, to the end of the stream."""
    replay = Replay(MemoryStore(), ttl=60, keep=100)
    await replay.keep("k", [record(0), record(1), record(2), record(3, last=True)])

    assert [b"s/2", b"s/3"] == [event.split()[1] for event in await heard(replay, 1)]
    assert [] == await heard(replay, 3)
    assert [] == await heard(replay, 99)


async def test_replay_of_a_stream_that_was_given_up_ends() -> None:
    """A stream without an answer has an end all the same."""
    replay = Replay(MemoryStore(), ttl=60, keep=100)
    await replay.keep("k", [record(0), record(1)])
    await replay.end("k", "s")

    assert 1 == len(await heard(replay))
    assert [] == await heard(replay, 1)


async def test_replay_knows_the_streams_of_a_session() -> None:
    """Of another session, or never begun, there is none; while it is written, there is."""
    replay = Replay(MemoryStore(), ttl=60, keep=100)
    await replay.keep("k", [record(0)])

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
    replay = Replay(MemoryStore(), ttl=60, keep=100)
    await replay.keep("k", [record(0), record(1)])
    first, second, third, stranger = [Writer() for _ in range(4)]

    with replay.written("k", "s", first), replay.written("other", "s", stranger):
        async with aclosing(replay.resume("k", "s", 0, second)) as one:
            await anext(one)
            async with aclosing(replay.resume("k", "s", 0, third)) as two:
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
    replay = Replay(MemoryStore(), ttl=60, keep=2)
    await replay.keep("k", [record(1)])
    async with aclosing(replay.resume("k", "s", 0, Writer())) as events:
        first = await anext(events)
        for index in (2, 3, 4, 5):
            await replay.keep("k", [record(index, last=index == 5)])
        rest = [event async for event in events]

    assert b"s/1" in first
    assert b": 2 events are not kept any more\n\n" == rest[0]
    assert [b"s/4", b"s/5"] == [event.split()[1] for event in rest[1:]]
