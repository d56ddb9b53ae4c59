"""Repeated attempts of the client: requests without side effects, and polls of a task."""

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
)
from genmcp.core.backoff import backoff

R = TypeVar("R")

_FIRST_DELAY, _MAX_DELAY = 0.5, 30.0  # seconds before a request is repeated
_MAX_RETRY_AFTER: Final = 300.0  # seconds that a server may ask for
_TRANSIENT: Final = frozenset({408, 425, 429})  # HTTP statuses, besides 500 and above

_FIRST_POLL: Final = 0.02  # seconds before the first poll
_POLL_INTERVAL: Final = 1.0  # seconds between two polls, if the server gives no interval
_MIN_POLL_INTERVAL: Final = 0.01


async def repeated(request: Callable[[], Awaitable[R]], limit: int) -> R:
    """Send a request until it succeeds, or fails for good. Only for requests without side effects.

    Args:
        request: sends the request.
        limit: maximum number of attempts.

    Raises:
        ClientError: The last attempt failed, or an error is not transient.
    """
    failures = 0
    while True:
        try:
            return await request()
        except ClientError as error:
            failures += 1
            if failures >= limit or not is_transient(error):
                raise
            seconds = retry_delay(error, failures)
        await asyncio.sleep(seconds)


def is_transient(error: ClientError) -> bool:
    """Return whether the same request may succeed later: the network or the server had trouble."""
    if isinstance(error, HttpStatusError | ServerError):
        status = error.status
        return status in _TRANSIENT or status >= 500 or _retry_after(error) is not None
    return isinstance(error, ConnectionLost | OutcomeUnknown | RequestTimeout | ConnectError)


def retry_delay(error: ClientError, failures: int) -> float:
    """Return the seconds to wait after *failures* in a row, of which *error* is the last."""
    wanted = min(_retry_after(error) or 0.0, _MAX_RETRY_AFTER)
    return max(backoff(failures, _FIRST_DELAY, _MAX_DELAY), wanted)


def _retry_after(error: BaseException | None) -> float | None:
    """Return the seconds that the server asks to wait, if it does."""
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


class Polling:
    """Exponential backoff between two polls of one task. Owned by the task's handle.

    An interval of 5 s suits tasks that take minutes, but with it a task of 0.1 s would take 5 s as
    well. The pauses double up to the server's interval: this costs about eight more requests for
    each task, and the end of a task is noticed after at most twice its duration.
    """

    def __init__(self) -> None:
        self._polls = 0

    def restart(self) -> None:
        """Restart with the first pause: the task has resumed work."""
        self._polls = 0

    def pause(self, interval: float | None) -> float:
        """Return the seconds until the next poll.

        Args:
            interval: the server's interval in milliseconds, which the pauses reach but never
                exceed: SEP-2663, "Task Polling".
        """
        limit = _POLL_INTERVAL if interval is None else max(interval / 1000, _MIN_POLL_INTERVAL)
        self._polls += 1
        return backoff(self._polls, _FIRST_POLL, limit)
