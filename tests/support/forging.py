"""Tokens as an attacker writes them: any header, any payload, any signature.

It shares no code with genmcp, whose verification it tests.
"""

import hashlib
import hmac
import json
from base64 import urlsafe_b64encode
from typing import Any

from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256, SHA384, SHA512, HashAlgorithm

PrivateKey = rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey
_HASHES: dict[str, HashAlgorithm] = {"256": SHA256(), "384": SHA384(), "512": SHA512()}


def encoded(data: bytes | str) -> str:
    """Return *data* in base64url without padding."""
    raw = data.encode() if isinstance(data, str) else data
    return urlsafe_b64encode(raw).rstrip(b"=").decode()


def packed(value: Any) -> str:
    """Return a part of a token: JSON in base64url. Bytes and text stay as they are."""
    return encoded(value if isinstance(value, bytes | str) else json.dumps(value))


def signature(algorithm: str, key: PrivateKey | bytes, message: bytes) -> bytes:
    """Sign *message* by *algorithm*, with any kind of key."""
    bits = _HASHES.get(algorithm[-3:], SHA256())
    if isinstance(key, bytes):
        return hmac.new(key, message, getattr(hashlib, f"sha{algorithm[-3:]}")).digest()
    if isinstance(key, ed25519.Ed25519PrivateKey):
        return key.sign(message)
    if isinstance(key, ec.EllipticCurvePrivateKey):
        r, s = decode_dss_signature(key.sign(message, ec.ECDSA(bits)))
        size = (key.key_size + 7) // 8
        return r.to_bytes(size) + s.to_bytes(size)
    if algorithm.startswith("PS"):
        salted = padding.PSS(padding.MGF1(bits), bits.digest_size)
        return key.sign(message, salted, bits)
    return key.sign(message, padding.PKCS1v15(), bits)


def forged(
    header: Any, payload: Any, key: PrivateKey | bytes | None, *, scheme: str | None = None
) -> str:
    """Return a token; *scheme* is the algorithm of the signature if it differs from the header.

    Args:
        header: the header: an object, or the text of one.
        payload: the payload.
        key: the key to sign with, or None for an empty signature.
        scheme: the algorithm of the signature; the default is `alg`.
    """
    message = f"{packed(header)}.{packed(payload)}"
    if key is None:
        return f"{message}."
    algorithm = scheme or header["alg"]
    return f"{message}.{encoded(signature(algorithm, key, message.encode()))}"


def jwk_of(key: Any, **members: Any) -> dict[str, Any]:
    """Return the public part of a private key as a JWK."""
    public = key.public_key()
    if isinstance(public, rsa.RSAPublicKey):
        numbers = public.public_numbers()
        size = (public.key_size + 7) // 8
        return {
            "kty": "RSA",
            "n": encoded(numbers.n.to_bytes(size)),
            "e": encoded(numbers.e.to_bytes(3)),
            **members,
        }
    if isinstance(public, ec.EllipticCurvePublicKey):
        point = public.public_numbers()
        size = (public.key_size + 7) // 8
        curve = {"secp256r1": "P-256", "secp384r1": "P-384", "secp521r1": "P-521"}
        return {
            "kty": "EC",
            "crv": curve.get(public.curve.name, public.curve.name),
            "x": encoded(point.x.to_bytes(size)),
            "y": encoded(point.y.to_bytes(size)),
            **members,
        }
    return {"kty": "OKP", "crv": "Ed25519", "x": encoded(public.public_bytes_raw()), **members}
