"""A store in Redis or Valkey, shared by processes on many machines: `RedisStore`."""

from genmcp.errors import ConfigurationError

try:
    from genmcp.stores.redis.store import RedisStore
except ModuleNotFoundError as error:
    if error.name != "redis":
        raise
    raise ConfigurationError('RedisStore needs redis-py: pip install "genmcp[redis]"') from error

__all__ = ["RedisStore"]
