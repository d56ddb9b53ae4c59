"""Shared stores of each kind, for tests with several processes: their URLs, and their servers."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from tests.support.postgres_server import PostgresServer
from tests.support.redis_server import RedisServer

KINDS: Final = ("sqlite",)

StoreServer: TypeAlias = RedisServer | PostgresServer


class SharedStore(NamedTuple):
    """The URL of an empty store, and its server; a file has none."""

    url: str
    server: StoreServer | None = None


@asynccontextmanager
async def shared_store(kind: str, folder: Path) -> AsyncIterator[SharedStore]:
    """Yield a store of this *kind*, `sqlite`, `redis` or `postgres`; *folder* is for its file.

    A URL is yielded as it is.
    """
    if "://" in kind:
        yield SharedStore(kind)
        return
    if kind == "sqlite":
        yield SharedStore(f"sqlite:///{folder}/store.db")
        return
    async with RedisServer() if kind == "redis" else PostgresServer() as server:
        yield SharedStore(server.url, server)
