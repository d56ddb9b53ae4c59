"""An authorization server and a server that demands its tokens, for the tests beside this file."""

import asyncio
import json
import threading
from base64 import urlsafe_b64decode
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from genmcp import Endpoint, Suite, tool
from genmcp.auth import Bearer
from tests.support.oauth.server import OAuthServer
from tests.support.serving import serve


@tool
def whoami(name: str = "nobody") -> str:
    """Return a name."""
    return name


@tool
def order(part: str) -> str:
    """Order a part, which `Place.demands` may protect."""
    return part


class Place:
    """A server that demands tokens of *issuer*.

    Attributes:
        url: the URL of the server.
        seen: the HTTP method and the token of each request, in order.
        refused: tokens that the server refuses, as if they had expired.
        demands: the scope that each tool needs.
        asked: the authorization URLs that `browse` has followed.
        proofs: the DPoP proofs of the requests.
        replay: whether the next request reaches the server twice.
    """

    def __init__(self, issuer: OAuthServer) -> None:
        self.issuer = issuer
        self.url = ""
        self.seen: list[tuple[str, str | None]] = []
        self.refused: set[str] = set()
        self.demands: dict[str, str] = {}
        self.proofs: list[str] = []
        self.replay = False
        self.app: Any = None
        self.bearer: Bearer
        self.asked: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["path"].startswith("/.well-known"):
            await self.app(scope, receive, send)
            return
        headers = {name: value.decode() for name, value in scope["headers"]}
        given = headers.get(b"authorization")
        token = None if given is None else given.removeprefix("Bearer ")
        self.seen.append((scope["method"], token))
        needed = self.demands.get(headers.get(b"mcp-name", ""))
        self.proofs += [value.decode() for name, value in scope["headers"] if name == b"dpop"]
        if self.replay:  # as if the server had seen the request, and its answer were lost
            self.replay = False
            await self.app({**scope}, receive, _nowhere)
        if token in self.refused:
            await refuse(send, 401, 'Bearer error="invalid_token"')
        elif token is not None and needed is not None and needed not in scopes_in(token):
            await refuse(send, 403, f'Bearer error="insufficient_scope", scope="{needed}"')
        else:
            await self.app(scope, receive, send)

    @property
    def tokens(self) -> list[str | None]:
        """The different tokens of the requests, in order."""
        return list(dict.fromkeys(token for _, token in self.seen))

    def grants(self) -> list[str]:
        """The grant types of the requests to the token endpoint."""
        return [each.params["grant_type"] for each in self.issuer.received("token")]

    async def browse(self, url: str) -> str:
        """Log in as a browser does, and return the URL of the redirect."""
        self.asked.append(url)
        async with httpx.AsyncClient(trust_env=False) as browser:
            return (await browser.get(url)).headers["location"]


async def _nowhere(message: Any) -> None:
    pass


@asynccontextmanager
async def guarded_place(
    issuer: OAuthServer | None = None,
    *,
    suite: Suite | None = None,
    scopes: Sequence[str] = ("parts:read",),
    sse: bool = False,
    **options: Any,
) -> AsyncIterator[Place]:
    """Serve an issuer and a server; yield the latter. *options* are those of its `Bearer`."""
    place = Place(issuer or OAuthServer())
    async with place.issuer.serve(), serve(place, lifespan="off") as base:
        place.url = f"{base}/mcp"
        suite = suite or Suite(name="parts", version="1", tools=[whoami, order])
        auth = Bearer(place.url, issuers=[place.issuer.url], scopes=scopes, **options)
        place.bearer = auth
        endpoint = Endpoint(suite, auth=auth)
        routes = [*endpoint.routes("/mcp")]
        if sse:
            routes.append(endpoint.sse_route("/sse"))
        place.app = Starlette(routes=routes)
        yield place


async def refuse(send: Any, status: int, challenge: str) -> None:
    headers = [(b"www-authenticate", challenge.encode()), (b"content-length", b"0")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b""})


def scopes_in(token: str) -> list[str]:
    payload = token.split(".")[1]
    claims = json.loads(urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    return str(claims.get("scope", "")).split()


class Browser:
    """Takes the place of the browser of this machine: follows each URL that is opened.

    Attributes:
        opened: the URLs.
        pages: the last page of each.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened: list[str] = []
        self.pages: list[httpx.Response] = []
        self.change: Callable[[str], str] = lambda url: url
        self.done = threading.Event()
        monkeypatch.setenv("BROWSER", "test")
        monkeypatch.setattr("webbrowser.open", self._open)

    def _open(self, url: str) -> bool:
        self.opened.append(url)
        with httpx.Client(trust_env=False) as browser:
            back = browser.get(url).headers["location"]
            self.pages.append(browser.get(self.change(back)))
        self.done.set()
        return True

    async def page(self) -> httpx.Response:
        """Wait for the first page, and return it."""
        await asyncio.to_thread(self.done.wait, 10)
        return self.pages[0]
