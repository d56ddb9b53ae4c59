"""Small values under a key, and logs that are replayed and followed: the interface and engines."""

from genmcp.errors import ConfigurationError
from genmcp.stores.memory import MemoryStore
from genmcp.stores.store import Store

__all__ = ["open_store"]


_TAKEN = "sqlite:///relative/path, sqlite:////absolute/path or memory://"


def open_store(url: str) -> Store:
    """Return the store that *url* names.

    `sqlite:///relative/path`, `sqlite:////absolute/path` (nothing in the path is decoded), or
    `memory://`.

    Raises:
        ConfigurationError: *url* is none of these, or the file cannot be used.
    """
    if url == "memory://":
        return MemoryStore()
    scheme, _, path = url.partition(":///")
    if scheme == "sqlite" and path:
        # Who needs no file need not wait for sqlite3 to be imported.
        from genmcp.stores.sqlite.store import SQLiteStore

        return SQLiteStore(path)
    raise ConfigurationError(f"store: {url!r} is not taken; what is: {_TAKEN}")
