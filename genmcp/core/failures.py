"""What an exception from a hook means to the client.

DESIGN: exception text never leaves unless it was raised to be shown. A failure the model should
read is a result of the call; a failure of the request is an error.
"""

from genmcp.core.request import Request
from genmcp.errors import (
    ContractError,
    InternalError,
    InvalidArguments,
    McpError,
    MissingCapability,
    Overloaded,
    OverShare,
    StoreError,
    ToolError,
    Unable,
)
from genmcp.protocol.content import TextContent
from genmcp.protocol.revisions.revision import Revision
from genmcp.protocol.tools import CallToolResult

__all__ = ["is_expected", "outcome_of", "status_of"]


def is_expected(error: BaseException) -> bool:
    """Whether *error* was raised to be shown, so that it needs no place in the log."""
    shown = isinstance(error, ToolError | McpError) and not isinstance(error, InternalError)
    return shown or isinstance(error, Overloaded | Unable)


def status_of(error: McpError, revision: Revision) -> int:
    """Return the HTTP status of *error* where it answers an accepted request.

    Before 2026-07-28 that is a message like any other, which clients read only if it is 200.
    """
    return error.status if revision.modern else 200


def outcome_of(error: Exception, request: Request, reference: str) -> CallToolResult | McpError:
    """Return what answers *request* when its hook raised *error*.

    *reference* is what the log calls the failure; it is all that an unexpected one shows.
    """
    call = request.method == "tools/call"
    if (
        isinstance(error, InvalidArguments)
        and call
        and request.revision.argument_faults_are_results
    ):
        # SEP-1303: the model can correct its arguments only if it gets to read the faults.
        return _failed(error.message)
    if isinstance(error, McpError):
        return error
    if isinstance(error, Unable) and request.revision.modern:
        # 2026-07-28, basic, "_meta": MUST. Before, there is no error for it.
        return MissingCapability(error.capabilities)
    if isinstance(error, ToolError | Unable):
        return _failed(str(error)) if call else InternalError(str(error))
    if isinstance(error, OverShare):
        return Overloaded(str(error), retry_after=60, status=429)
    if isinstance(error, StoreError):
        # It is no fault of the tool: the store is full, say, and will not be for ever.
        return Overloaded(f"The server cannot keep what this needs now (reference {reference})")
    if call and not isinstance(error, ContractError):
        return _failed(f"The tool failed unexpectedly (reference {reference}).")
    return InternalError(f"Internal error (reference {reference})", reference=reference)


def _failed(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text)], is_error=True)
