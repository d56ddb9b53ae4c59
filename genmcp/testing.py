"""Tests of a server in memory: the real endpoint, without a network.

async with connect(suite) as client:
    result = await client.call("add", {"a": 1, "b": 2})

assert result.content == [TextContent("3.0")]
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import msgspec

from genmcp.errors import McpError
from genmcp.mux.mux import Mux
from genmcp.protocol.completion import CompleteResult, Completion, Reference
from genmcp.protocol.content import ResourceContents, ResourceDefinition
from genmcp.protocol.params import (
    CLIENT_CAPABILITIES,
    LOG_LEVEL,
    PROTOCOL_VERSION,
    LoggingLevel,
    LoggingMessageNotificationParams,
    ProgressNotificationParams,
)
from genmcp.protocol.prompts import GetPromptResult, PromptDefinition
from genmcp.protocol.resources import ReadResourceResult, ResourceTemplateDefinition
from genmcp.protocol.revisions.chain import LATEST
from genmcp.protocol.tools import CallToolResult, ToolDefinition
from genmcp.schema.arguments import arguments_of
from genmcp.server import Server
from genmcp.transports.endpoint import Endpoint
from genmcp.transports.request import Receive, Scope, Send
from genmcp.wire import jsonrpc
from genmcp.wire.param_headers import HeaderRule, encode_value
from genmcp.wire.sse import Event, EventReader

__all__ = ["Notification", "RecordingClient", "connect"]


class Notification(msgspec.Struct, frozen=True):
    """What a server said on the way to an answer."""

    method: str
    params: Any


class RecordingClient:
    """A client of 2026-07-28. Each of its methods raises McpError for an error answer.

    notifications: what has come so far, the oldest first.
    """

    def __init__(self, http: httpx.AsyncClient, mux: Mux, log_level: LoggingLevel) -> None:
        self.notifications: list[Notification] = []
        self._http = http
        self._mux = mux
        self._log_level = log_level
        self._requests = 0

    @property
    def progress(self) -> Sequence[ProgressNotificationParams]:
        """The progress that was reported."""
        return [said.params for said in self.notifications if said.method.endswith("/progress")]

    @property
    def logs(self) -> Sequence[LoggingMessageNotificationParams]:
        """The log messages that came."""
        return [said.params for said in self.notifications if said.method.endswith("/message")]

    async def call(self, name: str, arguments: Mapping[str, Any] | None = None) -> CallToolResult:
        """Call a tool."""
        params = {"name": name, "arguments": dict(arguments or {})}
        result: CallToolResult = await self.request("tools/call", params)
        return result

    async def read(self, uri: str) -> Sequence[ResourceContents]:
        """Read a resource."""
        result: ReadResourceResult = await self.request("resources/read", {"uri": uri})
        return result.contents

    async def prompt(
        self, name: str, arguments: Mapping[str, str] | None = None
    ) -> GetPromptResult:
        """Get a prompt."""
        params = {"name": name, "arguments": dict(arguments or {})}
        result: GetPromptResult = await self.request("prompts/get", params)
        return result

    async def complete(
        self,
        reference: Reference,
        argument: str,
        value: str = "",
        context: Mapping[str, str] | None = None,
    ) -> Completion:
        """Complete an argument of a prompt, or a variable of a resource template."""
        params = {
            "ref": msgspec.to_builtins(reference),
            "argument": {"name": argument, "value": value},
            "context": {"arguments": dict(context or {})},
        }
        result: CompleteResult = await self.request("completion/complete", params)
        return result.completion

    async def tools(self) -> Sequence[ToolDefinition]:
        """Return the tools the server lists, on all pages; so do the other lists."""
        return await self._listed("tools/list", "tools")

    async def resources(self) -> Sequence[ResourceDefinition]:
        """Return the resources the server lists."""
        return await self._listed("resources/list", "resources")

    async def templates(self) -> Sequence[ResourceTemplateDefinition]:
        """Return the resource templates the server lists."""
        return await self._listed("resources/templates/list", "resource_templates")

    async def prompts(self) -> Sequence[PromptDefinition]:
        """Return the prompts the server lists."""
        return await self._listed("prompts/list", "prompts")

    async def request(self, method: str, params: Mapping[str, Any] | None = None) -> Any:
        """Send any request and return its result, as the value of `genmcp.protocol` it is."""
        self._requests += 1
        given = dict(params or {})
        headers = await self._headers(method, given)
        given["_meta"] = {
            PROTOCOL_VERSION: LATEST.version,
            CLIENT_CAPABILITIES: {},
            LOG_LEVEL: self._log_level,
            "progressToken": self._requests,
            **given.get("_meta", {}),
        }
        body = {"jsonrpc": "2.0", "id": self._requests, "method": method, "params": given}
        response = await self._http.post("/", json=body, headers=headers)
        *before, answer = _messages(response)
        for said in before:
            decoder = LATEST.methods[said.method].params_decoder
            self.notifications.append(Notification(said.method, decoder.decode(said.params)))
        if (error := answer.error) is not None:
            raise McpError(error.message, error.data, code=error.code, status=response.status_code)
        return msgspec.json.decode(answer.result, type=LATEST.methods[method].result)

    async def _listed(self, method: str, member: str) -> list[Any]:
        found: list[Any] = []
        cursor: str | None = None
        while True:
            page = await self.request(method, {} if cursor is None else {"cursor": cursor})
            found += getattr(page, member)
            cursor = page.next_cursor
            if cursor is None:
                return found

    async def _mirrored(self, method: str, key: str) -> Sequence[HeaderRule]:
        """Return which arguments headers repeat."""
        route = self._mux.find(method, key)
        if route is None or not route.pending or method != "tools/call":
            return () if route is None else route.headers
        schemas = (each.input_schema for each in await self.tools() if each.name == key)
        return next((arguments_of(schema).headers for schema in schemas), ())

    async def _headers(self, method: str, params: Mapping[str, Any]) -> dict[str, str]:
        headers = {
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": LATEST.version,
            "mcp-method": method,
        }
        known = LATEST.methods.get(method)
        key = None if known is None or known.name_member is None else params.get(known.name_member)
        if key is None:
            return headers
        headers["mcp-name"] = encode_value(key)
        arguments = params.get("arguments")
        for rule in await self._mirrored(method, key) if arguments else ():
            value: Any = arguments
            for step in rule.path:
                value = value.get(step) if isinstance(value, dict) else None
            if value is not None:
                text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
                headers[rule.name.decode()] = encode_value(text)
        return headers


@asynccontextmanager
async def connect(
    target: Server | Mux | Endpoint,
    *,
    state: Mapping[str, Any] | None = None,
    log_level: LoggingLevel = "debug",
) -> AsyncIterator[RecordingClient]:
    """Serve *target* in memory and give a client of it.

    state: what the host's middleware would have put into `request.state`, for `copy_assigns`.
    log_level: the least severe log message the client asks for.
    """
    endpoint = target if isinstance(target, Endpoint) else Endpoint(target)

    async def host(scope: Scope, receive: Receive, send: Send) -> None:
        await endpoint({**scope, "state": dict(state or {})}, receive, send)

    transport = httpx.ASGITransport(host)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        try:
            yield RecordingClient(http, endpoint.mux, log_level)
        finally:
            if isinstance(target, Server):
                await endpoint.aclose()


def _messages(response: httpx.Response) -> Sequence[Any]:
    if response.headers["content-type"] == "application/json":
        return [jsonrpc.decode(response.content)]
    events = EventReader().feed(response.content)
    return [jsonrpc.decode(event.data) for event in events if isinstance(event, Event)]
