"""The contract of a store that several processes share (`Store.shared`)."""

import asyncio
from contextlib import aclosing, suppress

from genmcp.errors import Conflict
from genmcp.stores.store import Append, Delete, Put, Store
from tests.contracts.bench import BOUND, StoreBench, data_of, entry_of, keys_of, take


class SharedContract(StoreBench):
    """The contract between instances of a shared store, which stand for several processes.

    A subclass is written as `StoreBench` describes, and a fixture `other`: a second instance on the
    data of `store`, closed after the test. The store has deliveries.
    """

    async def test_instances_see_the_same_data(self, store: Store, other: Store) -> None:
        """A write or delete of one instance is seen by the other one at once."""
        assert store.shared
        assert other.shared
        for number in range(20):
            await store.apply(
                Put("k", b"%d" % number, labels=("all",)), Append("k", b"%d" % number, ttl=60)
            )
            assert (await entry_of(other, "k")).value == b"%d" % number
            assert (await data_of(other, "k"))[-1] == b"%d" % number
        assert await keys_of(other, "all") == ["k"]
        assert [e.id for e in await store.read("k")] == [e.id for e in await other.read("k")]

        await other.apply(Delete("k"))
        assert await store.get("k") is None
        assert await store.count("all") == 0

    async def test_instances_have_one_clock(self, store: Store, other: Store) -> None:
        """`now` differs by at most one second, and a ttl ends for both."""
        unit = self.unit
        await store.apply(Put("k", b"", ttl=10 * unit))
        assert await other.get("k")
        assert abs(store.now() - other.now()) <= 1
        await self.advance(11 * unit)

        assert await other.get("k") is None
        assert await store.get("k") is None

    async def test_compare_and_set_has_one_winner_among_instances(
        self, store: Store, other: Store
    ) -> None:
        """Two instances that race for the versions of a record lose no increment."""
        await store.apply(Put("count", b"0"))

        async def increment(by: Store) -> None:
            while True:
                read = await entry_of(by, "count")
                with suppress(Conflict):
                    await by.apply(Put("count", b"%d" % (int(read.value) + 1), expect=read.version))
                    return

        async with asyncio.timeout(BOUND):
            await asyncio.gather(*(increment(by) for by in (store, other) for _ in range(20)))
        assert (await entry_of(other, "count")).value == b"40"

    async def test_follower_gets_appends_of_another_instance(
        self, store: Store, other: Store
    ) -> None:
        """A follower sees the appends of both in the order of the log, each one once."""
        async with aclosing(store.follow("log")) as followed:
            following = asyncio.ensure_future(take(followed, 200))
            for number in range(50):
                await other.apply(Append("log", b"other %d" % number, ttl=60))
                await store.apply(Append("log", b"store %d" % number, ttl=60))
            await asyncio.gather(
                *(
                    by.apply(Append("log", b"race %d %d" % (index, number), ttl=60))
                    for index, by in enumerate((store, other))
                    for number in range(50)
                )
            )
            got = await following

        assert got == [event.data for event in await other.read("log", limit=300)]
        assert len(set(got)) == 200

    async def test_idle_follower_is_woken_by_another_instance(
        self, store: Store, other: Store
    ) -> None:
        """An append wakes a follower that has waited for a while, within seconds."""
        async with aclosing(store.follow("log")) as followed:
            following = asyncio.ensure_future(take(followed, 1))
            await asyncio.sleep(0.5)  # the follower has come to rest, whatever it does for that
            await other.apply(Append("log", b"1", ttl=60))
            async with asyncio.timeout(5):
                assert await following == [b"1"]

    async def test_account_is_counted_over_instances(self, store: Store, other: Store) -> None:
        """Usage does not depend on the instance that wrote."""
        await store.apply(Put("a", b"1", client="principal ann"))
        await other.apply(Put("b", b"1", client="principal ann"))
        assert await store.usage("principal ann") == await other.usage("principal ann")
        assert (await store.usage("principal ann")).entries == 2

    async def test_deliveries_are_claimed_by_one_instance(self, store: Store, other: Store) -> None:
        """Racing claims of two instances get each delivery once; the other learns of a cancel."""
        mine, theirs = store.deliveries, other.deliveries
        assert mine is not None
        assert theirs is not None
        await asyncio.gather(*(mine.put(f"{number}") for number in range(40)))
        claims = await asyncio.gather(
            *(by.claim(("default",), name, 30, 5) for by, name in ((mine, "a"), (theirs, "b")) * 4)
        )
        claimed = [each.id for claim in claims for each in claim]
        assert sorted(claimed) == sorted(f"{number}" for number in range(40))

        held = [each.id for each in claims[0]]
        await theirs.cancel(held[0])
        assert list(await mine.lost("a", held)) == held[:1]
        assert (await theirs.backlog("default")).held == 39

    async def test_worker_is_woken_by_another_instance(self, store: Store, other: Store) -> None:
        """A put and a cancellation of another instance wake a worker that waits, within seconds."""
        mine, theirs = store.deliveries, other.deliveries
        assert mine is not None
        assert theirs is not None
        with mine.news(["default"]) as news:
            for operation in ("put", "cancel"):
                await asyncio.sleep(0.5)  # wake-ups without a reason are over
                news.clear()
                if operation == "put":
                    await theirs.put("a")
                else:
                    await theirs.cancel("a")
                async with asyncio.timeout(5):
                    await news.wait()

    async def test_closing_an_instance_leaves_the_others(self, store: Store, other: Store) -> None:
        """The data and the followers of the other instance remain."""
        await store.apply(Put("k", b"1"), Append("k", b"1", ttl=60))
        async with aclosing(other.follow("k")) as followed:
            assert await take(followed, 1) == [b"1"]
            await store.aclose()
            assert (await entry_of(other, "k")).value == b"1"
            await other.apply(Append("k", b"2", ttl=60))
            assert await take(followed, 1) == [b"2"]
