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
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import cached_property
from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from genmcp.errors import ConfigurationError, ContractError, ForeignSeal, InvalidSeal, SealExpired

if TYPE_CHECKING:
    from genmcp.core.cipher import Cipher

__all__ = ["Part", "Purpose", "Seal"]

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


class _Keys(NamedTuple):
    """The keys of one secret for one purpose."""

    cipher: "Cipher"
    mark: bytes


class Seal:
    """Seals and opens values for one audience: a mux, unlike any other with the same secret.

    Args:
        secret: one or several secrets; the first seals, all open. To rotate, put the new secret
            first, and remove the old one once its values have expired. A str is its UTF-8. Secrets
            are keys, not passwords: nothing slows down guessing a weak one.
        audience: the name that values are bound to.
        now: the clock by which values expire, in seconds; all processes that open them share it.
        nonce: returns as many random bytes as it is asked for, from the system's generator.
        max_bytes: the maximum size of the payload of one value, before encryption.

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
        # A secret that is given twice counts once, at its first place.
        self._secrets = [*dict.fromkeys(map(_bytes, secrets))]
        for each in self._secrets:
            if len(each) < SECRET_BYTES:
                raise ConfigurationError(
                    f"secret: one of {len(each)} bytes is too short, the least is "
                    f"{SECRET_BYTES}; `openssl rand -base64 32` makes a good one"
                )
        if not self._secrets:
            raise ConfigurationError("secret: the list is empty; give at least one")
        if not audience:
            raise ConfigurationError("audience: must not be empty, or values fit every mux")
        self._now = now
        self._nonce = nonce
        self._max_bytes = max_bytes
        self._longest = _KEY_ID + (max_bytes + _OVERHEAD + 2) // 3 * 4
        self._prefixes = {purpose: _joined((purpose, audience)) for purpose in Purpose}

    @cached_property
    def _keys(self) -> dict[str, dict[Purpose, _Keys]]:
        """The keys by the id of their secret, derived when the first value is sealed or opened.

        Each purpose has keys of its own, so that a value of one never opens as another, and no
        name made by `mark` is a key of a cipher (RFC 5869, 3.2).
        """
        from genmcp.core.cipher import Cipher, derive  # see there

        return {
            _FORMAT + urlsafe_b64encode(derive(secret, "key id", 6)).decode()[:6]: {
                purpose: _Keys(
                    Cipher(derive(secret, purpose, 32)), derive(secret, f"{purpose} mark", 32)
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
                f"the most is {self._max_bytes} (max_bytes)"
            )
        nonce = self._nonce(NONCE_BYTES)
        if len(nonce) != NONCE_BYTES:
            raise ContractError(f"a nonce has {NONCE_BYTES} bytes, not {len(nonce)}")
        key_id, keys = next(iter(self._keys.items()))
        plain, prefix = _EXPIRY.pack(self._now() + ttl) + payload, self._prefixes[purpose]
        box = keys[purpose].cipher.encrypt(nonce, plain, prefix + _joined(bound))
        return key_id + _encoded(nonce + box).decode()

    def mark(self, purpose: Purpose, *parts: Part, key_id: str = "") -> str:
        """Return an unguessable name for *parts*: 160 bits, in letters, digits, - and _.

        Equal parts give the same name under the same secret: the one of *key_id* (see `key_id_of`),
        or the one that seals.
        """
        keys = self._keys.get(key_id) or next(iter(self._keys.values()))
        data = self._prefixes[purpose] + _joined(parts)
        return _encoded(hmac.digest(keys[purpose].mark, data, "sha256")[:20]).decode()

    @staticmethod
    def key_id_of(text: str) -> str:
        """Return the id of the secret that sealed *text*, for `mark`."""
        return text[:_KEY_ID]

    def open(self, purpose: Purpose, text: str, *bound: Part) -> bytes:
        """Return what was sealed as *text*, for this purpose, this audience and these parts.

        Nothing is told of a value before it is authenticated, and any text may be given.

        Raises:
            ForeignSeal: the text was sealed with a secret that is not in the keyring.
            InvalidSeal: the text was not sealed here, was changed, or is bound to something else.
            SealExpired: the text is ours, but its time has run out.
        """
        sealed = _decoded(text) if len(text) <= self._longest else None
        if sealed is None:
            raise InvalidSeal(f"not a sealed {purpose}")
        keys = self._keys.get(text[:_KEY_ID])
        if keys is None:
            raise ForeignSeal(f"a {purpose} sealed with another secret")
        # Authenticated before anything in it is looked at: the text is controlled by the client.
        opened = keys[purpose].cipher.decrypt(
            sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], self._prefixes[purpose] + _joined(bound)
        )
        if opened is None:
            raise InvalidSeal(f"not a {purpose} that was sealed for this")
        (expiry,) = _EXPIRY.unpack_from(opened)
        if not self._now() < expiry:  # in this form, since a NaN has expired
            raise SealExpired(f"the {purpose} has expired")
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
