"""The contract of `Store`."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any

import pytest

from genmcp.errors import StoreUnavailable
from genmcp.stores.store import Append, Put, Store
from tests.contracts.bench import take, until_waiting
from tests.contracts.logs import FollowContract, LogContract
from tests.contracts.records import ExpiryContract, LabelContract, RecordContract


class StoreContract(RecordContract, LabelContract, ExpiryContract, LogContract, FollowContract):
    """The contract of the records and logs of a `Store`.

    A subclass is written as `StoreBench` describes. The contracts of accounts, of deliveries and of
    access by several instances have classes of their own. Durability is not tested: restart the
    server of the store in a test of its own.
    """

    async def test_closed_store_is_unavailable(self, store: Store) -> None:
        """A closed store rejects everything except `now`; a second `aclose` does nothing."""
        await store.apply(Put("k", b""), Append("k", b"", ttl=60))
        await store.aclose()
        await store.aclose()

        assert isinstance(store.now(), float)
        asked: Sequence[Coroutine[Any, Any, object]] = (
            store.get("k"),
            store.find("k"),
            store.count("k"),
            store.apply(Put("k", b"")),
            store.touch("k", 1),
            store.read("k"),
            take(store.follow("k"), 1),
        )
        for question in asked:
            with pytest.raises(StoreUnavailable):
                await question

    async def test_closing_a_store_ends_its_followers(self, store: Store) -> None:
        """A follower that waits gets StoreUnavailable at once."""
        followed = store.follow("log")
        waiting = asyncio.ensure_future(take(followed, 1))
        await until_waiting(store)
        await store.aclose()

        with pytest.raises(StoreUnavailable):
            await waiting
