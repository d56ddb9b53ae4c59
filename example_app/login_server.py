"""A small authorization server, for trying out logins on one machine.

It has the parts of OAuth 2.1 that MCP clients need to log a user in: dynamic registration
(RFC 7591), and authorization codes with PKCE (RFC 7636) and a resource (RFC 8707). Its state is in
memory, there are no refresh tokens, and the user types any name: it protects nothing.
"""

import hashlib
import hmac
import html
import secrets
import time
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from genmcp.testing import Issuer

__all__ = ["LoginServer"]

CODE_TTL = 60.0  # seconds between the form and the request for the token
TOKEN_TTL = 8 * 3600.0  # seconds: a day at the workshop
MAX_ENTRIES = 1000  # registered clients, and codes; a further one replaces the oldest

PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Log in</title>
<body style="font: 1rem/1.5 system-ui; max-width: 26rem; margin: 4rem auto">
<h1>Log in</h1>
<p><strong>{client}</strong> asks for access to <strong>{resource}</strong>: {scopes}.</p>
<p>The answer goes to {redirect}.</p>
<form method="post">
<p><label>Your name <input name="user" value="ines" required></label></p>
<p><button name="decision" value="approve">Allow</button>
<button name="decision" value="deny">Deny</button></p>
</form></body></html>
"""
HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}


@dataclass(frozen=True)
class Code:
    """An authorization code that was issued: it is valid once, for one client."""

    client_id: str
    redirect_uri: str
    challenge: str
    scope: str
    user: str
    expires: float


class LoginServer(Issuer):
    """Logs in any user, and issues access tokens for *resource* with the requested *scopes*."""

    def __init__(self, resource: str, scopes: Sequence[str]) -> None:
        super().__init__(resources=[resource], token_ttl=TOKEN_TTL)
        self.resource = resource
        self.scopes = tuple(scopes)
        self.clients: dict[str, dict[str, Any]] = {}
        self.codes: dict[str, Code] = {}
        routes = [
            *self.routes,
            Route("/authorize", self.authorize, methods=["GET", "POST"]),
            Route("/token", self.redeem, methods=["POST"]),
            Route("/register", self.register, methods=["POST"]),
        ]
        # Applications in a browser, such as the MCP Inspector, log in as well.
        cors = Middleware(
            CORSMiddleware, allow_origins=["*"], allow_methods=["*"], allow_headers=["*"]
        )
        self.app = Starlette(routes=routes, middleware=[cors])

    def move(self, base: str) -> None:
        """Set the URL that this is served at, and with it the metadata (RFC 8414)."""
        super().move(base)
        self.metadata = {
            "authorization_endpoint": f"{self.url}/authorize",
            "token_endpoint": f"{self.url}/token",
            "registration_endpoint": f"{self.url}/register",
            "scopes_supported": list(self.scopes),
            "grant_types_supported": ["authorization_code"],
            "token_endpoint_auth_methods_supported": ["none"],
            "code_challenge_methods_supported": ["S256"],
            "authorization_response_iss_parameter_supported": True,
        }

    async def register(self, request: Request) -> Response:
        """Register a public client (RFC 7591, 3)."""
        try:
            document = await request.json()
            uris = [str(each) for each in document["redirect_uris"]]
            name = str(document.get("client_name", "A client"))
        except (ValueError, KeyError, TypeError, AttributeError):
            return refused("invalid_client_metadata")
        if not uris or not all(urlsplit(each).scheme and "#" not in each for each in uris):
            return refused("invalid_redirect_uri")
        client_id = secrets.token_urlsafe(12)
        client: dict[str, Any] = {
            "client_id": client_id,
            "client_name": name,
            "redirect_uris": uris,
            "grant_types": ["authorization_code"],
            "response_types": ["code"],
            "token_endpoint_auth_method": "none",
        }
        remember(self.clients, client_id, client)
        return JSONResponse(client, 201, headers={"Cache-Control": "no-store"})

    async def authorize(self, request: Request) -> Response:
        """Show the form, and send the user back with a code (RFC 6749, 4.1)."""
        asked = request.query_params
        client = self.clients.get(asked.get("client_id", ""))
        redirect_uri = asked.get("redirect_uri", "")
        if client is None or not is_registered(redirect_uri, client["redirect_uris"]):
            # Never sent on: the redirect URI is not known (RFC 6749, 4.1.2.1).
            raise HTTPException(400, "unknown client or redirect URI: register again")
        if error := self._fault(asked):
            return self._redirect(asked, {"error": error})
        if request.method == "GET":
            page = PAGE.format(
                client=html.escape(client["client_name"]),
                resource=html.escape(self.resource),
                scopes=html.escape(asked.get("scope") or "no scopes"),
                redirect=html.escape(urlsplit(redirect_uri).netloc or redirect_uri),
            )
            return HTMLResponse(page, headers=HEADERS)
        form = await form_of(request)
        user = form.get("user")
        if form.get("decision") != "approve" or not user:
            return self._redirect(asked, {"error": "access_denied"})
        code = secrets.token_urlsafe(24)
        scope, challenge = asked.get("scope", ""), asked["code_challenge"]
        expires = time.monotonic() + CODE_TTL
        issued = Code(client["client_id"], redirect_uri, challenge, scope, user, expires)
        remember(self.codes, code, issued)
        return self._redirect(asked, {"code": code})

    async def redeem(self, request: Request) -> Response:
        """Return an access token for a code and its verifier (RFC 6749, 4.1.3; RFC 7636, 4.6)."""
        given = await form_of(request)
        if given.get("grant_type") != "authorization_code":
            return refused("unsupported_grant_type")
        if given.get("resource", self.resource) != self.resource:
            return refused("invalid_target")
        code = self.codes.pop(given.get("code", ""), None)
        if (
            code is None
            or code.expires < time.monotonic()
            or code.client_id != given.get("client_id")
            or code.redirect_uri != given.get("redirect_uri")
            or not hmac.compare_digest(code.challenge, s256(given.get("code_verifier", "")))
        ):
            return refused("invalid_grant")
        token = {
            "access_token": self.token(code.user, code.scope.split(), client_id=code.client_id),
            "token_type": "Bearer",
            "expires_in": int(TOKEN_TTL),
            "scope": code.scope,
        }
        return JSONResponse(token, headers={"Cache-Control": "no-store"})

    def _fault(self, asked: Mapping[str, str]) -> str | None:
        if asked.get("response_type") != "code":
            return "unsupported_response_type"
        challenge = asked.get("code_challenge", "")
        if asked.get("code_challenge_method") != "S256" or not challenge.isascii():
            return "invalid_request"
        if asked.get("resource", self.resource) != self.resource:
            return "invalid_target"
        return None if set(asked.get("scope", "").split()) <= {*self.scopes} else "invalid_scope"

    def _redirect(self, asked: Mapping[str, str], answer: Mapping[str, str]) -> Response:
        # `iss` shows the client which server has answered (RFC 9207).
        params = {**answer, "iss": self.url}
        if "state" in asked:
            params["state"] = asked["state"]
        uri = asked["redirect_uri"]
        joined = f"{uri}{'&' if '?' in uri else '?'}{urlencode(params)}"
        return RedirectResponse(joined, 302, headers={"Cache-Control": "no-store"})


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a form. Starlette's parser needs another package."""
    return dict(parse_qsl((await request.body()).decode("utf-8", "replace")))


def is_registered(uri: str, registered: Sequence[str]) -> bool:
    """Return whether *uri* is one of *registered*; the port of a loopback address may differ.

    RFC 8252, 7.3: a client takes whichever port is free when it listens.
    """
    return bool(uri) and without_port(uri) in map(without_port, registered)


def without_port(uri: str) -> str:
    """Return *uri* without its port, if it is a loopback address."""
    parts = urlsplit(uri)
    if parts.hostname not in ("127.0.0.1", "::1", "localhost"):
        return uri
    return parts._replace(netloc=parts.hostname).geturl()


def s256(verifier: str) -> str:
    """Return the S256 challenge of a PKCE verifier (RFC 7636, 4.2)."""
    digest = hashlib.sha256(verifier.encode()).digest()
    return urlsafe_b64encode(digest).rstrip(b"=").decode()


def remember(entries: dict[str, Any], key: str, value: Any) -> None:
    """Add an entry; the oldest one goes if there are too many."""
    if len(entries) >= MAX_ENTRIES:
        del entries[next(iter(entries))]
    entries[key] = value


def refused(error: str) -> Response:
    """Return an error response of OAuth (RFC 6749, 5.2)."""
    return JSONResponse({"error": error}, 400, headers={"Cache-Control": "no-store"})
