"""DPoP at the resource server: requests with a token that is bound to a key (RFC 9449, 7)."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final
from urllib.parse import quote

import msgspec

from genmcp._transports.request import HttpRequest
from genmcp.auth import jose
from genmcp.auth.bearer import Verifier, bound_verifier
from genmcp.auth.extensions.proofs import (
    ALGORITHMS,
    WINDOW,
    InvalidProof,
    Proof,
    key_of_proof,
    new_nonce,
)
from genmcp.core.access import Access, AuthorizationUnavailable, InvalidToken
from genmcp.core.auth.claims import parse_object
from genmcp.core.client_key import key_of
from genmcp.errors import ConfigurationError, Conflict, StoreUnavailable
from genmcp.stores.store import Put

_SAFE: Final = "/:@!$&'()*+,;=~"  # RFC 3986, 3.3
_MAX_PROOF: Final = 8 * 1024  # bytes; a proof with a key of RSA-4096 has 2 KiB


class Dpop:
    """Accepts access tokens that are bound to a key of the client (DPoP, RFC 9449).

        Bearer("https://mcp.example.com/mcp", issuers=[...], verify=Dpop())

    Each proof is accepted once, and within 300 seconds: its id is kept in the store of the mux
    until it has expired. Processes that have no store in common accept a copy once each; `nonces`
    narrows the time for it. Proofs are signed with ES256 or EdDSA.

    Args:
        verify: verifies the tokens. Default: `Jwt()`.
        required: whether tokens that are not bound to a key are refused. Default False.
        nonces: whether a proof must have a nonce of this server, so that none can be made in
            advance. A client fetches its first nonce with a request that is refused. Default False.
    """

    algorithms = ALGORITHMS

    def __init__(
        self, verify: Verifier | None = None, *, required: bool = False, nonces: bool = False
    ) -> None:
        self._verifier = verify
        self.required = required
        self._nonces = nonces
        self.cache: float = getattr(verify, "cache", 0.0)

    @property
    def proofs(self) -> "Dpop":
        """The checks of proofs, for the `Bearer`."""
        return self

    def bind(self, resource: str, issuers: Sequence[str]) -> "Dpop":
        """Return the verifier for the options of a `Bearer`."""
        verifier = bound_verifier(self._verifier, resource, issuers)
        return Dpop(verifier, required=self.required, nonces=self._nonces)

    async def verify(self, token: str) -> Access:
        """Return the content of *token*, whose proof `check` checks."""
        if self._verifier is None:
            raise ConfigurationError("Dpop verifies tokens as the verify= of a Bearer")
        return await self._verifier.verify(token)

    async def check(self, http: HttpRequest, access: Access, token: str, resource: str) -> None:
        """Check the proof of a request whose access token is valid (RFC 9449, 4.3).

        Args:
            http: the request, with the scheme `DPoP`.
            access: the content of the token.
            token: the token.
            resource: the public URL of the resource.

        Raises:
            InvalidProof: the proof is missing, not valid, not for this request, or was used before.
            InvalidToken: the token is not bound to the key of the proof.
            AuthorizationUnavailable: the store cannot be reached.
        """
        proof = _verified([value for name, value in http.scope["headers"] if name == b"dpop"])
        now = http.mux.store.now()
        urls = (resource, _request_url(resource, http.scope["path"]))
        proof.check(method=http.scope["method"], urls=urls, token=token, now=now)
        proof.check_binding(access.claims.get("cnf"))
        if self._nonces:
            proof.check_nonce(http.mux.seal)
        await _remember(http, proof, access, now)

    def nonce(self, http: HttpRequest) -> str:
        """Return a new nonce for the header `DPoP-Nonce` of a response."""
        return new_nonce(http.mux.seal)


def _verified(headers: Sequence[bytes]) -> Proof:
    """Return the proof in the headers `DPoP`, whose signature is valid."""
    if len(headers) != 1:
        found = "more than one" if headers else "no"
        raise InvalidProof(f"the request has {found} header DPoP")
    if len(headers[0]) > _MAX_PROOF:
        raise InvalidProof("the DPoP proof is too long")
    try:
        signed = jose.decode(headers[0].decode("latin-1"))
        key = _read_key(msgspec.json.encode(key_of_proof(signed.header)))
        claims = parse_object(signed.payload)
    except InvalidProof:
        raise
    except InvalidToken as error:
        raise InvalidProof("the DPoP proof is not a signed JWT", error.detail) from None
    except ConfigurationError:
        raise InvalidProof("the key in the DPoP proof cannot be used") from None
    if not jose.verify(signed, [key], ALGORITHMS):
        raise InvalidProof("the signature of the DPoP proof is not valid")
    return Proof(claims, key.thumbprint)


async def _remember(http: HttpRequest, proof: Proof, access: Access, now: float) -> None:
    """Store the id of *proof* until it has expired; it must not have been used before."""
    # The record outlives the proof by the second that the clocks of two processes may differ.
    ttl = proof.issued + WINDOW - now + 1
    client = key_of(access.principal, None, None).client
    try:
        await http.mux.store.apply(
            Put(f"dpop:{proof.id}", b"", ttl=ttl, expect=0, client=client, new=True)
        )
    except Conflict:
        raise InvalidProof("the DPoP proof was used before") from None
    except StoreUnavailable as error:  # or full: a copy could not be told from the original
        raise AuthorizationUnavailable(f"DPoP proofs cannot be stored: {error}") from error


@lru_cache(maxsize=256)
def _read_key(jwk: bytes) -> jose.Key:
    """Return a public key. A client has the same one for hours, and to read it takes 0.2 ms."""
    return jose.read_key(jwk)


def _request_url(resource: str, path: str) -> str:
    """Return the URL of a request below *resource*, which may be that of a whole host."""
    scheme, _, rest = resource.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}{quote(path, safe=_SAFE)}"
