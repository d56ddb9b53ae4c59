"""Messages to a server of this process, without any transport between."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from genmcp.core.failures import tool_error
from genmcp.core.server import LISTEN
from genmcp.core.session import begin, introduction
from genmcp.errors import ContractError, InternalError, McpError, MethodNotFound
from genmcp.mux.mux import Mux
from genmcp.protocol.params import CLIENT_CAPABILITIES, PROTOCOL_VERSION
from genmcp.protocol.revisions.chain import LATEST
from genmcp.protocol.revisions.v2025_11_25 import REVISION
from genmcp.protocol.tools import ToolDefinition
from genmcp.transports.pipe import PipeConnection
from genmcp.wire import jsonrpc
from genmcp.wire.jsonrpc import Message

__all__ = ["LISTING", "TIMEOUT", "answer_of", "end_all", "tools_of"]

TIMEOUT: Final = 30.0
"""For how many seconds a server may work on one message, if nothing else is said."""

LISTING: Final = 5.0
"""For how many seconds a server is waited for when all are asked what they have."""

_PAGES: Final = 1000
"""How many pages the list of one server may have."""

#: As whom a message is answered that does not say it: nobody shook hands, nobody can be asked.
_NOBODY: Final = begin(introduction(REVISION, "in-process"), key="in-process", now=0.0)

#: What goes on behind its answer: an event loop alone would not keep it.
_RUNNING: Final[dict["asyncio.Task[None]", PipeConnection]] = {}


class _Answer:
    """An outlet that keeps the first answer there is; whatever else is said is for nobody."""

    full = False

    def __init__(self) -> None:
        self.said: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def room(self) -> None:
        """Return: there is always room."""

    def put(self, message: bytes) -> None:
        """Keep *message* if it is an answer."""
        if not self.said.done() and (
            message.startswith(b"[") or jsonrpc.parse(message).is_response  # type: ignore[union-attr]
        ):
            self.said.set_result(message)


async def answer_of(mux: Mux, message: Mapping[str, Any] | str | bytes, *, timeout: float) -> Any:
    """Return the response to *message* as JSON values; None if it is one that gets none.

    What answers it runs in an asyncio.Task of its own, and is cancelled if there is no answer
    after *timeout* seconds. What has become a task by then goes on behind its answer.

    Raises:
        ContractError: *message* is nothing that JSON has.
    """
    body = _body(message)
    answer = _Answer()
    connection = PipeConnection(mux, answer, session=_NOBODY)
    parsed = _parsed(body)
    if parsed is not None and parsed.method == LISTEN and parsed.request_id is not None:
        answer.put(jsonrpc.encode_error(parsed.request_id, MethodNotFound(LISTEN)))
    else:
        connection.receive(body)
    asked = parsed is not None and parsed.is_request
    said: bytes | None = None
    try:
        if asked:
            await asyncio.wait([answer.said], timeout=timeout)
        if answer.said.done():
            said = answer.said.result()
        elif parsed is not None and asked:
            said = _timed_out(parsed, timeout)
    finally:
        if asked and not answer.said.done():
            await connection.end(grace=0)
        else:
            await _leave(connection)
    return None if said is None else msgspec.json.decode(said)


async def _leave(connection: PipeConnection) -> None:
    """End *connection* as soon as nothing runs there any more; do not wait for that."""
    try:
        async with asyncio.timeout(0):
            await connection.idle()
    except TimeoutError:
        running = asyncio.get_running_loop().create_task(_end(connection))
        _RUNNING[running] = connection
        running.add_done_callback(_RUNNING.pop)
    else:
        await connection.end(grace=0)


async def _end(connection: PipeConnection) -> None:
    await connection.idle()
    await connection.end(grace=0)


async def end_all(mux: Mux) -> None:
    """End what goes on behind its answer of *mux*, on this event loop."""
    loop = asyncio.get_running_loop()
    for task, connection in list(_RUNNING.items()):  # threads with their own loops may change it
        if connection.mux is mux and task.get_loop() is loop:
            await connection.end(grace=0)
            await asyncio.wait([task])


def _body(message: Any) -> bytes:
    if isinstance(message, bytes):
        return message
    if isinstance(message, str):
        return message.encode(errors="surrogatepass")  # which is found to be no text there
    try:
        return msgspec.json.encode(message)
    except (TypeError, ValueError, msgspec.MsgspecError) as error:
        raise ContractError(f"the message is not JSON: {error}") from error


async def tools_of(mux: Mux) -> list[ToolDefinition]:
    """Return all that the server of *mux* lists.

    Raises:
        McpError: it cannot, not within `LISTING` seconds, or there is no end of pages.
    """
    try:
        async with asyncio.timeout(LISTING):
            return await _listed(mux)
    except TimeoutError:
        raise McpError(f"Its tools were not listed within {LISTING:g} seconds") from None


async def _listed(mux: Mux) -> list[ToolDefinition]:
    meta = {PROTOCOL_VERSION: LATEST.version, CLIENT_CAPABILITIES: {}}
    message: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    params: dict[str, Any] = {"_meta": meta}
    found: list[ToolDefinition] = []
    for _ in range(_PAGES):
        answer = await answer_of(mux, {**message, "params": params}, timeout=TIMEOUT)
        if (error := answer.get("error")) is not None:
            raise McpError(error["message"], error.get("data"), code=error["code"])
        found += msgspec.convert(answer["result"]["tools"], list[ToolDefinition])
        if (cursor := answer["result"].get("nextCursor")) is None:
            return found
        params = {**params, "cursor": cursor}
    raise McpError(f"Its tools have no end: they were listed on more than {_PAGES} pages")


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
