"""The store in Redis or Valkey: `RedisStore`. Needs the extra `redis`."""

from genmcp.stores.redis.store import RedisStore

__all__ = ["RedisStore"]
