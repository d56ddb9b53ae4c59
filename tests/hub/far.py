"""A scripted server without a process or a socket."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import msgspec

from genmcp.channel import Channel
from genmcp.client.errors import ConnectError, SessionEnded
from genmcp.client.handler import ClientHandler
from genmcp.client.transports.base import Transport, TransportSink
from genmcp.core.client.events import SendMessage
from genmcp.core.client_key import LOCAL
from tests.support.channels import Local

__all__ = ["NEW", "NOBODY", "OLD", "TIME", "Far", "Piped", "User", "gate", "said"]

TIME = 10.0
_REQUEST = SimpleNamespace(session=None, answers_by_retry=True)
#: A connection to a client that is notified of no changes.
NOBODY = cast(
    Channel,
    SimpleNamespace(
        principal=None,
        request=_REQUEST,
        context=SimpleNamespace(caller=Local(), client=LOCAL.client),
    ),
)
OLD, NEW = "2025-06-18", "2026-07-28"
WHO: dict[str, Any] = {"type": "object", "properties": {"name": {"type": "string"}}}


class Far(Transport):
    """A server with the tools *answers*, which refuses connections while it is `down`."""

    per_message: ClassVar[bool] = True
    server_name = "far"

    def __init__(self, **answers: Callable[["Far", SendMessage], Awaitable[Any]]) -> None:
        self.answers = answers
        self.called: list[str] = []
        self.names = ["slow", "quick"]
        self.down = False
        self.forgets = False
        self.closed = 0
        self.cancelled = asyncio.Event()
        self.over = asyncio.Event()
        self.replies: asyncio.Queue[Any] = asyncio.Queue()
        self.sink: TransportSink
        self.questions: asyncio.Queue[Any] = asyncio.Queue()
        self.stream: asyncio.Task[None] | None = None

    async def open(self, sink: TransportSink) -> None:
        """Accept the connection."""
        self.sink = sink

    async def close(self) -> None:
        """Close the connection."""
        self.closed += 1
        self.over.set()
        if self.stream is not None:
            self.stream.cancel()

    async def send(self, message: SendMessage) -> None:
        """Answer a known request."""
        body = msgspec.json.decode(message.message)
        method, params = body.get("method"), body.get("params", {})
        if self.down:
            assert message.id is not None
            self.sink.on_failure(message.id, ConnectError("far", "it is down"))
        elif method is None:
            self.replies.put_nowait(body)
        elif method == "notifications/cancelled":
            self.cancelled.set()
        elif method == "notifications/initialized":
            if self.stream is not None:
                self.stream.cancel()
            self.stream = asyncio.ensure_future(self.ask())
        elif message.id is not None:
            if method == "tools/call":
                if self.forgets:
                    self.forgets = False
                    self.sink.on_failure(message.id, SessionEnded("far", 404))
                    return
                self.called.append(params["name"])
                method = params["name"]
            self.reply(message.id, await self.result(method, message))

    async def result(self, method: str, message: SendMessage) -> Any:
        """Return the result of a request, None for an error."""
        rest = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
        offered = {"tools": {"listChanged": True}}
        if method in self.answers:
            return await self.answers[method](self, message)
        if method == "initialize":
            info = {"name": "far", "version": "1"}
            return {"protocolVersion": OLD, "capabilities": offered, "serverInfo": info}
        if method == "server/discover":
            return {**rest, "supportedVersions": [NEW], "capabilities": offered}
        if method == "tools/list":
            schema = {"type": "object"}
            tools = [{"name": name, "inputSchema": schema} for name in self.names]
            return {**rest, "tools": tools}
        return said("done") if method in self.names else None

    def reply(self, id: Any, result: Any) -> None:
        """Answer request *id*."""
        answer = {"error": {"code": -32601, "message": "unknown"}}
        if result is not None:
            answer = {"result": result}
        self.sink.on_message(msgspec.json.encode({"jsonrpc": "2.0", "id": id, **answer}), id)

    async def ask(self) -> None:
        """Send the messages of `questions` on the stream of the GET."""
        while True:
            said = await self.questions.get()
            if isinstance(said, tuple):
                id, message = said
                params = {"message": message, "requestedSchema": WHO}
                said = {"id": id, "method": "elicitation/create", "params": params}
            self.sink.on_message(msgspec.json.encode({"jsonrpc": "2.0", **said}))
            self.questions.task_done()


class Piped(Far):
    """A server with one stream for all messages, as over stdio."""

    per_message: ClassVar[bool] = False


def said(text: str) -> dict[str, Any]:
    """Return a result with this text."""
    return {"resultType": "complete", "content": [{"type": "text", "text": text}]}


class User(ClientHandler):
    """Answers with a name, and records the questions."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.asked: list[str] = []

    async def handle_elicitation_create(self, message: str, schema: Mapping[str, Any]) -> Any:
        """Give the name."""
        self.asked.append(message)
        return {"action": "accept", "content": {"name": self.name}}


def gate() -> tuple[asyncio.Event, asyncio.Event, Callable[[Far, SendMessage], Awaitable[Any]]]:
    """Return an event for a begun call, one that lets it end, and the function that answers it."""
    came, go = asyncio.Event(), asyncio.Event()

    async def answer(far: Far, message: SendMessage) -> Any:
        came.set()
        await go.wait()
        return said("done")

    return came, go, answer
