"""Stores: small values under a key, and logs that are replayed and then followed live.

`stores/store.py` defines the interface `Store`. `stores/memory.py`, `stores/sqlite`, `stores/redis`
and `stores/postgres` implement it.
"""

import logging
from contextlib import suppress
from importlib.metadata import entry_points
from typing import Final

from genmcp.errors import ConfigurationError, StoreUnavailable
from genmcp.stores.accounts import Usage as Usage
from genmcp.stores.deliveries import Backlog as Backlog
from genmcp.stores.deliveries import Deliveries as Deliveries
from genmcp.stores.deliveries import Delivery as Delivery
from genmcp.stores.memory import MemoryStore as MemoryStore
from genmcp.stores.outages import redacted
from genmcp.stores.sqlite.store import SQLiteStore as SQLiteStore
from genmcp.stores.store import Append as Append
from genmcp.stores.store import Delete as Delete
from genmcp.stores.store import FoundEntry as FoundEntry
from genmcp.stores.store import LogEvent as LogEvent
from genmcp.stores.store import Put as Put
from genmcp.stores.store import Store as Store
from genmcp.stores.store import StoreEntry as StoreEntry
from genmcp.stores.store import StoreTotals as StoreTotals

logger = logging.getLogger("genmcp")

_GROUP: Final = "genmcp.stores"  # of the entry points of other packages: scheme = callable(url)
_FORMS: Final = (
    "sqlite:///relative/path, sqlite:////absolute/path, memory://, redis://host:6379/0 (also "
    "rediss, valkey, valkeys, redis+sentinel, redis+cluster) or postgresql://user@host/database"
)

_REDIS: Final = {"redis", "rediss", "valkey", "valkeys"}  # also followed by +sentinel or +cluster
_POSTGRES: Final = {"postgresql", "postgres"}


def open_store(url: str) -> Store:
    """Return the store that a setting such as `GENMCP_STORE` names.

    Another package adds a scheme by an entry point in the group `genmcp.stores`: its name is the
    scheme, its value a callable that returns a `Store` for a URL.

    Args:
        url: `sqlite:///relative/path`, `sqlite:////absolute/path` (nothing in the path is
            percent-decoded), `memory://`, a URL of a Redis or Valkey server (`redis://`,
            `rediss://`, `valkey://`, `valkeys://`, `redis+sentinel://`), of a PostgreSQL server
            (`postgresql://`), or with a scheme of another package.

    Raises:
        ConfigurationError: *url* has another form, the extra for its scheme is not installed, or
            the store cannot be used.
    """
    if url == "memory://":
        return MemoryStore()
    scheme, separator, path = url.partition("://")
    if scheme == "sqlite" and path[:1] == "/" and path[1:]:
        return SQLiteStore(path[1:])
    # Imported here: a process without such a server needs no client of it. An extra that is not
    # installed is reported by the module.
    if separator and scheme.partition("+")[0] in _REDIS:
        from genmcp.stores.redis import RedisStore

        return RedisStore.from_url(url)
    if separator and scheme in _POSTGRES:
        from genmcp.stores.postgres import PostgresStore

        return PostgresStore(url)
    if separator and scheme not in ("memory", "sqlite"):
        for entry in entry_points(group=_GROUP, name=scheme):
            store: Store = entry.load()(url)
            return store
    names = sorted(entry.name for entry in entry_points(group=_GROUP))
    forms = _FORMS + "".join(f", or {name}://" for name in names)
    raise ConfigurationError(f"store: {redacted(url)!r} is not supported; use {forms}")


async def log_problems(store: Store) -> None:
    """Log the problems of *store*, before a process begins to serve.

    A store that is unavailable is not an error: it may be started later.

    Raises:
        ConfigurationError: the store can never be used with its settings.
    """
    with suppress(StoreUnavailable):
        for problem in await store.problems():
            logger.warning("%r: %s", store, problem)
