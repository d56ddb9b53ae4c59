"""The published keys of an issuer: fetched through its metadata, and kept."""

import asyncio
import logging
import re
from collections.abc import Sequence
from typing import Final

import msgspec

from genmcp._core.access import AuthorizationUnavailable
from genmcp._core.auth.metadata import server_metadata_urls
from genmcp.auth.fetch import IssuerResponse, check_fetchable, fetch
from genmcp.auth.jose import Key, read_key_set
from genmcp.auth.verdicts import Clock, SingleFlight

logger = logging.getLogger("genmcp")

_MAX_AGE: Final = re.compile(r"(?:^|,)\s*max-age\s*=\s*\"?(\d{1,9})", re.IGNORECASE)
_NO_CACHE: Final = re.compile(r"(?:^|,)\s*no-(?:store|cache)\s*(?:,|$)", re.IGNORECASE)
_LIFETIME: Final = 3600.0  # seconds, of keys without Cache-Control
_MIN_LIFETIME: Final = 300.0
_MAX_LIFETIME: Final = 86400.0
_RETRY: Final = 5.0  # seconds after a fetch without a result, as long as there are no keys at all


class _KeyLocation(msgspec.Struct):
    """The metadata of an authorization server, as far as it is about keys.

    A mistake in any other member is no reason to refuse all tokens.
    """

    issuer: str
    jwks_uri: str | None = None


class PublishedKeys:
    """The keys of one issuer. Shared by all event loops of a process.

    The first token fetches them. A token with an unknown `kid` fetches them again, since issuers
    change their keys; but seldom, since any stranger can send one. While a fetch fails, the keys of
    the last one are used.

    Args:
        issuer: the issuer, as in its metadata.
        timeout: seconds for the metadata, which may be at three places, and the keys.
        refetch: seconds between two fetches at least.
        clock: the clocks.
    """

    def __init__(self, issuer: str, *, timeout: float, refetch: float, clock: Clock) -> None:
        self._issuer = issuer
        self._timeout = timeout
        self._refetch = refetch
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
        due = self._monotonic() >= self._next_at
        # Without any answer so far, another event loop may wait for the first one: so must this.
        unknown = not self._known and not self._failure
        if not (due or unknown or self._flights.running("")):
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
        self._next_at = self._monotonic() + self._refetch
        soon = min(_RETRY, self._refetch)
        try:
            async with asyncio.timeout(self._timeout):
                document = await self._key_set()
            keys = read_key_set(document.body)
        except (AuthorizationUnavailable, ValueError, TimeoutError) as error:
            reason = str(error) or f"no response within {self._timeout:g} s"
            self._failure = f"the keys of the issuer {self._issuer} cannot be fetched: {reason}"
            if self._known:
                logger.warning("%s; those of the last fetch are used", self._failure)
            else:
                self._next_at = self._monotonic() + soon
        except asyncio.CancelledError:
            # All clients have left. Others need not wait as long as after a result.
            self._next_at = self._monotonic() + soon
            raise
        else:
            self._keys, self._known, self._failure = keys, True, ""
            if not keys:
                # The old ones are withdrawn. But that none is published must be an error of the
                # issuer: clients keep their tokens.
                self._failure = f"the issuer {self._issuer} publishes no key that can be used"
            used_for = lifetime(document.headers.get("cache-control", ""))
            self._stale_at = self._monotonic() + used_for

    async def _key_set(self) -> IssuerResponse:
        """Fetch the JWK set that the first usable metadata document names.

        Raises:
            AuthorizationUnavailable: there is none; the message has the reason for each place.
        """
        problems = []
        tried = set()  # both forms of metadata usually name the same place
        for url in server_metadata_urls(self._issuer):
            try:
                document = await self._get(url)
                metadata = msgspec.json.decode(document.body, type=_KeyLocation)
                # RFC 8414, 3.3: identical, or else one issuer could speak for another.
                if metadata.issuer != self._issuer:
                    problems.append(f"{url}: is of the issuer {metadata.issuer[:200]!r}")
                elif metadata.jwks_uri is None:
                    problems.append(f"{url}: has no jwks_uri")
                elif metadata.jwks_uri not in tried:
                    tried.add(metadata.jwks_uri)
                    check_fetchable("jwks_uri", metadata.jwks_uri, self._issuer)
                    return await self._get(metadata.jwks_uri)
            except AuthorizationUnavailable as error:
                problems.append(str(error))
            except (msgspec.MsgspecError, ValueError):
                problems.append(f"{url}: is not the metadata of an authorization server")
        raise AuthorizationUnavailable("; ".join(problems))

    async def _get(self, url: str) -> IssuerResponse:
        document = await fetch(url, timeout=self._timeout)
        if document.status != 200:
            raise AuthorizationUnavailable(f"{url}: HTTP {document.status}")
        return document


def lifetime(cache_control: str) -> float:
    """Return the seconds that keys are used for, between 5 minutes and a day, default an hour."""
    if _NO_CACHE.search(cache_control):
        return _MIN_LIFETIME
    found = _MAX_AGE.search(cache_control)
    return _LIFETIME if found is None else min(max(float(found[1]), _MIN_LIFETIME), _MAX_LIFETIME)
