"""The stored events of a response, if its process dies before all of them are stored."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from typing import Any

from genmcp.core.exchange import Record
from genmcp.core.request import Client, Request
from genmcp.errors import Unavailable
from genmcp.mux.replay import OpenCall, Replay
from genmcp.protocol.params import RequestParams
from genmcp.protocol.revisions.v2025_11_25 import REVISION
from genmcp.stores.memory import MemoryStore
from genmcp.stores.store import Op, Store
from genmcp.transports.kept_stream import KeptStream


class Failing(MemoryStore):
    """A store that fails while *fails* is set."""

    fails: Exception | None = None

    async def apply(self, *ops: Op) -> None:
        if self.fails is not None:
            raise self.fails
        await super().apply(*ops)


def request(id: int) -> Request:
    client = Client(REVISION.version)
    params = RequestParams()
    return Request(id=id, method="tools/call", params=params, revision=REVISION, client=client)


def replay_over(store: Store) -> Replay:
    """Return the replay of a process to which all others are gone."""

    async def lives(node: str) -> bool:
        return False

    return Replay(store, ttl=60, keep=100, node="gone", lives=lives, look=0.01)


def record(index: int) -> Record:
    return Record("s", index, b"%d" % index if index else b"", last=False)


async def recovered(store: Store) -> list[tuple[Any, str | None]]:
    """Resume the stream in another process; return the calls that are answered anew."""
    calls: list[tuple[Any, str | None]] = []

    async def recover(left: Sequence[OpenCall]) -> AsyncGenerator[bytes, None]:
        calls.extend((each.id, each.task) for each in left)
        return
        yield

    class Writer:
        def hand_over(self) -> None:
            raise AssertionError("the stream has another writer")

    async with aclosing(replay_over(store).resume("k", "s", 0, Writer(), recover)) as events:
        async for _ in events:
            pass
    return calls


async def test_call_is_open_until_its_response_is_stored() -> None:
    """A slow client delays the write; a process killed by then leaves a call without response."""
    store = MemoryStore()
    first, second = request(1), request(2)
    kept = KeptStream(replay_over(store), "k", "s", dict.fromkeys([first, second]), ())
    await kept.keep([record(0)])
    kept.answered(first, [record(1)])
    await kept.follow(second, "task")
    assert [(1, None), (2, "task")] == await recovered(store)

    await kept.keep([record(1)])
    assert [(2, "task")] == await recovered(store)


async def test_response_held_back_is_stored_with_the_first_event() -> None:
    """A batch collects its responses until something makes it a stream."""
    store = MemoryStore()
    first, second = request(1), request(2)
    kept = KeptStream(replay_over(store), "k", "s", dict.fromkeys([first, second]), ())
    kept.answered(first, [])
    await kept.keep([record(0), record(1)])

    assert [(2, None)] == await recovered(store)


async def test_call_whose_response_could_not_be_stored_is_open() -> None:
    """The client may not have received it either."""
    store = Failing()
    first, second = request(1), request(2)
    kept = KeptStream(replay_over(store), "k", "s", dict.fromkeys([first, second]), ())
    await kept.keep([record(0)])
    kept.answered(first, [record(1)])
    store.fails = Unavailable("locked")
    await kept.keep([record(1)])
    store.fails = None
    await kept.follow(second, "task")

    assert [(1, None), (2, "task")] == await recovered(store)
