"""Verdicts on access tokens: kept by the digest of the token, and made once for all that wait.

To verify a signature costs more than a whole call, and introspection is a request to another
machine. The token itself is kept nowhere.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping, Sequence
from hashlib import sha256
from threading import Lock
from typing import Any, Final, Generic, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

from genmcp._core.access import Access, InvalidToken
from genmcp.errors import ConfigurationError

T = TypeVar("T")

FAILURE_SECONDS: Final = 10.0
"""Seconds that a refusal is kept, so that a client that repeats a bad token costs little."""


class Clock(NamedTuple):
    """The clocks of a process, in seconds. A test passes its own."""

    unix: Callable[[], float] = time.time
    monotonic: Callable[[], float] = time.monotonic


SYSTEM_CLOCK: Final = Clock()


class _KnownToken(NamedTuple):
    access: Access
    until: float  # by the monotonic clock: a verdict is not kept longer if the other is set back
    expires: float  # Unix time


class _BadToken(NamedTuple):
    reason: str
    detail: str
    until: float


class Verdicts:
    """The tokens of one endpoint that were verified a moment ago. Shared by all event loops.

    Args:
        verify: verifies a token. It gets the arguments of `Verdicts.verify`.
        seconds: the time that a verdict is kept, unless the token expires before; 0 keeps none.
        max_entries: the maximum number of tokens that are kept, of accepted and of refused ones.
            The oldest are removed first.
        clock: the clocks.
    """

    def __init__(
        self,
        verify: Callable[..., Awaitable[Access]],
        *,
        seconds: float,
        max_entries: int,
        clock: Clock,
    ) -> None:
        self._verify = verify
        self._seconds = seconds
        self._max_entries = max_entries
        self._unix, self._monotonic = clock
        # Two tables, so that a flood of bad tokens removes no good one.
        self._accepted: dict[bytes, _KnownToken] = {}
        self._refused: dict[bytes, _BadToken] = {}
        self._adding = Lock()  # event loops are in several threads
        self._flights: SingleFlight[Access] = SingleFlight()

    def find(self, token: bytes) -> Access | None:
        """Return the content of a token that was accepted a moment ago, or None."""
        found = self._accepted.get(sha256(token).digest())
        if found is None or self._monotonic() >= found.until or self._unix() >= found.expires:
            return None
        return found.access

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
            raise InvalidToken(refused.reason, refused.detail)
        return await self._flights.run(digest, lambda: self._decide(digest, token, *client))

    async def _decide(self, digest: bytes, token: str, *client: str | None) -> Access:
        begun = self._monotonic()  # before the wait, in which the token may be revoked
        try:
            access = await self._verify(token, *client)
        except InvalidToken as error:
            until = begun + min(self._seconds, FAILURE_SECONDS)
            self._put(self._refused, digest, _BadToken(error.reason, error.detail, until))
            raise
        expires = float("inf") if access.expires is None else access.expires
        self._put(self._accepted, digest, _KnownToken(access, begun + self._seconds, expires))
        return access

    def _put(self, table: dict[bytes, T], digest: bytes, verdict: T) -> None:
        if self._seconds <= 0:
            return
        with self._adding:
            table.pop(digest, None)
            while len(table) >= self._max_entries:
                del table[next(iter(table))]
            table[digest] = verdict


class _Flight(Generic[T]):
    """A call that is under way, and the number of tasks that wait for it."""

    def __init__(self, task: asyncio.Task[T]) -> None:
        self.task = task
        self.waiting = 0


class SingleFlight(Generic[T]):
    """Runs one call for a key at a time, and gives its result to all that wait.

    Each event loop has calls of its own, since a future belongs to one. A call ends with the last
    task that waits for it, not with the first.
    """

    def __init__(self) -> None:
        self._flights: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[Hashable, _Flight[T]]] = (
            WeakKeyDictionary()
        )

    def running(self, key: Hashable) -> bool:
        """Return whether a call for *key* is under way on this event loop."""
        return key in self._flights.get(asyncio.get_running_loop(), {})

    async def run(self, key: Hashable, call: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Return the result of the call for *key* that is under way, or else of *call*."""
        flights = self._flights.setdefault(asyncio.get_running_loop(), {})
        flight = flights.get(key)
        if flight is None:
            flight = flights[key] = _Flight(asyncio.create_task(call()))
            flight.task.add_done_callback(_retrieve)
        flight.waiting += 1
        try:
            await asyncio.wait([flight.task])  # does not cancel it
        finally:
            flight.waiting -= 1
            # Once it is done, or has no more use: a task that comes now begins another call.
            if flights.get(key) is flight and (flight.task.done() or not flight.waiting):
                del flights[key]
            if not flight.waiting:
                flight.task.cancel()  # no effect if it is done
        task = flight.task
        del flight
        try:
            return task.result()
        finally:
            del task  # refers to its error, which refers to this frame: a reference cycle


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Mark the error of *task* as seen, if all that waited for it were cancelled meanwhile."""
    if not task.cancelled():
        task.exception()


def check_options(lists: Mapping[str, Sequence[str]], timeout: float, **seconds: float) -> None:
    """Check the options that verifiers share.

    Raises:
        ConfigurationError: one is wrong; the message names it.
    """
    for option, values in lists.items():
        if isinstance(values, str):
            raise ConfigurationError(f"{option} takes a list, not the string {values!r}")
    if not timeout > 0:
        raise ConfigurationError(f"timeout must be positive, not {timeout!r}")
    for option, value in seconds.items():
        if not value >= 0:
            raise ConfigurationError(f"{option} must not be negative, unlike {value!r}")
