"""The proofs of a client's key, read by joserfc on its own."""

import json
from typing import Any

import pytest
from joserfc import jws
from joserfc.jwk import ECKey

from genmcp.client.auth.dpop import DpopKeys
from genmcp.core.auth.steps import Fetch
from genmcp.errors import ConfigurationError

URL = "https://mcp.example.com/mcp"
NOW = 1_700_000_000.0
KEY = DpopKeys().new_key()


def read(proof: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return header and claims of a proof. Its signature must fit the key in the header."""
    header = jws.extract_compact(proof.encode()).headers()
    signed = jws.deserialize_compact(proof, ECKey.import_key(header["jwk"]), algorithms=["ES256"])
    return header, json.loads(signed.payload)


def proof(keys: DpopKeys, method: str, url: str) -> str:
    """Return the proof of a request to a token endpoint."""
    return dict(keys.prove(Fetch(url=url, method=method), KEY).headers)["DPoP"]


def test_proof_is_signed_with_the_key_in_its_header() -> None:
    """RFC 9449, 4.2: the type, the public key, and nothing private."""
    keys = DpopKeys(now=lambda: NOW)
    header, claims = read(keys.headers("POST", URL + "?a=b", "token", KEY)["DPoP"])

    assert header["typ"] == "dpop+jwt"
    assert sorted(header["jwk"]) == ["crv", "kty", "x", "y"]
    assert ECKey.import_key(header["jwk"]).thumbprint() == keys.thumbprint(KEY)
    assert (claims["htm"], claims["htu"], claims["iat"]) == ("POST", URL, int(NOW))
    assert claims["ath"] == "PEaenWxYddN6Q_NT1PiOYfz4EsZu7jRXRlpAsNpBU-A"
    assert "nonce" not in claims


def test_each_proof_has_an_id_of_its_own() -> None:
    """RFC 9449, 4.2: servers refuse an id that they have seen."""
    key = DpopKeys()

    ids = {read(proof(key, "POST", URL))[1]["jti"] for _ in range(50)}

    assert len(ids) == 50


def test_each_proof_is_by_the_key_of_its_record() -> None:
    """A login is under way with a new key, and a request has the token of before."""
    keys = DpopKeys()
    new = keys.new_key()
    sent = keys.headers("POST", URL, "token", KEY)["DPoP"]
    redeemed = dict(keys.prove(Fetch(url=URL, method="POST"), new).headers)["DPoP"]

    signers = [ECKey.import_key(read(each)[0]["jwk"]).thumbprint() for each in (sent, redeemed)]
    assert signers == [keys.thumbprint(KEY), keys.thumbprint(new)]
    assert signers[0] != signers[1]


def test_public_key_is_refused() -> None:
    """It cannot sign."""
    public = {name: value for name, value in json.loads(KEY).items() if name != "d"}

    with pytest.raises(ConfigurationError, match="cannot sign"):
        DpopKeys().headers("POST", URL, "token", json.dumps(public))


def test_nonce_is_of_one_origin() -> None:
    """RFC 9449, 8.2: that of the authorization server means nothing to the resource server."""
    key = DpopKeys()

    assert key.answered(URL, [("DPoP-Nonce", "one")])
    assert not key.answered(URL + "/other", [("dpop-nonce", "one")])
    assert key.answered("HTTPS://LOGIN.example.com/token", [("dpop-nonce", "two")])

    assert read(proof(key, "GET", URL))[1]["nonce"] == "one"
    assert read(proof(key, "POST", "https://login.example.com"))[1]["nonce"] == "two"
    assert "nonce" not in read(proof(key, "POST", "https://third.example.com"))[1]


def test_last_nonce_counts() -> None:
    """RFC 9449, 8.2: any response may bring a new one; one without leaves the old one."""
    key = DpopKeys()
    for headers in ([("dpop-nonce", "one")], [("dpop-nonce", "two")], [], [("dpop-nonce", "")]):
        key.answered(URL, headers)

    assert read(proof(key, "GET", URL))[1]["nonce"] == "two"


def test_nonce_of_any_length_is_not_kept() -> None:
    """A server cannot fill the memory of its clients."""
    key = DpopKeys()

    assert not key.answered(URL, [("dpop-nonce", "n" * 2000)])
    assert "nonce" not in read(proof(key, "GET", URL))[1]


def test_request_has_token_and_proof() -> None:
    """RFC 9449, 7.1: the scheme DPoP."""
    headers = DpopKeys().headers("POST", URL, "token", KEY)

    assert headers["Authorization"] == "DPoP token"
    assert "ath" in read(headers["DPoP"])[1]
