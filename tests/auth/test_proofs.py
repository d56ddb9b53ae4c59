"""DPoP proofs: their claims, and the checks of a proof with a valid signature."""

from typing import Any

import pytest

from genmcp.auth.extensions.proofs import (
    WINDOW,
    InvalidProof,
    Proof,
    key_of_proof,
    new_nonce,
    proof_claims,
    target_uri,
)
from genmcp.core.access import InvalidToken
from genmcp.core.seal import Purpose, Seal

URL = "https://mcp.example.com/mcp"
NOW = 1_700_000_000.0
TOKEN = "Kz~8mXK1EalYznwH-LC-1fBAo.4Ljp~zsPE_NeO.gxU"
JWK = {"kty": "EC", "crv": "P-256", "x": "l8tFrhx-34tV3hRICRDY9zCkDlpBhF42UQUfWVAWBFs", "y": "9VE4"}
HEADER = {"typ": "dpop+jwt", "alg": "ES256", "jwk": JWK}
THUMBPRINT = "0ZcOCORZNYy-DWpqq30jZyJGHTN0d2HglBV3uiguA4I"


def seal(now: float = NOW, audience: str = "parts") -> Seal:
    return Seal(
        "a secret of 24 bytes ...", audience, now=lambda: now, nonce=lambda size: b"n" * size
    )


def claims(**changes: Any) -> dict[str, Any]:
    made = proof_claims("POST", URL, id="e1j3V_bKic8-LAEB", now=NOW, token=TOKEN, nonce=None)
    return {name: value for name, value in {**made, **changes}.items() if value is not ...}


def check(
    proof: dict[str, Any], *, method: str = "POST", urls: tuple[str, ...] = (URL,), now: float = NOW
) -> None:
    Proof(proof, THUMBPRINT).check(method=method, urls=urls, token=TOKEN, now=now)


def test_claims_are_those_of_the_rfc() -> None:
    """RFC 9449, 7.1, has this token with this hash; 4.2: no query and no fragment."""
    made = proof_claims("GET", f"{URL}?a=b#c", id="1", now=NOW + 0.9, token=TOKEN, nonce="n")

    assert made == {
        "jti": "1",
        "htm": "GET",
        "htu": URL,
        "iat": int(NOW),
        "ath": "fUHyO2r2Z3DZ53EsNrWBb0xWXoaNy59IiKCAqksmQEo",
        "nonce": "n",
    }


def test_claims_for_a_token_endpoint_have_no_hash() -> None:
    """RFC 9449, 5: there is no access token yet."""
    made = proof_claims("POST", URL, id="1", now=NOW, nonce=None)

    assert made.keys() == {"jti", "htm", "htu", "iat"}


def test_header_has_the_public_key() -> None:
    """RFC 9449, 4.2."""
    assert key_of_proof(HEADER) == JWK


def test_proof_for_the_request_is_accepted() -> None:
    """RFC 9449, 4.3."""
    check(claims())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"jti": ...}, "no valid jti"),
        ({"jti": 7}, "no valid jti"),
        ({"jti": ""}, "empty or too long"),
        ({"jti": "x" * 257}, "empty or too long"),
        ({"htm": ...}, "no valid htm"),
        ({"htm": "GET"}, "another HTTP method"),
        ({"htm": "post"}, "another HTTP method"),
        ({"htu": ...}, "no valid htu"),
        ({"htu": [URL]}, "no valid htu"),
        ({"htu": "https://mcp.example.com/other"}, "another URL"),
        ({"htu": "https://evil.example.com/mcp"}, "another URL"),
        ({"htu": "http://mcp.example.com/mcp"}, "another URL"),
        ({"htu": "https://mcp.example.com:8443/mcp"}, "another URL"),
        ({"htu": "https://mcp.example.com:port/mcp"}, "another URL"),
        ({"htu": "https://[mcp"}, "another URL"),
        ({"htu": "https://me@mcp.example.com/mcp"}, "another URL"),
        ({"htu": ""}, "another URL"),
        ({"iat": ...}, "no valid iat"),
        ({"iat": str(int(NOW))}, "no valid iat"),
        ({"iat": True}, "no valid iat"),
        ({"iat": False}, "too old"),
        ({"iat": float("nan")}, "no valid iat"),
        ({"iat": 10**400}, "no valid iat"),
        ({"iat": -1}, "no valid iat"),
        ({"iat": NOW - 301}, "too old"),
        ({"iat": NOW + 301}, "from the future"),
        ({"ath": ...}, "no valid ath"),
        ({"ath": "fUHyO2r2Z3DZ53EsNrWBb0xWXoaNy59IiKCAqksmQEO"}, "another access token"),
        ({"ath": "\ud800"}, "another access token"),
    ],
)
def test_proof_for_something_else_is_refused(changes: dict[str, Any], reason: str) -> None:
    """Each check of RFC 9449, 4.3, fails on its own."""
    with pytest.raises(InvalidProof, match=reason) as caught:
        check(claims(**changes))

    assert caught.value.code == "invalid_dpop_proof"
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize(
    "htu",
    [
        "HTTPS://MCP.example.com:443/mcp",
        "https://mcp.example.com/mcp/",
        "https://mcp.example.com/mcp?session=1#x",
        "https://mcp.example.com/m%63p",
    ],
)
def test_url_is_normalized_before_it_is_compared(htu: str) -> None:
    """RFC 9449, 4.3: a different spelling of the same URL is not an attack."""
    check(claims(htu=htu))


def test_any_of_several_urls_is_accepted() -> None:
    """With a whole host as its resource, an endpoint has a URL of its own."""
    check(claims(), urls=("https://mcp.example.com", URL))


@pytest.mark.parametrize("url", ["http://[::1]:8000/mcp", "http://localhost:8000"])
def test_port_remains_in_the_form_to_compare(url: str) -> None:
    """Only the default port of the scheme does not count."""
    assert target_uri(f"{url}/?x") == url


def test_reserved_characters_remain_escaped() -> None:
    """A decoded %2F would be another path; its hexadecimal digits may have either case."""
    assert target_uri("https://h/a%2fb%7E") == "https://h/a%2Fb~"


def test_id_names_a_proof_of_one_key() -> None:
    """A copy has the same name; the same `jti` of another client has another."""
    one, copy, other = Proof(claims(), "a"), Proof(claims(iat=0), "a"), Proof(claims(), "b")

    assert one.id == copy.id != other.id
    assert one.id != Proof(claims(jti="\ud800"), "a").id


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"typ": "JWT"}, "typ"),
        ({"typ": ...}, "typ"),
        ({"alg": "none"}, "algorithm"),
        ({"alg": "HS256"}, "algorithm"),
        ({"alg": "RS256"}, "algorithm"),
        ({"alg": ["ES256"]}, "algorithm"),
        ({"alg": ...}, "algorithm"),
        ({"crit": ["exp"]}, "critical"),
        ({"jwk": ...}, "no public key"),
        ({"jwk": "a key"}, "no public key"),
        ({"jwk": {}}, "no public key"),
        ({"jwk": {"kty": "oct", "k": "c2VjcmV0"}}, "no public key"),
        ({"jwk": {**JWK, "d": "c2VjcmV0"}}, "private key"),
        ({"jwk": {**JWK, "k": "c2VjcmV0"}}, "private key"),
        ({"jwk": {"kty": "RSA", "n": "1", "e": "1", "dp": "1"}}, "private key"),
    ],
)
def test_header_of_another_kind_is_refused(changes: dict[str, Any], reason: str) -> None:
    """RFC 9449, 4.3: the type, an asymmetric algorithm, and a public key only."""
    header = {**HEADER, **changes}

    with pytest.raises(InvalidProof, match=reason):
        key_of_proof({name: value for name, value in header.items() if value is not ...})


def test_nonce_is_accepted_until_it_expires() -> None:
    """RFC 9449, 9: a sealed time, which needs no store."""
    nonce = new_nonce(seal())

    Proof(claims(nonce=nonce), THUMBPRINT).check_nonce(seal(NOW + WINDOW - 1))
    with pytest.raises(InvalidProof) as caught:
        Proof(claims(nonce=nonce), THUMBPRINT).check_nonce(seal(NOW + WINDOW))

    assert caught.value.code == "use_dpop_nonce"


@pytest.mark.parametrize(
    "nonce",
    [
        ...,
        7,
        "",
        "guessed",
        new_nonce(seal(audience="other")),
        seal().seal(Purpose.EVENT, b"", ttl=9),
    ],
)
def test_text_that_is_not_a_nonce_is_refused(nonce: Any) -> None:
    """Only a text that this server has sealed for this purpose is a nonce."""
    with pytest.raises(InvalidProof) as caught:
        Proof(claims(nonce=nonce), THUMBPRINT).check_nonce(seal())

    assert caught.value.code == "use_dpop_nonce"


def test_token_is_bound_to_the_key_of_the_proof() -> None:
    """RFC 9449, 6.1: the confirmation method `jkt`."""
    Proof(claims(), THUMBPRINT).check_binding({"jkt": THUMBPRINT})


@pytest.mark.parametrize(
    ("confirmation", "reason"),
    [
        ({"jkt": THUMBPRINT.lower()}, "another key"),
        ({"jkt": "\ud800"}, "another key"),
        ({"jkt": 7}, "not bound"),
        ({"x5t#S256": THUMBPRINT}, "not bound"),
        (THUMBPRINT, "not bound"),
        (None, "not bound"),
    ],
)
def test_token_bound_to_another_key_is_refused(confirmation: object, reason: str) -> None:
    """The token is the wrong one, not the proof: RFC 9449, 7.1, has `invalid_token` for it."""
    with pytest.raises(InvalidToken, match=reason) as caught:
        Proof(claims(), THUMBPRINT).check_binding(confirmation)

    assert not isinstance(caught.value, InvalidProof)
