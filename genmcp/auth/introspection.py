"""Opaque access tokens: token introspection (RFC 7662)."""

from base64 import b64encode
from collections.abc import Sequence
from copy import copy
from urllib.parse import quote_plus, urlencode

from genmcp.auth.fetcher import VERIFIER_TIMEOUT, Fetcher
from genmcp.auth.verdicts import SYSTEM_CLOCK, Clock, check_lists
from genmcp.core.access import Access, AuthorizationUnavailable
from genmcp.core.auth.claims import Rules, check_introspection
from genmcp.core.auth.metadata import check_public_url
from genmcp.core.auth.steps import Fetch
from genmcp.core.auth.strict_json import strict_object
from genmcp.errors import ConfigurationError


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

    def __init__(
        self,
        url: str,
        client_id: str,
        secret: str,
        *,
        audiences: Sequence[str] = (),
        clients: Sequence[str] = (),
        unchecked_audience: bool = False,
        cache: float = 30,
    ) -> None:
        check_public_url("url", url)
        check_lists(audiences=audiences, clients=clients)
        if not cache >= 0:
            raise ConfigurationError(f"cache must not be negative, unlike {cache!r}")
        if not client_id or not secret:
            raise ConfigurationError("Introspection needs a client_id and a secret")
        self._url = url
        self._audiences = None if unchecked_audience else audiences
        self._clients = clients
        self.cache = cache
        # RFC 6749, 2.3.1: form-encoded before Basic, so that neither has a colon.
        pair = f"{quote_plus(client_id)}:{quote_plus(secret)}"
        self._headers = (
            ("Accept", "application/json"),
            ("Content-Type", "application/x-www-form-urlencoded"),
            ("Authorization", f"Basic {b64encode(pair.encode()).decode()}"),
        )
        self._rules: Rules | None = None
        self._unix = SYSTEM_CLOCK.unix

    def bind(
        self, resource: str, issuers: Sequence[str], clock: Clock = SYSTEM_CLOCK
    ) -> "Introspection":
        """Return the verifier for tokens for *resource*. A `Bearer` calls it.

        Raises:
            ConfigurationError: there are several issuers.
        """
        if len(issuers) != 1:
            raise ConfigurationError("Introspection is for a single issuer")
        audiences = None if self._audiences is None else (resource, *self._audiences)
        bound = copy(self)
        bound._unix = clock.unix
        bound._rules = Rules(
            issuers=issuers, audiences=audiences, clients=self._clients, introspected=True
        )
        return bound

    async def verify(self, token: str) -> Access:
        """Return the content of *token*.

        Raises:
            InvalidToken: the token is not active, or not for this resource.
            AuthorizationUnavailable: the response is unusable or missing.
        """
        assert self._rules is not None  # by `bind`
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
