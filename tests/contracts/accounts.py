"""The contract of the accounts of a store: shares of clients, and the reserve for updates."""

import asyncio
from typing import Final

import pytest

from genmcp.errors import Conflict, OverShare, StoreFull
from genmcp.stores.accounts import Account, Usage
from genmcp.stores.store import Append, Delete, Put, Store
from tests.contracts.bench import BOUND, CAPACITY, StoreBench

MALLORY: Final = (Account("mallory", share=0.25, setting="Limits.store_share_per_principal"),)
BOB: Final = (Account("bob", share=0.25),)
CROWD: Final = Account("anonymous", share=0.2, setting="Limits.anonymous_share")


def _anonymous(address: str) -> tuple[Account, Account]:
    return (CROWD, Account(f"address {address}", share=0.1))


async def _fill(store: Store, owner: tuple[Account, ...], *, ttl: float = 600) -> int:
    """Put records for *owner* until one is rejected, and return how many were stored."""
    for number in range(200):
        try:
            await store.apply(
                Put(f"{owner[-1].name}:{number}", b"x" * 10_000, ttl=ttl, owner=owner)
            )
        except OverShare:
            return number
    raise AssertionError("no write was rejected")


async def _until_usage(store: Store, **expected: Usage) -> None:
    """Wait until each account in *expected* has the given usage, once expired data is removed."""
    async with asyncio.timeout(BOUND):
        while expected != {name: await store.usage(name) for name in expected}:
            await store.apply(Put("other", b""))  # a store may remove expired data at a write
            await asyncio.sleep(0.01)


async def _events(store: Store, log: str) -> int:
    return len(await store.read(log))


class AccountsContract(StoreBench):
    """The contract of accounts, capacity and reserve: `Put.owner`, `Put.new` and `Store.usage`.

    A subclass is written as `StoreBench` describes.
    """

    async def test_client_over_its_share_is_refused(self, store: Store) -> None:
        """The error names the bound, and no part of the write is stored."""
        kept = await _fill(store, MALLORY)
        assert kept == 24
        with pytest.raises(OverShare, match=r"0\.25 of it.*Limits\.store_share_per_principal"):
            await store.apply(Put("large#small", b""), Put("large", b"x" * 10_000, owner=MALLORY))

        assert await store.get("large#small") is None
        await store.apply(Put("bob", b"x" * 10_000, owner=BOB), Put("bob#node", b"x" * 10_000))
        assert await store.get("bob")

    async def test_usage_follows_every_change(self, store: Store) -> None:
        """An account counts the records and events that are present."""
        unit = self.unit
        await store.apply(Put("a", b"12345", owner=MALLORY))
        await store.apply(Put("b", b"1", ttl=10 * unit, owner=MALLORY))
        assert await store.usage("mallory") == Usage(2, 8)

        await store.apply(Put("a", b"1", owner=MALLORY))
        await store.apply(Put("a", b"12"), Append("a#log", b"123", ttl=10 * unit, owner=MALLORY))
        assert await store.usage("mallory") == Usage(3, 8)

        with pytest.raises(Conflict):
            await store.apply(Put("a", b"1" * 50, owner=MALLORY), Delete("a#b", expect=77))
        await store.apply(Put("a", b"12345", owner=BOB))
        assert [await store.usage(n) for n in ("mallory", "bob")] == [Usage(2, 5), Usage(1, 6)]

        await self.advance(11 * unit)
        await store.apply(Delete("a"), Delete("a#never"))
        await _until_usage(store, mallory=Usage(), bob=Usage())

    async def test_record_that_expired_has_no_owner(self, store: Store) -> None:
        """Only an existing record passes its owner on to its replacement."""
        unit = self.unit
        await store.apply(Put("a", b"1", ttl=10 * unit, owner=MALLORY))
        await self.advance(11 * unit)
        await store.apply(Put("a", b"1"))

        await _until_usage(store, mallory=Usage())

    async def test_account_of_a_log_counts_its_events(self, store: Store) -> None:
        """Dropped and expired events do not count; events before the first owner do."""
        unit = self.unit
        await store.apply(Append("log", b"1", ttl=10 * unit))
        for _ in range(5):
            await store.apply(Append("log", b"123", ttl=10 * unit, keep=3, owner=MALLORY))
        assert await store.usage("mallory") == Usage(3, 9)

        await store.apply(Append("log", b"12", ttl=10 * unit, keep=1))
        assert await store.usage("mallory") == Usage(1, 2)
        await self.advance(11 * unit)
        await store.apply(Append("log", b"1", ttl=10 * unit, owner=BOB))
        await _until_usage(store, mallory=Usage(), bob=Usage(1, 1))

    async def test_expired_records_make_room(self, store: Store) -> None:
        """A record that has expired but is not removed yet does not count."""
        unit = self.unit
        kept = await _fill(store, MALLORY, ttl=30 * unit)
        await self.advance(31 * unit)

        assert kept == await _fill(store, MALLORY)

    async def test_each_level_of_accounts_is_bounded(self, store: Store) -> None:
        """One address fills its own share, and all addresses together fill theirs."""
        assert await _fill(store, _anonymous("10.0.0.1")) == 9
        assert await _fill(store, _anonymous("10.0.0.2")) == 9
        with pytest.raises(OverShare, match=r"Limits\.anonymous_share"):
            await store.apply(
                Put("k#1", b"x" * 9_000, owner=_anonymous("10.0.0.3")),
                Put("k#2", b"x" * 11_000, owner=_anonymous("10.0.0.3")),
            )
        await store.apply(Put("bob", b"x" * 10_000, owner=BOB))

    async def test_entries_of_an_account_are_bounded(self, store: Store) -> None:
        """An account may bound the number of entries; replacing one adds none."""
        tasks = (*MALLORY, Account("mallory/tasks", most=2, setting="JobOptions.tasks_of_client"))
        for key in ("k#1", "k#2", "k#2"):
            await store.apply(Put(key, b"", owner=tasks))
        with pytest.raises(OverShare, match=r"2 entries.*JobOptions\.tasks_of_client"):
            await store.apply(Put("k#3", b"", owner=tasks))

        await store.apply(Put("k#3", b"", owner=MALLORY))
        await store.apply(Delete("k#1"), Put("k#4", b"", owner=tasks))

    async def test_logs_of_a_greedy_client_make_room_first(self, store: Store) -> None:
        """A client past its share loses its own oldest logs, and no other client loses any."""
        await store.apply(Append("bob", b"x" * 50_000, ttl=60, owner=BOB))
        await store.apply(Append("all", b"1", ttl=60))
        for number in range(6):
            await store.apply(Append(f"{number}", b"x" * 100_000, ttl=60, owner=MALLORY))

        assert [await _events(store, f"{number}") for number in range(6)] == [0, 0, 0, 0, 1, 1]
        assert await _events(store, "bob") == 1
        await store.apply(Put("record", b"x" * 200_000, owner=MALLORY))
        assert [await _events(store, f"{number}") for number in (4, 5)] == [0, 0]

        with pytest.raises(OverShare):
            await store.apply(Append("more", b"x" * 100_000, ttl=60, owner=MALLORY))
        assert await _events(store, "all") == 1

    async def test_rejected_write_drops_no_log(self, store: Store) -> None:
        """Logs of one client are not dropped if another client of the write has no room."""
        for number in range(2):
            await store.apply(Append(f"{number}", b"x" * 100_000, ttl=60, owner=MALLORY))
        await _fill(store, BOB)
        with pytest.raises(OverShare):
            await store.apply(
                Append("more", b"x" * 100_000, ttl=60, owner=MALLORY),
                Put("more#bob", b"x" * 10_000, owner=BOB),
            )
        await store.apply()

        assert [await _events(store, log) for log in ("0", "1", "more")] == [1, 1, 0]

    async def test_log_is_bounded_in_bytes(self, store: Store) -> None:
        """Its oldest events make room for the newest, which is retained however large it is."""
        for size in (400, 300, 300):
            await store.apply(Append("log", b"x" * size, ttl=60, owner=BOB, keep_bytes=1000))
        assert await store.usage("bob") == Usage(3, 1000)

        await store.apply(Append("log", b"y" * 500, ttl=60, owner=BOB, keep_bytes=1000))
        assert [len(event.data) for event in await store.read("log")] == [300, 500]
        await store.apply(Append("log", b"z", ttl=60, keep=2, keep_bytes=1000))
        assert [event.data[:1] for event in await store.read("log")] == [b"y", b"z"]
        await store.apply(Append("log", b"w" * 2000, ttl=60, keep_bytes=1000))
        assert [event.data[:1] for event in await store.read("log")] == [b"w"]
        assert await store.usage("bob") == Usage(1, 2000)

    async def test_oldest_log_of_a_crowd_makes_room(self, store: Store) -> None:
        """Past the share of all anonymous clients, their oldest log is dropped, of any of them."""
        for number in range(3):
            owner = _anonymous(f"10.0.0.{number}")
            await store.apply(Append(f"{number}", b"x" * 90_000, ttl=60, owner=owner))

        assert [await _events(store, f"{number}") for number in range(3)] == [0, 1, 1]

    async def test_log_that_fills_a_share_keeps_its_newest(self, store: Store) -> None:
        """A log longer than the share of its client loses its oldest events."""
        await store.apply(
            *(Append("log", b"%d" % n * 90_000, ttl=60, owner=MALLORY) for n in range(2))
        )
        await store.apply(Append("log", b"2" * 90_000, ttl=60, owner=MALLORY))

        assert [event.data[:1] for event in await store.read("log")][-1:] == [b"2"]
        assert (await store.usage("mallory")).size <= CAPACITY / 4

    async def test_new_work_leaves_the_reserve_to_accepted_work(self, store: Store) -> None:
        """New work is rejected at nine tenths; accepted work may use the rest."""
        with pytest.raises(StoreFull, match=r"reserve=0\.1"):
            for number in range(200):
                await store.apply(Put(f"{number}", b"x" * 10_000, new=True))
        assert await store.get("50")

        await store.apply(Put("0", b"x" * 15_000))
        await store.apply(Put("step", b"x" * 10_000), Append("step", b"x", ttl=60))
        with pytest.raises(StoreFull):
            await store.apply(Append("log", b"x" * 10_000, ttl=60, new=True))
        for number in range(50):
            await store.apply(Delete(f"{number}"))
        await store.apply(Put("again", b"x" * 10_000, new=True))

    async def test_new_work_leaves_the_reserve_of_its_client(self, store: Store) -> None:
        """A client at nine tenths of its share can still end its accepted work."""
        await store.apply(Put("task", b"", new=True, owner=MALLORY))
        await store.apply(Put("large", b"x" * 224_000, new=True, owner=MALLORY))
        with pytest.raises(OverShare):
            await store.apply(Put("new", b"x" * 2_000, new=True, owner=MALLORY))

        await store.apply(Put("task", b"x" * 20_000, owner=MALLORY))
        with pytest.raises(OverShare):
            await store.apply(Put("task", b"x" * 40_000, owner=MALLORY))
        # However full it is, the few bytes of a step have room.
        await store.apply(Put("task", b"x" * 24_990, owner=MALLORY))
        await store.apply(Put("task", b"x" * 25_400, owner=MALLORY))

    async def test_totals_grow_with_the_data(self, store: Store) -> None:
        """A store that knows how full it is counts records, events and bytes."""
        before = await store.totals()
        if before is None:
            return
        assert before.capacity.size == CAPACITY
        await store.apply(Put("k", b"x" * 100_000), Append("k", b"x", ttl=600))
        after = await store.totals()
        assert after is not None
        added = after.used.minus(before.used)
        assert added.entries == 2
        assert added.size > 50_000  # a store may count the pages of its file

    async def test_full_store_raises_store_full(self, store: Store) -> None:
        """A write that has no room at all raises StoreFull and names the setting."""
        with pytest.raises(StoreFull, match="max_bytes=1000000"):
            await store.apply(Put("large", b"x" * 1_100_000))
