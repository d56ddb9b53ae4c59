"""Signed access tokens, verified with the keys that an issuer publishes."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from genmcp import Endpoint, Suite
from genmcp.auth import Bearer, Jwt
from genmcp.auth.jwt import JwtVerifier
from genmcp.auth.verdicts import Clock
from genmcp.testing import Issuer
from tests.support.clock import Clock as ManualClock
from tests.support.serving import serve
from tests.support.tokens import RESOURCE, called, whoami

START = 1_800_000_000.0


@asynccontextmanager
async def published(
    path: str = "", **options: Any
) -> AsyncIterator[tuple[Issuer, JwtVerifier, ManualClock]]:
    """Serve an issuer over HTTP; yield it, a verifier of its tokens, and the clock of both."""
    clock = ManualClock(START)
    issuer = Issuer(f"http://127.0.0.1{path}", resources=[RESOURCE], clock=clock)
    async with issuer.serve():
        verifier = Jwt(**options).bind(RESOURCE, [issuer.url], Clock(clock, clock))
        yield issuer, verifier, clock


async def test_signed_tokens_are_the_default() -> None:
    """A `Bearer` with resource and issuers alone: real HTTP on both sides."""
    issuer = Issuer(resources=[RESOURCE])
    async with issuer.serve():
        bearer = Bearer(RESOURCE, issuers=[issuer.url])
        endpoint = Endpoint(Suite(name="test", version="1", tools=[whoami]), auth=bearer)
        async with serve(endpoint) as url, httpx.AsyncClient() as client:
            good = await called(client, url, issuer.token("ada"))
            other = await called(client, url, issuer.token("ada", audience="https://other.test"))

    assert f"{issuer.url} sub ada" in good.text
    assert other.status_code == 401
    assert 'error="invalid_token"' in other.headers["www-authenticate"]


@pytest.mark.parametrize("path", ["", "/tenant/1"])
async def test_keys_are_found_through_the_metadata(path: str) -> None:
    """RFC 8414: the well-known part goes between host and path."""
    async with published(path) as (issuer, verifier, _):
        access = await verifier.verify(issuer.token("ada", "read write", client_id="web"))

    assert (access.issuer, access.subject, access.client_id) == (issuer.url, "ada", "web")
    assert access.scopes == {"read", "write"}
