"""Hostile DPoP proofs over real HTTP: each is refused with the status and code of its cause."""

import json
import logging
import os
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from genmcp.auth.extensions.proofs import new_nonce
from genmcp.core.auth.challenges import find_challenge, parse_challenges
from genmcp.core.seal import Seal
from tests.auth.dpop_server import OWNER, SECRET, THIEF, Headers, Target, served
from tests.auth.proofs import encoded, hash_of, twin

Attack = Callable[[Target], Headers]


def _text(header: dict[str, Any] | str, payload: dict[str, Any] | str) -> str:
    """Return a signed token of OWNER with any text as header and payload."""
    parts = (each if isinstance(each, str) else json.dumps(each) for each in (header, payload))
    text = ".".join(encoded(each.encode()) for each in parts)
    return f"{text}.{OWNER.signature(text)}"


def _header(**changes: Any) -> dict[str, Any]:
    return {"typ": "dpop+jwt", "alg": "ES256", "jwk": OWNER.jwk, **changes}


def _payload(target: Target) -> dict[str, Any]:
    now = int(time.time())
    ath = hash_of(target.token)
    return {"jti": "1", "htm": "POST", "htu": target.url, "iat": now, "ath": ath}


def _pem() -> bytes:
    public = OWNER.private.public_key()
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)


def _rsa(bits: int) -> dict[str, str]:
    numbers = rsa.generate_private_key(65537, bits).public_key().public_numbers()
    return {"kty": "RSA", "e": "AQAB", "n": encoded(numbers.n.to_bytes(bits // 8))}


def _der(proof: str) -> str:
    text = proof.rpartition(".")[0]
    return f"{text}.{encoded(OWNER.private.sign(text.encode(), ec.ECDSA(SHA256())))}"


def _flipped(proof: str) -> str:
    return proof[:-4] + ("A" if proof[-4] != "A" else "B") + proof[-3:]


def _without(name: str) -> Attack:
    return lambda target: target.changed(claims={name: ...})


def _claim(name: str, value: Any) -> Attack:
    return lambda target: target.changed(claims={name: value})


def _head(**changes: Any) -> Attack:
    return lambda target: target.changed(header=changes)


ATTACKS: dict[str, Attack] = {
    # Not one well-formed proof.
    "no proof": lambda target: target.with_proof(),
    "two headers": lambda target: target.with_proof(target.proof(), target.proof()),
    "two equal headers": lambda target: target.with_proof(*[target.proof()] * 2),
    "two in one header": lambda target: target.with_proof(f"{target.proof()}, {target.proof()}"),
    "an empty header": lambda target: target.with_proof(""),
    "no JWT": lambda target: target.with_proof("proof"),
    "the token itself": lambda target: target.with_proof(target.token),
    "two parts": lambda target: target.with_proof(target.proof().rpartition(".")[0]),
    "five parts": lambda target: target.with_proof(f"{target.proof()}.a.b"),
    "padding": lambda target: target.with_proof(target.proof() + "="),
    "not base64url": lambda target: target.with_proof(target.proof().replace(".", ".+", 1)),
    "a header that is no JSON": lambda target: target.with_proof(_text("{", _payload(target))),
    "a header that is a list": lambda target: target.with_proof(_text("[]", _payload(target))),
    "a member of the header twice": lambda target: target.with_proof(
        _text('{"alg":"none",' + json.dumps(_header())[1:], _payload(target))
    ),
    "claims that are no JSON": lambda target: target.with_proof(_text(_header(), "{")),
    "claims that are a list": lambda target: target.with_proof(_text(_header(), "[]")),
    "a claim twice": lambda target: target.with_proof(
        _text(_header(), '{"htm":"GET",' + json.dumps(_payload(target))[1:])
    ),
    "a claim that is infinite": lambda target: target.changed(claims={"iat": float("inf")}),
    "a proof of 9 KiB": lambda target: target.changed(claims={"x": "x" * 6900}),
    # The type.
    "typ JWT": _head(typ="JWT"),
    "typ of an access token": _head(typ="at+jwt"),
    "no typ": _head(typ=...),
    # The algorithm.
    "alg none": lambda target: target.with_proof(
        target.proof(header={"alg": "none"}).rpartition(".")[0] + "."
    ),
    "alg none with a signature": _head(alg="none"),
    "alg None": _head(alg="None"),
    "alg HS256 by the public key as PEM": lambda target: target.changed(
        header={"alg": "HS256"}, by=_pem()
    ),
    "alg HS256 by a shared secret": lambda target: target.changed(
        header={"alg": "HS256", "jwk": {"kty": "oct", "k": encoded(b"s" * 32)}}, by=b"s" * 32
    ),
    "alg RS256": _head(alg="RS256"),
    "alg ES384 with a key of P-256": _head(alg="ES384"),
    "alg EdDSA with a key of P-256": _head(alg="EdDSA"),
    "no alg": _head(alg=...),
    "alg that is a list": _head(alg=["ES256"]),
    "a critical extension": _head(crit=["exp"]),
    "an unencoded payload": _head(b64=False, crit=["b64"]),
    # The key.
    "no jwk": _head(jwk=...),
    "a key id in place of the key": _head(jwk=..., kid="1"),
    "a URL in place of the key": _head(jwk=..., jku="https://evil.example.com/jwks"),
    "jwk that is text": _head(jwk="key"),
    "a private key": _head(jwk={**OWNER.jwk, "d": OWNER.secret}),
    "a private key of RSA": _head(jwk={**_rsa(2048), "p": "AQAB"}),
    "a secret": _head(jwk={"kty": "oct", "k": encoded(b"s" * 32)}),
    "a key of another client": _head(jwk=THIEF.jwk),
    "a point off the curve": _head(jwk={**OWNER.jwk, "y": OWNER.jwk["x"]}),
    "an unknown curve": _head(jwk={**OWNER.jwk, "crv": "P-257"}),
    "a key for encryption": _head(jwk={**OWNER.jwk, "use": "enc"}),
    "a key without its coordinates": _head(jwk={"kty": "EC", "crv": "P-256"}),
    # The signature.
    "a signature by another key": lambda target: target.changed(by=THIEF),
    "no signature": lambda target: target.with_proof(target.proof().rpartition(".")[0] + "."),
    "a changed signature": lambda target: target.with_proof(_flipped(target.proof())),
    "a signature in DER": lambda target: target.with_proof(_der(target.proof())),
    # The request.
    "no htm": _without("htm"),
    "htm GET": _claim("htm", "GET"),
    "htm in lower case": _claim("htm", "post"),
    "no htu": _without("htu"),
    "htu of another host": _claim("htu", "https://evil.example.com/mcp"),
    "htu of another path": lambda target: target.changed(claims={"htu": target.url + "/x"}),
    "htu of the host": lambda target: target.changed(claims={"htu": target.url[:-4]}),
    "htu of the issuer": lambda target: target.changed(claims={"htu": target.issuer.url}),
    "htu with credentials": lambda target: target.changed(
        claims={"htu": target.url.replace("://", "://me@")}
    ),
    "htu that is a list": lambda target: target.changed(claims={"htu": [target.url]}),
    # The time.
    "no iat": _without("iat"),
    "iat that is text": lambda target: target.changed(claims={"iat": str(int(time.time()))}),
    "iat that is true": _claim("iat", True),
    "iat of 1970": _claim("iat", 0),
    "a negative iat": _claim("iat", -1),
    "an old iat": lambda target: target.changed(claims={"iat": int(time.time()) - 310}),
    "a future iat": lambda target: target.changed(claims={"iat": int(time.time()) + 310}),
    "iat in milliseconds": lambda target: target.changed(claims={"iat": int(time.time() * 1000)}),
    "iat of 400 digits": _claim("iat", 10**400),
    # The token.
    "no ath": _without("ath"),
    "ath of another token": _claim("ath", hash_of("another")),
    "ath with padding": lambda target: target.changed(claims={"ath": hash_of(target.token) + "="}),
    "ath that is the token": lambda target: target.changed(claims={"ath": target.token}),
    # The id.
    "no jti": _without("jti"),
    "jti that is a number": _claim("jti", 1),
    "an empty jti": _claim("jti", ""),
    "jti of 300 characters": _claim("jti", "x" * 300),
}
"""Each has the error code `invalid_dpop_proof`."""


def _stolen(target: Target) -> Headers:
    return target.changed(THIEF)


def _unbound(target: Target) -> Headers:
    token = target.issuer.token("ann", audience=target.url)
    return target.with_proof(OWNER.proof("POST", target.url, token), token=token)


def _bound_otherwise(target: Target) -> Headers:
    cnf = {"x5t#S256": OWNER.thumbprint}
    token = target.issuer.token("ann", audience=target.url, cnf=cnf)
    return target.with_proof(OWNER.proof("POST", target.url, token), token=token)


def _expired(target: Target) -> Headers:
    cnf = {"jkt": OWNER.thumbprint}
    token = target.issuer.token("ann", audience=target.url, expires_in=-60, cnf=cnf)
    return target.with_proof(OWNER.proof("POST", target.url, token), token=token)


def _elsewhere(target: Target) -> Headers:
    cnf = {"jkt": OWNER.thumbprint}
    token = target.issuer.token("ann", audience="https://evil.example.com/mcp", cnf=cnf)
    return target.with_proof(OWNER.proof("POST", target.url, token), token=token)


WRONG_TOKENS: dict[str, Attack] = {
    "a stolen token with a key of the thief": _stolen,
    "a token that is not bound": _unbound,
    "a token that is bound by a certificate": _bound_otherwise,
    "an expired token": _expired,
    "a token for another server": _elsewhere,
    "a bound token as Bearer": lambda target: [("Authorization", f"Bearer {target.token}")],
    "a bound token as Bearer with a proof": lambda target: [
        ("Authorization", f"Bearer {target.token}"),
        ("DPoP", target.proof()),
    ],
}
"""Each has the error code `invalid_token`: a new proof would not help."""


def check_refused(response: httpx.Response, code: str) -> None:
    """Check that a response refuses the proof, and lists the accepted algorithms."""
    challenges = parse_challenges(response.headers.get_list("www-authenticate"))
    challenge = find_challenge(challenges, "DPoP")
    assert response.status_code == 401
    assert challenge is not None
    assert challenge.params["error"] == code
    assert challenge.params["algs"] == "ES256 EdDSA"
    assert response.json()["error"] == code


def check_silent(log: str, target: Target, headers: Headers) -> None:
    """Check that neither a token nor a proof is in the log."""
    for name, value in headers:
        secret = value.partition(" ")[2] if name == "Authorization" else value
        # Each part on its own: the signature of a token or a proof is as much a secret as both.
        for part in secret.split("."):
            assert len(part) < 20 or part not in log


@pytest.mark.parametrize("attack", ATTACKS)
async def test_hostile_proof_is_refused(attack: str, caplog: pytest.LogCaptureFixture) -> None:
    """RFC 9449, 4.3 and 7.1: the client learns that its proof is the cause."""
    caplog.set_level(logging.DEBUG)
    async with served(required=True) as target:
        headers = ATTACKS[attack](target)
        response = await target.send(headers)

    check_refused(response, "invalid_dpop_proof")
    check_silent(caplog.text + response.text, target, headers)


@pytest.mark.parametrize("attack", WRONG_TOKENS)
async def test_token_of_another_key_is_refused(
    attack: str, caplog: pytest.LogCaptureFixture
) -> None:
    """RFC 9449, 7.1 and 7.2: the token is the cause, so that a client fetches another one."""
    caplog.set_level(logging.DEBUG)
    async with served(required="Bearer" not in attack) as target:
        headers = WRONG_TOKENS[attack](target)
        response = await target.send(headers)

    challenges = parse_challenges(response.headers.get_list("www-authenticate"))
    assert response.status_code == 401
    assert [each.params.get("error") for each in challenges].count("invalid_token") == 1
    check_silent(caplog.text + response.text, target, headers)


async def test_honest_proof_is_accepted() -> None:
    """The attacks above would be refused by a server that refuses everything."""
    async with served(required=True) as target:
        responses = [await target.send(target.changed()) for _ in range(3)]

    assert [response.status_code for response in responses] == [200, 200, 200]


async def test_proof_is_accepted_once() -> None:
    """RFC 9449, 11.1: a copy is refused, and so is its twin with another valid signature."""
    async with served(required=True) as target:
        proof = target.proof()
        first = await target.send(target.with_proof(proof))
        copy = await target.send(target.with_proof(proof))
        other = await target.send(target.with_proof(twin(proof)))

    assert first.status_code == 200
    check_refused(copy, "invalid_dpop_proof")
    check_refused(other, "invalid_dpop_proof")


@pytest.mark.parametrize(
    "nonce",
    [
        ...,
        "",
        "guessed",
        7,
        new_nonce(Seal("another secret of 28 bytes..", "parts", now=time.time, nonce=os.urandom)),
        new_nonce(Seal(SECRET, "other", now=time.time, nonce=os.urandom)),
        new_nonce(Seal(SECRET, "parts", now=lambda: time.time() - 301, nonce=os.urandom)),
    ],
    ids=["none", "empty", "guessed", "number", "other secret", "other server", "stale"],
)
async def test_nonce_that_is_not_fresh_is_refused(nonce: Any) -> None:
    """RFC 9449, 9: the response has a nonce, and a proof with that one is accepted."""
    async with served(required=True, nonces=True) as target:
        refused = await target.send(target.changed(claims={"nonce": nonce}))
        fresh = {"nonce": refused.headers["dpop-nonce"]}
        accepted = await target.send(target.changed(claims=fresh))

    check_refused(refused, "use_dpop_nonce")
    assert accepted.status_code == 200
