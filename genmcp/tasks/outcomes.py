"""The outcomes of work and of tasks, as they are stored."""

import asyncio
import logging
from concurrent import futures
from contextlib import suppress
from secrets import token_hex
from typing import Any

import msgspec

from genmcp.core.failures import is_expected
from genmcp.core.outcome import Done, Failed, pack
from genmcp.core.waiting import Finished
from genmcp.errors import (
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
from genmcp.tasks.values import ANY_TYPE, Codec, Unstorable, to_json
from genmcp.wire.jsonrpc import ErrorBody

logger = logging.getLogger("genmcp")


def pack_result(work: str, value: Any, codec: Codec | None = None) -> bytes:
    """Return the packed outcome of *work* that returned *value*.

    It is a failure if the value has no JSON form, or does not fit the type with this *codec*.
    """
    if codec is None:
        with suppress(TypeError, ValueError, OverflowError, RecursionError):
            return pack(Done(value))
    where = f"the result of {work}"
    try:
        return pack(Done(to_json(where, value, codec or ANY_TYPE)))
    except Unstorable as error:
        return pack_failure(work, error)
    except (ValueError, OverflowError) as error:  # one half of a surrogate pair, 2**64
        return pack_failure(work, Unstorable(f"{where} cannot be stored: {error}"))


def pack_failure(work: str, error: BaseException) -> bytes:
    """Return the packed outcome of *work* that raised *error*."""
    return pack(Failed(wait_error_of(work, error)))


def wait_error_of(work: str, error: BaseException) -> WaitError:
    """Return the WaitError for *work* that raised *error*, and log the error.

    The result contains the text of a `ToolError`, `McpError` or `Unstorable`, which is meant for
    clients. The text of any other error may contain secrets: it is logged, with the reference in
    the result.
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
        shown = isinstance(error, ToolError | McpError | Unstorable)
        shown &= not isinstance(error, InternalError)
        failure = WorkRaised(reference, type(error).__name__, str(error) if shown else None)
    failure.__cause__ = error
    return failure


def finished_with_error(error: McpError, *, raised: bool = True) -> Finished:
    """Return the end of a task that failed with *error*; *raised*: whether its hook raised it."""
    body = ErrorBody(error.code, error.message, error.data)
    return Finished(error=msgspec.json.encode(body), raised=raised)


def result_rejected(error: StoreUnavailable) -> Finished:
    """Return the end of a task whose result does not fit into the store."""
    message = f"The result could not be stored: {_reason(error)}"
    return finished_with_error(InternalError(message), raised=False)


def outcome_rejected(error: StoreUnavailable) -> bytes:
    """Return the packed outcome of work whose own outcome does not fit into the store."""
    message = f"its outcome could not be stored: {_reason(error)}"
    return pack(Failed(WorkRaised(token_hex(6), type(error).__name__, message)))


def _reason(error: StoreUnavailable) -> str:
    return str(error) if isinstance(error, OverShare) else "the store is full"


class NotRunnableHere(Exception):
    """Raised if this process cannot run a step, because it lacks the code.

    Args:
        reason: for the log.
        message: for the client, if no other process runs the step in time.
    """

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(reason)
        self.message = message

    def outcome(self, seconds: float) -> bytes:
        """Return the packed outcome of a job that no process has run in *seconds*."""
        return pack(Failed(WorkRaised(self._log(seconds), "UnknownJob", self.message)))

    def finished(self, seconds: float) -> Finished:
        """Return the end of a task that no process has continued in *seconds*."""
        reference = self._log(seconds)
        error = InternalError(f"{self.message} (reference {reference})", reference=reference)
        return finished_with_error(error)

    def _log(self, seconds: float) -> str:
        reference = token_hex(6)
        logger.error(
            "%s [%s]: no process has run it in %g seconds (JobOptions.unknown_timeout)",
            self,
            reference,
            seconds,
        )
        return reference
