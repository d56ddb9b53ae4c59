"""DPoP at the resource server: requests with a token that is bound to a key (RFC 9449, 7)."""

from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import msgspec

from genmcp._core.access import Access, AuthorizationUnavailable, InvalidToken
from genmcp._core.auth.claims import parse_object
from genmcp._core.auth.dpop import (
    ALGORITHMS,
    WINDOW,
    InvalidProof,
    Proof,
    key_of_proof,
    new_nonce,
)
from genmcp._core.client_key import key_of
from genmcp._transports.request import HttpRequest
from genmcp.errors import ConfigurationError, Conflict, StoreUnavailable
from genmcp.stores.store import Put

if TYPE_CHECKING:
    from genmcp.auth.jose import Key

_MAX_WINDOW: Final = 3600.0
_SAFE: Final = "/:@!$&'()*+,;=~"  # RFC 3986, 3.3
_MAX_PROOF: Final = 8 * 1024  # bytes; a proof with a key of RSA-4096 has 2 KiB


class Dpop(msgspec.Struct, frozen=True, kw_only=True):
    """Access tokens that are bound to a key of the client (DPoP, RFC 9449), for `Bearer(dpop=)`.

    `dpop="accepted"` stands for `Dpop()`, `dpop="required"` for `Dpop(required=True)`.

    Each proof is accepted once: its id is kept in the store of the mux until the proof has expired.
    Processes that have no store in common accept a copy once each; `nonces` narrows the time for
    it.

    Args:
        required: whether tokens that are not bound to a key are refused. Default False.
        nonces: whether a proof must have a nonce of this server, so that none can be made in
            advance. A client fetches its first nonce with a request that is refused. Default False.
        window: seconds by which the time in a proof may differ from the clock, and for which a
            nonce is accepted. Default 300.
        algorithms: the accepted algorithms of proofs. Default: ES256 and EdDSA.

    Raises:
        ConfigurationError: an option is out of range.
    """

    required: bool = False
    nonces: bool = False
    window: float = WINDOW
    algorithms: Sequence[str] = ALGORITHMS

    def __post_init__(self) -> None:
        """Check every option."""
        from genmcp.auth.jose import ASYMMETRIC

        if not 1 <= self.window <= _MAX_WINDOW:
            raise ConfigurationError(
                f"Dpop.window must be from 1 to {_MAX_WINDOW:g} seconds, not {self.window!r}"
            )
        unknown = [name for name in self.algorithms if name not in ASYMMETRIC]
        if isinstance(self.algorithms, str) or not self.algorithms or unknown:
            raise ConfigurationError(
                f"Dpop.algorithms must be a list of {', '.join(ASYMMETRIC)}, "
                f"not {self.algorithms!r}"
            )

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
        proof = self._verified([value for name, value in http.scope["headers"] if name == b"dpop"])
        now = http.mux.store.now()
        urls = (resource, _request_url(resource, http.scope["path"]))
        method = http.scope["method"]
        proof.check(method=method, urls=urls, token=token, now=now, window=self.window)
        proof.check_binding(access.claims.get("cnf"))
        if self.nonces:
            proof.check_nonce(http.mux.seal)
        await self._remember(http, proof, access, now)

    def nonce(self, http: HttpRequest) -> str:
        """Return a new nonce for the header `DPoP-Nonce` of a response."""
        return new_nonce(http.mux.seal, self.window)

    def _verified(self, headers: Sequence[bytes]) -> Proof:
        from genmcp.auth import jose

        if len(headers) != 1:
            found = "more than one" if headers else "no"
            raise InvalidProof(f"the request has {found} header DPoP")
        if len(headers[0]) > _MAX_PROOF:
            raise InvalidProof("the DPoP proof is too long")
        try:
            signed = jose.decode(headers[0].decode("latin-1"))
            key = _read_key(msgspec.json.encode(key_of_proof(signed.header, self.algorithms)))
            claims = parse_object(signed.payload)
        except InvalidProof:
            raise
        except InvalidToken as error:
            raise InvalidProof("the DPoP proof is not a signed JWT", error.detail) from None
        except ConfigurationError:
            raise InvalidProof("the key in the DPoP proof cannot be used") from None
        if not jose.verify(signed, [key], self.algorithms):
            raise InvalidProof("the signature of the DPoP proof is not valid")
        return Proof(claims, key.thumbprint)

    async def _remember(self, http: HttpRequest, proof: Proof, access: Access, now: float) -> None:
        """Store the id of *proof* until it has expired; it must not have been used before."""
        # The record outlives the proof by the second that the clocks of two processes may differ.
        ttl = proof.issued + self.window - now + 1
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
def _read_key(jwk: bytes) -> "Key":
    """Return a public key. A client has the same one for hours, and to read it takes 0.2 ms."""
    from genmcp.auth import jose

    return jose.read_key(jwk)


def check_unbound(access: Access, dpop: Dpop | None) -> None:
    """Check that a token with the scheme `Bearer` may be sent in this way (RFC 9449, 7.2).

    Raises:
        InvalidToken: it is bound to a key, so that whoever sent it may have stolen it; or tokens
            without a key are not accepted.
    """
    if access.claims.get("cnf") is None:
        if dpop is not None and dpop.required:
            raise InvalidToken("only tokens that are bound to a key are accepted here (DPoP)")
    elif dpop is None:
        raise InvalidToken("the token is bound to a key, and DPoP is not supported here")
    else:
        raise InvalidToken("the token is bound to a key: send it with the scheme DPoP and a proof")


def _request_url(resource: str, path: str) -> str:
    """Return the URL of a request below *resource*, which may be that of a whole host."""
    scheme, _, rest = resource.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}{quote(path, safe=_SAFE)}"
