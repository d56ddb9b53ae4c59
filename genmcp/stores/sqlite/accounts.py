"""Accounts in SQLite: the use of each, changed in the transaction that changes what they count.

So they are exact whatever happens to a process, and what has run out counts until it is removed.
"""

from collections.abc import Callable, Iterable
from itertools import chain
from sqlite3 import Cursor
from typing import Any, Final

from genmcp.errors import OverShare, StoreFull
from genmcp.stores.accounts import Account, Bounds, Owner, Usage, names_of

__all__ = ["Books", "named"]

_ROWS_AT_ONCE: Final = 100


def named(owner: Owner) -> str | None:
    """Return the accounts of *owner* as a column holds them."""
    return "\n".join(names_of(owner)) or None


class Books:
    """The accounts, and the room in the file, in one transaction."""

    __slots__ = ("_bounds", "_changes", "_execute", "_free", "_read")

    def __init__(self, execute: Callable[..., Cursor], bounds: Bounds) -> None:
        self._execute = execute
        self._bounds = bounds
        self._changes: dict[str, Usage] = {}
        self._read: dict[str, tuple[int, int]] = {}  # what was there when the transaction began
        self._free: int | None = None  # bytes beside the reserve, as far as known

    def add(self, accounts: str | None, entries: int, size: int) -> None:
        """Add *entries* and *size*, which may be negative, to each account of a column."""
        if accounts is None:
            return
        for name in accounts.split("\n"):
            had = self._changes.get(name, Usage())
            self._changes[name] = Usage(had.entries + entries, had.size + size)

    def load(self, names: Iterable[str]) -> None:
        """Read what the accounts in *names* use, at once."""
        missing = [name for name in names if name not in self._read]
        if not missing:
            return
        self._read.update(dict.fromkeys(missing, (0, 0)))
        marks = ", ".join("?" * len(missing))
        rows = self._execute(f"SELECT * FROM accounts WHERE name IN ({marks})", missing)
        self._read.update({name: (entries, size) for name, entries, size in rows})

    def used(self, name: str) -> Usage:
        """Return what the account uses, with what this transaction has changed."""
        if name not in self._read:
            self.load((name,))
        read = self._read[name]
        changed = self._changes.get(name)
        if changed is None:
            return Usage(*read)
        return Usage(read[0] + changed.entries, read[1] + changed.size)

    def check(self, account: Account, growth: Usage, *, new: bool) -> None:
        """Check that *account* may grow by so much.

        Raises:
            OverShare: it would exceed one of its bounds.
        """
        self._bounds.check(account, self.used(account.name), growth, new=new)

    def room(self, account: Account, growth: Usage, *, new: bool) -> Callable[[Usage], bool]:
        """Return a test of whether *account* may grow by so much once some of it was dropped."""
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
        """Check that the file has room for *size* bytes of new work.

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
        """Write the accounts that have changed."""
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
