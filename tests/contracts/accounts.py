"""The contract of the accounts of a store: shares of clients, and the reserve for updates."""

import asyncio
from typing import Final

import pytest

from genmcp.errors import Conflict, OverShare, StoreFull
from genmcp.stores.accounts import ANONYMOUS, CLIENT_SHARE, Usage
from genmcp.stores.store import Append, Delete, Put, Store
from tests.contracts.bench import BOUND, CAPACITY, StoreBench, data_of, entry_of

MALLORY: Final = "principal mallory"
BOB: Final = "principal bob"
SIZE: Final = 16_000  # bytes of a record; a few more fill the pages of a file
KEPT: Final = 15  # records of that size that one client may have


def _address(number: int) -> str:
    return f"address 10.0.0.{number}"


async def _fill(store: Store, client: str, *, ttl: float = 600) -> int:
    """Put records for *client* until one is rejected, and return how many were stored."""
    for number in range(200):
        try:
            await store.apply(Put(f"{client}:{number}", b"x" * SIZE, ttl=ttl, client=client))
        except OverShare:
            return number
    raise AssertionError("no write was rejected")


async def _until_usage(store: Store, expected: dict[str, Usage]) -> None:
    """Wait until each account in *expected* has the given usage, once expired data is removed."""
    async with asyncio.timeout(BOUND):
        while expected != {name: await store.usage(name) for name in expected}:
            await store.apply(Put("other", b""))  # a store may remove expired data at a write
            await asyncio.sleep(0.01)


async def _events(store: Store, log: str) -> int:
    return len(await store.read(log))


class AccountsContract(StoreBench):
    """The contract of accounts, capacity and reserve: `Put.client`, `Put.new` and `Store.usage`.

    A subclass is written as `StoreBench` describes.
    """

    async def test_client_over_its_share_is_refused(self, store: Store) -> None:
        """The error names the share, and no part of the write is stored."""
        assert await _fill(store, MALLORY) == KEPT
        with pytest.raises(OverShare, match=r"This client.*0\.25 of it"):
            await store.apply(Put("large#small", b""), Put("large", b"x" * SIZE, client=MALLORY))

        assert await store.get("large#small") is None
        await store.apply(Put("bob", b"x" * SIZE, client=BOB), Put("bob#node", b"x" * SIZE))
        assert await store.get("bob")

    async def test_usage_follows_every_change(self, store: Store) -> None:
        """An account counts the records and events that are present."""
        unit = self.unit
        await store.apply(Put("a", b"12345", client=MALLORY))
        await store.apply(Put("b", b"1", ttl=10 * unit, client=MALLORY))
        assert await store.usage(MALLORY) == Usage(2, 8)

        await store.apply(Put("a", b"1", client=MALLORY))
        await store.apply(Put("a", b"12"), Append("a#log", b"123", ttl=10 * unit, client=MALLORY))
        assert await store.usage(MALLORY) == Usage(3, 8)

        with pytest.raises(Conflict):
            await store.apply(Put("a", b"1" * 50, client=MALLORY), Delete("a#b", expect=77))
        await store.apply(Put("a", b"12345", client=BOB))
        assert [await store.usage(n) for n in (MALLORY, BOB)] == [Usage(2, 5), Usage(1, 6)]

        await self.advance(11 * unit)
        await store.apply(Delete("a"), Delete("a#never"))
        await _until_usage(store, {MALLORY: Usage(), BOB: Usage()})

    async def test_record_that_expired_has_no_client(self, store: Store) -> None:
        """Only an existing record passes its client on to its replacement."""
        unit = self.unit
        await store.apply(Put("a", b"1", ttl=10 * unit, client=MALLORY))
        await self.advance(11 * unit)
        await store.apply(Put("a", b"1"))

        await _until_usage(store, {MALLORY: Usage()})

    async def test_account_of_a_log_counts_its_events(self, store: Store) -> None:
        """Dropped and expired events do not count; events before the first client do."""
        unit = self.unit
        await store.apply(Append("log", b"1", ttl=10 * unit))
        for _ in range(5):
            await store.apply(Append("log", b"123", ttl=10 * unit, keep=3, client=MALLORY))
        assert await store.usage(MALLORY) == Usage(3, 9)

        await store.apply(Append("log", b"12", ttl=10 * unit, keep=1))
        assert await store.usage(MALLORY) == Usage(1, 2)
        await self.advance(11 * unit)
        await store.apply(Append("log", b"1", ttl=10 * unit, client=BOB))
        await _until_usage(store, {MALLORY: Usage(), BOB: Usage(1, 1)})

    async def test_expired_records_make_room(self, store: Store) -> None:
        """A record that has expired but is not removed yet does not count."""
        unit = self.unit
        kept = await _fill(store, MALLORY, ttl=30 * unit)
        await self.advance(31 * unit)

        assert kept == await _fill(store, MALLORY)

    async def test_anonymous_clients_leave_room_for_others(self, store: Store) -> None:
        """One address fills its own share, and all addresses together fill theirs."""
        assert [await _fill(store, _address(n)) for n in range(4)] == [KEPT, KEPT, KEPT, 4]
        with pytest.raises(OverShare, match=r"All anonymous clients.*0\.8 of it"):
            await store.apply(
                Put("k#1", b"x" * 9_000, client=_address(5)),
                Put("k#2", b"x" * 11_000, client=_address(5)),
            )
        assert (await store.usage(ANONYMOUS)).entries == 3 * KEPT + 4

        await store.apply(Put("bob", b"x" * SIZE, client=BOB))

    async def test_append_without_room_drops_no_other_log(self, store: Store) -> None:
        """A client past its share gets an error, and its stored logs stay."""
        for number in range(2):
            await store.apply(Append(f"{number}", b"x" * 100_000, ttl=60, client=MALLORY))
        with pytest.raises(OverShare):
            await store.apply(Append("2", b"x" * 100_000, ttl=60, client=MALLORY))

        assert [await _events(store, f"{number}") for number in range(3)] == [1, 1, 0]
        await store.apply(Append("bob", b"x" * 100_000, ttl=60, client=BOB))

    async def test_full_log_makes_room_for_its_newest_event(self, store: Store) -> None:
        """Its own oldest events are dropped, no more than needed, and never the newest."""
        for number in range(3):
            data = b"%d" % number * 80_000
            await store.apply(Append("log", data, ttl=60, client=MALLORY))
        await store.apply(Append("log", b"3" * 120_000, ttl=60, client=MALLORY))
        assert [event.data[:1] for event in await store.read("log")] == [b"2", b"3"]
        assert await store.usage(MALLORY) == Usage(2, 200_000)

        with pytest.raises(OverShare):
            await store.apply(Append("log", b"4" * 300_000, ttl=60, client=MALLORY))
        assert [event.data[:1] for event in await store.read("log")] == [b"2", b"3"]
        assert await store.usage(MALLORY) == Usage(2, 200_000)

    async def test_rejected_write_changes_nothing(self, store: Store) -> None:
        """Records, labels and logs are as before if one client of the write has no room."""
        await _fill(store, BOB)
        await store.apply(Put("k", b"1", labels=["old"]), Append("k", b"1", ttl=60))
        await store.apply(Put("k#gone", b"1", client=MALLORY))
        with pytest.raises(OverShare):
            await store.apply(
                Put("k", b"2", client=MALLORY, labels=["new"]),
                Delete("k#gone"),
                Append("k", b"2", ttl=60, client=MALLORY, keep=1),
                Append("k#log", b"1", ttl=60),
                Put("k#bob", b"x" * SIZE, client=BOB),
            )

        entry = await store.get("k")
        assert entry is not None
        assert entry.value == b"1"
        assert [await store.count(label) for label in ("old", "new")] == [1, 0]
        assert [event.data for event in await store.read("k")] == [b"1"]
        assert await _events(store, "k#log") == 0
        assert await store.usage(MALLORY) == Usage(1, 7)
        await store.apply(Put("k", b"3", expect=entry.version), Append("k", b"3", ttl=60))
        assert [event.data for event in await store.read("k")] == [b"1", b"3"]

    async def test_optional_events_leave_half_of_a_share(self, store: Store) -> None:
        """They are rejected although new work of their client has room, and is accepted."""
        for number in range(3):
            log = Append(f"{number}", b"x" * 40_000, ttl=60, client=MALLORY, optional=True)
            await store.apply(log)
        with pytest.raises(OverShare):
            await store.apply(Append("3", b"x" * 40_000, ttl=60, client=MALLORY, optional=True))

        await store.apply(Put("task", b"x" * 100_000, client=MALLORY, new=True))

    async def test_optional_records_leave_half_of_a_share(self, store: Store) -> None:
        """As optional events do; together they count."""
        await store.apply(Append("log", b"x" * 60_000, ttl=60, client=MALLORY, optional=True))
        await store.apply(Put("1", b"x" * 60_000, client=MALLORY, optional=True))
        with pytest.raises(OverShare):
            await store.apply(Put("2", b"x" * 60_000, client=MALLORY, optional=True))

        await store.apply(Put("task", b"x" * 60_000, client=MALLORY, new=True))

    async def test_log_is_bounded_in_bytes(self, store: Store) -> None:
        """Its oldest events make room for the newest, which is retained however large it is."""
        for size in (400, 300, 300):
            await store.apply(Append("log", b"x" * size, ttl=60, client=BOB, keep_bytes=1000))
        assert await store.usage(BOB) == Usage(3, 1000)

        await store.apply(Append("log", b"y" * 500, ttl=60, client=BOB, keep_bytes=1000))
        assert [len(event.data) for event in await store.read("log")] == [300, 500]
        await store.apply(Append("log", b"z", ttl=60, keep=2, keep_bytes=1000))
        assert [event.data[:1] for event in await store.read("log")] == [b"y", b"z"]
        await store.apply(Append("log", b"w" * 2000, ttl=60, keep_bytes=1000))
        assert [event.data[:1] for event in await store.read("log")] == [b"w"]
        assert await store.usage(BOB) == Usage(1, 2000)

    async def test_new_work_leaves_the_reserve_to_accepted_work(self, store: Store) -> None:
        """New work is rejected at nine tenths; accepted work may use the rest."""
        with pytest.raises(StoreFull, match=r"0\.1 is reserved"):
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
        await store.apply(Put("task", b"", new=True, client=MALLORY))
        await store.apply(Put("large", b"x" * 224_000, new=True, client=MALLORY))
        with pytest.raises(OverShare):
            await store.apply(Put("new", b"x" * 2_000, new=True, client=MALLORY))

        await store.apply(Put("task", b"x" * 20_000, client=MALLORY))
        with pytest.raises(OverShare):
            await store.apply(Put("task", b"x" * 40_000, client=MALLORY))
        # However full it is, the few bytes of a step have room.
        await store.apply(Put("task", b"x" * 24_990, client=MALLORY))
        await store.apply(Put("task", b"x" * 25_400, client=MALLORY))

    async def test_update_has_room_for_its_only_event(self, store: Store) -> None:
        """However many entries its client has, accepted work is changed, and followers get it."""
        totals = await store.totals()
        if totals is None:
            return
        most = int(CLIENT_SHARE * totals.capacity.most_entries)
        await store.apply(Put("task", b"", client=MALLORY, new=True))
        other = Append("other", b"", ttl=600, keep=most, client=MALLORY)
        await store.apply(*[other] * (most - 1))
        event = Append("task", b"0", ttl=60, keep=1, client=MALLORY)
        entry = await entry_of(store, "task")
        with pytest.raises(OverShare):
            await store.apply(event)
        with pytest.raises(OverShare):
            put = Put("task", b"0", expect=entry.version, client=MALLORY)
            await store.apply(put, Put("task#new", b"", expect=0, client=MALLORY), event)
        with pytest.raises(OverShare):
            await store.apply(put, event, Append("task#log", b"0", ttl=60, client=MALLORY))

        for text in (b"1", b"2", b"3"):
            version = (await entry_of(store, "task")).version
            put = Put("task", text, expect=version, client=MALLORY)
            await store.apply(put, Append("task", text, ttl=60, keep=1, client=MALLORY))
        assert (await entry_of(store, "task")).value == b"3"
        assert await data_of(store, "task") == [b"3"]
        assert (await store.usage(MALLORY)).entries == most + 1
        with pytest.raises(OverShare):
            await store.apply(Put("new", b"", client=MALLORY))

    async def test_totals_grow_with_the_data(self, store: Store) -> None:
        """A store that knows how full it is counts records, events and bytes."""
        before = await store.totals()
        if before is None:
            return
        assert before.capacity.size == CAPACITY
        await store.apply(Put("k", b"x" * 100_000), Append("k", b"x", ttl=600))
        after = await store.totals()
        assert after is not None
        assert after.used.entries == before.used.entries + 2
        assert after.used.size > before.used.size + 50_000  # a store may count pages of its file

    async def test_full_store_raises_store_full(self, store: Store) -> None:
        """A write that has no room at all raises StoreFull and names the setting."""
        with pytest.raises(StoreFull, match="max_bytes=1000000"):
            await store.apply(Put("large", b"x" * 1_100_000))
