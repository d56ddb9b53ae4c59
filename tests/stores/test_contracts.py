"""The contracts of every store, and the rules that all of them share.

A further store needs a bench in tests/stores/benches.py and a class here. Durability, and access by
several processes rather than instances, are tested with each store.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

from genmcp.stores.deliveries import Deliveries
from genmcp.stores.memory import MemoryStore
from genmcp.stores.store import Store, subject_of
from tests.contracts.accounts import AccountsContract
from tests.contracts.deliveries import QUEUES, DeliveriesContract
from tests.contracts.records import ExpiryContract
from tests.contracts.shared import SharedContract
from tests.contracts.store import StoreContract
from tests.stores.benches import MemoryBench, PostgresBench, RedisBench, SQLiteBench


class ExactWakeUps(DeliveriesContract):
    """Stores that set their signals for changes only, which the interface does not demand."""

    async def test_signal_is_set_if_a_delivery_may_be_due(self, deliveries: Deliveries) -> None:
        """A claim, a renewal and a drop wake no worker, nor does an operation without effect."""
        await deliveries.put("a")
        with deliveries.news() as news:
            await deliveries.lost("n1", ())  # by now older notifications are known
            await asyncio.sleep(0)
            news.clear()

            await deliveries.claim(QUEUES, "n1", 30, 1)
            await deliveries.renew("n1", ["a"], 10)
            await deliveries.put("a")
            await deliveries.cancel("never")
            await deliveries.release("n2", "a")
            await deliveries.drop("n1", "a")
            await deliveries.lost("", ())
            waiting = asyncio.ensure_future(news.wait())
            await asyncio.sleep(0)
            assert not waiting.done()
            waiting.cancel()
            await asyncio.wait([waiting])


class TestMemoryStore(MemoryBench, StoreContract, AccountsContract, ExactWakeUps):
    """The store in memory."""


class TestSQLiteStore(SQLiteBench, StoreContract, AccountsContract, ExactWakeUps, SharedContract):
    """The store in a file."""


class TestPostgresStore(
    PostgresBench, StoreContract, AccountsContract, DeliveriesContract, SharedContract
):
    """The store in a PostgreSQL database."""


class TestRedisStore(
    RedisBench, StoreContract, AccountsContract, DeliveriesContract, SharedContract
):
    """The store in a Redis or Valkey server."""


class TestSleepingStore(ExpiryContract):
    """A store with a real clock: `advance` sleeps."""

    unit = 0.05

    @pytest.fixture
    async def store(self) -> AsyncIterator[Store]:
        async with aclosing(MemoryStore()) as store:
            yield store


def test_store_need_not_have_deliveries() -> None:
    """A third-party store has none unless it provides them."""

    class Plain(MemoryStore):
        deliveries = Store.deliveries  # type: ignore[assignment]

    assert Plain().deliveries is None


@pytest.mark.parametrize("name", ["task:7", "task:7#call", "task:7#", "task:7#a#b"])
def test_subject_ends_at_the_first_number_sign(name: str) -> None:
    """Further ones belong to the part: it may be text of a client."""
    assert subject_of(name) == "task:7"
