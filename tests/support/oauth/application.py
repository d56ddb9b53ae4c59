"""The HTTP side of the issuer: its routes, its metadata, and the log of requests."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tests.support.oauth.authorization import Authorizations
from tests.support.oauth.clients import GRANTS, METHODS, Clients
from tests.support.oauth.grants import TokenGrants, introspection
from tests.support.oauth.keys import ASYMMETRIC
from tests.support.oauth.ledger import Ledger
from tests.support.oauth.refusal import IssuerRequest, OAuthRefusal

_NO_STORE = {"Cache-Control": "no-store", "Pragma": "no-cache"}
_BODY_BYTES = 65536

Handler = Callable[[IssuerRequest], Awaitable[Response]]


class IssuerApplication:
    """The endpoints of an issuer, and the requests that they received."""

    def __init__(
        self, ledger: Ledger, clients: Clients, login: Authorizations, grants: TokenGrants
    ) -> None:
        self.ledger = ledger
        self.clients = clients
        self.login = login
        self.grants = grants
        self.requests: list[IssuerRequest] = []

    def application(self) -> Starlette:
        """Return the ASGI application."""
        path = urlsplit(self.ledger.url).path.rstrip("/")
        known = "/.well-known"
        routes = [
            self._route(f"{known}/oauth-authorization-server{path}", "metadata", self._metadata),
            self._route(f"{known}/openid-configuration{path}", "openid", self._openid),
            self._route(f"{path}/jwks", "jwks", self._jwks),
            self._route(f"{path}/authorize", "authorize", self.login.answer, "GET", "POST"),
            self._route(f"{path}/token", "token", self._token, "POST"),
            self._route(f"{path}/register", "register", self._register, "POST"),
            self._route(f"{path}/introspect", "introspect", self._introspect, "POST"),
            self._route(f"{path}/revoke", "revoke", self._revoke, "POST"),
        ]
        if path:
            # OpenID Connect Discovery 1.0, 4: appended to the issuer.
            routes.append(
                self._route(f"{path}{known}/openid-configuration", "openid", self._openid)
            )
        # Applications in a browser, such as the MCP Inspector, log in as well.
        cors = Middleware(
            CORSMiddleware, allow_origins=["*"], allow_methods=["*"], allow_headers=["*"]
        )
        return Starlette(routes=routes, middleware=[cors])

    def _route(self, path: str, endpoint: str, handler: Handler, *methods: str) -> Route:
        async def handle(http: Request) -> Response:
            request = IssuerRequest(
                endpoint, http.method, http.url.path, headers=dict(http.headers.items())
            )
            self.requests.append(request)
            if delay := self.ledger.faults.delay.get(endpoint):
                await asyncio.sleep(delay)
            try:
                await _read(http, request)
                self.ledger.faults.check(endpoint)
                response = await handler(request)
            except OAuthRefusal as refusal:
                request.error = refusal.error
                body = {"error": refusal.error, "error_description": refusal.description}
                headers = {**_NO_STORE, **refusal.headers}
                response = JSONResponse(body, refusal.status, headers=headers)
            request.status = response.status_code
            return response

        return Route(path, handle, methods=list(methods or ("GET",)))

    async def _metadata(self, request: IssuerRequest) -> Response:
        """Authorization server metadata (RFC 8414, 2)."""
        base = self.ledger.base
        scopes = list(self.ledger.scopes)
        if self.grants.offline_access and "offline_access" not in scopes:
            scopes.append("offline_access")
        return self._document(
            {
                "issuer": self.ledger.url,
                "authorization_endpoint": f"{base}/authorize",
                "token_endpoint": f"{base}/token",
                "jwks_uri": f"{base}/jwks",
                "registration_endpoint": f"{base}/register",
                "introspection_endpoint": f"{base}/introspect",
                "revocation_endpoint": f"{base}/revoke",
                "scopes_supported": scopes or None,
                "response_types_supported": ["code"],
                "response_modes_supported": ["query"],
                "grant_types_supported": list(GRANTS),
                "token_endpoint_auth_methods_supported": list(METHODS),
                "token_endpoint_auth_signing_alg_values_supported": list(ASYMMETRIC),
                "introspection_endpoint_auth_methods_supported": list(METHODS[1:]),
                "revocation_endpoint_auth_methods_supported": list(METHODS),
                "code_challenge_methods_supported": ["S256"],
                "authorization_response_iss_parameter_supported": True,
                "client_id_metadata_document_supported": True,
                "dpop_signing_alg_values_supported": list(ASYMMETRIC),
                "authorization_grant_profiles_supported": [
                    "urn:ietf:params:oauth:grant-profile:id-jag"
                ],
            }
        )

    async def _openid(self, request: IssuerRequest) -> Response:
        """The same, with the members that OpenID Connect Discovery 1.0, 3 requires."""
        document = json.loads(bytes((await self._metadata(request)).body))
        document.setdefault("subject_types_supported", ["public"])
        algorithm = self.ledger.keys.algorithm
        document.setdefault("id_token_signing_alg_values_supported", [algorithm])
        return self._document(document)

    def _document(self, members: dict[str, Any]) -> Response:
        members = {**members, **self.ledger.faults.metadata}
        return JSONResponse({name: value for name, value in members.items() if value is not None})

    async def _jwks(self, request: IssuerRequest) -> Response:
        return JSONResponse(self.ledger.keys.jwks, headers={"Cache-Control": "max-age=300"})

    async def _token(self, request: IssuerRequest) -> Response:
        return JSONResponse(await self.grants.answer(request), headers=_NO_STORE)

    async def _register(self, request: IssuerRequest) -> Response:
        try:
            body = json.loads(request.params["body"])
        except ValueError:
            body = None
        if not isinstance(body, dict):
            raise OAuthRefusal("invalid_client_metadata", "the body is not a JSON object")
        request.params = body
        return JSONResponse(self.clients.register(body), 201, headers=_NO_STORE)

    async def _introspect(self, request: IssuerRequest) -> Response:
        """RFC 7662: for confidential clients, such as a resource server."""
        request.check_repeated()
        client = await self.clients.authenticate(request)
        if client.method == "none":
            raise OAuthRefusal("invalid_client", "introspection needs a secret", status=401)
        found = introspection(self.ledger, request.required("token"))
        return JSONResponse(dict(found), headers=_NO_STORE)

    async def _revoke(self, request: IssuerRequest) -> Response:
        """RFC 7009: a client can revoke its own tokens; unknown ones are no error (2.2)."""
        request.check_repeated()
        client = await self.clients.authenticate(request)
        token = request.required("token")
        owner = self.ledger.tokens.get(token) or self.ledger.refreshes.get(token)
        if owner and owner.grant.client_id != client.client_id:
            raise OAuthRefusal("invalid_grant", "the token is of another client")
        self.ledger.revoke(token)
        return Response(status_code=200, headers=_NO_STORE)


async def _read(http: Request, request: IssuerRequest) -> None:
    """Set the parameters of *request* from the query, the form or the JSON body."""
    if http.method != "POST":
        text = http.url.query
    else:
        body = b""
        async for chunk in http.stream():
            body += chunk
            if len(body) > _BODY_BYTES:
                raise OAuthRefusal("invalid_request", "the body is too large", status=413)
        text = body.decode("utf-8", "replace")
        form = request.endpoint != "register"
        wanted = "application/x-www-form-urlencoded" if form else "application/json"
        if http.headers.get("content-type", "").partition(";")[0].strip().lower() != wanted:
            raise OAuthRefusal("invalid_request", f"the content type is not {wanted}")
        if not form:
            request.params = {"body": text}
            return
    # A parameter without a value is treated as omitted (RFC 6749, 3.1).
    request.pairs = parse_qsl(text)
    request.params = dict(reversed(request.pairs))
