"""Signed tokens and keys (RFC 7515, 7517, 7638). The one module that imports joserfc
for servers and clients: the test issuer, which judges both, imports it by itself.

The signatures, the algorithms and the formats of keys are joserfc's. Here is which of them are
accepted: a closed list of algorithms, a strict form of the token, and keys of a sufficient size.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key, load_pem_public_key

from genmcp.core.access import InvalidToken
from genmcp.core.auth.claims import check_header, parse_object
from genmcp.errors import ConfigurationError
from genmcp.extras import missing_extra

try:
    from joserfc import jwk, jws
    from joserfc.errors import JoseError, UnsupportedAlgorithmError
    from joserfc.jwa import JWSAlgModel
    from joserfc.util import urlsafe_b64decode
except ImportError as error:
    raise missing_extra("A signed token", "auth", error) from error

ASYMMETRIC: Final = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA", "Ed25519"),
)
"""The algorithms of signatures with a key pair that are supported."""

SYMMETRIC: Final = ("HS256", "HS384", "HS512")
"""The algorithms with a secret that both sides have; a published key is never one."""

_ALL: Final = (*ASYMMETRIC, *SYMMETRIC)

KeyData: TypeAlias = str | bytes | Mapping[str, Any]
"""A key as PEM text, or as a JWK: a mapping, or its JSON text."""

MAX_KEYS: Final = 100
"""Keys of a set that are read. Without a `kid`, each of them may be tried for one token."""

_MIN_RSA_BITS: Final = 2048  # RFC 7518, 3.3
_MAX_RSA_BITS: Final = 8192  # a signature with a longer key takes milliseconds to verify
_COMPACT: Final = re.compile(r"[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]+){2}")
# The members that matter for a signature. The rest, such as a certificate chain, is not read, so
# that it cannot make a key unusable.
_PUBLIC: Final = ("kty", "kid", "alg", "use", "key_ops", "n", "e", "crv", "x", "y")
_REQUIRED: Final = {
    "RSA": ("kty", "n", "e"),
    "EC": ("kty", "crv", "x", "y"),
    "OKP": ("kty", "crv", "x"),
}
# Raised by joserfc and cryptography for malformed keys and tokens.
_MALFORMED: Final = (
    *(JoseError, UnsupportedAlgorithm, ValueError, TypeError, KeyError, AttributeError),
    *(RecursionError, msgspec.MsgspecError),
)


class _AllowedAlgorithms(jws.JWSRegistry):
    """The allowed algorithms of one verification, without joserfc's default list."""

    # A header may have a chain of certificates, which is ignored.
    max_header_length = 16_384
    max_payload_length = 65_536
    max_signature_length = 2_048

    def get_alg(self, name: str) -> JWSAlgModel:
        if name not in (self.allowed or ()) or name not in self.algorithms:
            raise UnsupportedAlgorithmError(f"Algorithm {name!r} is not allowed")
        return self.algorithms[name]


class Jws(NamedTuple):
    """A signed token in parts. Nothing in it is trusted before `verify` has returned True.

    Args:
        header: the protected header.
        payload: the payload, as signed.
        compact: the token as joserfc has read it.
    """

    header: Mapping[str, Any]
    payload: bytes
    compact: Any

    def __repr__(self) -> str:
        return "<Jws>"  # neither payload nor signature belong into a log


class Key:
    """A key for signatures, with the algorithms that it can be used with.

    Args:
        key: the key of joserfc.
    """

    __slots__ = ("_key", "algorithms", "kid")

    def __init__(self, key: jwk.Key) -> None:
        self._key = key
        self.kid = key.kid if isinstance(key.kid, str) else None
        # Those that fit its type, size and curve, its `alg`, `use` and `key_ops`.
        self.algorithms = frozenset(name for name in _ALL if _fits(key, name))

    def __repr__(self) -> str:
        return f"<Key {self.kid!r}>"

    @property
    def private(self) -> bool:
        """Whether the key can sign."""
        return self._key.is_private

    @property
    def thumbprint(self) -> str:
        """The SHA-256 thumbprint of the public key (RFC 7638)."""
        return self._key.thumbprint()

    @property
    def public_jwk(self) -> dict[str, Any]:
        """The public key as a JWK, with the members that its thumbprint is made from."""
        members = self._key.as_dict(private=False)
        return {name: members[name] for name in _REQUIRED[self._key.key_type]}

    @property
    def private_jwk(self) -> dict[str, Any]:
        """The private key as a JWK, for a storage that keeps it secret."""
        return dict(self._key.as_dict(private=True))

    @property
    def default_algorithm(self) -> str:
        """The algorithm to sign with: the first of `ASYMMETRIC` that fits."""
        for name in ASYMMETRIC:
            if name in self.algorithms:
                return name
        raise ConfigurationError(f"The key {self.kid!r} fits no algorithm of signatures")


def decode(token: str) -> Jws:
    """Return the parts of a token in the compact form, without verifying its signature.

    Raises:
        InvalidToken: it is not a signed token, or `check_header` refuses its header.
    """
    if not _COMPACT.fullmatch(token):
        raise InvalidToken("the token is not a signed JWT")
    try:
        header = parse_object(urlsafe_b64decode(token.partition(".")[0].encode()), "header")
        check_header(header)
        compact = jws.extract_compact(token.encode(), registry=_AllowedAlgorithms())
    except _MALFORMED:
        # No cause: its text or its traceback may have parts of the token.
        raise InvalidToken("the token is not a signed JWT") from None
    return Jws(header, compact.payload, compact)


def verify(signed: Jws, keys: Iterable[Key], algorithms: Collection[str]) -> bool:
    """Return whether one of *keys* made the signature, with one of *algorithms*.

    The header only chooses among the algorithms that both the list and the key allow: a public key
    is never a secret (RFC 8725, 3.1).
    """
    name = signed.header.get("alg")
    registry = _AllowedAlgorithms(algorithms=algorithms, strict_check_header=False)
    for key in keys:
        if name in key.algorithms:
            try:
                if jws.validate_compact(signed.compact, key._key, registry=registry):
                    return True
            except _MALFORMED:
                continue
    return False


def sign(
    claims: Mapping[str, Any],
    key: Key,
    *,
    header: Mapping[str, Any] | None = None,
    algorithm: str | None = None,
) -> str:
    """Return a signed token with *claims*.

    Args:
        claims: the payload.
        key: a private key.
        header: further members of the header, such as `typ` and `kid`.
        algorithm: the algorithm; the default is `key.default_algorithm`.

    Raises:
        ConfigurationError: the key cannot sign, or not with *algorithm*.
    """
    name = algorithm or key.default_algorithm
    if not key.private or name not in key.algorithms:
        raise ConfigurationError(f"The key {key.kid!r} cannot sign with {name}")
    return jws.serialize_compact(
        {"alg": name, **(header or {})},
        msgspec.json.encode(claims),
        key._key,
        registry=_AllowedAlgorithms(algorithms=(name,), strict_check_header=False),
    )


def generate_key() -> Key:
    """Return a new private key for ES256."""
    return Key(jwk.ECKey.generate_key("P-256"))


def read_key(data: KeyData) -> Key:
    """Return the key in *data*: PEM or a JWK.

    Raises:
        ConfigurationError: it is not a key for signatures. The message has no part of it.
    """
    try:
        raw = data.encode() if isinstance(data, str) else data
        if isinstance(raw, bytes) and b"-----BEGIN" in raw:
            key = Key(_from_pem(raw))
        else:
            key = Key(_from_jwk(_members(raw)))
    except _MALFORMED as error:
        raise ConfigurationError(
            f"The key is neither PEM nor a JWK ({type(error).__name__})"
        ) from None
    if not key.algorithms:
        raise ConfigurationError(f"The key {key.kid!r} fits no algorithm of signatures")
    return key


def read_key_set(data: KeyData) -> list[Key]:
    """Return the public keys for signatures in a JWK set, without unusable ones.

    Secrets are skipped too: a published one verifies nothing.

    Raises:
        ValueError: *data* is not a JWK set.
    """
    try:
        found = _members(data).get("keys")
    except msgspec.MsgspecError:
        found = None
    if not isinstance(found, list):
        raise ValueError("the document is not a JWK set")
    keys = []
    for each in found[:MAX_KEYS]:
        try:
            key = Key(_from_jwk({name: each[name] for name in _PUBLIC if name in each}))
        except _MALFORMED:
            continue
        if key.algorithms:
            keys.append(key)
    return keys


def _members(data: KeyData) -> Mapping[str, Any]:
    if isinstance(data, Mapping):
        return data
    return msgspec.json.decode(data, type=dict[str, Any])


def _from_jwk(members: Mapping[str, Any]) -> jwk.Key:
    if members["kty"] == "RSA":
        # Before joserfc reads it, which warns of a short key.
        _check_rsa_size(int.from_bytes(urlsafe_b64decode(members["n"].encode())).bit_length())
    return jwk.import_key(dict(members))


def _from_pem(raw: bytes) -> jwk.Key:
    private = b"PRIVATE KEY" in raw
    native: Any = load_pem_private_key(raw, None) if private else load_pem_public_key(raw)
    if isinstance(native, rsa.RSAPrivateKey | rsa.RSAPublicKey):
        _check_rsa_size(native.key_size)
        return jwk.RSAKey.import_key(native)
    if isinstance(native, ec.EllipticCurvePrivateKey | ec.EllipticCurvePublicKey):
        return jwk.ECKey.import_key(native)
    return jwk.OKPKey.import_key(native)


def _check_rsa_size(bits: int) -> None:
    if not _MIN_RSA_BITS <= bits <= _MAX_RSA_BITS:
        raise ValueError(f"an RSA key of {bits} bits is not supported")


def _fits(key: jwk.Key, name: str) -> bool:
    try:
        _AllowedAlgorithms.algorithms[name].check_key(key)
        key.check_key_op("sign" if key.is_private else "verify")
    except _MALFORMED:
        return False
    if isinstance(key, jwk.OctKey):
        return len(key.raw_value) * 8 >= int(name[2:])  # RFC 7518, 3.2
    # joserfc takes each key of the type OKP for EdDSA, also one of X25519, which signs nothing.
    return name != "EdDSA" or key.get("crv") in ("Ed25519", "Ed448")
