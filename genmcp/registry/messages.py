"""Messages to a mux of this process, without a transport."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from genmcp._mux.mux import Mux
from genmcp._transports.pipe import PipeConnection
from genmcp.core.failures import tool_error
from genmcp.core.server import LISTEN
from genmcp.core.session import anonymous_params, new_session
from genmcp.errors import ContractError, InternalError, McpError, MethodNotFound, ToolNotFound
from genmcp.protocol.params import CLIENT_CAPABILITIES, PROTOCOL_VERSION
from genmcp.protocol.revisions.chain import LATEST
from genmcp.protocol.revisions.v2025_11_25 import REVISION
from genmcp.protocol.tools import CallToolResult, ToolDefinition
from genmcp.wire import jsonrpc
from genmcp.wire.jsonrpc import Message

TIMEOUT: Final = 30.0
"""Default seconds for which a server may work on one message."""

# The session of messages that are sent without an `initialize` before them. Its client declared no
# capabilities, so that servers cannot send it questions.
_SESSION: Final = new_session(anonymous_params(REVISION, "in-process"), key="in-process", now=0.0)

# The connections of the messages, by the asyncio.Task that ends the connection after the call,
# which may continue as an MCP task after its response. An event loop references its asyncio.Tasks
# only weakly.
_RUNNING: Final[dict["asyncio.Task[None]", PipeConnection]] = {}


class _FirstResponse:
    """The output of a connection for one message: keeps the first response, drops the others.

    Notifications are dropped, since the caller of `send` gets only a return value.
    """

    full = False

    def __init__(self) -> None:
        self.response: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def room(self) -> None:
        """Return at once: nothing is buffered."""

    def put(self, message: bytes) -> None:
        """Keep *message* if it is the first response."""
        if not self.response.done() and (
            message.startswith(b"[") or jsonrpc.parse(message).is_response  # type: ignore[union-attr]
        ):
            self.response.set_result(message)


async def send(mux: Mux, message: Mapping[str, Any] | str | bytes, *, timeout: float) -> Any:
    """Send *message* to *mux*, and return the response as JSON values; None for a notification.

    The request runs in an asyncio.Task of its own. It is cancelled if it has no response after
    *timeout* seconds; a call that has become a task continues after its response.

    Raises:
        ContractError: *message* cannot be encoded as JSON.
    """
    body = _body(message)
    parsed = _parsed(body)
    expected = parsed is not None and parsed.is_request
    if parsed is not None and expected and parsed.method == LISTEN:
        # A stream of notifications would have no reader, and no end.
        return msgspec.json.decode(jsonrpc.encode_error(parsed.request_id, MethodNotFound(LISTEN)))
    outlet = _FirstResponse()
    connection = PipeConnection(mux, outlet, session=_SESSION)
    connection.receive(body)
    ending = asyncio.get_running_loop().create_task(_end(connection))
    _RUNNING[ending] = connection
    ending.add_done_callback(_RUNNING.pop)
    response: bytes | None = None
    try:
        if expected:
            await asyncio.wait([outlet.response], timeout=timeout)
        if outlet.response.done():
            response = outlet.response.result()
        elif parsed is not None and expected:
            response = _timed_out(parsed, timeout)
    finally:
        # Without a response the request has timed out, and is cancelled. After a response the call
        # may have become a task, which continues.
        if expected and not outlet.response.done():
            await connection.end(grace=0)
    return None if response is None else msgspec.json.decode(response)


async def _end(connection: PipeConnection) -> None:
    await connection.idle()
    await connection.end(grace=0)


async def close_connections(mux: Mux) -> None:
    """End the calls of *mux* that continue after their response, on this event loop."""
    loop = asyncio.get_running_loop()
    # A copy is iterated: other threads, with event loops of their own, may change the mapping.
    for task, connection in list(_RUNNING.items()):
        if connection.mux is mux and task.get_loop() is loop:
            await connection.end(grace=0)
            await asyncio.wait([task])


async def list_tools(mux: Mux, *, timeout: float) -> list[ToolDefinition]:
    """Return all tools that the server of *mux* lists.

    Raises:
        McpError: the server fails, or takes longer than *timeout* seconds.
    """
    found: list[ToolDefinition] = []
    params: dict[str, Any] = {}
    try:
        async with asyncio.timeout(timeout):
            while True:
                result = await _result(mux, "tools/list", params, TIMEOUT)
                found += msgspec.convert(result["tools"], list[ToolDefinition])
                if (cursor := result.get("nextCursor")) is None:
                    return found
                params = {"cursor": cursor}
    except TimeoutError:
        raise McpError(f"tools were not listed within {timeout:g} s (list_timeout)") from None


async def call_tool(
    mux: Mux, name: str, arguments: Mapping[str, Any], *, timeout: float
) -> CallToolResult | None:
    """Call the tool *name* of *mux*; return None if it has no such tool.

    Raises:
        McpError: the server responds with another error.
    """
    route = mux.find("tools/call", name)
    if route is None:
        return None
    params = {"name": name, "arguments": dict(arguments)}
    try:
        return msgspec.convert(await _result(mux, "tools/call", params, timeout), CallToolResult)
    except McpError as error:
        # Only the call shows whether a provider has a pending tool.
        if route.pending and error.message == ToolNotFound(name).message:
            return None
        raise


async def _result(mux: Mux, method: str, params: Mapping[str, Any], timeout: float) -> Any:
    """Return the result of a request of the latest revision, which needs no session.

    Raises:
        McpError: the server responds with an error.
    """
    meta = {PROTOCOL_VERSION: LATEST.version, CLIENT_CAPABILITIES: {}}
    request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    response = await send(mux, request, timeout=timeout)
    if (error := response.get("error")) is not None:
        raise McpError(error["message"], error.get("data"), code=error["code"])
    return response["result"]


def _body(message: Any) -> bytes:
    if isinstance(message, bytes):
        return message
    if isinstance(message, str):
        # A lone surrogate is rejected by the parser, as on any other transport.
        return message.encode(errors="surrogatepass")
    try:
        return msgspec.json.encode(message)
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise ContractError(f"the message is not JSON: {error}") from error


def _parsed(body: bytes) -> Message | None:
    try:
        message = jsonrpc.decode(body)
    except McpError:
        return None
    return None if isinstance(message, list) else message


def _timed_out(message: Message, seconds: float) -> bytes:
    text = f"Tool handler timed out after {seconds:g} seconds"
    assert message.request_id is not None
    if message.method != "tools/call":
        return jsonrpc.encode_error(message.request_id, InternalError(text))
    result = REVISION.down(tool_error(text))
    return jsonrpc.encode_response(message.request_id, msgspec.json.encode(result))
