"""How work ended, packed for a record; what went wrong unexpectedly goes to the log."""

import logging
from secrets import token_hex
from typing import Any

from genmcp.core.failures import is_expected
from genmcp.core.outcome import Done, Failed, pack
from genmcp.errors import ContractError, McpError, Raised, ToolError

__all__ = ["done", "raised"]

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


def raised(work: str, error: BaseException) -> bytes:
    """Return the outcome of *work* that raised *error*.

    Its text is shown only if it was raised to be shown; for any other the log has it.
    """
    reference = token_hex(6)
    if is_expected(error):
        logger.info("%s failed [%s]: %s", work, reference, error)
    else:
        logger.error("%s failed [%s]", work, reference, exc_info=error)
    shown = str(error) if isinstance(error, ToolError | McpError) else None
    return pack(Failed(Raised(reference, type(error).__name__, shown)))
