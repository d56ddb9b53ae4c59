"""Makes DPoP proofs, good and hostile ones, with cryptography alone: no code of genmcp."""

import hashlib
import hmac
import json
import secrets
import time
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256


def encoded(data: bytes) -> str:
    """Return base64url without padding."""
    return urlsafe_b64encode(data).rstrip(b"=").decode()


def hash_of(token: str) -> str:
    """Return the claim `ath` for a token (RFC 9449, 4.2)."""
    return encoded(hashlib.sha256(token.encode()).digest())


class Holder:
    """A client with a key of P-256."""

    def __init__(self) -> None:
        self.private = ec.generate_private_key(ec.SECP256R1())
        numbers = self.private.public_key().public_numbers()
        x, y = (encoded(number.to_bytes(32)) for number in (numbers.x, numbers.y))
        self.jwk = {"kty": "EC", "crv": "P-256", "x": x, "y": y}
        self.secret = encoded(self.private.private_numbers().private_value.to_bytes(32))

    @property
    def thumbprint(self) -> str:
        """The thumbprint (RFC 7638, 3.3): the members in the order of their names."""
        members = {name: self.jwk[name] for name in ("crv", "kty", "x", "y")}
        text = json.dumps(members, separators=(",", ":"))
        return encoded(hashlib.sha256(text.encode()).digest())

    def proof(
        self,
        method: str,
        url: str,
        token: str,
        *,
        header: Mapping[str, Any] = {},
        claims: Mapping[str, Any] = {},
        by: "Holder | bytes | None" = None,
    ) -> str:
        """Return a proof with changes; a value `...` removes a member.

        Args:
            method: the `htm`.
            url: the `htu`.
            token: the token that `ath` is made from.
            header: changes of the header.
            claims: changes of the claims.
            by: who signs: another holder; bytes for HMAC; None for this one.
        """
        head = {"typ": "dpop+jwt", "alg": "ES256", "jwk": self.jwk, **header}
        body = {
            "jti": secrets.token_urlsafe(16),
            "htm": method,
            "htu": url,
            "iat": int(time.time()),
            "ath": hash_of(token),
            **claims,
        }
        parts = ({k: v for k, v in each.items() if v is not ...} for each in (head, body))
        text = ".".join(encoded(json.dumps(each).encode()) for each in parts)
        if isinstance(by, bytes):
            return f"{text}.{encoded(hmac.digest(by, text.encode(), 'sha256'))}"
        return f"{text}.{(by or self).signature(text)}"

    def signature(self, text: str) -> str:
        """Return the signature of ES256 (RFC 7518, 3.4): r and s, of 32 bytes each."""
        r, s = decode_dss_signature(self.private.sign(text.encode(), ec.ECDSA(SHA256())))
        return encoded(r.to_bytes(32) + s.to_bytes(32))


def twin(proof: str) -> str:
    """Return *proof* with its other valid signature: (r, n - s) fits wherever (r, s) does."""
    order = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
    text, _, signature = proof.rpartition(".")
    raw = urlsafe_b64decode(signature + "==")
    s = order - int.from_bytes(raw[32:])
    return f"{text}.{encoded(raw[:32] + s.to_bytes(32))}"
