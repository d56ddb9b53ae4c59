"""The response to a request whose hook has raised.

The text of an exception is sent only if its class is meant for clients (`is_expected`). A failure
that the model should read becomes a result with `isError`. A failure of the request becomes a
JSON-RPC error.
"""

from collections.abc import Mapping
from typing import Any

from genmcp.core.request import Request
from genmcp.errors import (
    CapabilityMissing,
    ContractError,
    InsufficientScope,
    InternalError,
    InvalidArguments,
    McpError,
    MissingCapability,
    Overloaded,
    OverShare,
    StoreError,
    StoreFull,
    ToolError,
    UnknownFormat,
    WaitError,
)
from genmcp.protocol.capabilities import TASKS
from genmcp.protocol.content import TextContent
from genmcp.protocol.params import ERROR_DATA
from genmcp.protocol.revisions.chain import LATEST
from genmcp.protocol.revisions.revision import Revision
from genmcp.protocol.tools import CallToolResult


def is_expected(error: BaseException) -> bool:
    """Return whether *error* was raised to be shown to the client, and needs no log record."""
    shown = isinstance(error, ToolError | McpError | WaitError | OverShare | StoreFull)
    return shown and (isinstance(error, Overloaded) or not isinstance(error, InternalError))


def http_status_of(error: McpError, revision: Revision) -> int:
    """Return the HTTP status of *error* as the response to an accepted request.

    Before 2026-07-28 such a response is a message like any other, which clients read only if the
    status is 200.
    """
    return error.status if revision.modern else 200


def failure_result(error: Exception, request: Request, reference: str) -> CallToolResult | McpError:
    """Return the result or error for *request*, after its hook has raised *error*.

    *reference* names the failure in the log; the client of an unexpected failure sees nothing else.
    """
    call = request.method == "tools/call"
    if isinstance(error, InvalidArguments) and call:
        # SEP-1303: the model can correct its arguments only if it gets to read the faults. Earlier
        # revisions permit it ("Invalid input data" is among their tool execution errors), and hosts
        # raise on an error response instead of showing it to the model.
        return tool_error(error.message, None if error.data is None else {ERROR_DATA: error.data})
    if isinstance(error, InsufficientScope) and call:
        return tool_error(error.message)
    if isinstance(error, McpError):
        return error
    if isinstance(error, CapabilityMissing) and request.revision.modern:
        # 2026-07-28, basic, "_meta": MUST. Earlier revisions define no error for it.
        return MissingCapability(error.capabilities)
    if isinstance(error, ToolError | WaitError):  # the text of both may be shown
        text = _unable(error, request) if isinstance(error, CapabilityMissing) else str(error)
        # An McpError has the status 200, not 500: the error is explained, the server works.
        return tool_error(text) if call else McpError(text)
    # Neither the tool nor the request is at fault: the client may retry, and should see when.
    if isinstance(error, StoreError):
        return store_failure(error, reference)
    if call and not isinstance(error, ContractError):
        return tool_error(f"The tool failed unexpectedly (reference {reference}).")
    return InternalError(f"Internal error (reference {reference})", reference=reference)


def _unable(error: CapabilityMissing, request: Request) -> str:
    """Return the message of *error* for a revision that has no error code for it."""
    if TASKS not in error.capabilities.get("extensions", ()):
        return str(error)
    # A client of this revision cannot declare the extension, so its name alone would not help.
    return (
        f"This call needs tasks: a client that speaks {LATEST.version} and declares the extension "
        f"{TASKS}. This client speaks {request.revision.version}."
    )


def store_failure(error: StoreError, reference: str) -> InternalError:
    """Return the response to a request that failed in the store.

    It is not an error of the tool: a full store, for example, is temporary. A record of another
    release is permanent: the response names the formats and suggests no retry.
    """
    if isinstance(error, UnknownFormat):
        return InternalError(f"{error} (reference {reference})", reference=reference)
    if isinstance(error, OverShare):
        return Overloaded(str(error), retry_after=60, status=429)
    if isinstance(error, StoreFull):
        return Overloaded("The server's store is full", retry_after=60)
    return Overloaded(f"The server cannot keep what this needs now (reference {reference})")


def tool_error(text: str, meta: Mapping[str, Any] | None = None) -> CallToolResult:
    """Return the result that shows *text* to a model as an error."""
    return CallToolResult(content=[TextContent(text)], is_error=True, meta=meta)
