"""An authorization server for tests: `OAuthServer`."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from genmcp.errors import ConfigurationError
from genmcp.testing.issuer import Issuer
from tests.support.oauth.application import IssuerApplication
from tests.support.oauth.authorization import Authorizations, Consent
from tests.support.oauth.clients import METHODS, Clients, IssuerClient, public_keys
from tests.support.oauth.grants import TokenGrants, grants_for
from tests.support.oauth.ledger import IssuedGrant, Ledger, OAuthFaults
from tests.support.oauth.refusal import IssuerRequest


class OAuthServer(Issuer):
    """An OAuth 2.1 authorization server for tests. Its state exists in memory only.

    It approves authorization requests at once as `user`, and judges all else strictly: PKCE,
    redirect URIs, resources, scopes, client authentication, and a second use of codes and
    refresh tokens. Never use it to protect real data: anyone can log in.

    Args:
        url: the issuer identifier, which may have a path: "https://issuer.test/t1".
            `serve()` replaces scheme, host and port by those it serves on.
        resources: the resources that tokens can be requested for (RFC 8707). Default: any.
            Tokens requested without a resource are for the first one.
        scopes: the scopes that can be requested. Default: any.
        user: the subject that logs in.
        consent: the decision on authorization requests: "approve", "deny", or "ask", which shows
            a page with a form.
        algorithm: the signature algorithm: ES256, ES384, ES512, RS256, PS256 or Ed25519.
        opaque: issue opaque access tokens, which only introspection can read. Default: JWTs.
        token_ttl: seconds that access tokens are valid. Default: an hour.
        refresh_ttl: seconds that refresh tokens are valid. Default: a day.
        secret_ttl: seconds that secrets of registered clients are valid. Default: without end.
        rotation: replace refresh tokens at each use, and revoke the grant at a second use.
        offline_access: list this scope, and issue refresh tokens only with it.
        dpop: require DPoP proofs at the token endpoint. They are accepted in any case.
        dpop_nonce: require a nonce in DPoP proofs.
        clock: returns the Unix time; a test can advance its own.

    Attributes:
        app: the ASGI application.
        requests: the received requests, oldest first.
        faults: the faults that are switched on.
    """

    def __init__(
        self,
        url: str = "http://127.0.0.1",
        *,
        resources: Collection[str] = (),
        scopes: Collection[str] = (),
        user: str = "user",
        consent: Consent = "approve",
        algorithm: str = "ES256",
        opaque: bool = False,
        token_ttl: float = 3600,
        refresh_ttl: float = 86400,
        secret_ttl: float = 0,
        rotation: bool = True,
        offline_access: bool = False,
        dpop: bool = False,
        dpop_nonce: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(url, algorithm=algorithm)
        self._ledger = Ledger(
            self._keys,
            clock=clock,
            resources=resources,
            scopes=[*scopes, "offline_access"] if scopes and offline_access else scopes,
            token_ttl=token_ttl,
            refresh_ttl=refresh_ttl,
            opaque=opaque,
            rotation=rotation,
        )
        self._ledger.url = url
        self._clients = Clients(self._ledger, secret_ttl=secret_ttl)
        self._login = Authorizations(self._ledger, self._clients, user=user, consent=consent)
        self._grants = TokenGrants(
            self._ledger,
            self._clients,
            offline_access=offline_access,
            dpop=dpop,
            dpop_nonce=dpop_nonce,
        )
        self._http = IssuerApplication(self._ledger, self._clients, self._login, self._grants)
        self.faults: OAuthFaults = self._ledger.faults
        self.requests = self._http.requests
        self.app = self._http.application()

    @property
    def user(self) -> str:
        """The subject that logs in. It can be set."""
        return self._login.user

    @user.setter
    def user(self, value: str) -> None:
        self._login.user = value

    @property
    def consent(self) -> Consent:
        """The decision on authorization requests: "approve", "deny" or "ask". It can be set."""
        return self._login.consent

    @consent.setter
    def consent(self, value: Consent) -> None:
        self._login.consent = value

    @property
    def approved_scopes(self) -> Collection[str] | None:
        """The scopes that the user grants of those requested. None: all. It can be set."""
        return self._login.approved

    @approved_scopes.setter
    def approved_scopes(self, value: Collection[str] | None) -> None:
        self._login.approved = value

    def token(
        self,
        subject: str | None = None,
        scopes: Collection[str] = (),
        *,
        audience: str | Sequence[str] | None = None,
        client_id: str = "test-client",
        expires_in: float | None = None,
        **claims: Any,
    ) -> str:
        granted = tuple(scopes.split() if isinstance(scopes, str) else scopes)
        given = (audience,) if isinstance(audience, str) else audience
        targets = tuple(self._ledger.resources[:1] if given is None else given)
        grant = IssuedGrant(client_id, granted, targets, subject, extra=claims)
        return self._ledger.new_token(grant, scopes=granted, audience=targets, ttl=expires_in)

    def id_token(self, subject: str, client_id: str, **claims: Any) -> str:
        """Return an OpenID Connect ID token, which a client can exchange for an ID-JAG."""
        return self._ledger.new_id_token(subject, client_id, **claims)

    def add_client(
        self,
        client_id: str,
        *,
        secret: str | None = None,
        keys: Sequence[Mapping[str, Any]] | Mapping[str, Any] | None = None,
        redirect_uris: Collection[str] = (),
        grant_types: Collection[str] | None = None,
        method: str | None = None,
        known_as: str | None = None,
    ) -> IssuerClient:
        """Register a client in advance.

        Args:
            client_id: its id.
            secret: its secret. Default: without one, a public client.
            keys: its public keys for `private_key_jwt`: a JWK set, a list of JWKs, or one.
            redirect_uris: where codes may be sent; the port of loopback addresses may differ.
            grant_types: the allowed grants. Default: all that a client of its kind can use.
            method: the method it authenticates with: "none", "client_secret_basic",
                "client_secret_post" or "private_key_jwt". Default: by *secret* and *keys*.
            known_as: its id at other authorization servers, for the ID-JAGs it exchanges.
                Default: the same.
        """
        chosen = method or (
            "private_key_jwt" if keys else "client_secret_basic" if secret else "none"
        )
        if chosen not in METHODS:
            raise ConfigurationError(f"unknown method of client authentication: {chosen!r}")
        client = IssuerClient(
            client_id=client_id,
            redirect_uris=tuple(redirect_uris),
            grant_types=tuple(grants_for(chosen) if grant_types is None else grant_types),
            method=chosen,
            secret=secret,
            keys=public_keys(keys),
            known_as=known_as,
        )
        self._clients.known[client_id] = client
        return client

    def add_document(self, url: str, document: Mapping[str, Any]) -> None:
        """Serve a client id metadata document from memory instead of fetching *url*."""
        self._clients.documents[url] = document

    def forget_client(self, client_id: str) -> None:
        """Remove a client, as a server does that has lost its registrations."""
        self._clients.known.pop(client_id, None)

    def trust(self, issuer: str, jwks: Mapping[str, Any]) -> None:
        """Accept assertions of another issuer (jwt-bearer, ID-JAG), signed by its keys."""
        self._ledger.trusted[issuer] = jwks

    def revoke(self, token: str) -> None:
        """Revoke an access token; a refresh token with all tokens of its grant."""
        self._ledger.revoke(token)

    def received(self, endpoint: str) -> list[IssuerRequest]:
        """Return the requests to an endpoint, such as "token"."""
        return [request for request in self.requests if request.endpoint == endpoint]

    def move(self, base: str) -> None:
        super().move(base)
        self._ledger.url = self.url
