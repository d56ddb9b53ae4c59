"""The contract of the deliveries of every store that has them (`Store.deliveries`).

To test another store, add a function like `memory` to the parameters of the fixture `bench`.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import ExitStack, aclosing
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import pytest

from genmcp.errors import StoreUnavailable
from genmcp.stores.clocks import WakeSignal
from genmcp.stores.deliveries import Backlog, Deliveries, Delivery, OwnerShare
from genmcp.stores.memory import MemoryStore
from genmcp.stores.sqlite.store import SQLiteStore
from genmcp.stores.store import Store
from tests.support.clock import Clock

BOUND = 5.0
"""Seconds after which what should have come is said not to come."""

QUEUES = ("default",)

PassTime: TypeAlias = Callable[[float], Awaitable[None]]


class Bench(NamedTuple):
    """Deliveries under test, their store, and how their time passes."""

    deliveries: Deliveries
    store: Store
    advance: PassTime


def memory(folder: Path) -> Bench:
    clock = Clock()
    store = MemoryStore(clock=clock)
    return Bench(store.deliveries, store, clock.advance)


def sqlite(folder: Path) -> Bench:
    clock = Clock()
    store = SQLiteStore(folder / "store.db", clock=clock)
    return Bench(store.deliveries, store, clock.advance)


@pytest.fixture(params=[memory, sqlite])
async def bench(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Bench]:
    bench: Bench = request.param(tmp_path)
    async with aclosing(bench.store):
        yield bench


@pytest.fixture
def store(bench: Bench) -> Store:
    return bench.store


@pytest.fixture
def deliveries(bench: Bench) -> Deliveries:
    return bench.deliveries


@pytest.fixture
def advance(bench: Bench) -> PassTime:
    return bench.advance


async def claimed(
    deliveries: Deliveries, node: str, *queues: str, lease: float = 30, limit: int = 10
) -> list[str]:
    return [id for id, *_ in await deliveries.claim(queues or QUEUES, node, lease, limit)]


async def woken(news: WakeSignal) -> bool:
    """Whether *news* is there, or comes within a moment, and clear it."""
    try:
        async with asyncio.timeout(BOUND):
            await news.wait()
    finally:
        news.clear()
    return True


async def is_quiet(deliveries: Deliveries, news: WakeSignal) -> bool:
    """Whether no notification arrives after all pending operations."""
    await deliveries.lost("", ())
    waiting = asyncio.ensure_future(news.wait())
    await asyncio.sleep(0)
    quiet = not waiting.done()
    waiting.cancel()
    await asyncio.wait([waiting])
    return quiet


def test_store_has_its_deliveries(store: Store, deliveries: Deliveries) -> None:
    """A store gives the same deliveries each time."""
    assert store.deliveries is deliveries


def test_store_need_not_have_deliveries() -> None:
    """A third-party store has none unless it provides them."""

    class Plain(MemoryStore):
        deliveries = Store.deliveries  # type: ignore[assignment]

    assert Plain().deliveries is None


async def test_delivery_is_given_to_one_node(deliveries: Deliveries) -> None:
    """A claimed delivery is given to one worker only."""
    await deliveries.put("a", "default")

    assert await deliveries.claim(QUEUES, "n1", 30, 10) == [Delivery("a", "default")]
    assert await claimed(deliveries, "n2") == []
    assert await claimed(deliveries, "n1") == []


async def test_claims_that_race_share_what_is_there(deliveries: Deliveries) -> None:
    """Of many who claim at once, each is given something else."""
    await asyncio.gather(*(deliveries.put(f"{number}") for number in range(50)))
    shares = await asyncio.gather(*(claimed(deliveries, f"n{n}", limit=7) for n in range(10)))

    assert sorted(str(number) for number in range(50)) == sorted(chain(*shares))
    assert all(len(share) <= 7 for share in shares)


async def test_claim_prefers_the_queue_due_for_longest(
    deliveries: Deliveries, advance: PassTime
) -> None:
    """In the order in which they became due, over all queues, and never of another queue."""
    await deliveries.put("late", "slow", delay=10)
    for id, queue in (("1", "slow"), ("2", "fast"), ("3", "slow"), ("4", "other"), ("5", "fast")):
        await deliveries.put(id, queue)
        await advance(1)
    await advance(10)

    assert await claimed(deliveries, "n1", "fast", "slow", limit=3) == ["1", "2", "3"]
    assert await claimed(deliveries, "n1", "slow", "fast", "nothing") == ["5", "late"]
    assert await claimed(deliveries, "n1", "slow", "fast") == []
    assert await claimed(deliveries, "n1", "other") == ["4"]
    assert await deliveries.claim((), "n1", 30, 10) == []


async def test_owners_of_a_queue_take_turns(deliveries: Deliveries) -> None:
    """A client that has put many does not hold up another's first; each client's are in order."""
    for number in range(50):
        await deliveries.put(f"mallory {number:02}", owner="mallory")
    assert await claimed(deliveries, "n1", limit=2) == ["mallory 00", "mallory 01"]
    await deliveries.put("bob 0", owner="bob")
    await deliveries.put("bob 1", owner="bob")
    await deliveries.put("node")

    first = await claimed(deliveries, "n1", limit=6)
    assert {"bob 0", "bob 1", "node"} < set(first)
    assert [f"mallory {n:02}" for n in (2, 3, 4)] == [
        id for id in first if id.startswith("mallory")
    ]
    await deliveries.put("bob 2", owner="bob")
    assert "bob 2" in await claimed(deliveries, "n2", limit=2)
    assert [f"mallory {n:02}" for n in range(6, 50)] == await claimed(deliveries, "n2", limit=100)


async def test_node_holds_no_more_than_a_share_of_one_owner(deliveries: Deliveries) -> None:
    """Remaining deliveries of the owner are neither claimed nor announced; those of others are."""
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


async def test_owners_take_turns_after_delays_and_leases(
    deliveries: Deliveries, advance: PassTime
) -> None:
    """A delivery that is due later, or whose lease expires, keeps its owner's turn."""
    for number in range(10):
        await deliveries.put(f"mallory {number}", delay=number % 2, owner="mallory")
    await claimed(deliveries, "n1", limit=3, lease=5)
    await deliveries.put("bob", delay=5, owner="bob")
    await advance(6)

    assert "bob" in await claimed(deliveries, "n2", limit=3)
    assert len(await claimed(deliveries, "n2")) == 8


async def test_put_does_nothing_where_the_id_is_there(
    deliveries: Deliveries, advance: PassTime
) -> None:
    """Waiting or claimed; after its end it may be put again."""
    await deliveries.put("a", delay=10)
    await deliveries.put("a", "other")
    assert await claimed(deliveries, "n1", "default", "other") == []

    await advance(10)
    assert await claimed(deliveries, "n1") == ["a"]
    await deliveries.put("a")
    assert await claimed(deliveries, "n2") == []

    await deliveries.drop("n1", "a")
    await deliveries.put("a", "other")
    assert await claimed(deliveries, "n2", "other") == ["a"]


async def test_delivery_is_due_when_its_delay_is_over(
    deliveries: Deliveries, advance: PassTime
) -> None:
    """And not before, in any order of puts."""
    await deliveries.put("later", delay=10)
    await deliveries.put("now")
    assert await claimed(deliveries, "n1") == ["now"]

    await advance(9)
    assert await claimed(deliveries, "n1") == []
    await advance(1)
    assert await claimed(deliveries, "n1") == ["later"]


async def test_lease_that_runs_out_makes_it_due_again(
    deliveries: Deliveries, advance: PassTime
) -> None:
    """For others, and for the node itself if no other claimed it."""
    await deliveries.put("a")
    assert await claimed(deliveries, "n1", lease=10) == ["a"]
    await advance(11)
    assert await claimed(deliveries, "n1", lease=10) == ["a"]
    await advance(11)
    assert await claimed(deliveries, "n2", lease=10) == ["a"]


async def test_lapsed_delivery_may_stay_with_its_holder(
    deliveries: Deliveries, advance: PassTime
) -> None:
    """While the claimer, which was suspended, cannot judge; unclaimed deliveries are claimed."""
    for id in ("held", "waiting"):
        await deliveries.put(id)
    assert await claimed(deliveries, "n1", lease=10, limit=1) == ["held"]
    await advance(11)
    for node in ("n2", "n3"):
        left = await deliveries.claim(QUEUES, node, 10, 9, takeover_delay=5)
        assert (["waiting"] if node == "n2" else []) == [each.id for each in left]
    assert await deliveries.next_due(QUEUES) == 5
    assert await deliveries.lost("n1", ["held"]) == []

    await advance(4)
    assert await claimed(deliveries, "n4") == []
    await advance(1)
    assert await claimed(deliveries, "n4") == ["held"]
    await advance(5)
    assert set(await claimed(deliveries, "n4")) == {"waiting"}


async def test_renewed_lease_lasts(deliveries: Deliveries, advance: PassTime) -> None:
    """From the renewal on, also after expiry if no other took the delivery."""
    await deliveries.put("a")
    await claimed(deliveries, "n1", lease=10)
    await advance(8)
    assert list(await deliveries.renew("n1", ["a"], 10)) == []
    await advance(8)
    assert await claimed(deliveries, "n2") == []

    await advance(8)
    assert list(await deliveries.renew("n1", ["a"], 10)) == []
    assert await claimed(deliveries, "n2") == []


async def test_holder_is_told_what_it_lost(deliveries: Deliveries, advance: PassTime) -> None:
    """Taken by another, cancelled, dropped or never there; the rest is renewed."""
    await deliveries.put("taken")
    await claimed(deliveries, "n1", lease=10)
    await advance(11)
    assert await claimed(deliveries, "n2") == ["taken"]
    for id in ("mine", "cancelled", "dropped"):
        await deliveries.put(id)
    assert set(await claimed(deliveries, "n1", lease=10)) == {"mine", "cancelled", "dropped"}
    await deliveries.cancel("cancelled")
    await deliveries.drop("n1", "dropped")

    ids = ["mine", "taken", "cancelled", "dropped", "never"]
    assert set(ids[1:]) == set(await deliveries.lost("n1", ids))
    await advance(8)
    assert set(ids[1:]) == set(await deliveries.renew("n1", ids, 10))
    await advance(8)
    assert await claimed(deliveries, "n3") == []


async def test_released_delivery_is_due_at_once(deliveries: Deliveries, advance: PassTime) -> None:
    """Only the holder can release it."""
    await deliveries.put("a")
    await claimed(deliveries, "n1")
    await deliveries.release("n2", "a")
    await deliveries.release("n1", "never")
    assert await claimed(deliveries, "n2") == []

    await deliveries.release("n1", "a")
    assert list(await deliveries.lost("n1", ["a"])) == ["a"]
    assert await claimed(deliveries, "n2") == ["a"]


async def test_dropped_delivery_is_gone(deliveries: Deliveries, advance: PassTime) -> None:
    """Only the present holder can drop it."""
    await deliveries.put("a")
    await deliveries.drop("n1", "a")
    assert await claimed(deliveries, "n1", lease=10) == ["a"]
    await advance(11)
    assert await claimed(deliveries, "n2", lease=10) == ["a"]
    await deliveries.drop("n1", "a")
    assert list(await deliveries.lost("n2", ["a"])) == []

    await deliveries.drop("n2", "a")
    await advance(11)
    assert await claimed(deliveries, "n1") == []


async def test_cancelled_delivery_is_gone(deliveries: Deliveries, advance: PassTime) -> None:
    """Waiting, due or claimed; cancelling an unknown one is not an error."""
    await deliveries.put("waiting", delay=10)
    await deliveries.put("held")
    await claimed(deliveries, "n1")
    await deliveries.put("due")
    for id in ("waiting", "held", "due", "never"):
        await deliveries.cancel(id)
    await advance(100)

    assert await claimed(deliveries, "n2") == []
    assert list(await deliveries.lost("n1", ["held"])) == ["held"]
    assert await deliveries.next_due(QUEUES) is None


async def test_next_due_says_when_to_look_again(deliveries: Deliveries, advance: PassTime) -> None:
    """At the end of a delay or of a lease, whichever is first, in the given queues."""
    assert await deliveries.next_due(QUEUES) is None
    await deliveries.put("other", "other")
    await deliveries.put("later", delay=20)
    assert await deliveries.next_due(QUEUES) == 20
    await deliveries.put("sooner", delay=5)
    assert await deliveries.next_due(QUEUES) == 5
    assert await deliveries.next_due(["default", "other"]) == 0

    await advance(5)
    assert await deliveries.next_due(QUEUES) == 0
    await claimed(deliveries, "n1", lease=10)
    assert await deliveries.next_due(QUEUES) == 10
    await deliveries.renew("n1", ["sooner"], 12)
    assert await deliveries.next_due(QUEUES) == 12
    await deliveries.drop("n1", "sooner")
    assert await deliveries.next_due(QUEUES) == 15
    await advance(20)
    assert await deliveries.next_due(QUEUES) == 0


async def test_news_wakes_whoever_waits(deliveries: Deliveries) -> None:
    """A put, a release and a cancellation are news to all."""
    with deliveries.news() as news, deliveries.news() as theirs:
        await deliveries.put("a")
        assert await woken(news)
        assert await woken(theirs)
        await deliveries.put("b", delay=60)
        assert await woken(news)

        await claimed(deliveries, "n1")
        await deliveries.release("n1", "a")
        assert await woken(news)
        await claimed(deliveries, "n1")
        await deliveries.cancel("a")
        assert await woken(news)


async def test_news_is_only_what_may_be_due(deliveries: Deliveries) -> None:
    """A claim, a renewal and a drop wake no worker, nor does an operation without effect."""
    await deliveries.put("a")
    with deliveries.news() as news:
        await deliveries.lost("n1", ())  # by now older notifications are known
        await asyncio.sleep(0)
        news.clear()

        await claimed(deliveries, "n1")
        await deliveries.renew("n1", ["a"], 10)
        await deliveries.put("a")
        await deliveries.cancel("never")
        await deliveries.release("n2", "a")
        await deliveries.drop("n1", "a")
        assert await is_quiet(deliveries, news)


async def test_news_comes_from_other_event_loops(deliveries: Deliveries) -> None:
    """A put by another thread's loop wakes waiting workers."""

    async def leave_without_a_word() -> None:
        left.enter_context(deliveries.news())

    with ExitStack() as left, deliveries.news() as news:
        await asyncio.to_thread(asyncio.run, leave_without_a_word())
        await asyncio.to_thread(asyncio.run, deliveries.put("a"))
        assert await woken(news)
        assert await claimed(deliveries, "n1") == ["a"]


async def test_worker_that_looks_on_news_misses_nothing(deliveries: Deliveries) -> None:
    """Two workers and racing puts: each delivery is worked on once, without polling."""
    ids = {str(number) for number in range(60)}
    done: list[str] = []

    async def work(node: str) -> None:
        with deliveries.news() as news:
            while len(done) < len(ids):
                news.clear()
                if not (claims := await claimed(deliveries, node, limit=4)):
                    await news.wait()
                for id in claims:
                    await deliveries.drop(node, id)
                    done.append(id)
            await deliveries.cancel(node)

    async def put_all() -> None:
        await deliveries.put("n1", "never")  # to wake the other at the end
        await deliveries.put("n2", "never")
        for id in ids:
            await deliveries.put(id)

    async with asyncio.timeout(BOUND):
        await asyncio.gather(work("n1"), work("n2"), put_all())

    assert sorted(ids) == sorted(done)


# Backlog


async def test_backlog_counts_waiting_and_held(deliveries: Deliveries) -> None:
    """The backlog of a queue counts what waits, also for a delay, apart from what nodes hold."""
    assert await deliveries.backlog("default") == Backlog(0, 0, 0.0)

    for id in "abc":
        await deliveries.put(id, owner="ann")
    await deliveries.put("d", delay=100)
    await deliveries.put("e", "heavy")
    await claimed(deliveries, "n1", limit=1)

    waiting, held, _ = await deliveries.backlog("default")
    assert (waiting, held) == (3, 1)
    assert (await deliveries.backlog("heavy"))[:2] == (1, 0)

    await deliveries.drop("n1", "a")
    await deliveries.cancel("b")
    assert (await deliveries.backlog("default"))[:2] == (2, 0)


async def test_backlog_has_the_age_of_the_oldest_due(
    deliveries: Deliveries, advance: PassTime
) -> None:
    """The age is the time since a waiting delivery became due, not since it was put."""
    await deliveries.put("a", delay=100)
    assert (await deliveries.backlog("default")).age == 0
    await deliveries.put("b")
    await advance(130)

    assert (await deliveries.backlog("default")).age == pytest.approx(130, abs=10)
    await claimed(deliveries, "n1", limit=1)
    assert (await deliveries.backlog("default")).age == pytest.approx(30, abs=10)
    await claimed(deliveries, "n1", limit=1)
    assert await deliveries.backlog("default") == Backlog(0, 2, 0.0)


async def test_backlog_counts_an_expired_lease_as_waiting(
    deliveries: Deliveries, advance: PassTime
) -> None:
    """A delivery of a dead node waits for another one, since its lease has expired."""
    await deliveries.put("a")
    await claimed(deliveries, "n1", lease=30)
    await advance(50)

    waiting, held, age = await deliveries.backlog("default")
    assert (waiting, held) == (1, 0)
    assert age == pytest.approx(20, abs=10)
    await deliveries.renew("n1", ["a"], 30)
    assert await deliveries.backlog("default") == Backlog(0, 1, 0.0)


async def test_closed_deliveries_are_unavailable(store: Store, deliveries: Deliveries) -> None:
    """Closing the store wakes waiting workers, and rejects every operation."""
    await deliveries.put("a")
    with deliveries.news() as news:
        news.clear()
        await store.aclose()
        assert await woken(news)

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
