"""Accounts and bounds where the stores differ; the contract is in tests/contracts."""

from contextlib import aclosing
from pathlib import Path

import pytest

from genmcp.errors import ConfigurationError, StoreFull
from genmcp.stores.accounts import Account, Usage
from genmcp.stores.memory import MemoryStore
from genmcp.stores.sqlite.store import SQLiteStore
from genmcp.stores.store import Append, Put
from tests.contracts.accounts import MALLORY
from tests.contracts.bench import CAPACITY
from tests.support.clock import Clock

CROWD = (Account("anonymous", share=0.2), Account("address ::1", share=0.1))


@pytest.mark.parametrize("option", ["max_bytes", "max_entries", "reserve"])
def test_bounds_out_of_range_are_refused(option: str) -> None:
    """A wrong bound fails at construction and is named."""
    with pytest.raises(ConfigurationError, match=option):
        MemoryStore(**{option: -1})  # type: ignore[arg-type]


async def test_write_for_a_full_file_drops_no_log(tmp_path: Path) -> None:
    """New work that the file has no room for is rejected before room is made in a share."""
    async with aclosing(SQLiteStore(tmp_path / "store.db", max_bytes=CAPACITY)) as store:
        for number in range(2):
            await store.apply(Append(f"{number}", b"x" * 100_000, ttl=60, owner=MALLORY))
        with pytest.raises(StoreFull):
            for number in range(200):
                await store.apply(Put(f"{number}", b"x" * 10_000, new=True))
        with pytest.raises(StoreFull):
            await store.apply(Put("task", b"x" * 100_000, new=True, owner=MALLORY))

        assert [len(await store.read(log)) for log in ("0", "1")] == [1, 1]


async def test_sqlite_usage_is_exact_over_a_restart(tmp_path: Path) -> None:
    """The accounts are written in the transaction that changes what they count."""
    clock = Clock()
    path = tmp_path / "store.db"
    async with aclosing(SQLiteStore(path, clock=clock)) as store:
        await store.apply(
            *(Put(f"#{n}", b"12", ttl=10 + n, owner=CROWD) for n in range(5)),
            Append("#log", b"1", ttl=10, owner=CROWD),
        )
    clock.now = 12.5
    async with aclosing(SQLiteStore(path, clock=clock)) as store:
        await store.apply(Put("5", b"123", owner=CROWD))
        names = ("anonymous", "address ::1", "other")
        assert [await store.usage(n) for n in names] == [Usage(3, 12), Usage(3, 12), Usage()]
