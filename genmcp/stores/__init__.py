"""Stores: small values under a key, and logs that are replayed and then followed live.

`stores/store.py` defines the interface `Store`. `stores/memory.py` and `stores/sqlite` implement
it.
"""

from genmcp.errors import ConfigurationError
from genmcp.stores.memory import MemoryStore
from genmcp.stores.store import Store

__all__ = ["open_store"]


def open_store(url: str) -> Store:
    """Return the store that a setting such as `GENMCP_STORE` names.

    Args:
        url: `sqlite:///relative/path`, `sqlite:////absolute/path` (nothing in the path is
            percent-decoded), or `memory://`.

    Raises:
        ConfigurationError: *url* has another form, or the file cannot be used.
    """
    if url == "memory://":
        return MemoryStore()
    scheme, _, path = url.partition(":///")
    if scheme == "sqlite" and path:
        # Imported here, because a process without a SQLite file does not need sqlite3.
        from genmcp.stores.sqlite.store import SQLiteStore

        return SQLiteStore(path)
    raise ConfigurationError(
        f"store: {url!r} is not supported; use sqlite:///relative/path, sqlite:////absolute/path "
        f"or memory://"
    )
