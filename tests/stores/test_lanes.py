"""The lanes in which the requests of a store on a server are sent."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from genmcp.errors import StoreUnavailable
from genmcp.stores import lanes
from genmcp.stores.lanes import Again, Lane, RequestKind
from genmcp.stores.outages import Outages

KIND = RequestKind(limit=3)
OTHER = RequestKind(limit=3)


class FakeServer:
    """Records the batches that it is sent, and responds to each item by itself."""

    def __init__(self) -> None:
        self.batches: list[list[Any]] = []
        self.results: dict[Any, list[Any]] = {}  # of an item, in turn; then the item itself
        self.open = asyncio.Event()
        self.open.set()

    async def send(self, kind: RequestKind, items: Sequence[Any]) -> Sequence[Any]:
        self.batches.append([*items])
        await self.open.wait()
        return [self.results[item].pop(0) if self.results.get(item) else item for item in items]


@pytest.fixture
async def server() -> FakeServer:
    return FakeServer()


def lane(server: FakeServer, *, writes: bool = True, timeout: float = 30.0) -> Lane:
    return Lane("the server", server.send, Outages("the store"), timeout, writes=writes)


async def test_requests_of_one_turn_are_one_batch(server: FakeServer) -> None:
    """Requests that come meanwhile wait for the next batch, and those of a kind are together."""
    here = lane(server)
    server.open.clear()
    first = [asyncio.ensure_future(here.request(KIND, item)) for item in "abcd"]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    second = [asyncio.ensure_future(here.request(OTHER, item)) for item in "xy"]
    server.open.set()

    assert await asyncio.gather(*first, *second) == [*"abcdxy"]
    assert server.batches == [["a", "b", "c"], ["d"], ["x", "y"]]


async def test_large_requests_are_not_sent_together(server: FakeServer) -> None:
    """All requests of a batch wait for its last response."""
    here = lane(server)
    await asyncio.gather(*(here.request(KIND, item, 1024 * 1024) for item in "ab"))

    assert server.batches == [["a"], ["b"]]


async def test_equal_reads_share_a_request(server: FakeServer) -> None:
    """A cancelled caller cancels it for no other. Writes are never shared."""
    reads, writes = lane(server, writes=False), lane(server)
    cancelled = asyncio.ensure_future(reads.request(KIND, "a"))
    others = [asyncio.ensure_future(reads.request(KIND, "a")) for _ in range(3)]
    await asyncio.sleep(0)
    cancelled.cancel()
    assert await asyncio.gather(*others) == [*"aaa"]
    assert server.batches == [["a"]]

    await asyncio.gather(*(writes.request(KIND, "b") for _ in range(2)))
    assert server.batches[1:] == [["b", "b"]]


async def test_request_that_was_not_performed_is_sent_again(server: FakeServer) -> None:
    """Before the requests that were made after it."""
    here, lost = lane(server), Again(StoreUnavailable("the server is restarted"))
    server.results["b"] = [lost, lost]

    assert await asyncio.gather(*(here.request(KIND, item) for item in "abcd")) == [*"abcd"]
    assert server.batches == [["a", "b", "c"], ["b", "d"], ["b"]]


async def test_request_is_sent_again_while_it_has_time(server: FakeServer) -> None:
    """Then it has the error of the last attempt."""
    here = lane(server, timeout=0.02)
    server.results["a"] = [Again(StoreUnavailable("the server is restarted"))]
    server.open.clear()
    asyncio.get_running_loop().call_later(0.05, server.open.set)
    with pytest.raises(StoreUnavailable, match="is restarted"):
        await here.request(KIND, "a")


async def test_late_request_does_not_shorten_the_time_of_others(server: FakeServer) -> None:
    """A request without time left fails, and is not sent with later ones."""
    here = lane(server, timeout=0.05)
    server.open.clear()
    first = asyncio.ensure_future(here.request(KIND, "a"))
    late = asyncio.ensure_future(here.request(KIND, "late"))
    for _ in range(3):
        await asyncio.sleep(0)
    late_too = asyncio.ensure_future(here.request(OTHER, "late, too"))
    await asyncio.sleep(0.1)  # the time of all of them is over
    fresh = asyncio.ensure_future(here.request(OTHER, "fresh"))
    await asyncio.sleep(0)
    server.open.set()

    assert [await each for each in (first, late, fresh)] == ["a", "late", "fresh"]
    with pytest.raises(StoreUnavailable, match="the server: no response in time"):
        await late_too
    assert server.batches == [["a", "late"], ["fresh"]]


async def test_closed_lane_ends_all_requests(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are under way, those that wait, and later ones."""
    monkeypatch.setattr(lanes, "_CLOSING", 0.01)
    here = lane(server)
    server.open.clear()
    requests = [asyncio.ensure_future(here.request(KIND, item)) for item in "abcd"]
    await asyncio.sleep(0)
    await here.aclose()

    for request in (*requests, here.request(KIND, "e")):
        with pytest.raises(StoreUnavailable, match="closed"):
            await request


async def test_number_of_waiting_requests_is_bounded(
    server: FakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond it requests fail at once, so that a server that is away costs no memory."""
    monkeypatch.setattr(lanes, "_WAITING", 5)
    here = lane(server)
    requests = [asyncio.ensure_future(here.request(KIND, number)) for number in range(6)]
    with pytest.raises(StoreUnavailable, match="5 operations wait"):
        await requests[-1]

    assert await asyncio.gather(*requests[:-1]) == [*range(5)]
    assert await here.request(KIND, "next") == "next"


async def test_end_of_the_event_loop_is_no_outage(caplog: pytest.LogCaptureFixture) -> None:
    """It cancels all tasks. A task that waits nevertheless gets an error, one that writes at its
    end is served, and nothing is logged.
    """
    server = FakeServer()
    here = lane(server)
    server.open.clear()
    waiting = asyncio.ensure_future(here.request(KIND, "a"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    [task] = [task for task in asyncio.all_tasks() if task.get_name() == "the server"]
    task.cancel()

    with pytest.raises(StoreUnavailable, match="the store is closed"):
        await waiting
    server.open.set()
    assert await here.request(KIND, "b") == "b"
    assert caplog.messages == []
