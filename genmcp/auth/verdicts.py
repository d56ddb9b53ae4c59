"""Verdicts on tokens: kept by the digest of the token, and made once for all that wait.

To verify a signature costs more than a whole call, and introspection is a request to another
machine. The token itself is kept nowhere.
"""

import time
from collections.abc import Awaitable, Callable, Sequence
from hashlib import sha256
from typing import Final, NamedTuple

from genmcp._core.access import Access, InvalidToken
from genmcp.auth.shared import SingleFlight
from genmcp.errors import ConfigurationError

FAILURE_SECONDS: Final = 10.0
"""Seconds that a refusal is kept, so that a client that repeats a bad token costs little."""

MAX_ENTRIES: Final = 10_000
"""Tokens that are kept, of accepted and of refused ones. The oldest are verified again."""


class Clock(NamedTuple):
    """The clocks of a process, in seconds. A test passes its own."""

    unix: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic


SYSTEM_CLOCK: Final = Clock()


class _Verdict(NamedTuple):
    """The outcome for a token: an access, or reason and detail of its refusal."""

    outcome: Access | tuple[str, str]
    until: float  # by the monotonic clock: a verdict is not kept longer if the other is set back
    expires: float  # Unix time


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
        # Two tables, so that a flood of bad tokens removes no good one.
        self._accepted: dict[bytes, _Verdict] = {}
        self._refused: dict[bytes, _Verdict] = {}
        self._flights: SingleFlight[Access] = SingleFlight()

    def find(self, token: bytes) -> Access | None:
        """Return the content of a token that was accepted a moment ago, or None."""
        found = self._accepted.get(sha256(token).digest())
        if found is None or self._monotonic() >= found.until or self._unix() >= found.expires:
            return None
        assert isinstance(found.outcome, Access)
        return found.outcome

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
        if refused is not None and self._monotonic() < refused.until:
            assert isinstance(refused.outcome, tuple)
            raise InvalidToken(*refused.outcome)
        return await self._flights.run(digest, lambda: self._decide(digest, token, *client))

    async def _decide(self, digest: bytes, token: str, *client: str | None) -> Access:
        begun = self._monotonic()  # before the wait, in which the token may be revoked
        try:
            access = await self._verify(token, *client)
        except InvalidToken as error:
            until = begun + min(self._seconds, FAILURE_SECONDS)
            outcome = (error.reason, error.detail)
            self._put(self._refused, digest, _Verdict(outcome, until, float("inf")))
            raise
        expires = float("inf") if access.expires is None else access.expires
        self._put(self._accepted, digest, _Verdict(access, begun + self._seconds, expires))
        return access

    def _put(self, table: dict[bytes, _Verdict], digest: bytes, verdict: _Verdict) -> None:
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
