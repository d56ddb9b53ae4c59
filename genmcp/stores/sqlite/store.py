"""Stores in a SQLite database, and `SQLiteStore` in a file."""

import os
import shutil
from collections.abc import AsyncGenerator, Callable, Sequence
from functools import partial
from pathlib import Path
from sqlite3 import Connection

from genmcp.errors import ConfigurationError
from genmcp.stores.accounts import EVERYTHING, Capacity, Usage
from genmcp.stores.following import PAGE, Position, follow_pages
from genmcp.stores.sqlite import tables
from genmcp.stores.sqlite.database import Database, FileDatabase
from genmcp.stores.sqlite.deliveries import SQLiteDeliveries
from genmcp.stores.store import FoundEntry, LogEvent, Op, Store, StoreEntry, check_one_subject
from genmcp.stores.waiters import log_name


class DatabaseStore(Store):
    """A store in *database*: the base of those in a file and in memory."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._deliveries = SQLiteDeliveries(database)
        self.capacity = database.capacity

    @property
    def deliveries(self) -> SQLiteDeliveries:
        return self._deliveries

    def now(self) -> float:
        return self._database.now()

    async def get(self, key: str) -> StoreEntry | None:
        return await self._database.read(partial(tables.find_record, key=key))

    async def find(
        self, label: str, after: str | None = None, limit: int = 100
    ) -> Sequence[FoundEntry]:
        query = partial(tables.find_labelled, label=label, after=after, limit=limit)
        return await self._database.read(query)

    async def count(self, label: str) -> int:
        return await self._database.read(partial(tables.count_labelled, label=label))

    async def apply(self, *ops: Op) -> None:
        check_one_subject(ops)
        await self._database.write(partial(tables.apply, ops=ops))

    async def usage(self, account: str) -> Usage:
        def query(connection: Connection, now: float) -> Usage:
            limits_file = self._database.limits_file
            return tables.usage_of(connection, account, limits_file=limits_file)

        return await self._database.read(query)

    async def touch(self, key: str, ttl: float) -> bool:
        return await self._database.write(partial(tables.touch_record, key=key, ttl=ttl))

    async def read(
        self, log: str, after: str | None = None, limit: int = 100
    ) -> Sequence[LogEvent]:
        return (await self._page(log, after, limit))[1]

    def follow(self, log: str, after: str | None = None) -> AsyncGenerator[LogEvent, None]:
        waiting = partial(self._database.waiters.signal, [log_name(log)])
        beginning: Position = after
        return follow_pages(waiting, partial(self._page, log), beginning)

    async def _page(
        self, log: str, after: Position, limit: int = PAGE
    ) -> tuple[Position, Sequence[LogEvent]]:
        query = partial(tables.read_events, log=log, after=after, limit=limit)
        return await self._database.read(query)

    async def aclose(self) -> None:
        self.outages.closed = True
        await self._database.aclose()


class SQLiteStore(DatabaseStore):
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
    lag = 0.03  # each process looks for changes of others every 20 ms

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
        # Absolute, because the process may change its working directory later.
        self._path = Path(path).absolute()
        capacity = Capacity(max_bytes)
        super().__init__(FileDatabase(self._path, capacity, timeout, self.outages, clock))

    def __repr__(self) -> str:
        return f"<SQLiteStore: {str(self._path)!r}>"

    async def problems(self) -> Sequence[str]:
        capacity = self._database.capacity.size
        room = capacity - (await self.usage(EVERYTHING)).size
        free = shutil.disk_usage(self._path.parent).free
        if free >= room:
            return ()
        problem = (
            f"the disk of {str(self._path)!r} has {free} bytes left, but the file may grow by "
            f"{room} (max_bytes={capacity}): lower max_bytes, or make room on the disk"
        )
        return (problem,)
