"""Checks of the signatures of others: assertions and DPoP proofs."""

import hashlib
import warnings
from base64 import urlsafe_b64encode
from collections.abc import Collection, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from joserfc import jwk, jwt
from joserfc.errors import JoseError

from tests.support.oauth.refusal import OAuthRefusal

ASYMMETRIC = ("ES256", "ES384", "ES512", "RS256", "PS256", "EdDSA", "Ed25519")
PROOF_AGE = 300  # seconds that the clocks may differ (RFC 9449, 11.1)


def read_jwt(
    token: str, keys: Sequence[Mapping[str, Any]], *, types: Collection[str], now: float
) -> dict[str, Any]:
    """Return the claims of a JWT that one of *keys* signed and that has not expired.

    Args:
        token: the compact serialization.
        keys: public keys as JWKs.
        types: the accepted values of `typ` in lower case; "" stands for a missing one.
        now: the Unix time.

    Raises:
        ValueError: it is invalid.
    """
    for members in keys:
        try:
            key = jwk.import_key(dict(members))
            found = _decoded(token, key)
        except (JoseError, ValueError, TypeError):
            continue
        if found.header.get("kid", members.get("kid")) != members.get("kid"):
            continue
        if str(found.header.get("typ", "")).lower() not in types:
            raise ValueError("its typ is wrong")
        check_times(found.claims, now)
        return found.claims
    raise ValueError("its signature is wrong")


def check_times(claims: Mapping[str, Any], now: float) -> None:
    """Raise ValueError unless *now* is in the life of a JWT."""
    expires, begins = claims.get("exp"), claims.get("nbf", 0)
    if not isinstance(expires, int | float) or expires <= now:
        raise ValueError("it has expired, or exp is missing")
    if not isinstance(begins, int | float) or begins > now:
        raise ValueError("it is not valid yet")


def read_proof(proof: str, *, method: str, url: str, now: float) -> tuple[str, dict[str, Any]]:
    """Check a DPoP proof (RFC 9449, 4.3); return the thumbprint of its key, and its claims.

    Raises:
        OAuthRefusal: it is invalid.
    """
    try:
        thumbprint, claims = _signed_proof(proof)
    except (JoseError, ValueError, TypeError, KeyError) as error:
        raise OAuthRefusal("invalid_dpop_proof", "the proof is malformed") from error
    issued = claims.get("iat")
    if claims.get("htm") != method:
        raise OAuthRefusal("invalid_dpop_proof", "htm is wrong")
    if not isinstance(claims.get("htu"), str) or _bare(claims["htu"]) != _bare(url):
        raise OAuthRefusal("invalid_dpop_proof", "htu is wrong")
    if not isinstance(issued, int | float) or abs(issued - now) > PROOF_AGE:
        raise OAuthRefusal("invalid_dpop_proof", "iat is too far from now")
    if not isinstance(claims.get("jti"), str) or not claims["jti"]:
        raise OAuthRefusal("invalid_dpop_proof", "jti is missing")
    return thumbprint, claims


def _signed_proof(proof: str) -> tuple[str, dict[str, Any]]:
    keys: list[Any] = []

    def embedded(found: Any) -> Any:
        members = found.headers()["jwk"]
        if {"d", "k", "p", "q"} & members.keys():
            raise ValueError("the key is not a public key")
        keys.append(jwk.import_key(members))
        return keys[0]

    token = _decoded(proof, embedded)
    if token.header.get("typ") != "dpop+jwt":
        raise ValueError("typ is wrong")
    return keys[0].thumbprint(), token.claims


def _decoded(token: str, key: Any) -> jwt.Token:
    with warnings.catch_warnings():
        # joserfc warns of EdDSA (RFC 9864), which clients use.
        warnings.simplefilter("ignore")
        return jwt.decode(token, key, algorithms=list(ASYMMETRIC))


def _bare(url: str) -> str:
    """Return *url* without query and fragment (RFC 9449, 4.3)."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme.lower(), parts.netloc.lower(), parts.path or "/", "", ""))


def s256(verifier: str) -> str:
    """Return the S256 challenge of a PKCE verifier (RFC 7636, 4.2)."""
    digest = hashlib.sha256(verifier.encode()).digest()
    return urlsafe_b64encode(digest).rstrip(b"=").decode()
