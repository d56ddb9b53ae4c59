"""DPoP at the client: a key for each record of tokens, and a proof for each request (RFC 9449)."""

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


class DpopKey:
    """A key, and the proofs that this client has it. Shared by the connections with one record.

    Args:
        key: the private key as JWK in JSON, of an earlier login. Default: a new key.
        now: returns the Unix time.

    Raises:
        ConfigurationError: joserfc is missing (extra `auth`), or *key* is not a private key.
    """

    def __init__(self, key: str | None = None, *, now: Callable[[], float] = time.time) -> None:
        # Imported here: most clients have no DPoP, and need no joserfc.
        from genmcp.auth import jose

        self._sign = jose.sign
        self._key: Key = jose.read_key(key) if key else jose.generate_key(_ALGORITHM)
        self._algorithm = self._key.default_algorithm
        self._header = proof_header(self._key.public_jwk, self._algorithm)
        self._now = now
        # RFC 9449, 8.2 and 9: the nonces of different servers are independent of each other.
        self._nonces: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"<DpopKey {self.thumbprint}>"

    @property
    def key(self) -> str:
        """The private key as JWK in JSON, for the record."""
        return msgspec.json.encode(self._key.private_jwk).decode()

    @property
    def thumbprint(self) -> str:
        """The thumbprint of the key (RFC 7638)."""
        return self._key.thumbprint

    def proof(self, method: str, url: str, token: str | None = None) -> str:
        """Return a new proof for one request.

        Args:
            method: the HTTP method.
            url: the URL of the request.
            token: the access token of the request, None at a token endpoint.
        """
        claims = proof_claims(
            method,
            url,
            id=secrets.token_urlsafe(16),
            now=self._now(),
            token=token,
            nonce=self._nonces.get(_origin(url)),
        )
        return self._sign(claims, self._key, header=self._header, algorithm=self._algorithm)

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

    def headers(self, method: str, url: str, token: str) -> Mapping[str, str]:
        """Return the headers of a request with *token*, which is bound to this key."""
        return {"Authorization": f"DPoP {token}", "DPoP": self.proof(method, url, token)}


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}".lower()
