"""A client that asks its user for the scopes of an operation, with a real login."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from genmcp import Client, ClientOptions, Endpoint
from genmcp.auth import Bearer
from genmcp.client.auth import OAuth
from tests.auth.scoped import RAN, close, suite
from tests.support.asgi import ALL
from tests.support.oauth.server import OAuthServer
from tests.support.serving import serve

BULK = {"count": 500}


class Site:
    """A server with logins, and the scopes of each authorization request."""

    def __init__(self) -> None:
        self.issuer = OAuthServer()
        self.app: Any = None
        self.url = ""
        self.asked: list[list[str]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await self.app(scope, receive, send)

    async def browse(self, url: str) -> str:
        """Log in as a browser does, and return the URL of the redirect."""
        self.asked.append(sorted(httpx.URL(url).params.get("scope", "").split()))
        async with httpx.AsyncClient(trust_env=False) as browser:
            location: str = (await browser.get(url)).headers["location"]
            return location


@pytest.fixture(autouse=True)
async def _closed() -> AsyncIterator[None]:
    yield
    await close()


@asynccontextmanager
async def served() -> AsyncIterator[Site]:
    site = Site()
    async with site.issuer.serve(), serve(site, lifespan="off") as base:
        site.url = f"{base}/mcp"
        auth = Bearer(site.url, issuers=[site.issuer.url], scopes=["parts:read"])
        site.app = Starlette(routes=Endpoint(suite(), auth=auth).routes("/mcp"))
        yield site


@pytest.mark.parametrize("version", ALL)
async def test_client_gets_a_wider_token_and_repeats_the_call(version: str) -> None:
    """One authorization for each 403, and none of the refused calls has run a hook."""
    async with served() as site:
        auth = OAuth("Parts agent", ask=site.browse)
        options = ClientOptions(revision=version)
        async with Client(site.url, auth=auth, options=options) as client:
            assert (await client.call("look")).text == "seen"
            ran = [*RAN]
            answer = await client.call("reorder")
            bulk = await client.call("reorder", BULK)
            again = await client.call("reorder", BULK)

    assert ran == []
    assert [answer.text, bulk.text, again.text] == ["ordered"] * 3
    # The second call ran once more: its hook found the need in the arguments.
    assert RAN == ["validate", "call"] * 4
    assert site.asked == [
        ["parts:read"],
        ["parts:read", "parts:write"],
        ["parts:bulk", "parts:read", "parts:write"],
    ]


async def test_resource_and_prompt_lead_to_a_wider_token() -> None:
    async with served() as site:
        auth = OAuth("Parts agent", ask=site.browse)
        async with Client(site.url, auth=auth) as client:
            (found,) = (await client.read("part://bolt")).contents
            prompt = await client.prompt("quote")

    assert found.text == "bolt"
    assert len(prompt.messages) == 1
    assert len(site.asked) == 2
