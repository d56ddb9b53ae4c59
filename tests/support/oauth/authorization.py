"""The authorization endpoint: codes, and the page that asks the user."""

import html
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlencode, urlsplit, urlunsplit

from starlette.responses import HTMLResponse, RedirectResponse, Response

from tests.support.oauth.clients import CODE, Clients, IssuerClient
from tests.support.oauth.ledger import IssuedGrant, Ledger
from tests.support.oauth.refusal import IssuerRequest, OAuthRefusal

Consent = Literal["approve", "deny", "ask"]
CODE_TTL = 60.0
_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><title>Log in</title>
<body style="font: 1rem/1.5 system-ui; max-width: 26rem; margin: 4rem auto">
<h1>Log in</h1>
<p><strong>{client}</strong> asks for access to <strong>{resource}</strong>.</p>
<ul>{scopes}</ul>
<p>The answer goes to {redirect}.</p>
<form method="post">
<input type="hidden" name="request" value="{request}">
<p><label>Your name <input name="user" value="{user}" required></label></p>
<p><button name="decision" value="approve">Allow</button>
<button name="decision" value="deny">Deny</button></p>
</form></body></html>
"""
_HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "frame-ancestors 'none'",
    "Referrer-Policy": "no-referrer",
}


@dataclass(frozen=True)
class _ConsentRequest:
    """An authorization request whose client and redirect URI are checked."""

    client: IssuerClient
    redirect_uri: str
    state: str | None
    challenge: str
    scopes: tuple[str, ...]
    resources: tuple[str, ...]
    jkt: str | None
    nonce: str | None


class Authorizations:
    """The authorization endpoint (RFC 6749, 3.1), with PKCE, resources and RFC 9207."""

    def __init__(self, ledger: Ledger, clients: Clients, *, user: str, consent: Consent) -> None:
        self.ledger = ledger
        self.clients = clients
        self.user = user
        self.consent = consent
        self.approved: Collection[str] | None = None
        self._asked: dict[str, _ConsentRequest] = {}

    async def answer(self, request: IssuerRequest) -> Response:
        """Return the redirect, or the page that asks the user."""
        if request.method == "POST" and "request" in request.params:
            return self._answered(request)
        # Errors up to here must not be sent to a redirect URI that is not verified
        # (RFC 6749, 4.1.2.1).
        request.check_repeated()
        try:
            client = await self.clients.find(request.required("client_id"))
        except OAuthRefusal as refusal:
            raise OAuthRefusal(refusal.error, refusal.description) from None  # 400: no credentials
        redirect_uri = request.required("redirect_uri")
        if not client.accepts_redirect(redirect_uri):
            raise OAuthRefusal("invalid_request", "redirect_uri is not registered")
        state = request.params.get("state")
        try:
            pending = self._checked(request, client, redirect_uri)
        except OAuthRefusal as refusal:
            request.error = refusal.error
            fault = {"error": refusal.error, "error_description": refusal.description}
            return self._redirect(redirect_uri, state, fault)
        if self.consent == "ask":
            return self._page(pending)
        if self.consent == "deny":
            return self._denied(pending)
        return self._approved(pending, self.user)

    def _checked(
        self, request: IssuerRequest, client: IssuerClient, redirect_uri: str
    ) -> _ConsentRequest:
        params = request.params
        if request.required("response_type") != "code":
            raise OAuthRefusal("unsupported_response_type", "response_type is not code")
        if CODE not in client.grant_types:
            raise OAuthRefusal("unauthorized_client", "not registered for codes")
        if params.get("code_challenge_method") != "S256":
            raise OAuthRefusal("invalid_request", "code_challenge_method is not S256")
        challenge = request.required("code_challenge")
        if len(challenge) != 43:
            raise OAuthRefusal("invalid_request", "code_challenge is not the digest of S256")
        if self.consent == "ask" and params.get("prompt") == "none":
            raise OAuthRefusal("interaction_required", "the user must be asked")
        return _ConsentRequest(
            client=client,
            redirect_uri=redirect_uri,
            state=params.get("state"),
            challenge=challenge,
            scopes=self.ledger.check_scopes(params.get("scope", "")),
            resources=self.ledger.check_resources(request.values("resource")),
            jkt=params.get("dpop_jkt"),
            nonce=params.get("nonce"),
        )

    def _page(self, pending: _ConsentRequest) -> Response:
        key = secrets.token_urlsafe(16)
        self._asked[key] = pending
        page = _PAGE.format(
            client=html.escape(pending.client.name or pending.client.client_id),
            resource=html.escape(" ".join(pending.resources) or "everything"),
            scopes="".join(f"<li>{html.escape(scope)}</li>" for scope in pending.scopes),
            redirect=html.escape(urlsplit(pending.redirect_uri).netloc or pending.redirect_uri),
            request=key,
            user=html.escape(self.user),
        )
        return HTMLResponse(page, headers=_HEADERS)

    def _answered(self, request: IssuerRequest) -> Response:
        pending = self._asked.pop(request.params["request"], None)
        if pending is None:
            raise OAuthRefusal("invalid_request", "this form was already sent")
        if request.params.get("decision") != "approve":
            return self._denied(pending)
        return self._approved(pending, request.required("user"))

    def _denied(self, pending: _ConsentRequest) -> Response:
        fault = {"error": "access_denied", "error_description": "the user denied the request"}
        return self._redirect(pending.redirect_uri, pending.state, fault)

    def _approved(self, pending: _ConsentRequest, user: str) -> Response:
        approved = pending.scopes if self.approved is None else self.approved
        grant = IssuedGrant(
            client_id=pending.client.client_id,
            scopes=tuple(scope for scope in pending.scopes if scope in approved),
            resources=pending.resources,
            subject=user,
            jkt=pending.jkt,
            nonce=pending.nonce,
        )
        code = self.ledger.new_code(grant, pending.redirect_uri, pending.challenge, CODE_TTL)
        return self._redirect(pending.redirect_uri, pending.state, {"code": code})

    def _redirect(self, uri: str, state: str | None, params: Mapping[str, str]) -> Response:
        found: dict[str, str | None] = {**params, "state": state, "iss": self.ledger.url}
        found.update(self.ledger.faults.redirect)
        parts = urlsplit(uri)
        added = urlencode({name: value for name, value in found.items() if value is not None})
        query = f"{parts.query}&{added}" if parts.query else added
        url = urlunsplit(parts._replace(query=query))
        return RedirectResponse(url, 302, headers={"Cache-Control": "no-store"})
