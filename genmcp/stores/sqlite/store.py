"""The store in a SQLite file, and the order of the writes of one `apply`."""

import asyncio
import os
import shutil
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from sqlite3 import Connection
from typing import Final

from genmcp.errors import ConfigurationError, StoreError, StoreUnavailable
from genmcp.stores.accounts import Capacity, Usage
from genmcp.stores.sqlite.database import AccountTable, Database, Settings, Transaction
from genmcp.stores.sqlite.deliveries import SQLiteDeliveries, sweep_news
from genmcp.stores.sqlite.tables import (
    append_event,
    count_labelled,
    events_after,
    find_labelled,
    find_record,
    position_of,
    shorten_log,
    sweep_logs,
    sweep_records,
    touch_record,
    write_record,
)
from genmcp.stores.store import (
    Append,
    FoundEntry,
    LogEvent,
    Op,
    Store,
    StoreEntry,
    StoreTotals,
    check_one_subject,
    room_of,
)

_READ_AT_ONCE: Final = 100  # the events that a follower reads at once, and then yields
_MAX_SWEEPS: Final = 10  # sweeps before a write is rejected because of a share

# Seconds after which a follower reads its log although nothing was appended. Ids are counted over
# all logs, so a position that is refreshed stays newer than any log whose row is deleted in the
# meantime: an hour after the log expired (tables.py).
_FOLLOW_REFRESH: Final = 600.0


class SQLiteStore(Store):
    """A store in a SQLite file, shared by all processes of one machine.

    Acknowledged writes survive a killed process. A power failure may lose the last commits, but
    never a part of one (WAL, `synchronous=NORMAL`). An append wakes followers in the same process
    at once, and in other processes within 25 ms. The folder must exist, on a local disk: SQLite's
    locks do not work on network file systems. A missing file is created with access for its owner
    only.

    The store may be created before the process forks. SQLite does not allow that a child uses a
    file that its parent has opened before the fork: in such a child, this store and any other one
    on the file raise ConfigurationError.

    Args:
        path: the file.
        max_bytes: the maximum size of the file. Beyond it writes that need room raise StoreFull
            until enough has expired. A full disk raises StoreUnavailable. Default 4 GiB.
        timeout: seconds to wait while other processes write; then StoreUnavailable is raised.
            Default 5.
        clock: returns Unix time, and must be the same in all processes. For tests. Default: the
            clock of the file, which setting the system time does not affect (on Linux).

    Raises:
        ConfigurationError: an option is out of range, the folder or the file cannot be used, or the
            file was not written by this version of genmcp.
    """

    shared = True
    durable = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_bytes: int = 4 * 1024**3,
        timeout: float = 5.0,
        clock: Callable[[], float] | None = None,
    ) -> None:
        if not timeout > 0:
            raise ConfigurationError(f"timeout must be above 0 seconds, not {timeout}")
        capacity = Capacity(max_bytes)
        # Absolute, because the process may change its working directory later.
        file = Path(path).absolute()
        self._settings = Settings(file, capacity, timeout, self.outages, clock, clock or time.time)
        with suppress(StoreUnavailable):  # the file is locked: the first operation does this
            self._settings.prepare()
        self._opened = Database(self._settings, _sweep)
        self._deliveries = SQLiteDeliveries(self._database)

    def __repr__(self) -> str:
        return f"<SQLiteStore: {str(self._settings.path)!r}>"

    @property
    def deliveries(self) -> SQLiteDeliveries:
        return self._deliveries

    def now(self) -> float:
        return self._settings.now()

    async def get(self, key: str) -> StoreEntry | None:
        return await self._database().read(partial(find_record, key=key))

    async def find(
        self, label: str, after: str | None = None, limit: int = 100
    ) -> Sequence[FoundEntry]:
        query = partial(find_labelled, label=label, after=after, limit=limit)
        return await self._database().read(query)

    async def count(self, label: str) -> int:
        return await self._database().read(partial(count_labelled, label=label))

    async def apply(self, *ops: Op) -> None:
        check_one_subject(ops)
        await self._database().write(partial(_apply, ops))

    async def usage(self, account: str) -> Usage:
        def query(connection: Connection, now: float) -> Usage:
            return AccountTable(connection.execute).before(account)

        return await self._database().read(query)

    async def totals(self) -> StoreTotals:
        capacity = self._settings.capacity

        def query(connection: Connection, now: float) -> StoreTotals:
            (entries,) = connection.execute(
                "SELECT (SELECT count(*) FROM records) + (SELECT count(*) FROM events)"
            ).fetchone()
            size = AccountTable(connection.execute).file_size()
            return StoreTotals(Usage(entries, size), capacity)

        return await self._database().read(query)

    async def problems(self) -> Sequence[str]:
        room = self._settings.capacity.size - (await self.totals()).used.size
        free = shutil.disk_usage(self._settings.path.parent).free
        if free >= room:
            return ()
        problem = (
            f"the disk of {str(self._settings.path)!r} has {free} bytes left, but the file may "
            f"grow by {room} (max_bytes={self._settings.capacity.size}): lower max_bytes, or make "
            f"room on the disk"
        )
        return (problem,)

    async def touch(self, key: str, ttl: float) -> bool:
        return bool(await self._database().write(partial(touch_record, key=key, ttl=ttl)))

    async def read(
        self, log: str, after: str | None = None, limit: int = 100
    ) -> Sequence[LogEvent]:
        def query(connection: Connection, now: float) -> Sequence[LogEvent]:
            position = position_of(connection, now, log, after)
            return events_after(connection, now, log, position, limit)[1]

        return await self._database().read(query)

    async def follow(self, log: str, after: str | None = None) -> AsyncGenerator[LogEvent, None]:
        database = self._database()
        with database.watch.signal(log) as signal:
            position = await database.read(partial(position_of, name=log, after=after))
            while True:
                signal.clear()  # before the read: see WakeSignal
                query = partial(events_after, name=log, position=position, limit=_READ_AT_ONCE)
                position, events = await database.read(query)
                for event in events:
                    yield event
                if len(events) < _READ_AT_ONCE:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(_FOLLOW_REFRESH):
                            await signal.wait()

    async def aclose(self) -> None:
        self.outages.closed = True
        await self._opened.aclose()

    def _database(self) -> Database:
        self._opened.check_process()
        return self._opened


def _sweep(transaction: Transaction) -> bool:
    """Remove some expired records and logs; return whether there may be more."""
    sweep_news(transaction)
    more_records, more_logs = sweep_records(transaction), sweep_logs(transaction)
    return more_records or more_logs


def _apply(ops: Sequence[Op], transaction: Transaction) -> None:
    """Perform all of *ops* within a transaction that other writes take part in.

    Raises:
        StoreError: an `expect` did not hold, or there is no room. Nothing of *ops* was written.
    """
    transaction.accounts.save()  # of the sweep before
    transaction.execute("SAVEPOINT apply")
    try:
        for op in ops:
            if isinstance(op, Append):
                append_event(transaction, op)
            else:
                write_record(transaction, op)
        if _excess(ops, transaction):
            for _ in range(_MAX_SWEEPS):
                if not _sweep(transaction):
                    break
        for op in ops:
            while isinstance(op, Append) and _excess(ops, transaction):
                if not shorten_log(transaction, op.log):
                    break
        if error := _excess(ops, transaction):
            raise error
    except StoreError:
        transaction.execute("ROLLBACK TO apply")
        transaction.execute("RELEASE apply")
        transaction.accounts.growth.clear()
        raise
    transaction.execute("RELEASE apply")
    transaction.accounts.save()


def _excess(ops: Sequence[Op], transaction: Transaction) -> StoreError | None:
    """Return the error for *ops*, which were performed, if an account has no room for them."""
    room, accounts = room_of(transaction.capacity, ops), transaction.accounts
    # SQLite itself bounds the file; only new work, which has no slack, leaves the reserve in it.
    for limit in room.limits if room.slack == 0 else room.limits[:-1]:
        growth = accounts.growth.get(limit.account)
        if growth and max(growth) > 0:
            before = accounts.before(limit.account)
            after = Usage(before.entries + growth.entries, before.size + growth.size)
            if room.exceeded(limit, before, after):
                return transaction.capacity.refusal(limit.account, before)
    return None
