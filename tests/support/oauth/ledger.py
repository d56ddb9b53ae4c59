"""All that the issuer has issued: codes, access tokens and refresh tokens."""

import secrets
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from genmcp.testing.issuer import IssuerFaults, IssuerKeys
from tests.support.oauth.refusal import OAuthRefusal

ACCESS_TOKEN = "at+jwt"


@dataclass
class OAuthFaults(IssuerFaults):
    """Faults of endpoints, by their names (`IssuerRequest.endpoint`). `clear()` switches all off.

    Attributes:
        metadata: members of both metadata documents to replace; None removes one.
        redirect: parameters of the redirect to replace, such as `iss`; None removes one.
        tokens: members of the token response to replace; None removes one.
        claims: claims of new access tokens to replace; None removes one.
    """

    metadata: dict[str, Any] = field(default_factory=dict)
    redirect: dict[str, str | None] = field(default_factory=dict)
    tokens: dict[str, Any] = field(default_factory=dict)
    claims: dict[str, Any] = field(default_factory=dict)
    _failing: dict[str, tuple[int, str, int | None]] = field(default_factory=dict, repr=False)

    def fail(
        self,
        endpoint: str,
        status: int = 500,
        *,
        error: str = "server_error",
        times: int | None = None,
    ) -> None:
        """Answer requests to an endpoint with an error, before they have any effect.

        Args:
            endpoint: its name, as in `IssuerRequest.endpoint`.
            status: the HTTP status.
            error: the OAuth error, such as "invalid_grant".
            times: for this number of requests. Default: until `clear()`.
        """
        self._failing[endpoint] = (status, error, times)

    def clear(self) -> None:
        """Switch all faults off."""
        vars(self).update(vars(OAuthFaults()))

    def check(self, endpoint: str) -> None:
        """Raise the error that `fail` requested for *endpoint*."""
        if (fault := self._failing.pop(endpoint, None)) is None:
            return
        status, error, times = fault
        if times is None or times > 1:
            self._failing[endpoint] = (status, error, times and times - 1)
        raise OAuthRefusal(error, "this fault was switched on", status=status)


@dataclass
class IssuedGrant:
    """The consent of a user, or the permission of a client. All its tokens end with it."""

    client_id: str
    scopes: tuple[str, ...]
    resources: tuple[str, ...]
    subject: str | None = None
    jkt: str | None = None
    nonce: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    revoked: bool = False


@dataclass
class IssuedCode:
    """An authorization code: single-use, for one client and redirect URI."""

    grant: IssuedGrant
    redirect_uri: str
    challenge: str
    expires: float
    used: bool = False


@dataclass
class IssuedRefresh:
    """A refresh token. It is replaced at its use, and a second use revokes the grant."""

    grant: IssuedGrant
    expires: float
    used: bool = False


@dataclass
class IssuedToken:
    """An access token, and its claims."""

    grant: IssuedGrant
    claims: Mapping[str, Any]
    revoked: bool = False


class Ledger:
    """The state of an issuer. It exists in memory only."""

    def __init__(
        self,
        keys: IssuerKeys,
        *,
        clock: Callable[[], float] = time.time,
        resources: Collection[str] = (),
        scopes: Collection[str] = (),
        token_ttl: float = 3600,
        refresh_ttl: float = 86400,
        opaque: bool = False,
        rotation: bool = True,
    ) -> None:
        self.url = ""
        self.keys = keys
        self.clock = clock
        self.resources = tuple(resources)
        self.scopes = tuple(scopes)
        self.token_ttl = token_ttl
        self.refresh_ttl = refresh_ttl
        self.opaque = opaque
        self.rotation = rotation
        self.faults = OAuthFaults()
        self.trusted: dict[str, Mapping[str, Any]] = {}
        self.codes: dict[str, IssuedCode] = {}
        self.refreshes: dict[str, IssuedRefresh] = {}
        self.tokens: dict[str, IssuedToken] = {}
        self._seen: set[tuple[str, str]] = set()

    @property
    def base(self) -> str:
        """The URL that the paths of the endpoints are appended to."""
        return self.url.rstrip("/")

    def see_once(self, kind: str, value: object) -> bool:
        """Return whether *value* is new; record it. For `jti` of assertions and proofs."""
        if (kind, str(value)) in self._seen:
            return False
        self._seen.add((kind, str(value)))
        return True

    def new_code(self, grant: IssuedGrant, redirect_uri: str, challenge: str, ttl: float) -> str:
        """Return a new authorization code."""
        code = secrets.token_urlsafe(24)
        self.codes[code] = IssuedCode(grant, redirect_uri, challenge, self.clock() + ttl)
        return code

    def new_refresh(self, grant: IssuedGrant) -> str:
        """Return a new refresh token."""
        token = secrets.token_urlsafe(32)
        self.refreshes[token] = IssuedRefresh(grant, self.clock() + self.refresh_ttl)
        return token

    def new_token(
        self,
        grant: IssuedGrant,
        *,
        scopes: Sequence[str],
        audience: Sequence[str],
        ttl: float | None = None,
    ) -> str:
        """Return a new access token: a JWT (RFC 9068), or an opaque text."""
        now = int(self.clock())
        claims: dict[str, Any] = {
            "iss": self.url,
            # RFC 9068, 2.2: the client is the subject where no user takes part.
            "sub": grant.subject or grant.client_id,
            "client_id": grant.client_id,
            "iat": now,
            "exp": int(now + (self.token_ttl if ttl is None else ttl)),
            "jti": secrets.token_hex(8),
            "aud": audience[0] if len(audience) == 1 else list(audience) or None,
            "scope": " ".join(scopes) or None,
            "cnf": {"jkt": grant.jkt} if grant.jkt else None,
            **grant.extra,
            **self.faults.claims,
        }
        claims = {name: value for name, value in claims.items() if value is not None}
        if self.opaque:
            token = secrets.token_urlsafe(32)
        else:
            token = self.keys.sign(claims, ACCESS_TOKEN, foreign=self.faults.foreign_key)
        self.tokens[token] = IssuedToken(grant, claims)
        return token

    def new_id_token(self, subject: str, client_id: str, **claims: Any) -> str:
        """Return an ID token (OpenID Connect Core 1.0, 2). A claim that is None is left out."""
        now = int(self.clock())
        base = {"iss": self.url, "sub": subject, "aud": client_id, "iat": now, "exp": now + 300}
        found = {**base, **claims}
        present = {name: value for name, value in found.items() if value is not None}
        return self.keys.sign(present, "JWT")

    def active(self, token: str) -> IssuedToken | None:
        """Return an access token that is neither expired nor revoked."""
        found = self.tokens.get(token)
        if found is None or found.revoked or found.grant.revoked:
            return None
        return found if found.claims.get("exp", 0) > self.clock() else None

    def revoke(self, token: str) -> None:
        """Revoke an access token; a refresh token with all tokens of its grant (RFC 7009, 2.1)."""
        if found := self.tokens.get(token):
            found.revoked = True
        if refresh := self.refreshes.get(token):
            refresh.grant.revoked = True

    def check_resources(self, values: Sequence[str]) -> tuple[str, ...]:
        """Return the requested resources (RFC 8707, 2).

        Raises:
            OAuthRefusal: one is no absolute URI, has a fragment, or is unknown here.
        """
        for value in values:
            parts = urlsplit(value)
            if not parts.scheme or not (parts.netloc or parts.path) or "#" in value:
                raise OAuthRefusal("invalid_target", "resource is not an absolute URI")
            if self.resources and value not in self.resources:
                raise OAuthRefusal("invalid_target", f"unknown resource: {value}")
        return tuple(values)

    def check_scopes(self, text: str) -> tuple[str, ...]:
        """Return the requested scopes.

        Raises:
            OAuthRefusal: one has an invalid character, or is unknown here.
        """
        scopes = tuple(dict.fromkeys(text.split(" "))) if text else ()
        for scope in scopes:
            # RFC 6749, 3.3
            if not scope or any(not "!" <= letter <= "~" or letter in '"\\' for letter in scope):
                raise OAuthRefusal("invalid_scope", "scope is malformed")
            if self.scopes and scope not in self.scopes:
                raise OAuthRefusal("invalid_scope", f"unknown scope: {scope}")
        return scopes
