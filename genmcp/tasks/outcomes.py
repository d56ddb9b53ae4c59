"""How work ended; what went wrong unexpectedly goes to the log."""

import asyncio
import logging
from concurrent import futures
from secrets import token_hex
from typing import Any

import msgspec

from genmcp.core.failures import is_expected
from genmcp.core.outcome import Done, Failed, pack
from genmcp.core.task import Finished
from genmcp.errors import (
    Cancelled,
    ContractError,
    Failure,
    InternalError,
    McpError,
    OverShare,
    Raised,
    TimedOut,
    ToolError,
    Unavailable,
)

__all__ = ["done", "failure_of", "no_room", "not_kept", "raised"]

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


def no_room(error: Unavailable) -> Finished:
    """Return the end of a task whose result does not fit into the store."""
    message = f"The result could not be kept: {_reason(error)}"
    return Finished(error=msgspec.json.encode({"code": InternalError.code, "message": message}))


def not_kept(error: Unavailable) -> bytes:
    """Return the packed outcome of work whose own outcome does not fit into the store."""
    message = f"its outcome could not be kept: {_reason(error)}"
    return pack(Failed(Raised(token_hex(6), type(error).__name__, message)))


def _reason(error: Unavailable) -> str:
    return str(error) if isinstance(error, OverShare) else "the store is full"


def failure_of(work: str, error: BaseException) -> Failure:
    """Return why *work* brought nothing that has raised *error*.

    Its text is shown only if it was raised to be shown; for any other the log has it, under the
    reference that the failure has.
    """
    if isinstance(error, Failure):
        return error
    failure: Failure
    if isinstance(error, asyncio.CancelledError | futures.CancelledError):
        failure = Cancelled()
    elif isinstance(error, TimeoutError):
        failure = TimedOut()
    else:
        reference = token_hex(6)
        if isinstance(error, Exception) and is_expected(error):
            logger.info("%s failed [%s]: %s", work, reference, error)
        else:
            logger.error("%s failed [%s]", work, reference, exc_info=error)
        shown = isinstance(error, ToolError | McpError) and not isinstance(error, InternalError)
        failure = Raised(reference, type(error).__name__, str(error) if shown else None)
    failure.__cause__ = error
    return failure


def raised(work: str, error: BaseException) -> bytes:
    """Return the outcome of *work* that raised *error*, packed."""
    return pack(Failed(failure_of(work, error)))
