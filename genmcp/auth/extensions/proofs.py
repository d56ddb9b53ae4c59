"""DPoP: proofs that a client holds the key to which its access token is bound (RFC 9449).

A proof is a JWT that the client signs anew for each request. Signatures are made and checked by
`genmcp.auth.jose`; this module has the claims, and the checks of a proof whose signature is valid.
It does no I/O.
"""

import re
from base64 import urlsafe_b64encode
from collections.abc import Collection, Mapping
from hashlib import sha256
from hmac import compare_digest
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from genmcp.core.access import InvalidToken
from genmcp.core.auth.metadata import origin_of
from genmcp.core.seal import Purpose, Seal
from genmcp.errors import SealError

ALGORITHMS: Final = ("ES256", "EdDSA")
"""The algorithms of proofs: both are asymmetric, and their keys take little space in a header."""

WINDOW: Final = 300.0
"""Seconds by which `iat` of a proof may differ from the clock of the server."""

TYPE: Final = "dpop+jwt"
"""The `typ` of a proof."""

_PRIVATE: Final = {"d", "p", "q", "dp", "dq", "qi", "oth", "k"}  # RFC 7518, 6.2.2, 6.3.2 and 6.4.1
_LATEST: Final = 2**40  # an `iat` in the year 36812; larger numbers overflow
_MAX_ID: Final = 256  # characters of a `jti`; a UUID has 36
_UNRESERVED: Final = re.compile(r"%(2[DE]|3[0-9]|[46][1-9A-F]|[57][0-9A]|5F|7E)")
_ESCAPE: Final = re.compile(r"%[0-9A-Fa-f]{2}")


class InvalidProof(InvalidToken):
    """A DPoP proof is missing or not valid. The client gets HTTP 401 with a `DPoP` challenge.

    Args:
        reason: which check failed. The client and the log get it, so it contains no claim.
        detail: what was found and expected, for the log only.
        code: the error code of the challenge (RFC 9449, 12.2).
    """

    def __init__(self, reason: str, detail: str = "", *, code: str = "invalid_dpop_proof") -> None:
        self.code = code
        super().__init__(reason, detail)


class Proof:
    """A proof whose signature is valid, before its claims are checked.

    Args:
        claims: the claims as they were signed.
        thumbprint: the thumbprint of the key in its header (RFC 7638, SHA-256).
    """

    def __init__(self, claims: Mapping[str, Any], thumbprint: str) -> None:
        self.claims = claims
        self.thumbprint = thumbprint

    @property
    def id(self) -> str:
        """Return a name for the proof in a store, the same for each copy of it.

        It is made from the key, the URL and the `jti`, which need not differ from those of other
        clients, and not from the signature, which anybody can change into another valid one.
        """
        parts = (self.thumbprint, self.claims["htu"], self.claims["jti"])
        text = "\n".join(parts).encode("utf-8", "surrogatepass")
        return sha256(text).hexdigest()

    def check(self, *, method: str, urls: Collection[str], token: str, now: float) -> None:
        """Check that the proof was made for this request and this token (RFC 9449, 4.3).

        Args:
            method: the method of the request.
            urls: the public URLs of the endpoint, one of which the proof must name.
            token: the access token of the request.
            now: the present Unix time.

        Raises:
            InvalidProof: it was not.
        """
        jti, htm, htu = (self._text(name) for name in ("jti", "htm", "htu"))
        if not 0 < len(jti) <= _MAX_ID:
            raise InvalidProof("the jti of the DPoP proof is empty or too long")
        if htm != method:  # RFC 9110, 9.1: methods are case-sensitive
            raise InvalidProof("the DPoP proof is for another HTTP method", f"not {method}")
        expected, found = {target_uri(url) for url in urls}, target_uri(htu)
        if found not in expected:
            # Without the query, which may have a secret.
            shown = found.partition("?")[0][:200]
            detail = f"found {shown!r}, expected {' or '.join(sorted(expected))}"
            raise InvalidProof("the DPoP proof is for another URL", detail)
        if abs(now - self.issued) > WINDOW:
            late = f"iat differs by {now - self.issued:.0f} s from the clock"
            raise InvalidProof("the DPoP proof is too old, or from the future", late)
        if not compare_digest(self._text("ath").encode("utf-8", "replace"), _hash(token)):
            raise InvalidProof("the DPoP proof is for another access token")

    @property
    def issued(self) -> float:
        """Return the `iat`, in Unix time.

        Raises:
            InvalidProof: it is missing, or not a time.
        """
        issued = self.claims.get("iat")
        if not isinstance(issued, int | float) or issued is True or not 0 <= issued <= _LATEST:
            raise InvalidProof("the DPoP proof has no valid iat")
        return float(issued)

    def check_nonce(self, seal: Seal) -> None:
        """Check that the proof has a nonce of `new_nonce` that has not expired (RFC 9449, 9).

        Raises:
            InvalidProof: it has none, with the code `use_dpop_nonce`; the response has a new one.
        """
        nonce = self.claims.get("nonce")
        try:
            seal.open(Purpose.DPOP_NONCE, nonce if isinstance(nonce, str) else "")
        except SealError:
            raise InvalidProof("a fresh DPoP nonce is needed", code="use_dpop_nonce") from None

    def check_binding(self, confirmation: object) -> None:
        """Check that the access token is bound to the key of the proof (RFC 9449, 6.1).

        Args:
            confirmation: the claim `cnf` of the token, None if it has none.

        Raises:
            InvalidToken: the token is bound to another key, or to none.
        """
        bound = confirmation.get("jkt") if isinstance(confirmation, Mapping) else None
        if not isinstance(bound, str):
            raise InvalidToken("the token is not bound to a key")
        if not compare_digest(bound.encode("utf-8", "replace"), self.thumbprint.encode()):
            raise InvalidToken("the token is bound to another key than that of the DPoP proof")

    def _text(self, name: str) -> str:
        value = self.claims.get(name)
        if not isinstance(value, str):
            raise InvalidProof(f"the DPoP proof has no valid {name}")
        return value


def proof_claims(
    method: str, url: str, *, id: str, now: float, token: str | None = None, nonce: str | None
) -> dict[str, Any]:
    """Return the claims of a proof (RFC 9449, 4.2).

    Args:
        method: the method of the request.
        url: the URL of the request; its query and fragment are left out.
        id: the `jti`, a new one for each request.
        now: the present Unix time.
        token: the access token of the request; None at the token endpoint.
        nonce: the last nonce of the origin, None if it has sent none.
    """
    claims: dict[str, Any] = {
        "jti": id,
        "htm": method,
        "htu": urlsplit(url)._replace(query="", fragment="").geturl(),
        "iat": int(now),
    }
    if token is not None:
        claims["ath"] = _hash(token).decode()
    if nonce is not None:
        claims["nonce"] = nonce
    return claims


def key_of_proof(header: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the public key in the *header* of a proof, with which its signature is checked.

    RFC 9449, 4.3, points 4, 5 and 7.

    Raises:
        InvalidProof: the header is not that of a proof.
    """
    if header.get("typ") != TYPE:
        raise InvalidProof(f"the typ of the DPoP proof is not {TYPE}")
    algorithm = header.get("alg")
    if not isinstance(algorithm, str) or algorithm not in ALGORITHMS:
        detail = f"found {str(algorithm)[:40]!r}, accepted are {', '.join(ALGORITHMS)}"
        raise InvalidProof("the DPoP proof has an algorithm that is not accepted", detail)
    if "crit" in header:  # RFC 7515, 4.1.11: no extension is understood here
        raise InvalidProof("the DPoP proof has a critical header that is not understood")
    jwk = header.get("jwk")
    if not isinstance(jwk, dict) or jwk.get("kty") not in ("EC", "OKP", "RSA"):
        raise InvalidProof("the DPoP proof has no public key")
    if not _PRIVATE.isdisjoint(jwk):
        raise InvalidProof("the DPoP proof contains a private key")
    return jwk


def new_nonce(seal: Seal) -> str:
    """Return a nonce that is accepted for 300 seconds.

    It is a sealed time, so that any process with the same secret accepts it, without a store.
    """
    return seal.seal(Purpose.DPOP_NONCE, b"", ttl=WINDOW)


def target_uri(url: str) -> str:
    """Return *url* in the form in which two are compared, without query and fragment.

    RFC 9449, 4.3, asks for the normalization of RFC 3986, 6.2.2 and 6.2.3. In addition, a slash at
    the end does not count, since an endpoint is served with and without it. A text that is not a
    URL is returned as it is.
    """
    try:
        parts, origin = urlsplit(url), origin_of(url)
    except ValueError:
        return url
    if "@" in parts.netloc:
        return url  # a proof has no business with credentials
    path = _ESCAPE.sub(lambda found: found[0].upper(), parts.path)
    path = _UNRESERVED.sub(lambda found: unquote(found[0]), path)
    return origin + path.rstrip("/")


def _hash(token: str) -> bytes:
    digest = sha256(token.encode("utf-8", "surrogatepass")).digest()
    return urlsafe_b64encode(digest).rstrip(b"=")
