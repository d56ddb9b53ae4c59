"""Verdicts on tokens: kept by the digest of the token, and made once for all that wait.

To verify a signature costs more than a whole call, and introspection is a request to another
machine. The token itself is kept nowhere.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from typing import Final, NamedTuple, TypeVar

from genmcp.auth.single_flight import SingleFlight
from genmcp.core.access import Access, InvalidToken
from genmcp.errors import ConfigurationError

T = TypeVar("T")

FAILURE_SECONDS: Final = 10.0
"""Seconds that a refusal is kept, so that a client that repeats a bad token costs little."""

MAX_ENTRIES: Final = 10_000
"""Tokens that are kept, of accepted and of refused ones. The oldest are verified again."""


class Clock(NamedTuple):
    """The clocks of a process, in seconds. A test passes its own."""

    unix: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic


SYSTEM_CLOCK: Final = Clock()


class Verdicts:
    """The tokens of one endpoint that were verified a moment ago.

    Args:
        verify: verifies a token. It gets the arguments of `Verdicts.verify`.
        seconds: the time that a verdict is kept, unless the token expires before; 0 keeps none.
        clock: the clocks.
    """

    def __init__(
        self, verify: Callable[..., Awaitable[Access]], *, seconds: float, clock: Clock
    ) -> None:
        self._verify = verify
        self._seconds = seconds
        self._unix, self._monotonic = clock
        # Until when, by the monotonic clock, since the other may be set back; and the content, or
        # the reason and detail of the refusal. Two tables, so that a flood of bad tokens removes no
        # good one.
        self._accepted: dict[bytes, tuple[float, Access]] = {}
        self._refused: dict[bytes, tuple[float, tuple[str, str]]] = {}
        self._flights: SingleFlight[Access] = SingleFlight()

    def find(self, token: bytes) -> Access | None:
        """Return the content of a token that was accepted a moment ago, or None."""
        found = self._accepted.get(sha256(token).digest())
        if found is None or self._monotonic() >= found[0]:
            return None
        access = found[1]
        return None if access.expires is not None and self._unix() >= access.expires else access

    async def verify(self, token: str, *client: str | None) -> Access:
        """Return the content of *token*: the verdict that is kept, or a new one.

        Args:
            token: the token.
            client: what else the verification needs to know of the request that causes it.

        Raises:
            InvalidToken: the token is not valid.
            AuthorizationUnavailable: the token cannot be verified now; this is not kept.
        """
        access = self.find(token.encode())
        if access is not None:
            return access
        digest = sha256(token.encode()).digest()
        refused = self._refused.get(digest)
        if refused is not None and self._monotonic() < refused[0]:
            raise InvalidToken(*refused[1])
        return await self._flights.run(digest, lambda: self._decide(digest, token, *client))

    async def _decide(self, digest: bytes, token: str, *client: str | None) -> Access:
        begun = self._monotonic()  # before the wait, in which the token may be revoked
        try:
            access = await self._verify(token, *client)
        except InvalidToken as error:
            until = begun + min(self._seconds, FAILURE_SECONDS)
            self._put(self._refused, digest, (until, (error.reason, error.detail)))
            raise
        self._put(self._accepted, digest, (begun + self._seconds, access))
        return access

    def _put(self, table: dict[bytes, T], digest: bytes, verdict: T) -> None:
        if self._seconds <= 0:
            return
        table.pop(digest, None)
        while len(table) >= MAX_ENTRIES:
            del table[next(iter(table))]
        table[digest] = verdict


def check_lists(**lists: Sequence[str]) -> None:
    """Check that options are lists.

    Raises:
        ConfigurationError: one is a string; the message names it.
    """
    for option, values in lists.items():
        if isinstance(values, str):
            raise ConfigurationError(f"{option} takes a list, not the string {values!r}")
