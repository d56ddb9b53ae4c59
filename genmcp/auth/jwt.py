"""Signed access tokens (RFC 9068): verified with the published keys of their issuer."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from genmcp._core.access import Access, InvalidToken
from genmcp._core.auth.claims import Rules, check_claims, check_type, parse_object
from genmcp.auth.jose import (
    ASYMMETRIC,
    SYMMETRIC,
    Jws,
    Key,
    KeyData,
    decode,
    read_key,
    read_key_set,
    read_secret,
    verify,
)
from genmcp.auth.keys import PublishedKeys
from genmcp.auth.verdicts import SYSTEM_CLOCK, Clock, check_options
from genmcp.errors import ConfigurationError


@dataclass(frozen=True)
class Jwt:
    """Verifies signed access tokens. The default of `Bearer(verify=)`; needs the extra `auth`.

    The keys are those that the metadata of each issuer refers to. They are fetched with the first
    token, and used as long as their `Cache-Control` allows, between 5 minutes and a day, or an hour
    without it.

    Args:
        audiences: values of `aud` that are accepted besides the resource of the `Bearer`, such as
            the id of an application at Entra.
        algorithms: the accepted algorithms of signatures. Default: RS, PS and ES with 256, 384 and
            512 bits, EdDSA; with *secret*, HS256.
        keys: the keys of the issuer, a JWK set or PEM, in place of the published ones: nothing is
            fetched. Only with a single issuer.
        secret: the secret of the HS algorithms, in place of keys; 32 bytes at least. Any process
            that can verify with it can issue tokens, too.
        leeway: seconds by which the clocks of issuer and server may differ; default 30.
        unchecked_audience: accept tokens for any audience, also those for other servers of the
            issuer. Only for issuers that name none, such as Cognito; give *clients* then.
        clients: the ids of the clients whose tokens are accepted; default any client.
        issuers: those of the `Bearer` whose tokens are accepted, for a `Jwt` in an `AnyOf`; default
            all of them.
        cache: seconds that a verified token is accepted without another verification, until it
            expires; default 60.
        timeout: seconds for a fetch of the metadata and the keys of an issuer; default 5.
        refetch: seconds between two fetches of the keys of an issuer at least, when tokens have
            unknown keys; default 30.

    Raises:
        ConfigurationError: an option is wrong; the message names it.
    """

    audiences: Sequence[str] = ()
    algorithms: Sequence[str] | None = None
    keys: KeyData | None = field(default=None, repr=False)
    leeway: float = 30
    secret: str | bytes | None = field(default=None, repr=False, kw_only=True)
    unchecked_audience: bool = field(default=False, kw_only=True)
    clients: Sequence[str] = field(default=(), kw_only=True)
    issuers: Sequence[str] = field(default=(), kw_only=True)
    cache: float = field(default=60, kw_only=True)
    timeout: float = field(default=5, kw_only=True)
    refetch: float = field(default=30, kw_only=True)

    def __post_init__(self) -> None:
        check_options(
            {"audiences": self.audiences, "clients": self.clients, "issuers": self.issuers},
            self.timeout,
            leeway=self.leeway,
            cache=self.cache,
            refetch=self.refetch,
        )
        possible = ASYMMETRIC if self.secret is None else SYMMETRIC
        if isinstance(self.algorithms, str) or (
            self.algorithms is not None and not self.algorithms
        ):
            raise ConfigurationError(f"algorithms takes a list of names, not {self.algorithms!r}")
        for name in self.algorithms or ():
            if name not in possible:
                # A public key must never serve as a secret (RFC 8725, 2.1).
                kind = "a key" if self.secret is None else "a secret"
                raise ConfigurationError(
                    f"algorithms: {name!r} is not one for {kind}: {', '.join(possible)}"
                )
        if self.secret is not None and self.keys is not None:
            raise ConfigurationError("keys and secret exclude each other")
        self.static_keys()

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
        if unknown := [issuer for issuer in self.issuers if issuer not in issuers]:
            raise ConfigurationError(
                f"Jwt: {unknown[0]!r} is not among the issuers, {', '.join(issuers)}"
            )
        issuers = self.issuers or issuers
        if len(issuers) > 1 and (self.keys is not None or self.secret is not None):
            # With one list for all, each issuer could issue tokens in the name of the others.
            raise ConfigurationError("keys and secret of Jwt are for a single issuer")
        return JwtVerifier(self, resource, issuers, clock)

    def static_keys(self) -> Sequence[Key] | None:
        """Return the keys of the options *keys* or *secret*, or None for published ones."""
        if self.secret is not None:
            key = read_secret(self.secret)
            if unfit := [name for name in self.allowed if name not in key.algorithms]:
                raise ConfigurationError(f"secret: it is too short for {unfit[0]}")
            return [key]
        if self.keys is None:
            return None
        try:
            keys = read_key_set(self.keys)
        except ValueError:
            keys = [read_key(self.keys)]
        if not any(key.algorithms.intersection(self.allowed) for key in keys):
            raise ConfigurationError(f"keys: none fits the algorithms {', '.join(self.allowed)}")
        return keys

    @property
    def allowed(self) -> Sequence[str]:
        """The accepted algorithms."""
        return self.algorithms or (ASYMMETRIC if self.secret is None else SYMMETRIC[:1])


class JwtVerifier:
    """Verifies the signed tokens of some issuers for one resource. Made by `Jwt.bind`."""

    def __init__(self, options: Jwt, resource: str, issuers: Sequence[str], clock: Clock) -> None:
        self.cache = options.cache
        self._algorithms = frozenset(options.allowed)
        audiences = None if options.unchecked_audience else (resource, *options.audiences)
        self._rules = Rules(
            issuers=tuple(issuers),
            audiences=audiences,
            clients=tuple(options.clients),
            leeway=options.leeway,
        )
        self._unix = clock.unix
        self._static = options.static_keys()
        self._published = {
            issuer: PublishedKeys(
                issuer, timeout=options.timeout, refetch=options.refetch, clock=clock
            )
            for issuer in issuers
        }

    def accepts(self, token: str) -> bool:
        """Return whether *token* has the form of a signed token: whether it is worth a try."""
        return token.startswith("ey") and token.count(".") == 2  # "ey" is '{"' in base64

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
        if self._static is not None:
            return verify(signed, self._static, self._algorithms)
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
