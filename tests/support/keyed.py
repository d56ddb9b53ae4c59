"""Calls with an idempotency key: a tool, an endpoint, and stores that fail at a chosen write."""

import asyncio
from collections.abc import Callable
from typing import Any

from genmcp import (
    Accepted,
    Continue,
    Done,
    Endpoint,
    JobOptions,
    MemoryStore,
    Mux,
    Run,
    SQLiteStore,
    Store,
    Suite,
    Tool,
    elicit,
    job,
)
from genmcp.stores.store import Op, Put, StoreEntry
from tests.support.asgi import MODERN, PATIENCE, Client, Connection

KEY = "io.genmcp/idempotencyKey"
LEGACY = "2025-11-25"
ASKS: dict[str, Any] = {"elicitation": {"form": {}}}
NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
BOB = {"action": "accept", "content": {"name": "Bob"}}


class Stage:
    """Controls the job of a test. go: lets it end. runs: how often it has begun."""

    go: asyncio.Event
    runs: int

    @classmethod
    def reset(cls) -> None:
        """Prepare the next test."""
        cls.go, cls.runs = asyncio.Event(), 0


@job(name="keyed.work")
async def work(run: Run) -> str:
    Stage.runs += 1
    await Stage.go.wait()
    return "worked"


def works() -> Continue:
    """Let a job do the work."""
    return Continue("done", work.job())


def asks() -> Continue:
    """Ask the client for a name."""
    return Continue("named", elicit("Who?", NAME))


class Counts(Tool):
    """Counts its calls and cancellations, and returns the value of the test.

    does: returns that value; an Event: waits for it first. An exception is raised.
    """

    result_ttl = 60.0

    def __init__(
        self, does: Callable[[], Any] = lambda: None, name: str = "counts", **options: Any
    ) -> None:
        self.name = name
        self.does = does
        self.calls = self.continued = self.cancels = 0
        for option, value in options.items():
            setattr(self, option, value)

    async def call(self, request: Any, channel: Any) -> Any:
        self.calls += 1
        text, given = f"call {self.calls}", self.does()
        if isinstance(given, asyncio.Event):
            await given.wait()
            given = None
        if isinstance(given, Exception):
            raise given
        return text if given is None else given

    async def continue_(self, tag: str, outcome: Any, channel: Any) -> Any:
        self.continued += 1
        match outcome:
            case Done(Accepted(content)):
                return f"{tag} {content['name']} of {self.calls}"
            case Done(value):
                return f"{tag} {value} of {self.calls}"
        raise outcome.error

    def on_cancel(self, channel: Any) -> None:
        self.cancels += 1


OPEN: list[Mux] = []
"""The muxes of `serving` in the present test, which `closed` closes."""


async def close_all() -> None:
    """Close the muxes of the present test."""
    while OPEN:
        await OPEN.pop().aclose()


def serving(
    *tools: Any,
    store: Store | None = None,
    lease: float = 30.0,
    secret: Any = "a secret of 16 bytes",
    **jobs: Any,
) -> Endpoint:
    """Return an endpoint that takes the principal from the scope of the request."""
    options = {"shutdown_grace": 0.0, **jobs}
    mux = Mux(
        Suite(name="test", version="1", tools=tools),
        store=store or MemoryStore(),
        jobs=JobOptions(lease=lease, **options),
        secret=secret,
    )
    OPEN.append(mux)
    return Endpoint(mux, principal=lambda scope: scope.get("who"))


async def begin(app: Endpoint, version: str = MODERN, **options: Any) -> Client:
    """Return a client, which is ann's unless *options* name another."""
    return await Client.begin(app, version, **{"who": "ann", **options})


def keyed(client: Client, key: str = "k", *, tool: str = "counts", **arguments: Any) -> Any:
    """Return a call with *key*."""
    return client.call(tool, arguments, **{KEY: key})


def answered(client: Client, asked: Connection, **arguments: Any) -> Any:
    """Return the call again, with the answer to the question in *asked*."""
    result = asked.json["result"]
    again = keyed(client, **arguments)
    answers = dict.fromkeys(result["inputRequests"], BOB)
    again["params"] |= {"requestState": result["requestState"], "inputResponses": answers}
    return again


def said(answer: Connection) -> str:
    """Return the text of a result."""
    found: str = answer.messages[-1]["result"]["content"][0]["text"]
    return found


async def call(client: Client, key: str = "k", **arguments: Any) -> str:
    """Return the text of the result of a call with *key*."""
    return said(await client.send(keyed(client, key, **arguments)))


def refused(answer: Connection) -> str:
    """Return the message of an error about the params."""
    error = answer.json["error"]
    assert error["code"] == -32602
    found: str = error["message"]
    return found


async def over(client: Client, id: str) -> dict[str, Any]:
    """Return a task after its end."""
    async with asyncio.timeout(PATIENCE):
        while True:
            answer = await client.send(client.request("tasks/get", {"taskId": id}))
            found: dict[str, Any] = answer.json["result"]
            if found["status"] not in ("working", "input_required"):
                return found
            await asyncio.sleep(0.01)


class Held(Store):
    """A store of which a test holds back a write, or lets it fail, once.

    which: the writes concerned; None: none any more. before, after: what happens around the next of
    them, an event to wait for or an exception. reached: set once it begins.
    """

    which: Callable[[Op], bool] | None = None
    before: Any = None
    after: Any = None
    reached: asyncio.Event

    def next(self, which: Callable[[Op], bool], before: Any = None, after: Any = None) -> None:
        self.which, self.before, self.after = which, before, after
        self.reached = asyncio.Event()

    async def apply(self, *ops: Op) -> None:
        if self.which is None or not any(map(self.which, ops)):
            await super().apply(*ops)  # type: ignore[safe-super]
            return
        self.which = None
        self.reached.set()
        await _happens(self.before)
        await super().apply(*ops)  # type: ignore[safe-super]
        await _happens(self.after)


async def _happens(what: Any) -> None:
    if isinstance(what, asyncio.Event):
        await what.wait()
    elif what is not None:
        raise what


class HeldMemory(Held, MemoryStore):
    """Yields in each read, so that copies meet."""

    async def get(self, key: str) -> StoreEntry | None:
        found = await super().get(key)
        await asyncio.sleep(0)
        return found


class HeldFile(Held, SQLiteStore):
    pass


def is_record(op: Op) -> bool:
    """Whether *op* writes the record of a task."""
    return isinstance(op, Put) and "/task:" in op.key and "#" not in op.key


def changes_record(op: Op) -> bool:
    """Whether *op* writes the record of a task that exists already."""
    return is_record(op) and isinstance(op, Put) and bool(op.expect)
