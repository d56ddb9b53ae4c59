"""Accounts in SQLite, updated in the same transaction as the entries that they count.

They stay exact when a process is killed. Expired entries count until they are removed.
"""

from collections.abc import Callable, Iterable
from itertools import chain
from sqlite3 import Cursor
from typing import Any, Final

from genmcp.errors import OverShare, StoreFull
from genmcp.stores.accounts import Account, Bounds, Owner, Usage, names_of

__all__ = ["Books", "named"]

_ROWS_AT_ONCE: Final = 100
_NOTHING: Final = Usage()


def named(owner: Owner) -> str | None:
    """Return the account names of *owner* as the value of a column, one name a line."""
    return "\n".join(names_of(owner)) or None


class Books:
    """The usage of accounts and the free space of the file. Owned by one transaction."""

    __slots__ = ("_bounds", "_changes", "_execute", "_free", "_read")

    def __init__(self, execute: Callable[..., Cursor], bounds: Bounds) -> None:
        self._execute = execute
        self._bounds = bounds
        self._changes: dict[str, Usage] = {}
        self._read: dict[str, tuple[int, int]] = {}  # usage at the start of the transaction
        self._free: int | None = None  # free bytes without the reserve; None until read

    def add(self, accounts: str | None, entries: int, size: int) -> None:
        """Add *entries* and *size*, which may be negative, to each account of a column."""
        if accounts is None:
            return
        for name in accounts.split("\n"):
            had = self._changes.get(name, Usage())
            self._changes[name] = Usage(had.entries + entries, had.size + size)

    def load(self, names: Iterable[str]) -> None:
        """Read the usage of the accounts *names* in one query."""
        missing = [name for name in names if name not in self._read]
        if not missing:
            return
        self._read.update(dict.fromkeys(missing, (0, 0)))
        marks = ", ".join("?" * len(missing))
        rows = self._execute(f"SELECT * FROM accounts WHERE name IN ({marks})", missing)
        self._read.update({name: (entries, size) for name, entries, size in rows})

    def used(self, name: str) -> Usage:
        """Return the usage of the account *name*, including the changes of this transaction."""
        if name not in self._read:
            self.load((name,))
        read = self._read[name]
        changed = self._changes.get(name)
        if changed is None:
            return Usage(*read)
        return Usage(read[0] + changed.entries, read[1] + changed.size)

    def check(
        self, account: Account, growth: Usage, *, new: bool, dropped: Usage = _NOTHING
    ) -> None:
        """Check that *account* may grow by *growth* once *dropped* was removed from it.

        Raises:
            OverShare: it would exceed one of its bounds.
        """
        used = self.used(account.name)
        left = Usage(used.entries - dropped.entries, used.size - dropped.size)
        self._bounds.check(account, left, growth, new=new)

    def room(self, account: Account, growth: Usage, *, new: bool) -> Callable[[Usage], bool]:
        """Return a predicate that takes an amount to drop.

        It tells whether *account* may then grow by *growth*.
        """
        used = self.used(account.name)

        def fits(dropped: Usage) -> bool:
            left = Usage(used.entries - dropped.entries, used.size - dropped.size)
            try:
                self._bounds.check(account, left, growth, new=new)
            except OverShare:
                return False
            return True

        return fits

    def check_file(self, size: int) -> None:
        """Check that the file has room for *size* bytes of new work, and count them.

        Raises:
            StoreFull: only the reserve is left.
        """
        if self._free is None:
            pages, unused, page = (
                self._pragma(name) for name in ("page_count", "freelist_count", "page_size")
            )
            self._free = int(self._bounds.size_for(new=True)) - (pages - unused) * page
        if size > self._free:
            raise StoreFull(
                f"the SQLite store is full: max_bytes={self._bounds.size}, of which "
                f"reserve={self._bounds.reserve} is not for new work"
            )
        self._free -= size

    def save(self) -> None:
        """Write the changed accounts."""
        changes = [(name, *change) for name, change in self._changes.items() if any(change)]
        for begin in range(0, len(changes), _ROWS_AT_ONCE):
            rows = changes[begin : begin + _ROWS_AT_ONCE]
            self._execute(
                f"INSERT INTO accounts VALUES {', '.join(['(?, ?, ?)'] * len(rows))}"
                " ON CONFLICT (name) DO UPDATE SET"
                " entries = entries + excluded.entries, size = size + excluded.size",
                tuple(chain(*rows)),
            )
        for name, entries, _ in changes:
            if entries < 0:
                self._execute("DELETE FROM accounts WHERE name = ? AND entries = 0", (name,))
        self._changes.clear()
        self._read.clear()

    def _pragma(self, name: str) -> int:
        value: Any = self._execute(f"PRAGMA {name}").fetchone()[0]
        return int(value)
