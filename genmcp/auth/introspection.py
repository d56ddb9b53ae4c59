"""Opaque access tokens: token introspection (RFC 7662), and several verifiers in one."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote_plus

from genmcp._core.access import Access, AuthorizationUnavailable, InvalidToken
from genmcp._core.auth.claims import Rules, check_introspection, parse_object
from genmcp._core.auth.metadata import check_public_url
from genmcp.auth.bearer import Verifier
from genmcp.auth.verdicts import SYSTEM_CLOCK, Clock, check_options
from genmcp.errors import ConfigurationError


@dataclass(frozen=True)
class Introspection:
    """Verifies access tokens by a request to the authorization server (RFC 7662).

    A token that is revoked is refused once *cache* seconds have passed. If the authorization server
    cannot be reached, or its response is an error, clients get HTTP 503 and keep their tokens.

    Args:
        url: the introspection endpoint: HTTPS, or HTTP on a loopback address.
        client_id: the id of this server at the authorization server.
        secret: its secret.
        audiences: values of `aud` that are accepted besides the resource of the `Bearer`.
        issuer: the issuer of the tokens, one of those of the `Bearer`. Needed if there are several.
        leeway: seconds by which the clocks of issuer and server may differ; default 30.
        unchecked_audience: accept tokens for any audience, and without one.
        clients: the ids of the clients whose tokens are accepted; default any client.
        cache: seconds that a verified token is accepted without another request; default 30.
        timeout: seconds for a request; default 5.

    Raises:
        ConfigurationError: an option is wrong; the message names it.
    """

    url: str
    client_id: str
    secret: str = field(repr=False)
    audiences: Sequence[str] = field(default=(), kw_only=True)
    issuer: str | None = field(default=None, kw_only=True)
    leeway: float = field(default=30, kw_only=True)
    unchecked_audience: bool = field(default=False, kw_only=True)
    clients: Sequence[str] = field(default=(), kw_only=True)
    cache: float = field(default=30, kw_only=True)
    timeout: float = field(default=5, kw_only=True)

    def __post_init__(self) -> None:
        check_public_url("url", self.url)
        lists = {"audiences": self.audiences, "clients": self.clients}
        check_options(lists, self.timeout, leeway=self.leeway, cache=self.cache)
        if not self.client_id or not self.secret:
            raise ConfigurationError("Introspection needs a client_id and a secret")

    async def verify(self, token: str) -> Access:
        """Fail: only `bind` knows the resource. A `Bearer` calls it."""
        raise ConfigurationError("Introspection verifies tokens as the verify= of a Bearer")

    def bind(
        self, resource: str, issuers: Sequence[str], clock: Clock = SYSTEM_CLOCK
    ) -> "IntrospectionVerifier":
        """Return the verifier for tokens for *resource*.

        Raises:
            ConfigurationError: the options do not fit *issuers*.
        """
        issuer = self.issuer or (issuers[0] if len(issuers) == 1 else None)
        if issuer is None or issuer not in issuers:
            raise ConfigurationError(
                f"Introspection: issuer= must be one of the issuers, {', '.join(issuers)}"
            )
        audiences = None if self.unchecked_audience else (resource, *self.audiences)
        rules = Rules(
            issuers=(issuer,),
            audiences=audiences,
            clients=tuple(self.clients),
            leeway=self.leeway,
            default_issuer=issuer,  # optional in a response, as `exp` is
            requires_expiry=False,
        )
        return IntrospectionVerifier(self, rules, clock)


class IntrospectionVerifier:
    """Verifies the tokens of one issuer for one resource. Made by `Introspection.bind`."""

    def __init__(self, options: Introspection, rules: Rules, clock: Clock) -> None:
        self.cache = options.cache
        self._url = options.url
        self._timeout = options.timeout
        self._rules = rules
        self._unix = clock.unix
        # RFC 6749, 2.3.1: form-encoded before Basic, so that neither has a colon.
        pair = f"{quote_plus(options.client_id)}:{quote_plus(options.secret)}"
        self._credentials = f"Basic {b64encode(pair.encode()).decode()}"

    async def verify(self, token: str) -> Access:
        """Return the content of *token*.

        Raises:
            InvalidToken: the token is not active, or not for this resource.
            AuthorizationUnavailable: the response is unusable or missing.
        """
        from genmcp.auth.fetch import fetch  # imports httpx

        document = await fetch(
            self._url,
            form={"token": token, "token_type_hint": "access_token"},
            headers={"authorization": self._credentials},
            timeout=self._timeout,
        )
        if document.status != 200:
            # Also 401, which is about our own credentials (RFC 7662, 2.3).
            raise AuthorizationUnavailable(f"{self._url}: HTTP {document.status}")
        try:
            response: dict[str, Any] = parse_object(document.body, "introspection")
        except InvalidToken:
            raise AuthorizationUnavailable(f"{self._url}: the response is malformed") from None
        return check_introspection(response, self._rules, self._unix())


class AnyOf:
    """Accepts the tokens that one of several verifiers accepts: `AnyOf(Jwt(), Introspection(...))`.

    They are tried in order. A verifier with the method `accepts(token)` is tried only with tokens
    of its form, so that an opaque token does not count as a failed signature. If none accepts a
    token but one of them is unavailable, the token is not verified, and its client gets HTTP 503.

    A verified token is accepted without another verification for the shortest `cache` of them.

    Args:
        verifiers: the verifiers, two or more.
    """

    def __init__(self, *verifiers: Verifier) -> None:
        if len(verifiers) < 2:
            raise ConfigurationError("AnyOf takes two verifiers or more")
        self._verifiers = verifiers
        self.cache: float = min(getattr(each, "cache", 0.0) for each in verifiers)

    def __repr__(self) -> str:
        return f"AnyOf({', '.join(map(repr, self._verifiers))})"

    def bind(self, resource: str, issuers: Sequence[str]) -> "AnyOf":
        """Return the same for the options of a `Bearer`."""
        bound = []
        for verifier in self._verifiers:
            bind = getattr(verifier, "bind", None)
            bound.append(verifier if bind is None else bind(resource, issuers))
        return AnyOf(*bound)

    async def verify(self, token: str) -> Access:
        """Return the content of *token*, as the first verifier finds it that accepts it.

        Raises:
            InvalidToken: none accepts it; the reason has that of each one that was tried.
            AuthorizationUnavailable: none accepts it, and one was unavailable.
        """
        refused: list[InvalidToken] = []
        unavailable: list[AuthorizationUnavailable] = []
        for verifier in self._verifiers:
            accepts = getattr(verifier, "accepts", None)
            if accepts is not None and not accepts(token):
                continue
            try:
                return await verifier.verify(token)
            except InvalidToken as error:
                refused.append(error)
            except AuthorizationUnavailable as error:
                unavailable.append(error)
        try:
            if unavailable:
                raise unavailable[0]
            raise InvalidToken(
                "; ".join(dict.fromkeys(each.reason for each in refused))
                or "the token has an unknown form",
                "; ".join(each.detail for each in refused if each.detail),
            )
        finally:
            # They refer to this frame: a reference cycle.
            refused.clear()
            unavailable.clear()
