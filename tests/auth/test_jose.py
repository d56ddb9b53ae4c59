"""Signed tokens and keys."""

from base64 import urlsafe_b64encode
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa, x25519
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)
from hypothesis import assume, given
from hypothesis import strategies as st

from genmcp.auth import InvalidToken, jose
from genmcp.errors import ConfigurationError


def pem(key: Any) -> str:
    text: bytes = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return text.decode()


def public_pem(key: Any) -> bytes:
    text: bytes = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return text


KEYS = {
    "ES256": jose.generate_key(),
    "ES384": jose.read_key(pem(ec.generate_private_key(ec.SECP384R1()))),
    "EdDSA": jose.read_key(pem(ed25519.Ed25519PrivateKey.generate())),
    "RS256": jose.read_key(pem(rsa.generate_private_key(65537, 2048))),
}


@pytest.mark.parametrize("algorithm", KEYS)
def test_signature_is_verified_with_the_published_key(algorithm: str) -> None:
    """A server verifies the signature of a client with the key in a JWK set."""
    key = KEYS[algorithm]
    token = jose.sign({"sub": "ada"}, key, header={"typ": "JWT", "kid": "a"})

    (published,) = jose.read_key_set({"keys": [{**key.private_jwk, "kid": "a"}]})
    signed = jose.decode(token)

    assert jose.verify(signed, [published], [algorithm])
    assert signed.header == {"alg": algorithm, "typ": "JWT", "kid": "a"}
    assert signed.payload == b'{"sub":"ada"}'
    assert (published.kid, published.private) == ("a", False)
    assert published.thumbprint == key.thumbprint


@pytest.mark.parametrize(
    ("key", "algorithm"),
    [
        (rsa.generate_private_key(65537, 2048), "RS256"),
        (ec.generate_private_key(ec.SECP521R1()), "ES512"),
        (ed25519.Ed25519PrivateKey.generate(), "EdDSA"),
        (ed448.Ed448PrivateKey.generate(), "EdDSA"),
    ],
)
def test_pem_is_read(key: Any, algorithm: str) -> None:
    """A private key signs with the usual algorithm of its type; the public key verifies."""
    token = jose.sign({}, jose.read_key(pem(key)))

    public = jose.read_key(public_pem(key))
    signed = jose.decode(token)
    assert signed.header["alg"] == algorithm
    assert jose.verify(signed, [public], jose.ASYMMETRIC)
    with pytest.raises(ConfigurationError, match="cannot sign"):
        jose.sign({}, public)


def test_thumbprint_is_that_of_rfc_7638() -> None:
    """RFC 7638, 3.1: the example."""
    modulus = (
        "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_"
        "BJECPebWKRXjBZCiFV4n3oknjhMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_"
        "FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQvRL5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI"
        "4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzKnqDKgw"
    )
    key = {"kty": "RSA", "n": modulus, "e": "AQAB", "alg": "RS256", "kid": "2011-04-29"}

    assert jose.read_key(key).thumbprint == "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs"


def test_key_limits_the_algorithm() -> None:
    """An `alg` of the key, the list of the verifier, and the type of the key all count."""
    key = KEYS["RS256"]
    limited = jose.read_key({**key.public_jwk, "alg": "PS256"})
    token = jose.decode(jose.sign({}, key, algorithm="RS256"))

    assert jose.verify(token, [key], ["RS256"])
    assert not jose.verify(token, [key], ["PS256"])
    assert not jose.verify(token, [limited], ["RS256"])
    assert not jose.verify(token, [jose.generate_key()], ["RS256"])
    assert not jose.verify(token, [], ["RS256"])
    assert not jose.verify(token, [key], [])


def test_unusable_keys_of_a_set_are_skipped() -> None:
    """One key that an issuer adds for another purpose must not lock everybody out."""
    good = jose.generate_key().public_jwk
    weak = rsa.generate_private_key(65537, 1024).public_key().public_numbers().n
    modulus = KEYS["RS256"].public_jwk
    foreign = x25519.X25519PrivateKey.generate().public_key().public_bytes_raw()
    unusable: list[Any] = [
        None,
        7,
        {},
        {"kty": "oct", "k": "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlY3JldA"},
        {"kty": "PQ", "x": "AA"},
        {"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"},
        {"kty": "EC", "crv": "P-999", "x": good["x"], "y": good["y"]},
        {"kty": "EC", "crv": "P-256", "x": 7, "y": good["y"]},
        {"kty": "OKP", "crv": "X25519", "x": encoded(foreign)},
        {"kty": "RSA", "n": encoded(weak.to_bytes(128)), "e": "AQAB"},
        {"kty": "RSA", "n": encoded(b"\xff" * 2000), "e": "AQAB"},
        {**modulus, "e": "AQ"},
        {**good, "use": "enc"},
        {**good, "use": "other"},
        {**good, "key_ops": ["encrypt"]},
        {**good, "alg": "ES384"},
        {**good, "kid": 7},
    ]

    keys = jose.read_key_set({"keys": [*unusable, {**good, "kid": "b", "x5u": "nowhere"}]})

    assert [key.kid for key in keys] == ["b"]


def test_key_sets_of_providers_are_read() -> None:
    """Keycloak lists a key for encryption first, Entra no `alg` and members of its own."""
    key = KEYS["RS256"]
    chain = {"x5c": ["MIIC" + "A" * 1000], "x5t": "nOo3ZDrODXEK1jKWhXslHR_KXEg"}
    keycloak = [
        {**key.public_jwk, "kid": "enc", "use": "enc", "alg": "RSA-OAEP", **chain},
        {**key.public_jwk, "kid": "sig", "use": "sig", "alg": "RS256", **chain},
    ]
    entra = {**key.public_jwk, "kid": "app", "use": "sig", "issuer": "https://a/{tenantid}/v2.0"}

    keys = jose.read_key_set({"keys": [*keycloak, {**entra, **chain}], "x": 1})

    assert [each.kid for each in keys] == ["sig", "app"]
    header = {"typ": "JWT", "kid": "app", "x5t": chain["x5t"], "nonce": "AQAB"}
    token = jose.decode(jose.sign({}, key, header=header))
    assert jose.verify(token, keys[1:], jose.ASYMMETRIC)


@pytest.mark.parametrize("text", ["", "[]", "null", "{}", '{"keys": {}}', "\xff", "{"])
def test_document_that_is_no_key_set_is_an_error(text: str) -> None:
    """The caller keeps its old keys."""
    with pytest.raises(ValueError, match="not a JWK set"):
        jose.read_key_set(text)


def test_number_of_keys_is_bounded() -> None:
    """A token without `kid` is tried with each of them."""
    keys = [{**jose.generate_key().public_jwk, "kid": str(n)} for n in range(3)]

    assert len(jose.read_key_set({"keys": keys * 50})) == jose.MAX_KEYS


@pytest.mark.parametrize(
    "data", ["", "-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----", "{}", b"\xff", {}]
)
def test_wrong_key_is_a_configuration_error(data: str | bytes | dict[str, Any]) -> None:
    """It fails when the server starts, and the message has no part of the key."""
    with pytest.raises(ConfigurationError, match="neither PEM nor a JWK") as caught:
        jose.read_key(data)

    assert "AAAA" not in str(caught.value)


def test_key_for_encryption_is_a_configuration_error() -> None:
    """It fits no algorithm of signatures."""
    key = jose.generate_key().public_jwk

    with pytest.raises(ConfigurationError, match="fits no algorithm"):
        jose.read_key({**key, "use": "enc"})


def secret_key(secret: bytes) -> dict[str, str]:
    return {"kty": "oct", "k": encoded(secret)}


def test_secret_signs_with_the_algorithms_it_is_long_enough_for() -> None:
    """RFC 7518, 3.2: a key of the size of the hash."""
    key = jose.read_key(secret_key(b"s" * 32))

    token = jose.decode(jose.sign({}, key, algorithm="HS256"))
    assert key.algorithms == {"HS256"}
    assert jose.verify(token, [key], ["HS256"])
    assert jose.read_key(secret_key(b"s" * 64)).algorithms == set(jose.SYMMETRIC)
    with pytest.raises(ConfigurationError, match="fits no algorithm"):
        jose.sign({}, key)  # the algorithm must be written out
    with pytest.raises(ConfigurationError, match="fits no algorithm"):
        jose.read_key(secret_key(b"s" * 31))


@pytest.mark.parametrize(
    "token", ["", "a", "a.b", "a.b.c.d.e", "a..c", ".a.b", "a.b.", "a.b.c=", "a.b.c\n", "ä.b.c"]
)
def test_text_of_another_form_is_no_token(token: str) -> None:
    """Compact, base64url without padding (RFC 7515, 7.1)."""
    with pytest.raises(InvalidToken, match="not a signed JWT"):
        jose.decode(token)


def test_keys_and_tokens_are_not_shown() -> None:
    """A repr ends in a log."""
    key = jose.generate_key()
    token = jose.sign({"sub": "ada"}, key)

    shown = f"{key!r} {jose.decode(token)!r}"
    assert key.public_jwk["x"] not in shown
    assert token.split(".")[1] not in shown
    assert "ada" not in shown


def encoded(data: bytes) -> str:
    return urlsafe_b64encode(data).rstrip(b"=").decode()


@given(st.sampled_from([*KEYS]), st.integers(0), st.characters(), st.booleans())
def test_altered_token_is_never_accepted(
    algorithm: str, at: int, character: str, insert: bool
) -> None:
    """One character replaced or inserted, anywhere: no signature, and no other error."""
    key = KEYS[algorithm]
    token = jose.sign({"sub": "ada", "exp": 1_800_000_000}, key, header={"kid": "a"})
    at %= len(token)
    altered = token[:at] + character + token[at + (not insert) :]
    assume(altered != token)

    try:
        assert not jose.verify(jose.decode(altered), [key], jose.ASYMMETRIC)
    except InvalidToken as error:
        assert token.split(".")[1][:12] not in str(error)


@given(st.text() | st.from_regex(r"[A-Za-z0-9_-]*(\.[A-Za-z0-9_-]*){0,4}", fullmatch=True))
def test_any_text_is_refused(text: str) -> None:
    """Nothing raises anything but `InvalidToken`."""
    with pytest.raises(InvalidToken):
        assert jose.verify(jose.decode(text), KEYS.values(), jose.ASYMMETRIC)
        pytest.fail("it was accepted")
