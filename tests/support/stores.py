"""Empty stores of each kind for tests with several processes, and their servers."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from genmcp.stores.memory import MemoryStore
from genmcp.stores.postgres import PostgresStore
from tests.support.postgres_server import PostgresServer, fresh_schema, shared_postgres
from tests.support.redis_server import RedisServer

KINDS: Final = ("sqlite", "redis", "postgres")

StoreServer: TypeAlias = RedisServer | PostgresServer


class SharedStore(NamedTuple):
    """The URL of an empty store, and its server; None for a file."""

    url: str
    server: StoreServer | None = None


@asynccontextmanager
async def shared_store(
    kind: str, folder: Path, *, own_server: bool = False
) -> AsyncIterator[SharedStore]:
    """Yield an empty store of this *kind*, `sqlite`, `redis` or `postgres`.

    A URL instead of a kind is yielded unchanged.

    Args:
        kind: the kind of the store.
        folder: the folder for an SQLite file.
        own_server: whether to start a server that the test may kill. Default False.
    """
    if "://" in kind:
        yield SharedStore(kind)
    elif kind == "sqlite":
        yield SharedStore(f"sqlite:///{folder}/store.db")
    elif kind == "redis":
        async with RedisServer() as redis:
            yield SharedStore(redis.url, redis if own_server else None)
    elif own_server:
        async with PostgresServer() as postgres:
            yield SharedStore(await _migrated(postgres.url), postgres)
    else:
        url = await asyncio.to_thread(shared_postgres)
        yield SharedStore(await _migrated(f"{url}?schema={fresh_schema()}"))


def stored_keys(store: MemoryStore) -> list[str]:
    """Return the keys of all records in *store*, in order."""
    database: Any = store._database
    return [key for (key,) in database._opened().execute("SELECT key FROM records ORDER BY key")]


async def kill(server: StoreServer) -> None:
    """Kill *server* (SIGKILL)."""
    if isinstance(server, PostgresServer):
        await server.kill()
    else:
        server.kill()


async def _migrated(url: str) -> str:
    store = PostgresStore(url)
    try:
        await store.migrate()
    finally:
        await store.aclose()
    return url
