"""A minimal client of any revision, for tests of statuses and JSON."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx
import msgspec

from genmcp import Endpoint, Mux, Server
from genmcp._wire.sse import EventReader, SseEvent

MODERN = "2026-07-28"
VERSIONS = ["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", MODERN]


class Answer(NamedTuple):
    """The HTTP status, the JSON-RPC response, and the notifications before it."""

    status: int
    message: dict[str, Any]
    notifications: list[dict[str, Any]]

    @property
    def result(self) -> dict[str, Any]:
        found: dict[str, Any] = self.message["result"]
        return found

    @property
    def error(self) -> dict[str, Any]:
        found: dict[str, Any] = self.message["error"]
        return found

    @property
    def text(self) -> str:
        """The text of the only content block."""
        (block,) = self.result["content"]
        text: str = block["text"]
        return text


class Speaker:
    """One client, which has shaken hands if its revision does that."""

    def __init__(self, http: httpx.AsyncClient, version: str) -> None:
        self.http = http
        self.version = version
        self.session: dict[str, str] = {}

    async def initialize(self) -> Answer:
        """Shake hands; the session's id goes with every request from then on."""
        return await self.request(
            "initialize",
            {
                "protocolVersion": self.version,
                "capabilities": {},
                "clientInfo": {"name": "test", "version": "1"},
            },
        )

    async def call(self, name: str, arguments: Any = None, **meta: Any) -> Answer:
        """Call a tool; None leaves `arguments` out."""
        given = {} if arguments is None else {"arguments": arguments}
        return await self.request("tools/call", {"name": name, **given}, **meta)

    async def request(self, method: str, params: Mapping[str, Any], **meta: Any) -> Answer:
        """Send a request; `meta` is added to its `_meta`."""
        headers = {"accept": "application/json, text/event-stream", **self.session}
        if self.version == MODERN:
            headers |= {"mcp-protocol-version": MODERN, "mcp-method": method}
            key = params.get("uri") if method == "resources/read" else params.get("name")
            if key is not None:
                headers["mcp-name"] = key
            meta = {
                "io.modelcontextprotocol/protocolVersion": MODERN,
                "io.modelcontextprotocol/clientCapabilities": {},
                **meta,
            }
        body = {"jsonrpc": "2.0", "id": 7, "method": method, "params": {**params, "_meta": meta}}
        response = await self.http.post("/", json=body, headers=headers)
        if id := response.headers.get("mcp-session-id"):
            self.session = {"mcp-session-id": id, "mcp-protocol-version": self.version}
        return answer_of(response)


@asynccontextmanager
async def speak(target: Server | Mux | Endpoint, version: str = MODERN) -> AsyncIterator[Speaker]:
    """Serve a target in memory, and give a client that speaks `version` with it."""
    endpoint = target if isinstance(target, Endpoint) else Endpoint(target)
    transport = httpx.ASGITransport(endpoint)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        speaker = Speaker(http, version)
        if version != MODERN:
            await speaker.initialize()
        yield speaker
    await endpoint.aclose()


def answer_of(response: httpx.Response) -> Answer:
    """Read a response: one JSON message, or an event stream that ends with it."""
    if response.headers["content-type"] == "application/json":
        return Answer(response.status_code, response.json(), [])
    events = EventReader().feed(response.content)
    said = [event.data for event in events if isinstance(event, SseEvent) and event.data]
    *notifications, message = [msgspec.json.decode(data) for data in said]
    return Answer(response.status_code, message, notifications)
