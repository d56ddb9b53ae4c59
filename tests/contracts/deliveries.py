"""The contract of `Deliveries`."""

import asyncio
from collections.abc import Coroutine, Sequence
from contextlib import ExitStack
from itertools import chain
from typing import Any, Final

import pytest

from genmcp.errors import StoreUnavailable
from genmcp.stores.clocks import WakeSignal
from genmcp.stores.deliveries import Backlog, Deliveries, Delivery, OwnerShare
from genmcp.stores.store import Store
from tests.contracts.bench import BOUND, StoreBench

QUEUES: Final = ("default",)
"""The queue of most tests."""


async def _claimed(
    deliveries: Deliveries, holder: str, *queues: str, lease: float = 30, limit: int = 10
) -> list[str]:
    return [id for id, *_ in await deliveries.claim(queues or QUEUES, holder, lease, limit)]


async def _woken(news: WakeSignal) -> bool:
    """Return True once *news* is set, and clear it."""
    try:
        async with asyncio.timeout(BOUND):
            await news.wait()
    finally:
        news.clear()
    return True


class LeaseContract(StoreBench):
    """Delays, leases and their expiry."""

    @pytest.fixture
    def deliveries(self, store: Store) -> Deliveries:
        """Return the deliveries of the store under test."""
        assert store.deliveries is not None
        return store.deliveries

    def near(self, units: float) -> Any:
        """Return a value that equals numbers near *units*: a call of a store takes time."""
        return pytest.approx(units * self.unit, abs=self.unit)

    async def test_claim_prefers_the_queue_due_for_longest(self, deliveries: Deliveries) -> None:
        """Deliveries of several queues are claimed in the order in which they became due."""
        unit = self.unit
        await deliveries.put("late", "slow", delay=10 * unit)
        for id, queue in (
            ("1", "slow"),
            ("2", "fast"),
            ("3", "slow"),
            ("4", "other"),
            ("5", "fast"),
        ):
            await deliveries.put(id, queue)
            await self.advance(1 * unit)
        await self.advance(10 * unit)

        assert await _claimed(deliveries, "n1", "fast", "slow", limit=3) == ["1", "2", "3"]
        assert await _claimed(deliveries, "n1", "slow", "fast", "nothing") == ["5", "late"]
        assert await _claimed(deliveries, "n1", "slow", "fast") == []
        assert await _claimed(deliveries, "n1", "other") == ["4"]
        assert await deliveries.claim((), "n1", 30, 10) == []

    async def test_owners_take_turns_after_delays_and_leases(self, deliveries: Deliveries) -> None:
        """A delivery that is due later, or whose lease expires, keeps its owner's turn."""
        unit = self.unit
        for number in range(10):
            await deliveries.put(f"mallory {number}", delay=number % 2 * unit, owner="mallory")
        await _claimed(deliveries, "n1", limit=3, lease=5 * unit)
        await deliveries.put("bob", delay=5 * unit, owner="bob")
        await self.advance(6 * unit)

        assert "bob" in await _claimed(deliveries, "n2", limit=3)
        assert len(await _claimed(deliveries, "n2")) == 8

    async def test_put_does_nothing_for_a_present_id(self, deliveries: Deliveries) -> None:
        """An id that waits or is held stays in its queue. Once dropped it may be put again."""
        unit = self.unit
        await deliveries.put("a", delay=10 * unit)
        await deliveries.put("a", "other")
        assert await _claimed(deliveries, "n1", "default", "other") == []

        await self.advance(10 * unit)
        assert await _claimed(deliveries, "n1") == ["a"]
        await deliveries.put("a")
        assert await _claimed(deliveries, "n2") == []

        await deliveries.drop("n1", "a")
        await deliveries.put("a", "other")
        assert await _claimed(deliveries, "n2", "other") == ["a"]

    async def test_delivery_is_due_when_its_delay_is_over(self, deliveries: Deliveries) -> None:
        """A delivery is not claimed before its delay has passed, in any order of puts."""
        unit = self.unit
        await deliveries.put("later", delay=10 * unit)
        await deliveries.put("now")
        assert await _claimed(deliveries, "n1") == ["now"]

        await self.advance(9 * unit)
        assert await _claimed(deliveries, "n1") == []
        await self.advance(1 * unit)
        assert await _claimed(deliveries, "n1") == ["later"]

    async def test_expired_lease_makes_a_delivery_due_again(self, deliveries: Deliveries) -> None:
        """An expired lease may be claimed by any worker, also by the one that held it."""
        unit = self.unit
        await deliveries.put("a")
        assert await _claimed(deliveries, "n1", lease=10 * unit) == ["a"]
        await self.advance(11 * unit)
        assert await _claimed(deliveries, "n1", lease=10 * unit) == ["a"]
        await self.advance(11 * unit)
        assert await _claimed(deliveries, "n2", lease=10 * unit) == ["a"]

    async def test_takeover_delay_extends_expired_leases(self, deliveries: Deliveries) -> None:
        """A worker that was suspended takes over no lease; it claims unclaimed deliveries."""
        unit = self.unit
        for id in ("held", "waiting"):
            await deliveries.put(id)
        assert await _claimed(deliveries, "n1", lease=10 * unit, limit=1) == ["held"]
        await self.advance(11 * unit)
        for holder in ("n2", "n3"):
            left = await deliveries.claim(QUEUES, holder, 10 * unit, 9, takeover_delay=5 * unit)
            assert (["waiting"] if holder == "n2" else []) == [each.id for each in left]
        assert await deliveries.next_due(QUEUES) == self.near(5)
        assert await deliveries.lost("n1", ["held"]) == []

        await self.advance(4 * unit)
        assert await _claimed(deliveries, "n4") == []
        await self.advance(1 * unit)
        assert await _claimed(deliveries, "n4") == ["held"]
        await self.advance(5 * unit)
        assert set(await _claimed(deliveries, "n4")) == {"waiting"}

    async def test_renewed_lease_lasts(self, deliveries: Deliveries) -> None:
        """A lease lasts from its renewal, also if it had expired and no worker had claimed it."""
        unit = self.unit
        await deliveries.put("a")
        await _claimed(deliveries, "n1", lease=10 * unit)
        await self.advance(8 * unit)
        assert list(await deliveries.renew("n1", ["a"], 10 * unit)) == []
        await self.advance(8 * unit)
        assert await _claimed(deliveries, "n2") == []

        await self.advance(8 * unit)
        assert list(await deliveries.renew("n1", ["a"], 10 * unit)) == []
        assert await _claimed(deliveries, "n2") == []

    async def test_lost_and_renew_return_what_was_lost(self, deliveries: Deliveries) -> None:
        """Ids of another holder, cancelled, dropped and unknown ones; the rest is renewed."""
        unit = self.unit
        await deliveries.put("taken")
        await _claimed(deliveries, "n1", lease=10 * unit)
        await self.advance(11 * unit)
        assert await _claimed(deliveries, "n2") == ["taken"]
        for id in ("mine", "cancelled", "dropped"):
            await deliveries.put(id)
        assert len(await _claimed(deliveries, "n1", lease=10 * unit)) == 3
        await deliveries.cancel("cancelled")
        await deliveries.drop("n1", "dropped")

        ids = ["mine", "taken", "cancelled", "dropped", "never"]
        assert set(ids[1:]) == set(await deliveries.lost("n1", ids))
        await self.advance(8 * unit)
        assert set(ids[1:]) == set(await deliveries.renew("n1", ids, 10 * unit))
        await self.advance(8 * unit)
        assert await _claimed(deliveries, "n3") == []

    async def test_only_the_holder_drops_a_delivery(self, deliveries: Deliveries) -> None:
        """A worker that does not hold a delivery, or not any more, cannot drop it."""
        unit = self.unit
        await deliveries.put("a")
        await deliveries.drop("n1", "a")
        assert await _claimed(deliveries, "n1", lease=10 * unit) == ["a"]
        await self.advance(11 * unit)
        assert await _claimed(deliveries, "n2", lease=10 * unit) == ["a"]
        await deliveries.drop("n1", "a")
        assert list(await deliveries.lost("n2", ["a"])) == []

        await deliveries.drop("n2", "a")
        await self.advance(11 * unit)
        assert await _claimed(deliveries, "n1") == []

    async def test_cancel_removes_a_delivery(self, deliveries: Deliveries) -> None:
        """A delivery may be cancelled while it waits, is due or is held; an unknown one too."""
        unit = self.unit
        await deliveries.put("waiting", delay=10 * unit)
        await deliveries.put("held")
        await _claimed(deliveries, "n1")
        await deliveries.put("due")
        for id in ("waiting", "held", "due", "never"):
            await deliveries.cancel(id)
        await self.advance(40 * unit)

        assert await _claimed(deliveries, "n2") == []
        assert list(await deliveries.lost("n1", ["held"])) == ["held"]
        assert await deliveries.next_due(QUEUES) is None

    async def test_next_due_is_the_end_of_a_delay_or_lease(self, deliveries: Deliveries) -> None:
        """A worker waits until the first delay or lease in its queues ends."""
        unit = self.unit
        assert await deliveries.next_due(QUEUES) is None
        await deliveries.put("other", "other")
        await deliveries.put("later", delay=20 * unit)
        assert await deliveries.next_due(QUEUES) == self.near(20)
        await deliveries.put("sooner", delay=5 * unit)
        assert await deliveries.next_due(QUEUES) == self.near(5)
        assert await deliveries.next_due(["default", "other"]) == 0

        await self.advance(5 * unit)
        assert await deliveries.next_due(QUEUES) == 0
        await _claimed(deliveries, "n1", lease=10 * unit)
        assert await deliveries.next_due(QUEUES) == self.near(10)
        await deliveries.renew("n1", ["sooner"], 12 * unit)
        assert await deliveries.next_due(QUEUES) == self.near(12)
        await deliveries.drop("n1", "sooner")
        assert await deliveries.next_due(QUEUES) == self.near(15)
        await self.advance(20 * unit)
        assert await deliveries.next_due(QUEUES) == 0

    async def test_backlog_has_the_age_of_the_oldest_due(self, deliveries: Deliveries) -> None:
        """The age is the time since a waiting delivery became due, not since it was put."""
        unit = self.unit
        await deliveries.put("a", delay=10 * unit)
        assert (await deliveries.backlog("default")).age == 0
        await deliveries.put("b")
        await self.advance(13 * unit)

        assert (await deliveries.backlog("default")).age == self.near(13)
        await _claimed(deliveries, "n1", limit=1)
        assert (await deliveries.backlog("default")).age == self.near(3)
        await _claimed(deliveries, "n1", limit=1)
        assert await deliveries.backlog("default") == Backlog(0, 2, 0.0)

    async def test_backlog_counts_an_expired_lease_as_waiting(self, deliveries: Deliveries) -> None:
        """A delivery of a dead worker waits for another one, since its lease has expired."""
        unit = self.unit
        await deliveries.put("a")
        await _claimed(deliveries, "n1", lease=3 * unit)
        await self.advance(5 * unit)

        waiting, held, age = await deliveries.backlog("default")
        assert (waiting, held) == (1, 0)
        assert age == self.near(2)
        await deliveries.renew("n1", ["a"], 30)
        assert await deliveries.backlog("default") == Backlog(0, 1, 0.0)


class DeliveriesContract(LeaseContract):
    """The contract of `Store.deliveries`: turns, shares, claims, leases, cancellation and wake-ups.

    A subclass is written as `StoreBench` describes, for a store with deliveries.
    """

    async def test_store_has_its_deliveries(self, store: Store, deliveries: Deliveries) -> None:
        """A store gives the same deliveries each time."""
        assert store.deliveries is deliveries

    async def test_delivery_is_given_to_one_node(self, deliveries: Deliveries) -> None:
        """A claimed delivery is given to one worker only."""
        await deliveries.put("a", "default")

        assert list(await deliveries.claim(QUEUES, "n1", 30, 10)) == [Delivery("a", "default")]
        assert await _claimed(deliveries, "n2") == []
        assert await _claimed(deliveries, "n1") == []

    async def test_racing_claims_share_the_deliveries(self, deliveries: Deliveries) -> None:
        """Of many workers that claim at once, each gets other deliveries."""
        await asyncio.gather(*(deliveries.put(f"{number}") for number in range(50)))
        shares = await asyncio.gather(*(_claimed(deliveries, f"n{n}", limit=7) for n in range(10)))

        assert sorted(str(number) for number in range(50)) == sorted(chain(*shares))
        assert all(len(share) <= 7 for share in shares)

    async def test_owners_of_a_queue_take_turns(self, deliveries: Deliveries) -> None:
        """An owner with many deliveries does not delay the first one of another owner."""
        for number in range(50):
            await deliveries.put(f"mallory {number:02}", owner="mallory")
        assert await _claimed(deliveries, "n1", limit=2) == ["mallory 00", "mallory 01"]
        await deliveries.put("bob 0", owner="bob")
        await deliveries.put("bob 1", owner="bob")
        await deliveries.put("node")

        first = await _claimed(deliveries, "n1", limit=6)
        assert {"bob 0", "bob 1", "node"} < set(first)
        assert [f"mallory {n:02}" for n in (2, 3, 4)] == [
            id for id in first if id.startswith("mallory")
        ]
        await deliveries.put("bob 2", owner="bob")
        assert "bob 2" in await _claimed(deliveries, "n2", limit=2)
        assert [f"mallory {n:02}" for n in range(6, 50)] == await _claimed(
            deliveries, "n2", limit=100
        )

    async def test_node_holds_no_more_than_a_share_of_one_owner(
        self, deliveries: Deliveries
    ) -> None:
        """Further deliveries of the owner are neither claimed nor due; those of others are."""
        for number in range(5):
            await deliveries.put(f"mallory {number}", owner="mallory")
        share = OwnerShare(3, {"mallory": 1})
        first = await deliveries.claim(QUEUES, "n1", 30, 10, share=share)

        assert [each.id for each in first] == ["mallory 0", "mallory 1"]
        full = OwnerShare(3, {"mallory": 3})
        assert await deliveries.next_due(QUEUES, full) != 0
        assert await deliveries.claim(QUEUES, "n1", 30, 10, share=full) == []

        await deliveries.put("bob", owner="bob")
        await deliveries.put("node")
        assert await deliveries.next_due(QUEUES, full) == 0
        others = await deliveries.claim(QUEUES, "n1", 30, 10, share=OwnerShare(3, {"mallory": 3}))
        assert {(each.id, each.owner) for each in others} == {("bob", "bob"), ("node", "")}
        rest = await deliveries.claim(QUEUES, "n2", 30, 10, share=OwnerShare(3, {}))
        assert len(rest) == 3

    async def test_released_delivery_is_due_at_once(self, deliveries: Deliveries) -> None:
        """A worker that does not hold a delivery cannot release it."""
        await deliveries.put("a")
        await _claimed(deliveries, "n1")
        await deliveries.release("n2", "a")
        await deliveries.release("n1", "never")
        assert await _claimed(deliveries, "n2") == []

        await deliveries.release("n1", "a")
        assert list(await deliveries.lost("n1", ["a"])) == ["a"]
        assert await _claimed(deliveries, "n2") == ["a"]

    async def test_news_wakes_all_waiters(self, deliveries: Deliveries) -> None:
        """A put, a release and a cancellation set every signal."""
        with deliveries.news() as news, deliveries.news() as theirs:
            await deliveries.put("a")
            assert await _woken(news)
            assert await _woken(theirs)
            await deliveries.put("b", delay=60)
            assert await _woken(news)

            await _claimed(deliveries, "n1")
            await deliveries.release("n1", "a")
            assert await _woken(news)
            await _claimed(deliveries, "n1")
            await deliveries.cancel("a")
            assert await _woken(news)

    async def test_operations_without_effect_stop_waking(self, deliveries: Deliveries) -> None:
        """A signal may be set without reason, but a worker that finds nothing comes to rest."""
        await deliveries.put("a")
        await _claimed(deliveries, "n1")
        rests = 0
        with deliveries.news() as news:
            for _ in range(50):
                news.clear()
                assert await _claimed(deliveries, "n2") == []
                await deliveries.renew("n1", ["a"], 30)
                await deliveries.put("a")
                await deliveries.cancel("never")
                await deliveries.release("n2", "a")
                await deliveries.drop("n2", "a")
                try:
                    async with asyncio.timeout(0.01):
                        await news.wait()
                except TimeoutError:
                    rests += 1
        assert rests > 25

    async def test_news_comes_from_other_event_loops(self, deliveries: Deliveries) -> None:
        """A put in another thread wakes waiting workers. A loop that has ended is ignored."""

        async def end_without_leaving() -> None:
            left.enter_context(deliveries.news())

        with ExitStack() as left, deliveries.news() as news:
            await asyncio.to_thread(asyncio.run, end_without_leaving())
            await asyncio.to_thread(asyncio.run, deliveries.put("a"))
            assert await _woken(news)
            assert await _claimed(deliveries, "n1") == ["a"]

    async def test_worker_that_waits_for_news_misses_nothing(self, deliveries: Deliveries) -> None:
        """Two workers and racing puts: each delivery is worked on once, without polling."""
        ids = {str(number) for number in range(60)}
        done: list[str] = []

        async def work(holder: str) -> None:
            with deliveries.news() as news:
                while len(done) < len(ids):
                    news.clear()
                    if not (claims := await _claimed(deliveries, holder, limit=4)):
                        await news.wait()
                    for id in claims:
                        await deliveries.drop(holder, id)
                        done.append(id)
                await deliveries.cancel(holder)

        async def put_all() -> None:
            await deliveries.put("n1", "never")  # to wake the other at the end
            await deliveries.put("n2", "never")
            for id in ids:
                await deliveries.put(id)

        async with asyncio.timeout(BOUND):
            await asyncio.gather(work("n1"), work("n2"), put_all())

        assert sorted(ids) == sorted(done)

    async def test_backlog_counts_waiting_and_held(self, deliveries: Deliveries) -> None:
        """Deliveries that wait, also for a delay, are counted apart from those that are held."""
        assert await deliveries.backlog("default") == Backlog(0, 0, 0.0)

        for id in "abc":
            await deliveries.put(id, owner="ann")
        await deliveries.put("d", delay=100)
        await deliveries.put("e", "heavy")
        await _claimed(deliveries, "n1", limit=1)

        waiting, held, _ = await deliveries.backlog("default")
        assert (waiting, held) == (3, 1)
        assert (await deliveries.backlog("heavy"))[:2] == (1, 0)

        await deliveries.drop("n1", "a")
        await deliveries.cancel("b")
        assert (await deliveries.backlog("default"))[:2] == (2, 0)

    async def test_closed_deliveries_are_unavailable(
        self, store: Store, deliveries: Deliveries
    ) -> None:
        """Closing the store wakes waiting workers, and rejects every operation."""
        await deliveries.put("a")
        with deliveries.news() as news:
            news.clear()
            await store.aclose()
            assert await _woken(news)

        asked: Sequence[Coroutine[Any, Any, object]] = (
            deliveries.put("b"),
            deliveries.claim(QUEUES, "n1", 30, 1),
            deliveries.renew("n1", ["a"], 30),
            deliveries.lost("n1", ["a"]),
            deliveries.release("n1", "a"),
            deliveries.drop("n1", "a"),
            deliveries.cancel("a"),
            deliveries.next_due(QUEUES),
            deliveries.backlog("default"),
        )
        for question in asked:
            with pytest.raises(StoreUnavailable):
                await question
