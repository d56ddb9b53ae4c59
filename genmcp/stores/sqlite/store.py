"""The store in a SQLite file."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from sqlite3 import Connection
from typing import Final

from genmcp.stores.accounts import Bounds, Usage
from genmcp.stores.sqlite import changes, logs, records
from genmcp.stores.sqlite.accounts import Books
from genmcp.stores.sqlite.connection import prepare
from genmcp.stores.sqlite.database import Database, Settings
from genmcp.stores.sqlite.deliveries import SQLiteDeliveries
from genmcp.stores.store import Entry, Event, Op, Store, check_one_subject

__all__ = ["SQLiteStore"]

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
        return await self._database().read(partial(records.find, key=key))

    async def apply(self, *ops: Op) -> None:
        check_one_subject(ops)
        await self._database().write(partial(changes.apply, ops))

    async def usage(self, account: str) -> Usage:
        def ask(connection: Connection, now: float) -> Usage:
            return Books(connection.execute, self._settings.bounds).used(account)

        return await self._database().read(ask)

    async def touch(self, key: str, ttl: float) -> bool:
        return bool(await self._database().write(partial(records.touch, key=key, ttl=ttl)))

    async def read(self, log: str, after: str | None = None, limit: int = 100) -> Sequence[Event]:
        def ask(connection: Connection, now: float) -> Sequence[Event]:
            place = logs.place(connection, now, log, after)
            return logs.since(connection, now, log, place, limit)[1]

        return await self._database().read(ask)

    async def follow(self, log: str, after: str | None = None) -> AsyncGenerator[Event, None]:
        database = self._database()
        with database.watch.of_log(log) as waiter:
            place = await database.read(partial(logs.place, name=log, after=after))
            while True:
                waiter.clear()
                ask = partial(logs.since, name=log, place=place, limit=_READ_AT_ONCE)
                place, events = await database.read(ask)
                for event in events:
                    yield event
                if len(events) < _READ_AT_ONCE:
                    with suppress(TimeoutError):
                        async with asyncio.timeout(logs.LOOK_AGAIN):
                            await waiter.wait()

    async def aclose(self) -> None:
        await self._database().aclose()

    def _database(self) -> Database:
        pid = os.getpid()
        database = self._databases.get(pid)
        if database is None:  # setdefault: two threads may come here at once
            made = Database(self._settings, changes.sweep)
            database = self._databases.setdefault(pid, made)
        return database
