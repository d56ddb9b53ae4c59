"""A client that calls an ASGI application in memory: no sockets, no sleeps, every wait bounded.

Every message from the server is validated against the official schema of the revision.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from genmcp import Endpoint, Suite
from genmcp.protocol.revisions.chain import LEGACY, REVISIONS
from tests.support.definitions import definitions, validator

PATIENCE = 5.0  # seconds after which a wait fails the test

MODERN = "2026-07-28"
LEGACIES = [revision.version for revision in LEGACY]
ALL = [MODERN, *LEGACIES]

_META = "io.modelcontextprotocol/"
TASKS: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}
_NAMED = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}
_NAMED |= dict.fromkeys(("tasks/get", "tasks/update", "tasks/cancel"), "taskId")
_LATER = {"input_required": "InputRequiredResult", "task": "Result"}
_RESULTS = {
    "initialize": "InitializeResult",
    "ping": "EmptyResult",
    "logging/setLevel": "EmptyResult",
    "resources/subscribe": "EmptyResult",
    "resources/unsubscribe": "EmptyResult",
    "completion/complete": "CompleteResult",
    "server/discover": "DiscoverResult",
    "subscriptions/listen": "SubscriptionsListenResult",
    "tools/list": "ListToolsResult",
    "resources/list": "ListResourcesResult",
    "resources/templates/list": "ListResourceTemplatesResult",
    "prompts/list": "ListPromptsResult",
    "tools/call": "CallToolResult",
    "resources/read": "ReadResourceResult",
    "prompts/get": "GetPromptResult",
    "tasks/get": "Result",
    "tasks/update": "Result",
    "tasks/cancel": "Result",
}


def serving(*tools: Any, **options: Any) -> Endpoint:
    """Return an endpoint that serves *tools*."""
    return Endpoint(Suite(name="test", version="1", tools=tools), **options)


async def until(holds: Callable[[], object], *, pause: float = 0, bound: float = PATIENCE) -> None:
    """Poll until *holds*, every *pause* seconds, for at most *bound* seconds."""
    async with asyncio.timeout(bound):
        while True:
            if holds():
                return
            await asyncio.sleep(pause)


class Event:
    """One block of an event stream: an event, a retry field, or a comment."""

    def __init__(self, block: str) -> None:
        fields = dict(line.split(":", 1) for line in block.split("\n"))
        self.id = fields.get("id", "").strip() or None
        self.retry = fields.get("retry", "").strip() or None
        self.comment = fields.get("")
        self.name = fields.get("event", "message").strip()
        self.data = fields.get("data", "").strip()

    @property
    def message(self) -> Any:
        """The JSON-RPC message of the event, or None."""
        return json.loads(self.data) if self.data and self.name == "message" else None


class Connection:
    """One HTTP request to an app, and its response.

    As a context manager it runs the app until the block ends, which closes the connection.
    """

    def __init__(
        self, app: Any, scope: dict[str, Any], body: Sequence[bytes], *, client: "Client"
    ) -> None:
        self._app = app
        self._scope = scope
        self._body = list(body)
        self._client = client
        self._changed = asyncio.Event()
        self._left = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._rest = ""
        self._read = 0
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = b""
        self.events: list[Event] = []
        self.complete = False
        self.fails: Exception | None = None
        self.reading = asyncio.Event()
        self.reading.set()

    async def __aenter__(self) -> "Connection":
        self._task = asyncio.create_task(self._app(self._scope, self._receive, self._send))
        self._task.add_done_callback(lambda _: self._changed.set())
        return self

    async def __aexit__(self, *exc: object) -> None:
        self.disconnect()
        self.reading.set()
        await self.over()

    @property
    def task(self) -> "asyncio.Task[None]":
        """The asyncio.Task in which the app runs."""
        assert self._task is not None
        return self._task

    def disconnect(self) -> None:
        """Close the connection, as a client does that disconnects."""
        self._left.set()

    async def over(self) -> "Connection":
        """Wait until the app returns, and raise its exception."""
        async with asyncio.timeout(PATIENCE):
            await asyncio.wait([self.task])
        if not self.task.cancelled():
            self.task.result()
        return self

    async def started(self) -> "Connection":
        """Wait for the status and the headers of the response."""
        await self._until(lambda: self.status > 0)
        return self

    async def event(self) -> Event:
        """Wait for the next block of the event stream."""
        await self._until(lambda: len(self.events) > self._read)
        self._read += 1
        return self.events[self._read - 1]

    async def message(self) -> Any:
        """Wait for the next message on the event stream."""
        while not (event := await self.event()).data:
            pass
        return event.message

    @property
    def json(self) -> Any:
        """The decoded JSON body."""
        return json.loads(self.body)

    @property
    def messages(self) -> list[Any]:
        """All messages received, in one body or as events."""
        if self.is_stream:
            return [event.message for event in self.events if event.data]
        found = self.json
        return found if isinstance(found, list) else [found]

    @property
    def is_stream(self) -> bool:
        """Whether the response is an event stream."""
        return self.headers.get("content-type") == "text/event-stream"

    @property
    def ids(self) -> list[str]:
        """The ids of all events that have one."""
        return [event.id for event in self.events if event.id]

    @property
    def comments(self) -> list[str]:
        """The comments of the event stream."""
        return [event.comment for event in self.events if event.comment is not None]

    async def _until(self, holds: Any) -> None:
        async with asyncio.timeout(PATIENCE):
            while not holds():
                if self.task.done():
                    self.task.result()
                    raise AssertionError(f"ended too early: {self.status} {self.body!r}")
                self._changed.clear()
                await self._changed.wait()

    async def _receive(self) -> dict[str, Any]:
        if self._body:
            part = self._body.pop(0)
            return {"type": "http.request", "body": part, "more_body": bool(self._body)}
        await self._left.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Mapping[str, Any]) -> None:
        await self.reading.wait()
        if self.fails is not None:
            raise self.fails
        assert not self.complete, "sent after the end"
        if message["type"] == "http.response.start":
            assert not self.status
            self.status = message["status"]
            self.headers = {
                name.decode().lower(): value.decode() for name, value in message["headers"]
            }
            assert len(self.headers) == len(message["headers"])
        else:
            self._take(message)
        self._changed.set()

    def _take(self, message: Mapping[str, Any]) -> None:
        assert self.status
        part = message.get("body", b"")
        self.body += part
        self.complete = not message.get("more_body", False)
        if self.is_stream:
            *blocks, self._rest = (self._rest + part.decode()).split("\n\n")
            for event in map(Event, blocks):
                self.events.append(event)
                self._validate(event.message)
            assert not (self.complete and self._rest)
        elif self.complete:
            assert int(self.headers["content-length"]) == len(self.body)
            if "www-authenticate" in self.headers:
                assert [*self.json] == ["error", "error_description"]
            elif self.body:
                self._validate(self.json)

    def _validate(self, body: Any) -> None:
        for message in body if isinstance(body, list) else [body] if body else []:
            self._client.check(message)


class Client:
    """A client of one app in one revision.

    Args:
        app: the ASGI application.
        version: the revision.
        capabilities: what the client declares.
        scope: further members of the ASGI scope of each request.
    """

    def __init__(self, app: Any, version: str = MODERN, **scope: Any) -> None:
        self.app = app
        self.version = version
        self.session: str | None = None
        self.capabilities: dict[str, Any] = scope.pop("capabilities", {})
        self.scope = scope
        self.asked: dict[Any, str] = {}

    @classmethod
    async def begin(cls, app: Any, version: str = MODERN, **scope: Any) -> "Client":
        """Return a client that has initialized a session, if the revision has sessions."""
        client = cls(app, version, **scope)
        if version != MODERN:
            answer = await client.send(client.initialize())
            assert answer.status == 200, answer.body
            client.session = answer.headers["mcp-session-id"]
            client.version = answer.json["result"]["protocolVersion"]
        return client

    def initialize(self, **params: Any) -> dict[str, Any]:
        """Return an initialize request."""
        return {
            "jsonrpc": "2.0",
            "id": "begin",
            "method": "initialize",
            "params": {
                "protocolVersion": self.version,
                "capabilities": self.capabilities,
                "clientInfo": {"name": "test", "version": "1"},
                **params,
            },
        }

    def request(
        self, method: str, params: dict[str, Any] | None = None, *, id: Any = 1, **meta: Any
    ) -> dict[str, Any]:
        """Return a request; *meta* are members of its `_meta`."""
        if self.version == MODERN:
            meta = {
                _META + "protocolVersion": MODERN,
                _META + "clientInfo": {"name": "test", "version": "1"},
                _META + "clientCapabilities": self.capabilities,
                **meta,
            }
        if meta:
            params = {**(params or {}), "_meta": meta}
        message = {"jsonrpc": "2.0", "id": id, "method": method}
        return message if params is None else message | {"params": params}

    def call(
        self, name: str, arguments: dict[str, Any] | None = None, *, id: Any = 1, **meta: Any
    ) -> dict[str, Any]:
        """Return a `tools/call` request."""
        params = {"name": name, "arguments": arguments or {}}
        return self.request("tools/call", params, id=id, **meta)

    def notification(self, method: str, **params: Any) -> dict[str, Any]:
        """Return a notification."""
        return {"jsonrpc": "2.0", "method": method, "params": params}

    def open(
        self,
        message: Any = None,
        *,
        method: str = "POST",
        headers: Mapping[str, str | None] | None = None,
        body: Sequence[bytes] | None = None,
    ) -> Connection:
        """Return a connection that sends *message*, or the parts of *body* unchanged.

        *headers* are added to those that the revision requires; None omits one of them.
        """
        members = [each for each in _members(message) if isinstance(each, dict)]
        self.asked |= {each["id"]: each["method"] for each in members if _is_request(each)}
        given = {**self._headers(message), **(headers or {})}
        if body is None:
            body = [b"" if message is None else json.dumps(message).encode()]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": "/mcp",
            "raw_path": b"/mcp",
            "query_string": b"",
            "root_path": "",
            "client": None,
            "server": ("test", 80),
            "headers": [
                (name.lower().encode(), value.encode("latin-1"))
                for name, value in given.items()
                if value is not None
            ],
            **self.scope,
        }
        return Connection(self.app, scope, body, client=self)

    async def send(self, message: Any = None, **options: Any) -> Connection:
        """Send *message*, and wait until the response is complete."""
        async with self.open(message, **options) as connection:
            return await connection.over()

    def listen(self, after: str | None = None) -> Connection:
        """Return a GET request for a stream; *after* is the id of the last event received."""
        headers = {} if after is None else {"last-event-id": after}
        return self.open(method="GET", headers=headers)

    def check(self, message: Any) -> None:
        """Validate *message* against the schema of the revision."""
        version = self.version if self.version in REVISIONS else LEGACIES[0]
        if message.get("method") == "notifications/tasks":  # from SEP-2663, not in the schema
            kinds = ["JSONRPCNotification"]
        elif "method" in message and "id" in message:
            kinds = ["ServerRequest", "JSONRPCRequest"]
        elif "method" in message:
            kinds = ["ServerNotification", "JSONRPCNotification"]
        elif "error" in message:
            # The schemas allow an error without an id only from 2025-11-25 on; the prose does
            # always ("transports", "Sending Messages to the Server", point 4).
            message = {"id": 0, **message}
            names = definitions(version)
            kinds = [name for name in names if name in ("JSONRPCError", "JSONRPCErrorResponse")]
        else:
            kinds = ["JSONRPCResponse"]
            asked = _RESULTS[self.asked[message["id"]]]
            result = _LATER.get(message["result"].get("resultType", ""), asked)
            faults = [*validator(version, result).iter_errors(message["result"])]
            assert not faults, (version, result, message, faults)
        for kind in kinds:
            faults = [*validator(version, kind).iter_errors(message)]
            assert not faults, (version, kind, message, faults)

    def _headers(self, message: Any) -> dict[str, str]:
        headers = {
            "host": "test",
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            "mcp-protocol-version": self.version,
        }
        if self.version == MODERN and isinstance(message, dict) and "method" in message:
            headers["mcp-method"] = message["method"]
            member = _NAMED.get(message["method"])
            if member is not None:
                headers["mcp-name"] = message.get("params", {}).get(member, "")
        if self.session is not None:
            headers["mcp-session-id"] = self.session
        return headers


def _members(message: Any) -> list[Any]:
    return message if isinstance(message, list) else [message]


def _is_request(message: Mapping[str, Any]) -> bool:
    return isinstance(message.get("id"), int | str) and isinstance(message.get("method"), str)
