"""One `apply` in SQLite: its checks, and the order of its writes."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from sqlite3 import Connection
from typing import Final

from genmcp.errors import OverShare
from genmcp.stores.accounts import Account, Bounds, Owner, Usage
from genmcp.stores.sqlite.connection import prepare
from genmcp.stores.sqlite.database import Books, Database, Settings, Transaction, named
from genmcp.stores.sqlite.deliveries import SQLiteDeliveries
from genmcp.stores.sqlite.tables import (
    REFRESH_AFTER,
    append_event,
    drop_logs,
    events_after,
    find_record,
    position_of,
    stage_records,
    sweep_logs,
    sweep_records,
    touch_record,
    usage_of_logs,
)
from genmcp.stores.store import Append, Delete, Entry, Event, Op, Store, check_one_subject

__all__ = ["SQLiteStore", "apply_ops", "sweep_expired"]

_SWEEPS = 10  # sweeps before a write is rejected because of a share


def sweep_expired(transaction: Transaction) -> bool:
    """Remove some expired records and logs; return whether there may be more."""
    more_records, more_logs = sweep_records(transaction), sweep_logs(transaction)
    return more_records or more_logs


def apply_ops(ops: Sequence[Op], transaction: Transaction) -> None:
    """Perform all of *ops*.

    Raises:
        StoreError: an `expect` did not hold, or there is no room; none of *ops* was written, and
            no log was dropped. Expired entries may have been removed.
    """
    change = PendingWrite(transaction, ops)
    try:
        change.check()
    except OverShare:
        # Entries that have expired, and logs that can be dropped, must not count against the
        # client.
        swept = 0
        while swept < _SWEEPS and sweep_expired(transaction):
            swept += 1
        change = PendingWrite(transaction, ops)
        # The transaction is committed with the changes of others, whatever becomes of this one: all
        # checks come before the first log is dropped.
        change.check(dropping=True)
        change.make_room()
    change.save()


class PendingWrite:
    """The pending operations of one `apply`, within a transaction."""

    def __init__(self, transaction: Transaction, ops: Sequence[Op]) -> None:
        self._transaction = transaction
        self._appends = [op for op in ops if isinstance(op, Append)]
        written = [op for op in ops if not isinstance(op, Delete)]
        self._new = any(op.new for op in written)
        self._owners: Collection[Owner] = {tuple(op.owner) for op in written if op.owner}
        others = [op for op in ops if not isinstance(op, Append)]
        self._states = stage_records(transaction, others)

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
                    dropped = usage_of_logs(self._transaction, named(owner[:depth]) or "")
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
                drop_logs(self._transaction, named(owner[:depth]) or "", room)

    def save(self) -> None:
        """Write all operations."""
        for state in self._states:
            state.save()
        for op in self._appends:
            append_event(self._transaction, op)

    def _growth(self, account: Account) -> Usage:
        grown = [state.growth_of(account.name) for state in self._states]
        added = [len(op.data) for op in self._appends if account in op.owner]
        return Usage(
            sum(each.entries for each in grown) + len(added),
            sum(each.size for each in grown) + sum(added),
        )


_ENTRY_BYTES: Final = 256  # per entry in the share of an account: a row and its indexes
_READ_AT_ONCE: Final = 100  # events a follower holds while it yields them


class SQLiteStore(Store):
    """A store in the file at *path*, shared by all processes of one machine.

    Acknowledged writes survive a killed process; a power failure may lose the last commits, but
    never a part of one (WAL, `synchronous=NORMAL`). An append wakes followers in other processes
    within 25 ms, and in the same process at once. The folder must exist, on a local disk: SQLite's
    locks do not work on network file systems. A missing file is created with access for its owner
    only.

    Once *max_bytes* (default 4 GiB) is reached, writes that need room raise StoreFull until enough
    has expired, and StoreUnavailable while the disk is full. New work is rejected once only
    *reserve* is left, a fraction of the file and of each client's share (default 0.1), which
    updates of stored work still need. A process that waits longer than *busy_timeout* seconds
    (default 5) while others write gets StoreUnavailable. *clock* returns Unix time and must be the
    same in all processes; the default is the file's own clock, which changes of the system time do
    not affect (on Linux).

    It may be created before the process forks, and used before and after: each process opens the
    file itself, at its first use. It is open until `aclose`.

    Raises:
        ConfigurationError: the folder or the file cannot be used, or the file is not of this
            version of genmcp.
    """

    shared = True
    durable = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_bytes: int = 4 * 1024**3,
        reserve: float = 0.1,
        busy_timeout: float = 5.0,
        clock: Callable[[], float] | None = None,
    ) -> None:
        bounds = Bounds(max_bytes, max(1, max_bytes // _ENTRY_BYTES), reserve)
        # Absolute: a process that changes its folder later still means this file.
        file = Path(path).absolute()
        of_file = prepare(file, busy_timeout=busy_timeout, max_bytes=max_bytes)
        self._settings = Settings(file, bounds, busy_timeout, clock or of_file)
        self._databases: dict[int, Database] = {}  # of the process with this id
        self._deliveries = SQLiteDeliveries(self._database)

    def __repr__(self) -> str:
        return f"<SQLiteStore: {str(self._settings.path)!r}>"

    @property
    def deliveries(self) -> SQLiteDeliveries:
        return self._deliveries

    def now(self) -> float:
        return self._settings.clock()

    async def get(self, key: str) -> Entry | None:
        return await self._database().read(partial(find_record, key=key))

    async def apply(self, *ops: Op) -> None:
        check_one_subject(ops)
        await self._database().write(partial(apply_ops, ops))

    async def usage(self, account: str) -> Usage:
        def ask(connection: Connection, now: float) -> Usage:
            return Books(connection.execute, self._settings.bounds).used(account)

        return await self._database().read(ask)

    async def touch(self, key: str, ttl: float) -> bool:
        return bool(await self._database().write(partial(touch_record, key=key, ttl=ttl)))

    async def read(self, log: str, after: str | None = None, limit: int = 100) -> Sequence[Event]:
        def ask(connection: Connection, now: float) -> Sequence[Event]:
            place = position_of(connection, now, log, after)
            return events_after(connection, now, log, place, limit)[1]

        return await self._database().read(ask)

    async def follow(self, log: str, after: str | None = None) -> AsyncGenerator[Event, None]:
        database = self._database()
        with database.watch.of_log(log) as waiter:
            place = await database.read(partial(position_of, name=log, after=after))
            while True:
                waiter.clear()
                ask = partial(events_after, name=log, place=place, limit=_READ_AT_ONCE)
                place, events = await database.read(ask)
                for event in events:
                    yield event
                if len(events) < _READ_AT_ONCE:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(REFRESH_AFTER):
                            await waiter.wait()

    async def aclose(self) -> None:
        await self._database().aclose()

    def _database(self) -> Database:
        pid = os.getpid()
        database = self._databases.get(pid)
        if database is None:  # setdefault: two threads may come here at once
            made = Database(self._settings, sweep_expired)
            database = self._databases.setdefault(pid, made)
        return database
