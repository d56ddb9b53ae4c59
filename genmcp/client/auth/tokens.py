"""Where a client keeps its tokens: the interface, and the tokens of one process."""

import asyncio
import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import ClassVar, Final, TypeAlias

from genmcp.core.auth.record import Record, decode_record, encode_record
from genmcp.core.seal import Purpose, Seal
from genmcp.errors import ForeignSeal, GenmcpError, SealError

logger = logging.getLogger(__name__)

Secret: TypeAlias = str | bytes | Sequence[str | bytes]
"""One or several secrets of at least 16 bytes; the first one seals, all of them open."""

MAX_BYTES: Final = 100 * 1024
"""The maximum size of a record as it is stored. Tokens with many claims have some 10 KiB."""

_MAX_PAYLOAD: Final = MAX_BYTES * 3 // 4 - 100  # before a seal encodes it
_POLL_INTERVAL: Final = 0.01
_AUDIENCE: Final = "genmcp client"
_SEALED: Final = b"g1"
_NEVER: Final = float("inf")


class TokensUnavailable(GenmcpError):
    """The stored tokens cannot be read, written or locked. The message names the remedy."""


class TokenStorage(ABC):
    """Stores the records of logins. Safe for any number of event loops, threads and processes.

    To add a storage, implement `read`, `write` and `lock`, and run `TokensContract` in
    tests/contracts. Each of them raises `TokensUnavailable` if the storage cannot be used.

    Args:
        secret: seals the records. Default None: they are written as JSON.

    Attributes:
        lock_timeout: seconds to wait for another process that renews the same token.

    Raises:
        ConfigurationError: the secret is shorter than 16 bytes.
    """

    lock_timeout: ClassVar[float] = 60.0  # longer than a renewal takes

    def __init__(self, *, secret: Secret | None = None) -> None:
        self._seal = None
        if secret is not None:
            self._seal = Seal(
                secret, _AUDIENCE, now=time.time, nonce=os.urandom, max_bytes=_MAX_PAYLOAD
            )

    @abstractmethod
    async def read(self, key: str) -> bytes | None:
        """Return the bytes under *key*, as they were written last, or None."""

    @abstractmethod
    async def write(self, key: str, data: bytes | None) -> None:
        """Replace the bytes under *key*. None: remove them. Called only under `lock`."""

    @abstractmethod
    def lock(self, key: str) -> AbstractAsyncContextManager[None]:
        """Lock *key* while its record is renewed or replaced; no other process is in the block.

        The lock of a process that has died is free. `read` ignores it. Not reentrant.

        Raises:
            TokensUnavailable: the lock was not free within `lock_timeout`.
        """

    def place(self, key: str) -> str:
        """Return where the record under *key* is, for messages. *key* may have a secret."""
        return f"a record of {type(self).__name__}"

    async def load(self, key: str) -> Record | None:
        """Return the record under *key*, or None.

        One that is damaged is logged, and counts as absent: a new login replaces it.

        Raises:
            TokensUnavailable: the record is sealed with a secret that was not given.
        """
        data = await self.read(key)
        return None if data is None else self._decoded(key, data)

    async def save(self, key: str, record: Record | None) -> None:
        """Store *record* in place of any other. None: remove it. Only under `lock`."""
        if record is None:
            await self.write(key, None)
            return
        data = encode_record(record)
        if len(data) > _MAX_PAYLOAD:
            raise TokensUnavailable(f"the tokens take {len(data)} bytes, more than can be stored")
        if self._seal is not None:
            data = self._seal.seal(Purpose.TOKENS, data, key, ttl=_NEVER).encode()
        await self.write(key, data)

    def _decoded(self, key: str, data: bytes) -> Record | None:
        where = self.place(key)
        is_sealed = data.startswith(_SEALED)
        if is_sealed and self._seal is None:
            raise TokensUnavailable(
                f"{where} is sealed: give its secret=, or remove it to log in again"
            )
        record = None
        try:
            if self._seal is None:
                record = decode_record(data)
            elif is_sealed:  # a plain record replaces no sealed one: its author lacks the secret
                opened = self._seal.open(Purpose.TOKENS, data.decode("latin-1"), key)
                record = decode_record(opened)
        except ForeignSeal:
            raise TokensUnavailable(
                f"{where} is sealed with another secret: give that secret as well (secret= takes "
                f"several), or remove it to log in again"
            ) from None
        except SealError:
            pass  # damaged
        if record is None:
            logger.warning("%s has no valid tokens; a new login replaces it", where)
        return record


class MemoryTokens(TokenStorage):
    """Tokens in the memory of this process, for all its clients, event loops and threads."""

    def __init__(self) -> None:
        super().__init__()
        self._records: dict[str, bytes] = {}
        self._locks: dict[str, threading.Lock] = {}

    async def read(self, key: str) -> bytes | None:
        """Return the bytes under *key*, or None."""
        return self._records.get(key)

    async def write(self, key: str, data: bytes | None) -> None:
        """Replace the bytes under *key*."""
        if data is None:
            self._records.pop(key, None)
        else:
            self._records[key] = data

    @asynccontextmanager
    async def lock(self, key: str) -> AsyncIterator[None]:
        """Lock *key*.

        Waiting polls: an asyncio.Lock belongs to one event loop, and a threading.Lock would block
        the loop.
        """
        lock = self._locks.setdefault(key, threading.Lock())
        try:
            async with asyncio.timeout(self.lock_timeout):
                while not lock.acquire(blocking=False):  # noqa: ASYNC110 - see above
                    await asyncio.sleep(_POLL_INTERVAL)
        except TimeoutError:
            raise TokensUnavailable(busy_text(self.lock_timeout)) from None
        try:
            yield
        finally:
            lock.release()


def busy_text(timeout: float) -> str:
    """Return the text of the error of a lock that was not free within *timeout* seconds."""
    return f"another client has been renewing this token for more than {timeout:g} s; try again"
