"""Signed access tokens (RFC 9068): verified with the published keys of their issuer."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from genmcp._core.access import Access, InvalidToken
from genmcp._core.auth.claims import Rules, check_claims, check_type, parse_object
from genmcp.auth.jose import (
    ASYMMETRIC,
    Jws,
    Key,
    KeyData,
    decode,
    read_key,
    read_key_set,
    verify,
)
from genmcp.auth.keys import PublishedKeys
from genmcp.auth.verdicts import SYSTEM_CLOCK, Clock, check_lists
from genmcp.errors import ConfigurationError

_CACHE: Final = 60.0  # seconds that a verified token is accepted without another verification


@dataclass(frozen=True)
class Jwt:
    """Verifies signed access tokens. The default of `Bearer(verify=)`; needs the extra `auth`.

    The keys are those that the metadata of each issuer refers to. They are fetched with the first
    token, and used as long as their `Cache-Control` allows, between 5 minutes and a day, or an hour
    without it. Signatures are RS, PS or ES with 256, 384 or 512 bits, or EdDSA, as the key allows.

    Args:
        audiences: values of `aud` that are accepted besides the resource of the `Bearer`, such as
            the id of an application at Entra.
        keys: the keys of the issuer, a JWK set, a JWK or PEM, in place of the published ones:
            nothing is fetched. A JWK of the type `oct` is a secret for HS256, HS384 and HS512; any
            process that can verify with it can issue tokens, too. Only with a single issuer.
        clients: the ids of the clients whose tokens are accepted; default any client.
        unchecked_audience: accept tokens for any audience, also those for other servers of the
            issuer. Only for issuers that name none, such as Cognito; give *clients* then.

    Raises:
        ConfigurationError: an option is wrong; the message names it.
    """

    audiences: Sequence[str] = ()
    keys: KeyData | None = field(default=None, repr=False)
    clients: Sequence[str] = field(default=(), kw_only=True)
    unchecked_audience: bool = field(default=False, kw_only=True)

    def __post_init__(self) -> None:
        check_lists(audiences=self.audiences, clients=self.clients)
        self.given_keys()

    async def verify(self, token: str) -> Access:
        """Fail: only `bind` knows the issuers. A `Bearer` calls it."""
        raise ConfigurationError("Jwt verifies tokens as the verify= of a Bearer")

    def bind(
        self, resource: str, issuers: Sequence[str], clock: Clock = SYSTEM_CLOCK
    ) -> "JwtVerifier":
        """Return the verifier for tokens of *issuers* for *resource*.

        Raises:
            ConfigurationError: the options do not fit them.
        """
        if len(issuers) > 1 and self.keys is not None:
            # With one list for all, each issuer could issue tokens in the name of the others.
            raise ConfigurationError("keys of Jwt are for a single issuer")
        return JwtVerifier(self, resource, issuers, clock)

    def given_keys(self) -> Sequence[Key] | None:
        """Return the keys of the option *keys*, or None for published ones."""
        if self.keys is None:
            return None
        try:
            keys: Sequence[Key] = read_key_set(self.keys)
        except ValueError:
            keys = [read_key(self.keys)]
        if not keys:
            raise ConfigurationError("keys: none of them can be used")
        return keys


class JwtVerifier:
    """Verifies the signed tokens of some issuers for one resource. Made by `Jwt.bind`."""

    def __init__(self, options: Jwt, resource: str, issuers: Sequence[str], clock: Clock) -> None:
        self.cache = _CACHE
        audiences = None if options.unchecked_audience else (resource, *options.audiences)
        self._rules = Rules(issuers=issuers, audiences=audiences, clients=options.clients)
        self._unix = clock.unix
        self._given = options.given_keys()
        # A public key must never serve as a secret (RFC 8725, 2.1): published keys never do.
        given = [key.algorithms for key in self._given or ()]
        self._algorithms = frozenset(ASYMMETRIC).union(*given)
        self._published = {issuer: PublishedKeys(issuer, clock=clock) for issuer in issuers}

    async def verify(self, token: str) -> Access:
        """Return the content of *token*.

        Raises:
            InvalidToken: the token is not valid.
            AuthorizationUnavailable: the keys of its issuer cannot be fetched.
        """
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
        if self._given is not None:
            return verify(signed, self._given, self._algorithms)
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
