"""Outcomes of work. Unexpected failures, and work that no process can take, are logged."""

import asyncio
import logging
from concurrent import futures
from secrets import token_hex
from typing import Any

import msgspec

from genmcp.core.failures import is_expected
from genmcp.core.outcome import Done, Failed, pack
from genmcp.core.waiting import Finished
from genmcp.errors import (
    ContractError,
    InternalError,
    McpError,
    OverShare,
    StoreUnavailable,
    ToolError,
    WaitCancelled,
    WaitError,
    WaitTimedOut,
    WorkRaised,
)
from genmcp.wire.jsonrpc import ErrorBody

__all__ = [
    "Elsewhere",
    "done",
    "error_end",
    "failure_of",
    "no_room",
    "not_kept",
    "pause_after",
    "raised",
]

logger = logging.getLogger("genmcp")


def done(work: str, value: Any) -> bytes:
    """Return the outcome of *work* that gave *value*, which is JSON.

    Raises:
        ContractError: it is not.
    """
    try:
        return pack(Done(value))
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise ContractError(f"{work} gave what is not JSON: {error}") from error


def error_end(error: McpError, *, raised: bool = True) -> Finished:
    """Return the end of a task that failed with *error*; *raised*: its hook has raised it."""
    body = ErrorBody(error.code, error.message, error.data)
    return Finished(error=msgspec.json.encode(body), raised=raised)


def no_room(error: StoreUnavailable) -> Finished:
    """Return the end of a task whose result does not fit into the store."""
    message = f"The result could not be kept: {_reason(error)}"
    return error_end(InternalError(message), raised=False)


def not_kept(error: StoreUnavailable) -> bytes:
    """Return the packed outcome of work whose own outcome does not fit into the store."""
    message = f"its outcome could not be kept: {_reason(error)}"
    return pack(Failed(WorkRaised(token_hex(6), type(error).__name__, message)))


def _reason(error: StoreUnavailable) -> str:
    return str(error) if isinstance(error, OverShare) else "the store is full"


def failure_of(work: str, error: BaseException) -> WaitError:
    """Return why *work* brought nothing that has raised *error*.

    Its text is shown only if it was raised to be shown; for any other the log has it, under the
    reference that the failure has.
    """
    if isinstance(error, WaitError):
        return error
    failure: WaitError
    if isinstance(error, asyncio.CancelledError | futures.CancelledError):
        failure = WaitCancelled()
    elif isinstance(error, TimeoutError):
        failure = WaitTimedOut()
    else:
        reference = token_hex(6)
        if isinstance(error, Exception) and is_expected(error):
            logger.info("%s failed [%s]: %s", work, reference, error)
        else:
            logger.error("%s failed [%s]", work, reference, exc_info=error)
        shown = isinstance(error, ToolError | McpError) and not isinstance(error, InternalError)
        failure = WorkRaised(reference, type(error).__name__, str(error) if shown else None)
    failure.__cause__ = error
    return failure


def raised(work: str, error: BaseException) -> bytes:
    """Return the outcome of *work* that raised *error*, packed."""
    return pack(Failed(failure_of(work, error)))


_FIRST = 0.5
_LONGEST = 30.0


class Elsewhere(Exception):
    """A step that this process cannot take. The text names what is unknown, for the log.

    Args:
        unknown: what is unknown in this process.
        told: the text for the client, if no process takes the step in time.
    """

    def __init__(self, unknown: str, told: str) -> None:
        super().__init__(unknown)
        self.told = told

    def outcome(self, seconds: float) -> bytes:
        """Return the packed outcome of a job that no process has taken for *seconds*."""
        reference = self._log(seconds)
        return pack(Failed(WorkRaised(reference, "UnknownJob", self.told)))

    def ended(self, seconds: float) -> Finished:
        """Return the end of a task that no process has continued for *seconds*."""
        reference = self._log(seconds)
        error = InternalError(f"{self.told} (reference {reference})", reference=reference)
        return error_end(error)

    def _log(self, seconds: float) -> str:
        reference = token_hex(6)
        logger.error(
            "%s [%s]: no process has taken it for %g seconds (JobOptions.unknown_timeout)",
            self,
            reference,
            seconds,
        )
        return reference


def pause_after(passed: float) -> float:
    """Return the seconds before the next delivery of a step that was *passed* on for so long.

    Each pause equals the sum of those before it, up to 30 seconds: a process of the other release
    is found soon if there is one, and a backlog that no process can work on costs little.
    """
    return min(max(_FIRST, passed), _LONGEST)
