"""Messages to a server of this process, without any transport between."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from genmcp.core.session import begin
from genmcp.errors import InternalError, McpError, MethodNotFound
from genmcp.mux.mux import LISTEN, Mux
from genmcp.protocol.content import TextContent
from genmcp.protocol.implementation import Implementation
from genmcp.protocol.revisions.v2025_11_25 import REVISION, InitializeRequestParams
from genmcp.protocol.tools import CallToolResult
from genmcp.transports.conversation import Conversation
from genmcp.wire import jsonrpc
from genmcp.wire.jsonrpc import Message

__all__ = ["answer_of"]

#: As whom a message is answered that does not say it: nobody shook hands, nobody can be asked.
_NOBODY: Final = begin(
    msgspec.convert(
        {
            "protocolVersion": REVISION.version,
            "capabilities": {},
            "clientInfo": msgspec.to_builtins(Implementation(name="in-process", version="1")),
        },
        InitializeRequestParams,
    ),
    key="in-process",
    now=0.0,
)


class _Answers:
    """An outlet that keeps what answers something; notifications are for nobody."""

    full = False

    def __init__(self) -> None:
        self.said: list[bytes] = []

    async def room(self) -> None:
        """Return: there is always room."""

    def put(self, message: bytes) -> None:
        """Keep *message* if it is an answer."""
        if message.startswith(b"[") or jsonrpc.parse(message).is_response:  # type: ignore[union-attr]
            self.said.append(message)


async def answer_of(mux: Mux, message: Mapping[str, Any] | str | bytes, *, timeout: float) -> Any:
    """Return the response to *message* as JSON values; None if it is one that gets none.

    What answers it runs in an asyncio.Task of its own, which is cancelled after *timeout* seconds.
    """
    body = message.encode() if isinstance(message, str) else message
    if not isinstance(body, bytes):
        body = msgspec.json.encode(body)
    said = _Answers()
    conversation = Conversation(mux, said, session=_NOBODY)
    parsed = _parsed(body)
    if parsed is not None and parsed.method == LISTEN and parsed.request_id is not None:
        said.put(jsonrpc.encode_error(parsed.request_id, MethodNotFound(LISTEN)))
    else:
        conversation.take(body)
    try:
        async with asyncio.timeout(timeout):
            await conversation.idle()
    except TimeoutError:
        if parsed is not None and parsed.request_id is not None:
            said.said[:] = [_timed_out(parsed, timeout)]
    finally:
        await conversation.end(grace=0)
    return msgspec.json.decode(said.said[0]) if said.said else None


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
    result = CallToolResult(content=[TextContent(text)], is_error=True)
    return jsonrpc.encode_response(message.request_id, msgspec.json.encode(REVISION.down(result)))
