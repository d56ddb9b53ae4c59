"""A client that answers questions, and tools that ask and wait."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Self

from genmcp import (
    Channel,
    Continue,
    Done,
    Endpoint,
    Failed,
    Mux,
    Outcome,
    Suite,
    Tool,
    ToolRequest,
)
from tests.support.asgi import MODERN, Client, Connection

CAPABILITIES: dict[str, Any] = {
    "elicitation": {"form": {}, "url": {}},
    "sampling": {"tools": {}},
    "roots": {},
}
"""The capabilities of a client that can be asked everything."""

YES = {"action": "accept", "content": {}}
ROOTS = {"roots": [{"uri": "file:///home"}]}
SAMPLED = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "Paris"}}


class AnsweringClient(Client):
    """A client that declares every capability by default, and answers questions."""

    def __init__(self, app: Any, version: str = MODERN, **options: Any) -> None:
        super().__init__(app, version, **{"capabilities": CAPABILITIES, **options})
        self.sent: list[dict[str, Any]] = []
        self.requests = 0

    @classmethod
    async def begin(cls, app: Any, version: str = MODERN, **options: Any) -> Self:
        """Return a client that has initialized a session, if the revision has sessions."""
        client = await super().begin(app, version, **options)
        assert isinstance(client, cls)
        return client

    def request(
        self, method: str, params: dict[str, Any] | None = None, *, id: Any = None, **meta: Any
    ) -> dict[str, Any]:
        """Return a request, with a new id unless one is given."""
        self.requests += 1
        return super().request(method, params, id=self.requests if id is None else id, **meta)

    def call(
        self, name: str, arguments: dict[str, Any] | None = None, *, id: Any = None, **meta: Any
    ) -> dict[str, Any]:
        """Return a `tools/call` request."""
        return super().call(name, arguments, id=id, **meta)

    def retry(self, first: Connection, /, **responses: Any) -> dict[str, Any]:
        """Return the call of *first* again, with *responses* to the questions in its result."""
        (call,) = [m for m in self.sent if m["id"] == first.json["id"]]
        more = {"requestState": first.json["result"]["requestState"], "inputResponses": responses}
        self.requests += 1
        return {**call, "id": self.requests, "params": {**call["params"], **more}}

    def open(self, message: Any = None, **options: Any) -> Connection:
        """Return a connection that sends *message*."""
        if isinstance(message, dict):
            self.sent.append(message)
        return super().open(message, **options)

    async def respond(self, question: Mapping[str, Any], result: Any, **options: Any) -> Connection:
        """Send the *result* of a request of the server, in a POST of its own."""
        answer = {"jsonrpc": "2.0", "id": question["id"], "result": result}
        return await self.send(answer, **options)

    async def refuse(self, question: Mapping[str, Any], message: str) -> Connection:
        """Send an error as the response to a request of the server."""
        error = {"code": -1, "message": message}
        return await self.send({"jsonrpc": "2.0", "id": question["id"], "error": error})


class Waits(Tool):
    """Waits for the result of *factory*, and records and returns the outcome.

    Args:
        factory: called with the arguments of each call.
        attributes: attributes of the tool.

    Attributes:
        started: a semaphore that is released when a call starts to wait.
    """

    name = "wait"

    def __init__(self, factory: Callable[[dict[str, Any]], Any], **attributes: Any) -> None:
        vars(self).update(attributes)
        self.factory = factory
        self.started = asyncio.Semaphore(0)
        self.outcomes: list[Outcome] = []

    async def call(self, request: ToolRequest, channel: Channel) -> Any:
        self.started.release()
        return Continue("waited", self.factory(request.arguments))

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> str:
        self.outcomes.append(outcome)
        match outcome:
            case Done(value):
                return str(value)
            case Failed(error):
                return f"{type(error).__name__}: {error}"


def muxed(*tools: Any, **options: Any) -> Endpoint:
    """Return an endpoint that serves *tools* in a mux with *options*.

    The principal is `who` in the ASGI scope.
    """
    mux = Mux(Suite(name="test", version="1", tools=tools), **options)
    return Endpoint(mux, principal=lambda scope: scope.get("who"))


def text_of(answered: Connection) -> str:
    """Return the text of the last result, which must not be an error."""
    result = answered.messages[-1]["result"]
    assert not result.get("isError"), result
    (block,) = result["content"]
    found: str = block["text"]
    return found


def failure_of(answered: Connection) -> str:
    """Return the text of the last result, which must be an error."""
    result = answered.messages[-1]["result"]
    assert result["isError"] is True
    (block,) = result["content"]
    found: str = block["text"]
    return found
