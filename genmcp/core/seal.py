"""Sealed values: state that a client carries instead of the server.

A session id, a cursor or a `requestState` is encrypted and authenticated here. Any process with the
same secret can open it. A client can neither read nor change it, nor use it in another place.

The text form is visible ASCII, URL-safe, and has one spelling a value:

    "g1" | key id (6 characters) | base64url( nonce (12 bytes) | AES-256-GCM( expiry | payload ) )

The key id names the secret that sealed the value. There is a key for each secret and purpose, and
the associated data are the purpose, the audience and the parts that the caller binds the value to.

AES-256-GCM is three times as fast to open as AES-GCM-SIV, and every OpenSSL has it. It requires
nonces that do not repeat: they come from the system's random generator, which is safe for 2^32
values a secret and purpose (NIST SP 800-38D, 8.3). Past that, rotate the secret.

2026-07-28, "Multi Round-Trip Requests": `requestState` is attacker-controlled input, and its
integrity is protected. 2025-11-25, transports, "Session Management": an id is visible ASCII.
"""

import binascii
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import cached_property
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from genmcp.errors import ConfigurationError, ContractError, ForeignSeal, InvalidSeal, SealExpired

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

Part: TypeAlias = str | bytes | None
"""Part of what a value is bound to. A str counts as its UTF-8; None differs from the empty str."""

NONCE_BYTES: Final = 12
SECRET_BYTES: Final = 16
"""The minimum length of a secret."""

_FORMAT: Final = "g1"
_KEY_ID: Final = len(_FORMAT) + 6
_EXPIRY: Final = Struct(">d")
_OVERHEAD: Final = NONCE_BYTES + _EXPIRY.size + 16  # the tag of AES-GCM


class Purpose(StrEnum):
    """The use of a sealed value. A value that is sealed for one purpose opens for no other."""

    SESSION = "session"
    CURSOR = "cursor"
    REQUEST_STATE = "request_state"
    SERVER_REQUEST = "server_request"
    TASK = "task"
    EVENT = "event"
    OVERFLOW = "overflow"
    DPOP_NONCE = "dpop_nonce"
    TOKENS = "tokens"
    HANDLE = "handle"


class _Keys(NamedTuple):
    """The keys of one secret for one purpose."""

    cipher: "AESGCM"
    mark: bytes


class Seal:
    """Seals and opens values for one audience. Owned by a mux.

    Args:
        secret: one or several secrets; the first seals, all open. To rotate, append the new secret
            in all processes, so that each can open it, then put it first, and remove the old one
            once its values have expired. A str is its UTF-8. Secrets are keys, not passwords:
            nothing slows down guessing a weak one.
        audience: the name that values are bound to; different for each mux with the same secret.
        now: the clock by which values expire, in seconds; shared by all processes that open them.
        nonce: returns the number of random bytes that it is given, from the system's generator.
        max_bytes: the maximum size of the payload of one value, before encryption; default 32 KiB.

    Raises:
        ConfigurationError: no audience, no secret, or a secret that is shorter than 16 bytes.
    """

    def __init__(
        self,
        secret: str | bytes | Sequence[str | bytes],
        audience: str,
        *,
        now: Callable[[], float],
        nonce: Callable[[int], bytes],
        max_bytes: int = 32 * 1024,
    ) -> None:
        secrets = [secret] if isinstance(secret, str | bytes) else secret
        # Without duplicates: a secret that is rotated back in would otherwise seal under two ids.
        self._secrets = [*dict.fromkeys(map(_to_bytes, secrets))]
        for each in self._secrets:
            if len(each) < SECRET_BYTES:
                raise ConfigurationError(
                    f"secret: {len(each)} bytes are too few, the minimum is {SECRET_BYTES}; "
                    f"`openssl rand -base64 32` makes a good one"
                )
        if not self._secrets:
            raise ConfigurationError("secret: the list is empty; give at least one")
        if not audience:
            raise ConfigurationError("audience: must not be empty, or values fit every mux")
        self._now = now
        self._nonce = nonce
        self._max_bytes = max_bytes
        self._longest = _KEY_ID + (max_bytes + _OVERHEAD + 2) // 3 * 4
        self._prefixes = {purpose: _join((purpose, audience)) for purpose in Purpose}

    @cached_property
    def _keys(self) -> dict[str, dict[Purpose, _Keys]]:
        """The keys by the id of their secret, derived when the first value is sealed or opened."""
        # Imported here: OpenSSL takes several MiB, which a server without sessions, cursors and
        # questions does not need.
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        from cryptography.hazmat.primitives.hashes import SHA256
        from cryptography.hazmat.primitives.kdf.hkdf import HKDF

        # Each purpose has keys of its own, so that a value of one never opens as another, and no
        # name made by `mark` is a key of a cipher (RFC 5869, 3.2).
        def derive(secret: bytes, use: str, length: int) -> bytes:
            info = f"genmcp seal 1: {use}".encode()
            return HKDF(algorithm=SHA256(), length=length, salt=None, info=info).derive(secret)

        return {
            _FORMAT + urlsafe_b64encode(derive(secret, "key id", 6)).decode()[:6]: {
                purpose: _Keys(
                    AESGCM(derive(secret, purpose, 32)), derive(secret, f"{purpose} mark", 32)
                )
                for purpose in Purpose
            }
            for secret in self._secrets
        }

    def seal(self, purpose: Purpose, payload: bytes, *bound: Part, ttl: float) -> str:
        """Return *payload* as a text that opens for *ttl* seconds, with the same parts *bound*.

        Raises:
            ContractError: the payload is too large, or the nonce has another length.
        """
        if len(payload) > self._max_bytes:
            raise ContractError(
                f"a {purpose} of {len(payload)} bytes cannot be sealed, "
                f"the maximum is {self._max_bytes} (max_bytes)"
            )
        nonce = self._nonce(NONCE_BYTES)
        if len(nonce) != NONCE_BYTES:
            raise ContractError(f"a nonce has {NONCE_BYTES} bytes, not {len(nonce)}")
        key_id, keys = next(iter(self._keys.items()))
        plain, prefix = _EXPIRY.pack(self._now() + ttl) + payload, self._prefixes[purpose]
        box = keys[purpose].cipher.encrypt(nonce, plain, prefix + _join(bound))
        return key_id + _encode(nonce + box).decode()

    def mark(self, purpose: Purpose, *parts: Part, key_id: str = "") -> str:
        """Return an unguessable name for *parts*: 160 bits, in letters, digits, - and _.

        Equal parts give the same name under the same secret: that of *key_id* (see `key_id_of`), or
        by default the one that seals.
        """
        keys = self._keys.get(key_id) or next(iter(self._keys.values()))
        data = self._prefixes[purpose] + _join(parts)
        return _encode(hmac.digest(keys[purpose].mark, data, "sha256")[:20]).decode()

    def marks(self, purpose: Purpose, *parts: Part) -> list[str]:
        """Return the name that `mark` makes for *parts*, then those under the earlier secrets."""
        return [self.mark(purpose, *parts, key_id=key_id) for key_id in self._keys]

    @staticmethod
    def key_id_of(text: str) -> str:
        """Return the id of the secret that sealed *text*, for `mark`."""
        return text[:_KEY_ID]

    def open(self, purpose: Purpose, text: str, *bound: Part) -> bytes:
        """Return the payload that was sealed as *text* for this purpose, audience and parts.

        Any text may be given.

        Raises:
            ForeignSeal: the text was sealed with a secret that is not in the keyring.
            InvalidSeal: the text was not sealed here, was changed, or is bound to other parts.
            SealExpired: the text is valid, but its time has passed.
        """
        sealed = _decode(text) if len(text) <= self._longest else None
        if sealed is None:
            raise InvalidSeal(f"not a sealed {purpose}")
        keys = self._keys.get(text[:_KEY_ID])
        if keys is None:
            raise ForeignSeal(f"a {purpose} sealed with another secret")
        from cryptography.exceptions import InvalidTag  # see `_keys`

        nonce, box = sealed[:NONCE_BYTES], sealed[NONCE_BYTES:]
        try:
            # Authenticated before any field is read: the client controls the text. One error for
            # all causes, so that an attacker does not learn which part was wrong.
            opened = keys[purpose].cipher.decrypt(
                nonce, box, self._prefixes[purpose] + _join(bound)
            )
        except InvalidTag:
            raise InvalidSeal(f"not a {purpose} that was sealed for this") from None
        (expiry,) = _EXPIRY.unpack_from(opened)
        if not self._now() < expiry:  # in this form, so that a NaN counts as expired
            raise SealExpired(f"the {purpose} has expired")
        return opened[_EXPIRY.size :]


def _to_bytes(text: str | bytes) -> bytes:
    # A lone surrogate may be in a client's JSON or in an environment variable.
    return text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text


def _join(parts: Sequence[Part]) -> bytes:
    """Join *parts* as netstrings, "-" for None: different sequences never give equal bytes."""
    joined = []
    for part in parts:
        if part is None:
            joined.append(b"-")
        else:
            data = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
            joined.append(b"%d:%b" % (len(data), data))
    return b"".join(joined)


def _decode(text: str) -> bytes | None:
    """Return the nonce and the box of a sealed text; None if it does not have that form."""
    if not text.startswith(_FORMAT):
        return None
    try:
        encoded = text.encode("ascii")[_KEY_ID:]
        sealed = urlsafe_b64decode(encoded + b"==")
    except (UnicodeEncodeError, binascii.Error):
        return None
    # `urlsafe_b64decode` skips characters that are not of its alphabet, so that many texts would
    # open. With one spelling per value, a copy cannot pass for another value in a cache or a log.
    if len(sealed) < _OVERHEAD or _encode(sealed) != encoded:
        return None
    return sealed


def _encode(sealed: bytes) -> bytes:
    return urlsafe_b64encode(sealed).rstrip(b"=")
