"""Accounts and bounds where the stores differ; the contract is in tests/contracts."""

from contextlib import aclosing
from pathlib import Path

import pytest

from genmcp.core.client_key import client_of
from genmcp.errors import ConfigurationError
from genmcp.stores.accounts import ANONYMOUS, Usage
from genmcp.stores.memory import MemoryStore
from genmcp.stores.sqlite.store import SQLiteStore
from genmcp.stores.store import Append, Put
from tests.support.clock import Clock

LOCALHOST = client_of(None, "::1")


@pytest.mark.parametrize("option", ["max_bytes", "max_entries"])
def test_bound_out_of_range_is_rejected(option: str) -> None:
    """A wrong bound fails at construction and is named."""
    with pytest.raises(ConfigurationError, match=option):
        MemoryStore(**{option: -1})  # type: ignore[arg-type]


async def test_usage_is_exact_over_a_restart(tmp_path: Path) -> None:
    """Accounts are written in the same transaction as the entries that they count."""
    clock = Clock()
    path = tmp_path / "store.db"
    async with aclosing(SQLiteStore(path, clock=clock)) as store:
        await store.apply(
            *(Put(f"#{n}", b"12", ttl=10 + n, client=LOCALHOST) for n in range(5)),
            Append("#log", b"1", ttl=10, client=LOCALHOST),
        )
    clock.now = 12.5
    async with aclosing(SQLiteStore(path, clock=clock)) as store:
        await store.apply(Put("5", b"123", client=LOCALHOST))
        names = (ANONYMOUS, LOCALHOST, "other")
        assert [await store.usage(n) for n in names] == [Usage(3, 12), Usage(3, 12), Usage()]
