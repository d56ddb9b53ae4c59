"""Opaque access tokens: token introspection (RFC 7662)."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field
from urllib.parse import quote_plus, urlencode

from genmcp._core.access import Access, AuthorizationUnavailable
from genmcp._core.auth.claims import Rules, check_introspection
from genmcp._core.auth.metadata import check_public_url
from genmcp._core.auth.steps import Fetch
from genmcp._core.auth.strict_json import strict_object
from genmcp.auth.fetcher import VERIFIER_TIMEOUT, Fetcher
from genmcp.auth.verdicts import SYSTEM_CLOCK, Clock, check_lists
from genmcp.errors import ConfigurationError


@dataclass(frozen=True)
class Introspection:
    """Verifies access tokens by a request to the authorization server (RFC 7662).

    The `Bearer` has a single issuer. A token that is revoked is refused once *cache* seconds have
    passed. If the authorization server cannot be reached, or its response is an error, clients get
    HTTP 503 and keep their tokens.

    Args:
        url: the introspection endpoint: HTTPS, or HTTP on a loopback address.
        client_id: the id of this server at the authorization server.
        secret: its secret.
        audiences: values of `aud` that are accepted besides the resource of the `Bearer`.
        clients: the ids of the clients whose tokens are accepted; default any client.
        unchecked_audience: accept tokens for any audience, and without one.
        cache: seconds that a verified token is accepted without another request; default 30.

    Raises:
        ConfigurationError: an option is wrong; the message names it.
    """

    url: str
    client_id: str
    secret: str = field(repr=False)
    audiences: Sequence[str] = field(default=(), kw_only=True)
    clients: Sequence[str] = field(default=(), kw_only=True)
    unchecked_audience: bool = field(default=False, kw_only=True)
    cache: float = field(default=30, kw_only=True)

    def __post_init__(self) -> None:
        check_public_url("url", self.url)
        check_lists(audiences=self.audiences, clients=self.clients)
        if not self.cache >= 0:
            raise ConfigurationError(f"cache must not be negative, unlike {self.cache!r}")
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
            ConfigurationError: there are several issuers.
        """
        if len(issuers) != 1:
            raise ConfigurationError("Introspection is for a single issuer")
        audiences = None if self.unchecked_audience else (resource, *self.audiences)
        rules = Rules(issuers=issuers, audiences=audiences, clients=self.clients, introspected=True)
        return IntrospectionVerifier(self, rules, clock)


class IntrospectionVerifier:
    """Verifies the tokens of one issuer for one resource. Made by `Introspection.bind`."""

    def __init__(self, options: Introspection, rules: Rules, clock: Clock) -> None:
        self.cache = options.cache
        self._url = options.url
        self._rules = rules
        self._unix = clock.unix
        # RFC 6749, 2.3.1: form-encoded before Basic, so that neither has a colon.
        pair = f"{quote_plus(options.client_id)}:{quote_plus(options.secret)}"
        self._headers = (
            ("Accept", "application/json"),
            ("Content-Type", "application/x-www-form-urlencoded"),
            ("Authorization", f"Basic {b64encode(pair.encode()).decode()}"),
        )

    async def verify(self, token: str) -> Access:
        """Return the content of *token*.

        Raises:
            InvalidToken: the token is not active, or not for this resource.
            AuthorizationUnavailable: the response is unusable or missing.
        """
        form = urlencode({"token": token, "token_type_hint": "access_token"}).encode()
        fetcher = Fetcher(timeout=VERIFIER_TIMEOUT)
        try:
            step = Fetch(url=self._url, method="POST", headers=self._headers, body=form)
            response = await fetcher.fetch(step)
        finally:
            await fetcher.close()
        try:
            if response.status != 200:
                # Also 401, which is about our own credentials (RFC 7662, 2.3).
                raise ValueError(response.error or f"HTTP {response.status}")
            members = strict_object(response.body)
        except ValueError as error:
            raise AuthorizationUnavailable(f"{self._url}: {error}") from None
        return check_introspection(members, self._rules, self._unix())
