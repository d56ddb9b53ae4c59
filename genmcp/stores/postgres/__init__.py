"""The store in a PostgreSQL database: `PostgresStore`. Needs the extra `postgres`."""

from genmcp.stores.postgres.store import PostgresStore

__all__ = ["PostgresStore"]
