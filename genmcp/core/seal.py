"""Sealed values: what the server would have to remember, handed to the client instead.

A session id, a cursor or a `requestState` is encrypted and authenticated here, so that any process
with the same secret can take it back and nobody can read, change or reuse it elsewhere.

The text form is visible ASCII, URL-safe, and has one spelling a value:

    "g1" | key id (6 characters) | base64url( nonce (12 bytes) | AES-256-GCM( expiry | payload ) )

The key id says which secret sealed the value. There is a key for each secret and purpose, and
the associated data are the purpose, the audience and the parts the caller binds the value to.

AES-256-GCM is three times as fast to open as AES-GCM-SIV, and every OpenSSL has it. It asks for
nonces that do not repeat: they must come from the system's random generator, which is safe for
2^32 values a secret and purpose (NIST SP 800-38D, 8.3); past that, rotate the secret.

2026-07-28, "Multi Round-Trip Requests": `requestState` is attacker-controlled input, and its
integrity is protected. 2025-11-25, transports, "Session Management": an id is visible ASCII.
"""

import binascii
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Sequence
from enum import StrEnum
from functools import cached_property
from struct import Struct
from typing import TYPE_CHECKING, Final, TypeAlias

from genmcp.errors import ConfigurationError, ContractError, Expired, ForeignSeal, Forged

if TYPE_CHECKING:
    from genmcp.core.cipher import Cipher

__all__ = [
    "NONCE_BYTES",
    "Keyring",
    "Part",
    "Purpose",
    "Seal",
]

Part: TypeAlias = str | bytes | None
"""Something a sealed value is bound to; a str is its UTF-8, and None is not the empty str."""

NONCE_BYTES: Final = 12
SECRET_BYTES: Final = 16
"""The shortest secret taken."""

_FORMAT: Final = "g1"
_KEY_ID: Final = len(_FORMAT) + 6
_EXPIRY: Final = Struct(">d")
_OVERHEAD: Final = NONCE_BYTES + _EXPIRY.size + 16  # the tag of AES-GCM


class Purpose(StrEnum):
    """What a sealed value is for; a value sealed for one purpose opens for no other."""

    SESSION = "session"
    CURSOR = "cursor"
    REQUEST_STATE = "request_state"
    SERVER_REQUEST = "server_request"
    TASK = "task"
    EVENT = "event"


class Keyring:
    """The keys made from one secret or from several: the first seals, all open.

    To rotate, put the new secret first and take the old one out once its values have expired.
    A str is its UTF-8. Secrets are keys, not passwords: nothing slows down guessing a weak one.

    Raises:
        ConfigurationError: there is no secret, or one that is shorter than 16 bytes.
    """

    def __init__(self, secret: str | bytes | Sequence[str | bytes]) -> None:
        secrets = [secret] if isinstance(secret, str | bytes) else secret
        # A secret given twice counts once, so that the order matches that of the key ids.
        self._materials = [*dict.fromkeys(map(_bytes, secrets))]
        for material in self._materials:
            if len(material) < SECRET_BYTES:
                raise ConfigurationError(
                    f"secret: one of {len(material)} bytes is too short, the least is "
                    f"{SECRET_BYTES}; `openssl rand -base64 32` makes a good one"
                )
        self._mark_keys: dict[tuple[Purpose, int], bytes] = {}
        if not self._materials:
            raise ConfigurationError("secret: the list is empty; give at least one")

    @cached_property
    def _ciphers(self) -> "dict[str, dict[Purpose, Cipher]]":
        from genmcp.core.cipher import Cipher, derive  # see there

        return {
            _FORMAT + urlsafe_b64encode(derive(material, "key id", 6)).decode()[:6]: {
                purpose: Cipher(derive(material, purpose, 32)) for purpose in Purpose
            }
            for material in self._materials
        }

    def sealing(self, purpose: Purpose) -> "tuple[str, Cipher]":
        """Return the key id of the secret that seals, and its cipher for *purpose*."""
        first = next(iter(self._ciphers))
        return first, self._ciphers[first][purpose]

    def mark(self, purpose: Purpose, data: bytes, key_id: str = "") -> bytes:
        """Return the HMAC-SHA-256 of *data* under the secret *key_id*.

        An unknown *key_id* means the secret that seals.
        """
        ids = [*self._ciphers]
        index = ids.index(key_id) if key_id in ids else 0
        key = self._mark_keys.get((purpose, index))
        if key is None:
            from genmcp.core.cipher import derive  # see there

            key = derive(self._materials[index], f"{purpose} mark", 32)
            self._mark_keys[purpose, index] = key
        return hmac.digest(key, data, "sha256")

    def opening(self, key_id: str, purpose: Purpose) -> "Cipher | None":
        """Return the cipher for *purpose* of the secret that *key_id* names, if it is here."""
        ciphers = self._ciphers.get(key_id)
        return ciphers[purpose] if ciphers else None


class Seal:
    """Seals and opens values for one audience: a mux, unlike any other with the same secret.

    *max_bytes* bounds the payload of one value, before encryption.
    """

    def __init__(self, keyring: Keyring, audience: str, *, max_bytes: int = 32 * 1024) -> None:
        if not audience:
            raise ConfigurationError("audience: must not be empty, or values fit every mux")
        self._keyring = keyring
        self._max_bytes = max_bytes
        self._longest = _KEY_ID + (max_bytes + _OVERHEAD + 2) // 3 * 4
        self._prefixes = {purpose: _joined((purpose, audience)) for purpose in Purpose}

    def seal(
        self,
        purpose: Purpose,
        payload: bytes,
        *,
        now: float,
        ttl: float,
        nonce: bytes,
        bound: Sequence[Part] = (),
    ) -> str:
        """Return *payload* as a text that opens until *ttl* seconds after *now*.

        *now* is in seconds on any clock that all openers share; *nonce* is 12 random bytes, never
        used before. *bound* are the parts the value is meant for; it opens only with equal ones.

        Raises:
            ContractError: the payload is too large, or the nonce has another length.
        """
        if len(payload) > self._max_bytes:
            raise ContractError(
                f"a {purpose} of {len(payload)} bytes cannot be sealed, "
                f"the most is {self._max_bytes} (max_bytes)"
            )
        if len(nonce) != NONCE_BYTES:
            raise ContractError(f"a nonce has {NONCE_BYTES} bytes, not {len(nonce)}")
        key_id, cipher = self._keyring.sealing(purpose)
        box = cipher.encrypt(
            nonce, _EXPIRY.pack(now + ttl) + payload, self._prefixes[purpose] + _joined(bound)
        )
        return key_id + _encoded(nonce + box).decode()

    def mark(self, purpose: Purpose, *parts: Part, key_id: str = "") -> str:
        """Return an unguessable name for *parts*: 160 bits, in letters, digits, - and _.

        Equal parts give the same name under the same secret: the one of *key_id* (see `key_id_of`),
        or the one that seals.
        """
        data = self._prefixes[purpose] + _joined(parts)
        return _encoded(self._keyring.mark(purpose, data, key_id)[:20]).decode()

    @staticmethod
    def key_id_of(text: str) -> str:
        """Return the id of the secret that sealed *text*, for `mark`."""
        return text[:_KEY_ID]

    def open(self, purpose: Purpose, text: str, *, now: float, bound: Sequence[Part] = ()) -> bytes:
        """Return what was sealed as *text*, for this purpose, this audience and these parts.

        Nothing is told of a value before it is authenticated, and any text may be given.

        Raises:
            ForeignSeal: the text was sealed with a secret that is not in the keyring.
            Forged: the text was not sealed here, was changed, or is bound to something else.
            Expired: the text is ours, but its time has run out.
        """
        sealed = _decoded(text) if len(text) <= self._longest else None
        if sealed is None:
            raise Forged(f"not a sealed {purpose}")
        cipher = self._keyring.opening(text[:_KEY_ID], purpose)
        if cipher is None:
            raise ForeignSeal(f"a {purpose} sealed with another secret")
        opened = cipher.decrypt(
            sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], self._prefixes[purpose] + _joined(bound)
        )
        if opened is None:
            raise Forged(f"not a {purpose} that was sealed for this")
        (expiry,) = _EXPIRY.unpack_from(opened)
        # A NaN is never still valid.
        if not now < expiry:
            raise Expired(f"the {purpose} has expired")
        return opened[_EXPIRY.size :]


def _bytes(text: str | bytes) -> bytes:
    # A lone surrogate may be in a client's JSON or in an environment variable.
    return text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text


def _joined(parts: Sequence[Part]) -> bytes:
    """Join *parts* as netstrings, "-" for None: two different sequences never give the same."""
    joined = []
    for part in parts:
        if part is None:
            joined.append(b"-")
        else:
            data = _bytes(part)
            joined.append(b"%d:%b" % (len(data), data))
    return b"".join(joined)


def _decoded(text: str) -> bytes | None:
    """Return the nonce and the box of a sealed text, or None if it does not have that form."""
    if not text.startswith(_FORMAT):
        return None
    try:
        encoded = text.encode("ascii")[_KEY_ID:]
        sealed = urlsafe_b64decode(encoded + b"==")
    except (UnicodeEncodeError, binascii.Error):
        return None
    # Decoding is lenient; one value has one spelling.
    if len(sealed) < _OVERHEAD or _encoded(sealed) != encoded:
        return None
    return sealed


def _encoded(sealed: bytes) -> bytes:
    return urlsafe_b64encode(sealed).rstrip(b"=")
