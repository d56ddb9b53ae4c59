"""Signed access tokens (RFC 9068): verified with the published keys of their issuer."""

import asyncio
import logging
import time
from collections.abc import Sequence
from copy import copy
from typing import Final

import msgspec

from genmcp.auth.fetcher import VERIFIER_TIMEOUT, Fetcher
from genmcp.auth.jose import ASYMMETRIC, Jws, Key, KeyData, decode, read_key, read_key_set, verify
from genmcp.auth.single_flight import SingleFlight
from genmcp.auth.verdicts import SYSTEM_CLOCK, Clock, check_lists
from genmcp.core.access import Access, AuthorizationUnavailable, InvalidToken
from genmcp.core.auth.claims import Rules, check_claims, check_type, parse_object
from genmcp.core.auth.fetching import NoDocument, check_url, get, get_document, shown
from genmcp.core.auth.metadata import check_public_url, is_loopback_url, server_metadata_urls
from genmcp.core.auth.steps import Fetched, FlowFailed, FlowOptions, Steps
from genmcp.errors import ConfigurationError

logger = logging.getLogger("genmcp")

REFETCH: Final = 30.0
"""Seconds between two fetches at least, when tokens have unknown keys."""

_LIFETIME: Final = 300.0  # seconds that keys are used; an issuer may withdraw one
_RETRY: Final = 5.0  # seconds after a fetch without a result, as long as there are no keys at all


class _KeyLocation(msgspec.Struct):
    """The metadata of an authorization server, as far as it is about keys.

    A mistake in any other member is no reason to refuse all tokens.
    """

    issuer: str
    jwks_uri: str | None = None


class PublishedKeys:
    """The keys of one issuer.

    The first token fetches them. A token with an unknown `kid` fetches them again, since issuers
    change their keys; but seldom, since any stranger can send one. While a fetch fails, the keys of
    the last one are used.

    Args:
        issuer: the issuer, as in its metadata.
        jwks_uri: the URL of its keys; None: that of the metadata.
        clock: the clocks.
    """

    def __init__(self, issuer: str, jwks_uri: str | None = None, *, clock: Clock) -> None:
        self._issuer = issuer
        self._jwks_uri = jwks_uri
        self._monotonic = clock.monotonic
        self._keys: Sequence[Key] = ()
        self._known = False  # whether a fetch has succeeded
        self._stale_at = self._next_at = float("-inf")
        self._failure = ""  # of the last fetch
        self._flights: SingleFlight[None] = SingleFlight()

    async def find(self, kid: str | None) -> Sequence[Key]:
        """Return the keys that a token with *kid* may be signed with, maybe none.

        Raises:
            AuthorizationUnavailable: that is not known, since the last fetch has failed.
        """
        now = self._monotonic()
        found = self._fitting(kid)
        if found and (now < self._stale_at or now < self._next_at):
            return found
        await self.renew()
        found = self._fitting(kid)
        if not found and self._failure:
            wait = max(1, round(self._next_at - self._monotonic()))
            raise AuthorizationUnavailable(self._failure, retry_after=wait)
        return found

    async def renew(self) -> bool:
        """Fetch the keys, unless that was done a moment ago; return whether it was done."""
        # Nothing is known if the first fetch was cancelled.
        due = self._monotonic() >= self._next_at or not (self._known or self._failure)
        if not due and not self._flights.running(""):
            return False
        await self._flights.run("", self._fetch)
        return True

    def _fitting(self, kid: str | None) -> Sequence[Key]:
        if kid is None:
            return self._keys
        # RFC 7515, 4.1.4: a hint. A key without one may be any.
        return [key for key in self._keys if key.kid in (kid, None)]

    async def _fetch(self) -> None:
        # Before the wait: meanwhile, tokens with known keys do not wait.
        self._next_at = self._monotonic() + REFETCH
        try:
            async with asyncio.timeout(VERIFIER_TIMEOUT):
                document = await Fetcher(VERIFIER_TIMEOUT).run(
                    find_keys(self._issuer, self._jwks_uri)
                )
            keys = read_key_set(document.body)
        except (FlowFailed, ValueError, TimeoutError) as error:
            reason = str(error) or f"no response within {VERIFIER_TIMEOUT:g} s"
            self._failure = f"the keys of the issuer {self._issuer} cannot be fetched: {reason}"
            if self._known:
                logger.warning("%s; those of the last fetch are used", self._failure)
            else:
                self._next_at = self._monotonic() + _RETRY
        except asyncio.CancelledError:
            # All clients have left. Others need not wait as long as after a result.
            self._next_at = self._monotonic() + _RETRY
            raise
        else:
            self._keys, self._known, self._failure = keys, True, ""
            if not keys:
                # The old ones are withdrawn. But that none is published must be an error of the
                # issuer: clients keep their tokens.
                self._failure = f"the issuer {self._issuer} publishes no key that can be used"
            self._stale_at = self._monotonic() + _LIFETIME


def find_keys(issuer: str, jwks_uri: str | None = None) -> Steps[Fetched]:
    """Fetch the JWK set at *jwks_uri*, or the one that the metadata of *issuer* names.

    Raises:
        FlowFailed: there is none; the message has the reason for each place.
    """
    options = FlowOptions(url=jwks_uri or issuer, now=time.time, random=str)
    if jwks_uri is not None:
        return (yield from get(options, jwks_uri))
    problems = []
    tried = set()  # both forms of metadata usually name the same place
    for url in server_metadata_urls(issuer):
        try:
            metadata = yield from get_document(options, url, _KeyLocation)
            # RFC 8414, 3.3: identical, or else one issuer could speak for another.
            if metadata.issuer != issuer:
                raise NoDocument(f"is of the issuer {shown(metadata.issuer)}", url)
            if metadata.jwks_uri is None:
                raise NoDocument("has no jwks_uri", url)
            place = check_url(options, metadata.jwks_uri, "jwks_uri")
            if is_loopback_url(place) and not is_loopback_url(issuer):
                raise NoDocument("has a jwks_uri on this machine", url)
            if place not in tried:
                tried.add(place)
                return (yield from get(options, place))
        except FlowFailed as problem:
            problems.append(str(problem))
    raise FlowFailed("; ".join(problems))


class Jwt:
    """Verifies signed access tokens. The default of `Bearer(verify=)`; needs the extra `auth`.

    The keys are those that the metadata of each issuer refers to. They are fetched with the first
    token, and used for 5 minutes. Signatures are RS, PS or ES with 256, 384 or 512 bits, or EdDSA,
    as the key allows.

    Args:
        audiences: values of `aud` that are accepted besides the resource of the `Bearer`, such as
            the id of an application at Entra.
        keys: the keys of the issuer, a JWK set, a JWK or PEM, in place of the published ones:
            nothing is fetched. A JWK of the type `oct` is a secret for HS256, HS384 and HS512; any
            process that can verify with it can issue tokens, too. Only with a single issuer.
        jwks_uri: the URL of the keys, for an issuer that has no metadata; HTTPS, or HTTP on a
            loopback address. Only with a single issuer.
        clients: the ids of the clients whose tokens are accepted; default any client.
        unchecked_audience: accept tokens for any audience, also those for other servers of the
            issuer. Only for issuers that name none, such as Cognito; give *clients* then.

    Raises:
        ConfigurationError: an option is wrong; the message names it.
    """

    cache = 60.0  # seconds that a verified token is accepted without another verification

    def __init__(
        self,
        audiences: Sequence[str] = (),
        keys: KeyData | None = None,
        *,
        jwks_uri: str | None = None,
        clients: Sequence[str] = (),
        unchecked_audience: bool = False,
    ) -> None:
        check_lists(audiences=audiences, clients=clients)
        if jwks_uri is not None:
            check_public_url("jwks_uri", jwks_uri)
            if keys is not None:
                raise ConfigurationError("Jwt takes keys or jwks_uri, not both")
        self._audiences = None if unchecked_audience else audiences
        self._keys = None if keys is None else _given_keys(keys)
        # A public key must never serve as a secret (RFC 8725, 2.1): published keys never do.
        given = [key.algorithms for key in self._keys or ()]
        self._algorithms = frozenset(ASYMMETRIC).union(*given)
        self._jwks_uri = jwks_uri
        self._clients = clients
        self._rules: Rules | None = None
        self._published: dict[str, PublishedKeys] = {}
        self._unix = SYSTEM_CLOCK.unix

    def bind(self, resource: str, issuers: Sequence[str], clock: Clock = SYSTEM_CLOCK) -> "Jwt":
        """Return the verifier for tokens of *issuers* for *resource*. A `Bearer` calls it.

        Raises:
            ConfigurationError: the options do not fit them.
        """
        if len(issuers) > 1 and (self._keys, self._jwks_uri) != (None, None):
            # With one list for all, each issuer could issue tokens in the name of the others.
            raise ConfigurationError("keys and jwks_uri of Jwt are for a single issuer")
        audiences = None if self._audiences is None else (resource, *self._audiences)
        bound = copy(self)
        bound._unix = clock.unix
        bound._rules = Rules(issuers=issuers, audiences=audiences, clients=self._clients)
        bound._published = {
            each: PublishedKeys(each, self._jwks_uri, clock=clock) for each in issuers
        }
        return bound

    async def verify(self, token: str) -> Access:
        """Return the content of *token*.

        Raises:
            InvalidToken: the token is not valid.
            AuthorizationUnavailable: the keys of its issuer cannot be fetched.
        """
        assert self._rules is not None  # by `bind`
        signed = decode(token)
        check_type(signed.header)
        algorithm = signed.header["alg"]
        if algorithm not in self._algorithms:
            expected = ", ".join(sorted(self._algorithms))
            raise InvalidToken("wrong alg", f"found: {algorithm[:32]!r}; expected: {expected}")
        # Before the signature: a token that would be refused in any case fetches no keys, and costs
        # no verification.
        access = check_claims(parse_object(signed.payload), self._rules, self._unix())
        if not await self._verify(signed, access.issuer):
            raise InvalidToken("the signature of the token is not valid", f"alg: {algorithm}")
        return access

    async def _verify(self, signed: Jws, issuer: str) -> bool:
        if self._keys is not None:
            return verify(signed, self._keys, self._algorithms)
        published = self._published[issuer]
        kid = signed.header.get("kid")
        keys = await published.find(kid)
        if not keys:
            raise InvalidToken("the token is signed with an unknown key", f"kid: {kid!r:.200}")
        if verify(signed, keys, self._algorithms):
            return True
        # Without a key for this kid, only the signature shows that the issuer has changed its keys.
        if any(key.kid == kid for key in keys if kid is not None) or not await published.renew():
            return False
        return verify(signed, await published.find(kid), self._algorithms)


def _given_keys(data: KeyData) -> Sequence[Key]:
    """Return the keys of the option `keys`."""
    try:
        keys: Sequence[Key] = read_key_set(data)
    except ValueError:
        keys = [read_key(data)]
    if not keys:
        raise ConfigurationError("keys: none of them can be used")
    return keys
