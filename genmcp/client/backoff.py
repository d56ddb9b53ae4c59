"""The intervals at which a task is polled: SEP-2663, "Task Polling"."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Final, TypeVar

from genmcp.client.errors import (
    ClientError,
    ConnectError,
    ConnectionLost,
    HttpStatusError,
    OutcomeUnknown,
    RequestTimeout,
    ServerError,
    TooManyRequests,
)

__all__ = ["Polling", "may_pass", "pause", "repeated"]

_USUAL: Final = 1.0  # seconds between two polls, if the server gives no interval
_LEAST: Final = 0.01


class Polling:
    """Exponential backoff between two polls of one task. Owned by the task's handle.

    An interval of 5 s suits tasks that take minutes, but with it a task of 0.1 s would take 5 s as
    well. The pauses double up to the server's interval: this costs about eight more requests for
    each task, and the end of a task is noticed after at most twice its duration.

    Args:
        first: seconds of the first pause; 0 for the server's interval from the beginning.
    """

    def __init__(self, first: float) -> None:
        self._first = first
        self._next = first

    def restart(self) -> None:
        """Restart with the first pause: the task has resumed work."""
        self._next = self._first

    def pause(self, interval: float | None) -> float:
        """Return the next pause in seconds; *interval* is the server's, in milliseconds."""
        longest = _USUAL if interval is None else max(interval / 1000, _LEAST)
        seconds = min(self._next or longest, longest)
        self._next = min(2 * self._next, longest)
        return seconds


R = TypeVar("R")

_FIRST: Final = 0.5  # seconds before the first repetition; twice as many before each other
_LONGEST: Final = 30.0
_LONGEST_ASKED: Final = 300.0  # ... if the server asks for more
_PASSING: Final = frozenset({408, 425, 429})  # HTTP statuses, besides those of 500 and above
_FAILED: Final = 500


async def repeated(request: Callable[[], Awaitable[R]], most: int) -> R:
    """Return what *request* brings; it is made again while it fails in a way that may pass.

    most: how often it is made in all.

    Raises:
        ClientError: the last failure, or one that will not pass.
    """
    failures = 0
    while True:
        try:
            return await request()
        except ClientError as error:
            failures += 1
            if failures >= most or not may_pass(error):
                raise
            seconds = pause(error, failures)
        await asyncio.sleep(seconds)


def may_pass(error: ClientError) -> bool:
    """Whether the same request may succeed after *error*: the network or the server had trouble."""
    match error:
        case HttpStatusError() | ServerError():
            status = error.status
            return status in _PASSING or status >= _FAILED or _asked_for(error) is not None
        case _:
            passing = (
                ConnectionLost | OutcomeUnknown | RequestTimeout | TooManyRequests | ConnectError
            )
            return isinstance(error, passing)


def pause(error: ClientError, failures: int) -> float:
    """Return how many seconds to wait after so many *failures* in a row, the last being *error*."""
    backoff = min(_FIRST * 2.0 ** min(failures - 1, 10), _LONGEST)
    return max(backoff, min(_asked_for(error) or 0.0, _LONGEST_ASKED))


def _asked_for(error: BaseException | None) -> float | None:
    """Return how many seconds the server wants to be left alone, if it says so."""
    if isinstance(error, ServerError):
        match error.data:
            case {"retryAfter": int() | float() as seconds}:
                return float(seconds)
        error = error.__cause__
    if not isinstance(error, HttpStatusError):
        return None
    header = error.headers.get("retry-after", "").strip()
    if header.isascii() and header.isdigit():  # RFC 9110, section 10.2.3: seconds, or a date
        return float(header)
    try:
        date = parsedate_to_datetime(header)
    except (ValueError, OverflowError):
        return None
    return (date.replace(tzinfo=date.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
