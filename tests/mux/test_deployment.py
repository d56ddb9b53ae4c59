"""Limits of a principal over all processes that share a store."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from genmcp import Channel, Endpoint, Limits, Mux, Suite, tool
from genmcp._mux.deployment import WINDOW
from genmcp.errors import StoreUnavailable
from genmcp.stores.memory import MemoryStore
from genmcp.stores.store import Op, StoreEntry
from tests.support.asgi import ALL, MODERN, Client, Connection, until
from tests.support.clock import Clock

BEGIN = 1000 * WINDOW + 10  # ten seconds after the begin of a window


class Shared(MemoryStore):
    """A shared store, which counts its operations, and fails while *fails* is set."""

    shared = True

    def __init__(self, clock: Callable[[], float]) -> None:
        super().__init__(clock=clock)
        self.operations = 0
        self.fails = False

    async def get(self, key: str) -> StoreEntry | None:
        self._count()
        return await super().get(key)

    async def apply(self, *ops: Op) -> None:
        self._count()
        await super().apply(*ops)

    def _count(self) -> None:
        self.operations += 1
        if self.fails:
            raise StoreUnavailable("it is away")


@tool
async def quick() -> str:
    """Returns at once."""
    return "done"


@tool
async def slow(channel: Channel) -> str:
    """Never returns."""
    await asyncio.Event().wait()
    return "never"


def principal(scope: Mapping[str, Any]) -> str | None:
    return next((value.decode() for name, value in scope["headers"] if name == b"x-who"), None)


@pytest.fixture
def clock() -> Clock:
    return Clock(BEGIN)


@asynccontextmanager
async def processes(
    count: int, clock: Clock, *, version: str = MODERN, **limits: Any
) -> AsyncIterator[tuple[Shared, list[Client]]]:
    """Yield a store, and a client of each of *count* processes that share it."""
    store = Shared(clock)
    suite = Suite(name="test", version="1", tools=[quick, slow])
    muxes = [
        Mux(suite, store=store, secret="a secret of all of them", limits=Limits(**limits))
        for _ in range(count)
    ]
    try:
        yield (
            store,
            [await Client.begin(Endpoint(mux, principal=principal), version) for mux in muxes],
        )
    finally:
        for mux in muxes:
            await mux.aclose()


def opened(client: Client, name: str, who: str = "ann") -> Connection:
    return client.open(client.call(name), headers={"x-who": who})


async def status(client: Client, name: str = "quick", who: str = "ann") -> int:
    """Return the status of a call."""
    async with opened(client, name, who) as call:
        return (await call.over()).status


async def leased() -> None:
    """Let pending leases end: the store is in memory."""
    for _ in range(10):
        await asyncio.sleep(0)


# Calls per minute.


@pytest.mark.parametrize("version", ALL)
async def test_quota_of_calls(version: str, clock: Clock) -> None:
    """Further calls get 429 until the minute is over; lists, and other principals, do not."""
    options: Any = {"version": version, "max_calls_per_minute_per_principal": 3}
    async with processes(1, clock, **options) as (_, (client,)):
        if version != MODERN:
            client.session = None
            who = {"x-who": "ann"}
            begun = await client.send(client.initialize(), headers=who)
            client.session = begun.headers["mcp-session-id"]
        answers = []
        for _ in range(4):
            async with opened(client, "quick") as call:
                answers.append(await call.over())
            await leased()
        listing = await client.send(client.request("tools/list"), headers={"x-who": "ann"})
        if version == MODERN:
            assert await status(client, who="bob") == 200
        clock.now += 50
        async with opened(client, "quick") as call:
            answers.append(await call.over())

    assert [answer.status for answer in answers] == [200, 200, 200, 429, 200]
    assert answers[3].headers["retry-after"] == "50"
    error = answers[3].json["error"]
    assert "3 per minute (limit: max_calls_per_minute_per_principal)" in error["message"]
    assert error["data"] == {"retryAfter": 50}
    assert listing.status == 200


async def test_quota_is_that_of_all_processes(clock: Clock) -> None:
    """Calls in turn at three processes: only the last batch of a process may stay unused."""
    async with processes(3, clock, max_calls_per_minute_per_principal=60) as (_, clients):
        statuses = []
        for n in range(90):
            statuses.append(await status(clients[n % 3]))
            await leased()

    batch = 60 // 20
    assert 60 - 3 * batch <= statuses.count(200) <= 60
    assert statuses[-6:] == [429] * 6


async def test_calls_start_on_credit_before_the_store_responds(clock: Clock) -> None:
    """So that the calls of one moment need not wait; together at most the credits too many."""
    async with processes(3, clock, max_calls_per_minute_per_principal=40) as (_, clients):
        calls = [opened(client, "quick") for client in clients for _ in range(40)]
        async with AsyncExitStack() as stack:
            for call in calls:
                await stack.enter_async_context(call)
            for call in calls:
                await call.over()
        await leased()
        statuses = [await status(client) for client in clients for _ in range(10)]
        rejected = [call for call in calls if call.status == 429]

    admitted = len(calls) - len(rejected) + statuses.count(200)
    assert 40 - 3 * 2 <= admitted <= 40 + 3 * 10
    assert {call.headers["retry-after"] for call in rejected} == {"1"}


async def test_quota_costs_a_call_no_operation_of_the_store(clock: Clock) -> None:
    """A process has leased the next half of a batch before it needs it."""
    async with processes(1, clock, max_calls_per_minute_per_principal=1000) as (store, (client,)):
        before = store.operations
        for _ in range(1000):
            assert await status(client) == 200
            await leased()

    assert store.operations - before <= 2 * 41


async def test_quota_holds_per_process_without_the_store(clock: Clock, caplog: Any) -> None:
    """Calls that need no store continue, and the failure is logged."""
    async with processes(1, clock, max_calls_per_minute_per_principal=30) as (store, (client,)):
        store.fails = True
        statuses = []
        for _ in range(40):
            statuses.append(await status(client))
            await leased()
        store.fails = False

    assert statuses.count(200) == 30
    assert "a quota cannot be leased: it is away" in caplog.text


# Open calls and streams.


async def test_open_calls_are_counted_over_all_processes(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A place that is given up in one process is free in another."""
    monkeypatch.setattr("genmcp._mux.deployment._REPORT_EVERY", 0.01)
    bound: Any = {"max_waiting_calls_per_principal": 3, "count_across_processes": True}
    async with processes(2, clock, **bound) as (_, (one, two)), opened(two, "slow"):
        async with opened(one, "slow"), opened(one, "slow"):
            await _until_status(two, 429)
            assert await status(two, who="bob") == 200
        await _until_status(two, 200)


async def test_streams_are_counted_over_all_processes(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the principal has nothing open yet."""
    monkeypatch.setattr("genmcp._mux.deployment._REPORT_EVERY", 0.01)
    bound: Any = {"max_streams_per_principal": 2, "count_across_processes": True}
    async with (
        processes(2, clock, **bound) as (_, (one, two)),
        _listening(one),
        _listening(one),
        _listening(two, "bob"),
    ):
        streams = two.app.mux.streams
        await until(lambda: streams.full, pause=0.005)
        async with _listening(two) as third:
            await third.over()

    assert third.status == 429
    assert "max_streams_per_principal" in third.json["error"]["message"]


async def test_counts_are_forgotten_with_the_last_open_call(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process without open calls reads no reports, and must not reject calls by old ones."""
    monkeypatch.setattr("genmcp._mux.deployment._REPORT_EVERY", 0.01)
    bound: Any = {"max_waiting_calls_per_principal": 1, "count_across_processes": True}
    async with processes(2, clock, **bound) as (_, (one, two)):
        async with opened(one, "slow"):
            async with opened(two, "slow", "bob"):
                await _until_status(two, 429)
            reports = two.app.mux._deployment._reports
            await until(lambda: reports._reporting.done(), pause=0.005)
        assert await status(two) == 200


async def test_report_of_a_dead_process_expires(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its calls ended with it."""
    monkeypatch.setattr("genmcp._mux.deployment._REPORT_EVERY", 0.01)
    bound: Any = {"max_waiting_calls_per_principal": 2, "count_across_processes": True}
    async with (
        processes(2, clock, **bound) as (_, (one, two)),
        opened(two, "slow"),
        opened(one, "slow"),
    ):
        await _until_status(two, 429)
        one.app.mux._deployment._reports._reporting.cancel()  # nothing is withdrawn
        clock.now += 11
        await _until_status(two, 200)


async def test_each_process_counts_its_own_by_default(clock: Clock) -> None:
    """Nothing is written to the store for it."""
    async with processes(2, clock, max_waiting_calls_per_principal=1) as (store, (one, two)):
        async with opened(one, "slow"), opened(two, "slow"):
            await until(lambda: one.app.mux.waiting_calls.full and two.app.mux.waiting_calls.full)
            assert await status(one) == await status(two) == 429
        assert store.operations == 0


def _listening(client: Client, who: str = "ann") -> Connection:
    wanted = {"notifications": {"toolsListChanged": True}}
    return client.open(client.request("subscriptions/listen", wanted), headers={"x-who": who})


async def _until_status(client: Client, wanted: int) -> None:
    """Call until the status is *wanted*: reports of other processes are a moment old."""
    async with asyncio.timeout(5):
        while True:
            if await status(client) == wanted:
                return
            await asyncio.sleep(0.01)
