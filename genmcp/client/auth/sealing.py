"""Records as bytes, sealed with a secret where there is one."""

import logging
import os
import time
from collections.abc import Sequence
from typing import Final, TypeAlias

from genmcp._core.auth.record import Record, decode_record, encode_record
from genmcp._core.seal import Purpose, Seal
from genmcp.client.auth.tokens import TokensUnavailable
from genmcp.errors import ConfigurationError, ForeignSeal, SealError

logger = logging.getLogger(__name__)

Secret: TypeAlias = str | bytes | Sequence[str | bytes]
"""One or several secrets of at least 16 bytes; the first one seals, all of them open."""

DEFAULT_MAX_BYTES: Final = 64 * 1024

_AUDIENCE: Final = "genmcp client"
_SEALED: Final = b"g1"
_NEVER: Final = float("inf")


class RecordCodec:
    """Converts the records of a storage to bytes and back.

    Args:
        secret: seals the records; None: they are written as JSON.
        max_bytes: the maximum size of a record.
        disposable: whether a record of another secret counts as absent, because that secret cannot
            be restored by the user.
    """

    def __init__(self, secret: Secret | None, max_bytes: int, *, disposable: bool = False) -> None:
        self._max_bytes = max_bytes
        self._disposable = disposable
        self._seal = None
        if secret is not None:
            self._seal = Seal(
                secret, _AUDIENCE, now=time.time, nonce=os.urandom, max_bytes=max_bytes
            )

    @staticmethod
    def max_encoded(max_bytes: int) -> int:
        """Return the maximum number of bytes that `encode` returns."""
        return max_bytes * 4 // 3 + 100

    def encode(self, key: str, record: Record) -> bytes:
        """Return *record* as bytes, which are valid under *key* only if they are sealed.

        Raises:
            TokensUnavailable: the record is too large.
        """
        data = encode_record(record)
        if len(data) > self._max_bytes:
            raise TokensUnavailable(
                f"the tokens take {len(data)} bytes, the maximum is {self._max_bytes} (max_bytes)"
            )
        if self._seal is None:
            return data
        return self._seal.seal(Purpose.TOKENS, data, key, ttl=_NEVER).encode()

    def decode(self, key: str, data: bytes, where: str) -> Record | None:
        """Return the record in *data*, None if it is damaged, which is logged.

        Args:
            key: the key of the record.
            data: what the storage has under the key.
            where: the place of the data, for messages.

        Raises:
            TokensUnavailable: the record is sealed with a secret that was not given.
            ConfigurationError: a newer release wrote the record.
        """
        is_sealed = data.startswith(_SEALED)
        if is_sealed and self._seal is None:
            raise TokensUnavailable(
                f"{where} is sealed: give its secret=, or remove it to log in again"
            )
        try:
            # A plain record does not replace a sealed one: its author does not know the secret.
            record = self._decode(key, data) if is_sealed == (self._seal is not None) else None
        except ForeignSeal:
            if not self._disposable:
                raise TokensUnavailable(
                    f"{where} is sealed with another secret: give that secret as well (secret= "
                    f"takes several), or remove it to log in again"
                ) from None
            record = None
        except SealError:
            record = None
        except ConfigurationError as error:
            raise ConfigurationError(f"{where}: {error}") from None
        if record is None:
            logger.warning("%s has no valid tokens; a new login replaces it", where)
        return record

    def _decode(self, key: str, data: bytes) -> Record | None:
        if self._seal is not None:
            data = self._seal.open(Purpose.TOKENS, data.decode("latin-1"), key)
        return decode_record(data)
