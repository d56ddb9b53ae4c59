"""The cryptography that seals are made of.

A module of its own, imported when the first value is sealed or opened: OpenSSL takes several MiB
that a server without sessions, cursors and questions does not need.
"""

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

__all__ = ["Cipher", "derive"]


def derive(secret: bytes, use: str, length: int) -> bytes:
    """Return *length* bytes that only who has *secret* can make, for one *use* (RFC 5869)."""
    info = f"genmcp seal 1: {use}".encode()
    return HKDF(algorithm=SHA256(), length=length, salt=None, info=info).derive(secret)


class Cipher:
    """AES-256-GCM with one *key* of 32 bytes."""

    __slots__ = ("_aes",)

    def __init__(self, key: bytes) -> None:
        self._aes = AESGCM(key)

    def encrypt(self, nonce: bytes, plain: bytes, associated: bytes) -> bytes:
        """Return *plain* encrypted and authenticated, along with what is *associated*."""
        return self._aes.encrypt(nonce, plain, associated)

    def decrypt(self, nonce: bytes, box: bytes, associated: bytes) -> bytes | None:
        """Return what `encrypt` was given, None if that is not what made *box*."""
        try:
            return self._aes.decrypt(nonce, box, associated)
        except InvalidTag:
            return None
