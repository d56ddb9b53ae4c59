"""`genmcp.testing.Issuer`: the tokens that it signs, its documents, and its faults."""

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from genmcp import Endpoint, Suite
from genmcp.auth import Bearer, Jwt
from genmcp.errors import ConfigurationError
from genmcp.testing import Issuer
from tests.support.serving import serve
from tests.support.tokens import RESOURCE, called, whoami

ALGORITHMS = ["ES256", "ES384", "ES512", "RS256", "PS256", "Ed25519"]


@contextmanager
def issuing(issuer: Issuer) -> Iterator[tuple[Issuer, httpx.Client]]:
    """Serve *issuer*; yield it, and a client of its documents."""
    with issuer.serve() as url, httpx.Client(base_url=url) as http:
        yield issuer, http


async def status_of(issuer: Issuer, token: str, *, published: bool = True) -> int:
    """Return the status of a call with *token*, at an endpoint that trusts *issuer*."""
    verify = Jwt() if published else Jwt(keys=issuer.jwks)
    bearer = Bearer(RESOURCE, issuers=[issuer.url], verify=verify)
    endpoint = Endpoint(Suite(name="test", version="1", tools=[whoami]), auth=bearer)
    async with serve(endpoint) as url, httpx.AsyncClient() as client:
        return (await called(client, url, token)).status_code


@pytest.mark.parametrize("algorithm", ALGORITHMS)
async def test_issuer_signs_by_each_algorithm(algorithm: str) -> None:
    """An endpoint accepts the token by the keys alone, without a request to the issuer."""
    issuer = Issuer("https://issuer.test", resources=[RESOURCE], algorithm=algorithm)

    assert issuer.jwks["keys"][0]["alg"] == algorithm
    assert await status_of(issuer, issuer.token("ada"), published=False) == 200


@pytest.mark.parametrize("path", ["", "/tenant", "/tenant/"])
async def test_issuer_publishes_its_keys(path: str) -> None:
    """An endpoint finds them by the metadata, also those of an issuer with a path."""
    issuer = Issuer(f"http://127.0.0.1{path}", resources=[RESOURCE])
    async with issuer.serve() as url:
        assert url == issuer.url
        assert url.endswith(path)
        assert await status_of(issuer, issuer.token("ada", ["read"])) == 200


async def test_issuer_signs_tokens_that_are_refused() -> None:
    """Each has one fault that a server has to notice."""
    issuer = Issuer("https://issuer.test", resources=[RESOURCE])
    refused = [
        issuer.token("ada", expires_in=-60),
        issuer.token("ada", audience="https://other.test"),
        issuer.token("ada", aud=None),
        issuer.token("ada", iss="https://evil.test"),
    ]
    issuer.faults.foreign_key = True
    refused.append(issuer.token("ada"))

    for token in refused:
        assert await status_of(issuer, token, published=False) == 401


async def test_issuer_replaces_its_key() -> None:
    """The former key verifies its tokens until it is withdrawn."""
    issuer = Issuer("https://issuer.test", resources=[RESOURCE])
    token = issuer.token("ada")

    issuer.rotate()
    assert await status_of(issuer, token, published=False) == 200
    issuer.rotate(withdraw=True)
    assert await status_of(issuer, token, published=False) == 401
    assert await status_of(issuer, issuer.token("ada"), published=False) == 200


def test_issuer_documents_fail_on_request() -> None:
    """A server must survive an issuer that is down, or has wrong metadata."""
    with issuing(Issuer(metadata={"token_endpoint": "https://issuer.test/token"})) as (it, http):
        path = "/.well-known/oauth-authorization-server"
        found = http.get(path).json()
        assert (found["issuer"], found["token_endpoint"]) == (it.url, "https://issuer.test/token")
        assert http.get(found["jwks_uri"]).json() == it.jwks

        it.faults.failing = {"metadata": 503}
        it.faults.delay = {"jwks": 0.001}
        it.metadata = {"issuer": "https://evil.test", "jwks_uri": None}
        assert http.get(path).status_code == 503
        assert http.get("/jwks").json() == it.jwks
        it.faults.failing.clear()
        found = http.get("/.well-known/openid-configuration").json()
        assert found["issuer"] == "https://evil.test"
        assert "jwks_uri" not in found


@pytest.mark.parametrize("url", ["issuer.test", "https://issuer.test?x=1", "https://issuer.test#x"])
def test_issuer_url_must_be_an_identifier(url: str) -> None:
    """RFC 8414, 2: a URL without query and fragment."""
    with pytest.raises(ConfigurationError, match="is not an issuer"):
        Issuer(url)
