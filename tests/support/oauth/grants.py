"""The token endpoint: one method for each grant."""

import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.oauth.assertions import ID_JAG, ID_JAG_TYPE, new_id_jag, read_assertion
from tests.support.oauth.clients import BEARER, CODE, GRANTS, REFRESH, Clients, IssuerClient
from tests.support.oauth.keys import read_proof, s256
from tests.support.oauth.ledger import IssuedGrant, Ledger
from tests.support.oauth.refusal import IssuerRequest, OAuthRefusal

ID_TOKEN = "urn:ietf:params:oauth:token-type:id_token"
ACCESS = "urn:ietf:params:oauth:token-type:access_token"
_VERIFIER = re.compile(r"[A-Za-z0-9\-._~]{43,128}")


class TokenGrants:
    """The token endpoint (RFC 6749, 3.2)."""

    def __init__(
        self,
        ledger: Ledger,
        clients: Clients,
        *,
        offline_access: bool = False,
        dpop: bool = False,
        dpop_nonce: bool = False,
    ) -> None:
        self.ledger = ledger
        self.clients = clients
        self.offline_access = offline_access
        self.dpop = dpop
        self.nonce = secrets.token_urlsafe(8) if dpop_nonce else None

    async def answer(self, request: IssuerRequest) -> dict[str, Any]:
        """Return the token response."""
        request.check_repeated()
        grant_type = request.required("grant_type")
        jkt = self._proof(request)
        if grant_type not in GRANTS:
            raise OAuthRefusal("unsupported_grant_type", f"unknown: {grant_type}")
        if grant_type == BEARER:
            return await self._bearer(request, jkt)
        client = await self.clients.authenticate(request)
        if grant_type not in client.grant_types:
            raise OAuthRefusal("unauthorized_client", f"not registered for {grant_type}")
        match grant_type:
            case "authorization_code":
                return self._code(request, client, jkt)
            case "refresh_token":
                return self._refresh(request, client, jkt)
            case "client_credentials":
                return self._credentials(request, client, jkt)
            case _:
                return self._exchange(request, client, jkt)

    def _code(
        self, request: IssuerRequest, client: IssuerClient, jkt: str | None
    ) -> dict[str, Any]:
        """Exchange an authorization code (RFC 6749, 4.1.3; RFC 7636, 4.6; RFC 8707, 2.2)."""
        code = self.ledger.codes.get(request.required("code"))
        if code is None or code.grant.client_id != client.client_id:
            raise OAuthRefusal("invalid_grant", "unknown code")
        if code.used:
            # RFC 6749, 4.1.2: somebody has the code who should not.
            code.grant.revoked = True
            raise OAuthRefusal("invalid_grant", "the code was used before")
        if code.expires <= self.ledger.clock():
            raise OAuthRefusal("invalid_grant", "the code has expired")
        if request.params.get("redirect_uri") != code.redirect_uri:
            raise OAuthRefusal("invalid_grant", "redirect_uri differs")
        verifier = request.required("code_verifier")
        if not _VERIFIER.fullmatch(verifier) or s256(verifier) != code.challenge:
            raise OAuthRefusal("invalid_grant", "code_verifier does not fit the challenge")
        if code.grant.jkt and code.grant.jkt != jkt:
            raise OAuthRefusal("invalid_grant", "the code is bound to another key")
        resources = self._resources(request, code.grant)
        code.used = True
        code.grant.jkt = jkt
        return self._response(code.grant, client, code.grant.scopes, resources)

    def _refresh(
        self, request: IssuerRequest, client: IssuerClient, jkt: str | None
    ) -> dict[str, Any]:
        """Refresh; a token that is used twice ends the grant (RFC 9700, 4.14.2)."""
        token = request.required("refresh_token")
        refresh = self.ledger.refreshes.get(token)
        if refresh is None or refresh.grant.client_id != client.client_id:
            raise OAuthRefusal("invalid_grant", "unknown refresh token")
        grant = refresh.grant
        if refresh.used:
            grant.revoked = True
            raise OAuthRefusal("invalid_grant", "the refresh token was used before")
        if grant.revoked or refresh.expires <= self.ledger.clock():
            raise OAuthRefusal("invalid_grant", "the refresh token has expired or was revoked")
        # RFC 9449, 5: the refresh token of a public client is bound to its key.
        if grant.jkt and client.method == "none" and grant.jkt != jkt:
            raise OAuthRefusal("invalid_grant", "the refresh token is bound to another key")
        scopes = self.ledger.check_scopes(request.params.get("scope", "")) or grant.scopes
        if set(scopes) - set(grant.scopes):
            raise OAuthRefusal("invalid_scope", "a refresh cannot widen the scopes")
        resources = self._resources(request, grant)
        grant.jkt = jkt
        if not self.ledger.rotation:
            return self._response(grant, client, scopes, resources, renew=False)
        refresh.used = True
        return self._response(grant, client, scopes, resources)

    def _credentials(
        self, request: IssuerRequest, client: IssuerClient, jkt: str | None
    ) -> dict[str, Any]:
        if client.method == "none":
            raise OAuthRefusal("unauthorized_client", "a public client has no credentials")
        grant = IssuedGrant(
            client_id=client.client_id,
            scopes=self.ledger.check_scopes(request.params.get("scope", "")),
            resources=self.ledger.check_resources(request.values("resource")),
            jkt=jkt,
        )
        return self._response(grant, client, grant.scopes, grant.resources, renew=False)

    async def _bearer(self, request: IssuerRequest, jkt: str | None) -> dict[str, Any]:
        """Exchange an assertion of a trusted issuer (RFC 7523), such as an ID-JAG."""
        claims, typ = read_assertion(self.ledger, request.required("assertion"))
        client = None
        named_by = {"client_id", "client_assertion"} & request.params.keys()
        if typ == ID_JAG_TYPE or named_by or "authorization" in request.headers:
            client = await self.clients.authenticate(request)
            if BEARER not in client.grant_types:
                raise OAuthRefusal("unauthorized_client", f"not registered for {BEARER}")
        if typ == ID_JAG_TYPE and (client is None or claims.get("client_id") != client.client_id):
            raise OAuthRefusal("invalid_grant", "client_id of the assertion is another client")
        allowed = self.ledger.check_scopes(str(claims.get("scope") or ""))
        scopes = self.ledger.check_scopes(request.params.get("scope", "")) or allowed
        if typ == ID_JAG_TYPE and set(scopes) - set(allowed):
            raise OAuthRefusal("invalid_scope", "the assertion does not allow a scope")
        named = claims.get("resource") if typ == ID_JAG_TYPE else None
        targets = [named] if isinstance(named, str) else list(named or ())
        asked = request.values("resource")
        if targets and set(asked) - set(targets):
            raise OAuthRefusal("invalid_target", "the assertion is for another resource")
        grant = IssuedGrant(
            client_id=client.client_id if client else str(claims["sub"]),
            scopes=scopes,
            resources=self.ledger.check_resources(asked or targets),
            subject=str(claims["sub"]),
            jkt=jkt,
        )
        return self._response(grant, client, scopes, grant.resources, renew=False)

    def _exchange(
        self, request: IssuerRequest, client: IssuerClient, jkt: str | None
    ) -> dict[str, Any]:
        """Exchange a token (RFC 8693): an ID token for an ID-JAG, or an access token."""
        token, kind = request.required("subject_token"), request.required("subject_token_type")
        wanted = request.params.get("requested_token_type", ACCESS)
        scopes = self.ledger.check_scopes(request.params.get("scope", ""))
        resources = request.values("resource")
        if kind == ID_TOKEN and wanted == ID_JAG:
            audience = request.required("audience")
            return new_id_jag(self.ledger, client, token, audience, scopes, resources)
        found = self.ledger.active(token) if kind == wanted == ACCESS else None
        if found is None:
            raise OAuthRefusal("invalid_request", "this token cannot be exchanged for that type")
        if set(scopes) - set(found.grant.scopes):
            raise OAuthRefusal("invalid_scope", "an exchange cannot widen the scopes")
        targets = (*self.ledger.check_resources(resources), *request.values("audience"))
        grant = IssuedGrant(
            client_id=client.client_id,
            scopes=scopes or found.grant.scopes,
            resources=targets or found.grant.resources,
            subject=found.grant.subject,
            jkt=jkt,
            extra={"act": {"sub": client.client_id}},
        )
        answer = self._response(grant, client, grant.scopes, grant.resources, renew=False)
        return {**answer, "issued_token_type": ACCESS}

    def _resources(self, request: IssuerRequest, grant: IssuedGrant) -> tuple[str, ...]:
        """Return the requested resources, which the grant must contain (RFC 8707, 2.2)."""
        asked = self.ledger.check_resources(request.values("resource"))
        if set(asked) - set(grant.resources):
            raise OAuthRefusal("invalid_target", "resource was not part of the authorization")
        return asked or grant.resources

    def _response(
        self,
        grant: IssuedGrant,
        client: IssuerClient | None,
        scopes: Sequence[str],
        resources: Sequence[str],
        *,
        renew: bool = True,
    ) -> dict[str, Any]:
        """Return the token response; *renew*: with a refresh token, if the client may have one.

        And with an ID token, if the user logged in with the scope `openid`.
        """
        audience = resources or self.ledger.resources[:1]
        answer: dict[str, Any] = {
            "access_token": self.ledger.new_token(grant, scopes=scopes, audience=audience),
            "token_type": "DPoP" if grant.jkt else "Bearer",
            "expires_in": int(self.ledger.token_ttl),
            "scope": " ".join(scopes) or None,
        }
        offline = not self.offline_access or "offline_access" in grant.scopes
        if renew and offline and client and REFRESH in client.grant_types:
            answer["refresh_token"] = self.ledger.new_refresh(grant)
        if renew and grant.subject and "openid" in scopes:
            answer["id_token"] = self.ledger.new_id_token(
                grant.subject, grant.client_id, nonce=grant.nonce
            )
        answer.update(self.ledger.faults.tokens)
        return {name: value for name, value in answer.items() if value is not None}

    def _proof(self, request: IssuerRequest) -> str | None:
        """Return the thumbprint of the DPoP key, None without a proof."""
        proof = request.headers.get("dpop")
        if proof is None:
            if self.dpop:
                raise OAuthRefusal("invalid_dpop_proof", "a DPoP proof is required")
            return None
        url = f"{self.ledger.base}/token"
        jkt, claims = read_proof(proof, method="POST", url=url, now=self.ledger.clock())
        if self.nonce and claims.get("nonce") != self.nonce:
            headers = {"DPoP-Nonce": self.nonce}
            raise OAuthRefusal("use_dpop_nonce", "a nonce is required", headers=headers)
        if not self.ledger.see_once("proof", claims["jti"]):
            raise OAuthRefusal("invalid_dpop_proof", "jti was used before")
        return jkt


def grants_for(method: str) -> tuple[str, ...]:
    """Return the grants of a client that a test adds: all that its method allows."""
    return GRANTS if method != "none" else (CODE, REFRESH)


def introspection(ledger: Ledger, token: str) -> Mapping[str, Any]:
    """Return the introspection response (RFC 7662, 2.2)."""
    if (found := ledger.active(token)) is not None:
        kind = "DPoP" if found.grant.jkt else "Bearer"
        return {"active": True, "token_type": kind, **found.claims}
    refresh = ledger.refreshes.get(token)
    if refresh and not (refresh.used or refresh.grant.revoked or refresh.expires <= ledger.clock()):
        grant = refresh.grant
        claims = {"client_id": grant.client_id, "sub": grant.subject, "iss": ledger.url}
        return {"active": True, "scope": " ".join(grant.scopes), **claims}
    return {"active": False}
