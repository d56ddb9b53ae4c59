"""One `apply` in SQLite: its checks, and the order of its writes."""

from collections.abc import Collection, Sequence

from genmcp.errors import OverShare
from genmcp.stores.accounts import Account, Owner, Usage
from genmcp.stores.sqlite import logs, records
from genmcp.stores.sqlite.accounts import named
from genmcp.stores.sqlite.database import Transaction
from genmcp.stores.store import Append, Delete, Op

__all__ = ["apply", "sweep"]

_SWEEPS = 10  # sweeps before a write is rejected because of a share


def sweep(transaction: Transaction) -> bool:
    """Remove some expired records and logs; return whether there may be more."""
    more_records, more_logs = records.sweep(transaction), logs.sweep(transaction)
    return more_records or more_logs


def apply(ops: Sequence[Op], transaction: Transaction) -> None:
    """Perform all of *ops*.

    Raises:
        StoreError: an `expect` did not hold, or there is no room; none of *ops* was written, and
            no log was dropped. Expired entries may have been removed.
    """
    change = _Change(transaction, ops)
    try:
        change.check()
    except OverShare:
        # Entries that have expired, and logs that can be dropped, must not count against the
        # client.
        swept = 0
        while swept < _SWEEPS and sweep(transaction):
            swept += 1
        change = _Change(transaction, ops)
        # The transaction is committed with the changes of others, whatever becomes of this one: all
        # checks come before the first log is dropped.
        change.check(dropping=True)
        change.make_room()
    change.save()


class _Change:
    """The pending operations of one `apply`, within a transaction."""

    def __init__(self, transaction: Transaction, ops: Sequence[Op]) -> None:
        self._transaction = transaction
        self._appends = [op for op in ops if isinstance(op, Append)]
        written = [op for op in ops if not isinstance(op, Delete)]
        self._new = any(op.new for op in written)
        self._owners: Collection[Owner] = {tuple(op.owner) for op in written if op.owner}
        others = [op for op in ops if not isinstance(op, Append)]
        self._states = records.stage(transaction, others)

    def check(self, *, dropping: bool = False) -> None:
        """Check that there is room for all operations; *dropping*: once logs were dropped for it.

        Raises:
            OverShare: an account of an owner has no room.
            StoreFull: the file has no room.
        """
        books = self._transaction.books
        books.load(account.name for owner in self._owners for account in owner)
        for owner in self._owners:
            for depth, account in enumerate(owner, 1):
                growth = self._growth(account)
                dropped = Usage()
                if dropping and not books.room(account, growth, new=self._new)(dropped):
                    dropped = logs.usage(self._transaction, named(owner[:depth]) or "")
                books.check(account, growth, new=self._new, dropped=dropped)
        if self._new:
            grown = sum(state.size - (state.had[1] if state.had else 0) for state in self._states)
            books.check_file(max(0, grown + sum(len(op.data) for op in self._appends)))

    def make_room(self) -> None:
        """Drop logs of owners whose accounts have no room; call `check` first."""
        books = self._transaction.books
        for owner in self._owners:
            for depth, account in enumerate(owner, 1):
                room = books.room(account, self._growth(account), new=self._new)
                logs.make_room(self._transaction, named(owner[:depth]) or "", room)

    def save(self) -> None:
        """Write all operations."""
        for state in self._states:
            state.save()
        for op in self._appends:
            logs.append(self._transaction, op)

    def _growth(self, account: Account) -> Usage:
        grown = [state.growth_of(account.name) for state in self._states]
        added = [len(op.data) for op in self._appends if account in op.owner]
        return Usage(
            sum(each.entries for each in grown) + len(added),
            sum(each.size for each in grown) + sum(added),
        )
