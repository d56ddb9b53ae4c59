"""`StoreTokens`: tokens in a store, for clients that run on several servers."""

import asyncio
import hashlib
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Final

from genmcp._core.auth.record import Record
from genmcp.client.auth.sealing import DEFAULT_MAX_BYTES, RecordCodec, Secret
from genmcp.client.auth.tokens import (
    DEFAULT_LOCK_TIMEOUT,
    TokenStorage,
    TokensUnavailable,
    busy_text,
)
from genmcp.errors import ConfigurationError, Conflict, StoreError
from genmcp.stores.store import Delete, Put, Store

_FIRST_DELAY: Final = 0.02
_MAX_DELAY: Final = 0.5  # seconds between two attempts to lock
_DAY: Final = 86_400.0


class StoreTokens(TokenStorage):
    """Tokens in a `Store`, sealed, for all processes that use the store.

    Args:
        store: the store, which remains the caller's to close.
        secret: seals the records: one or several secrets, as for `Mux`. Required.
        lock_timeout: seconds to wait for a process that renews the same token. Default 60.
        lease: seconds after which the lock of a process that has died is free. It must be longer
            than a renewal takes, and shorter than *lock_timeout*; a slower process loses its lock.
            Default 30.
        ttl: seconds after its last change until a record is removed, None for never. Default
            90 days.
        max_bytes: the maximum size of a record, before it is sealed. Default 64 KiB.

    Raises:
        ConfigurationError: the secret is shorter than 16 bytes, or a time is not positive.
    """

    def __init__(
        self,
        store: Store,
        secret: Secret,
        *,
        lock_timeout: float = DEFAULT_LOCK_TIMEOUT,
        lease: float = 30.0,
        ttl: float | None = 90 * _DAY,
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> None:
        for name, seconds in (("lease", lease), ("ttl", ttl)):
            if seconds is not None and seconds <= 0:
                raise ConfigurationError(f"StoreTokens: {name}={seconds:g} is not positive")
        self._store = store
        self._codec = RecordCodec(secret, max_bytes)
        self._lock_timeout = lock_timeout
        self._lease = lease
        self._ttl = ttl

    async def get(self, key: str) -> Record | None:
        """Return the record under *key*, or None."""
        return (await self._read(key))[0]

    async def swap(self, key: str, old: Record | None, new: Record | None) -> bool:
        """Replace *old* by *new*, and return whether *old* was the present record."""
        found, version = await self._read(key)
        if found != old:
            return False
        name = _name_of(key)
        if new is not None:
            data = self._codec.encode(key, new)
            op: Put | Delete = Put(name, data, ttl=self._ttl, expect=version)
        elif version:
            op = Delete(name, expect=version)
        else:
            return True
        try:
            await self._store.apply(op)
        except Conflict:
            return False
        except StoreError as error:
            raise TokensUnavailable(f"the store cannot keep tokens: {error}") from error
        return True

    @asynccontextmanager
    async def lock(self, key: str) -> AsyncIterator[None]:
        """Lock *key* in all processes, for `lease` seconds at most."""
        name, mark = f"{_name_of(key)}#lock", secrets.token_bytes(16)
        try:
            try:
                async with asyncio.timeout(self._lock_timeout):
                    await self._acquire(name, mark)
            except TimeoutError:
                raise TokensUnavailable(busy_text(self._lock_timeout)) from None
            except StoreError as error:
                raise TokensUnavailable(f"the store cannot lock tokens: {error}") from error
            yield
        finally:
            # Also of a wait that was cancelled, which may have written the lock. A store that
            # cannot be reached lets the lease end.
            with suppress(StoreError):
                await self._release(name, mark)

    async def _acquire(self, name: str, mark: bytes) -> None:
        delay = _FIRST_DELAY
        while True:
            try:
                return await self._store.apply(Put(name, mark, ttl=self._lease, expect=0))
            except Conflict:
                await asyncio.sleep(delay)
                delay = min(2 * delay, _MAX_DELAY)

    async def _release(self, name: str, mark: bytes) -> None:
        entry = await self._store.get(name)
        if entry is not None and entry.value == mark:  # not the lock of another after the lease
            await self._store.apply(Delete(name, expect=entry.version))

    async def _read(self, key: str) -> tuple[Record | None, int]:
        """Return the record under *key*, and its version in the store, 0 if there is none."""
        name = _name_of(key)
        try:
            entry = await self._store.get(name)
        except StoreError as error:
            raise TokensUnavailable(f"the tokens cannot be read: {error}") from error
        if entry is None:
            return None, 0
        return self._codec.decode(key, entry.value, f"the record {name}"), entry.version


def _name_of(key: str) -> str:
    return f"oauth:{hashlib.sha256(key.encode('utf-8', 'surrogatepass')).hexdigest()[:40]}"
