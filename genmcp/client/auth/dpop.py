"""DPoP at the client: a key for each record of tokens, and a proof for each request."""

import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import msgspec

from genmcp._core.auth.dpop import proof_claims, proof_header

if TYPE_CHECKING:
    from genmcp.auth.jose import Key

_ALGORITHM: Final = "ES256"  # the only one that every server with DPoP is known to accept
_MAX_NONCE: Final = 1024  # characters
_MAX_ORIGINS: Final = 16  # those of a server, its authorization server, and some to spare


class DpopKeys:
    """The keys of one client for one server, and the proofs that it has them (RFC 9449).

    A key belongs to the record of the tokens that are bound to it. `key` is that of the next token;
    the first one is made when it is needed.

    Args:
        now: returns the Unix time.

    Raises:
        ConfigurationError: joserfc is missing (extra `auth`).
    """

    def __init__(self, *, now: Callable[[], float] = time.time) -> None:
        # Imported here: most clients have no DPoP, and need no joserfc.
        from genmcp.auth import jose

        self._jose = jose
        self._now = now
        self._present: Key | None = None
        self._known: dict[str, Key] = {}
        # RFC 9449, 8.2 and 9: the nonces of different servers are independent of each other.
        self._nonces: dict[str, str] = {}

    @property
    def key(self) -> str:
        """The private key of the next token, as JWK in JSON."""
        return msgspec.json.encode(self._next.private_jwk).decode()

    @property
    def thumbprint(self) -> str:
        """The thumbprint of that key (RFC 7638)."""
        return self._next.thumbprint

    def use(self, key: str | None) -> None:
        """Use the private key of a record for the next token; None: the present one."""
        if key is not None:
            self._present = self._read(key)

    def proof(self, method: str, url: str) -> str:
        """Return a new proof for a request to a token endpoint."""
        return self._proof(self._next, method, url)

    def headers(self, method: str, url: str, token: str, key: str) -> Mapping[str, str]:
        """Return the headers of a request with *token*, which is bound to the private *key*."""
        proof = self._proof(self._read(key), method, url, token)
        return {"Authorization": f"DPoP {token}", "DPoP": proof}

    def nonce(self, url: str) -> str | None:
        """Return the last nonce of the origin of *url*, None if it has sent none."""
        return self._nonces.get(_origin(url))

    def answered(self, url: str, headers: Iterable[tuple[str, str]]) -> bool:
        """Keep the nonce of a response, of any status; return whether it is a new one."""
        nonce = next((value for name, value in headers if name.lower() == "dpop-nonce"), "")
        origin = _origin(url)
        if not 0 < len(nonce) <= _MAX_NONCE or nonce == self._nonces.get(origin):
            return False
        self._nonces.pop(origin, None)
        if len(self._nonces) >= _MAX_ORIGINS:
            del self._nonces[next(iter(self._nonces))]
        self._nonces[origin] = nonce
        return True

    @property
    def _next(self) -> "Key":
        if self._present is None:
            self._present = self._jose.generate_key(_ALGORITHM)
        return self._present

    def _read(self, key: str) -> "Key":
        if key not in self._known:
            # At most the key of the record before, and that of the present one.
            self._known = {key: self._jose.read_key(key)}
        return self._known[key]

    def _proof(self, key: "Key", method: str, url: str, token: str | None = None) -> str:
        claims = proof_claims(
            method,
            url,
            id=secrets.token_urlsafe(16),
            now=self._now(),
            token=token,
            nonce=self.nonce(url),
        )
        algorithm = key.default_algorithm
        header = proof_header(key.public_jwk, algorithm)
        return self._jose.sign(claims, key, header=header, algorithm=algorithm)


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}".lower()
