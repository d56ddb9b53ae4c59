"""A client in memory that returns statuses and JSON, for tests of responses in any revision."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from genmcp import Endpoint, Mux, Server
from tests.support.asgi import ALL, MODERN, Client, Connection

VERSIONS = ALL[::-1]


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
    """Sends requests through *client*, and returns each response as an `Answer`."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def initialize(self) -> Answer:
        """Initialize a session, for all further requests."""
        response = await self.client.send(self.client.initialize())
        self.client.session = response.headers["mcp-session-id"]
        return answer_of(response)

    async def call(self, name: str, arguments: Any = None, **meta: Any) -> Answer:
        """Call a tool; None leaves `arguments` out."""
        given = {} if arguments is None else {"arguments": arguments}
        return await self.request("tools/call", {"name": name, **given}, **meta)

    async def request(self, method: str, params: Mapping[str, Any], **meta: Any) -> Answer:
        """Send a request; `meta` is added to its `_meta`."""
        return answer_of(
            await self.client.send(self.client.request(method, {**params}, id=7, **meta))
        )


@asynccontextmanager
async def speak(target: Server | Mux | Endpoint, version: str = MODERN) -> AsyncIterator[Speaker]:
    """Serve a target in memory, and yield a client of it for revision `version`."""
    endpoint = target if isinstance(target, Endpoint) else Endpoint(target)
    speaker = Speaker(Client(endpoint, version))
    if version != MODERN:
        await speaker.initialize()
    yield speaker
    await endpoint.aclose()


def answer_of(response: Connection) -> Answer:
    """Return a response: one JSON message, or the last message of an event stream."""
    *notifications, message = response.messages
    return Answer(response.status, message, notifications)
