"""Unanswered questions of servers behind a hub: they do not block those to other clients."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette

from genmcp import (
    Accepted,
    Channel,
    Continue,
    Done,
    Endpoint,
    Outcome,
    Suite,
    Tool,
    ToolRequest,
    elicit,
)
from genmcp.client.client import Client
from genmcp.client.errors import ServerError
from genmcp.client.handler import ClientHandler
from genmcp.client.options import ClientOptions
from genmcp.core.client_key import ClientKey
from genmcp.errors import ConfigurationError, Overloaded
from genmcp.hub.config import ServerConfig
from genmcp.hub.hub import Hub
from genmcp.hub.relay import QuestionLimiter
from tests.support.serving import serve
from tests.support.sockets import Connection, http

pytestmark = pytest.mark.slow

TIME = 20.0
REVISIONS = ["2026-07-28", "2025-11-25"]


class Ask(Tool):
    """Asks for a confirmation."""

    name = "ask"

    async def call(self, request: ToolRequest, channel: Channel) -> Continue:
        """Ask."""
        return Continue("asked", elicit("Go on?"))

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> str:
        """Return the answer."""
        return "agreed" if isinstance(outcome, Done) else f"refused: {outcome}"


class Bob(ClientHandler):
    """Agrees."""

    async def handle_elicitation_create(self, *_: Any) -> Any:
        return Accepted({})


class Mallory(ClientHandler):
    """Never answers; counts the questions."""

    most_open = 16

    def __init__(self) -> None:
        self.asked = asyncio.Semaphore(0)

    async def handle_elicitation_create(self, *_: Any) -> Any:
        self.asked.release()
        await asyncio.Event().wait()


def user(scope: Mapping[str, Any]) -> str | None:
    """Return the name that a header of the request claims."""
    name: bytes = dict(scope["headers"]).get(b"x-user", b"")
    return name.decode() or None


def hub_app(*configs: ServerConfig, options: ClientOptions) -> Starlette:
    """Return an application that serves a hub of *configs* at /mcp."""
    hub = Hub(options=options)
    endpoint = Endpoint(hub.server(), principal=user)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        async with hub:
            for config in configs:
                await hub.add(config)
            yield
        await endpoint.aclose()

    return Starlette(routes=[endpoint.route("/mcp")], lifespan=lifespan)


@asynccontextmanager
async def served(behind: str) -> AsyncIterator[str]:
    """Serve a hub of a server over HTTP that asks, and give the URL."""
    asking = Endpoint(Suite(name="asking", version="1", tools=[Ask]))
    options = ClientOptions(revision=behind)
    async with asyncio.timeout(TIME), serve(asking) as far:
        app = hub_app(ServerConfig("far", url=far), options=options)
        async with serve(app) as url:
            yield f"{url}/mcp"


def client_of(url: str, name: str, handler: ClientHandler, before: str) -> Client:
    """Return a client that calls as *name*."""
    return Client(
        url,
        headers={"x-user": name},
        handler=handler,
        options=ClientOptions(revision=before),
    )


@pytest.mark.parametrize("before", REVISIONS)
@pytest.mark.parametrize("behind", REVISIONS)
async def test_open_questions_do_not_count_for_the_client(behind: str, before: str) -> None:
    """They take none of the places for questions of the hub's client."""
    mallory = Mallory()
    async with (
        served(behind) as url,
        client_of(url, "mallory", mallory, before) as one,
        client_of(url, "bob", Bob(), before) as other,
    ):
        calls = [asyncio.ensure_future(one.call("far/ask")) for _ in range(10)]
        for _ in calls:
            await mallory.asked.acquire()
        assert (await other.call("far/ask")).text == "agreed"
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)


@pytest.mark.parametrize("behind", REVISIONS)
async def test_questions_of_one_client_are_bounded(behind: str) -> None:
    """Further questions are rejected, those of others forwarded."""
    mallory = Mallory()
    async with (
        served(behind) as url,
        client_of(url, "mallory", mallory, REVISIONS[0]) as one,
        client_of(url, "bob", Bob(), REVISIONS[0]) as other,
    ):
        calls = [asyncio.ensure_future(one.call("far/ask")) for _ in range(16)]
        for _ in calls:
            await mallory.asked.acquire()
        try:
            refused = str((await one.call("far/ask")).content)
        except ServerError as error:
            refused = str(error)
        assert "Too many questions wait for the client: 16" in refused
        for _ in range(4):  # each place is free again
            assert (await other.call("far/ask")).text == "agreed"
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)


def stdio(**options: Any) -> ServerConfig:
    """Return a server over stdio, a process of its own."""
    path = str(Path(__file__).with_name("stdio_server.py"))
    env = {"PYTHONPATH": os.pathsep.join(sys.path)}
    return ServerConfig("far", command=sys.executable, args=[path], env=env, **options)


async def test_open_forms_over_stdio_do_not_block() -> None:
    """Since 2026-07-28 a question is a response, which identifies its call."""
    mallory = Mallory()
    app = hub_app(stdio(revision="2026-07-28"), options=ClientOptions())
    async with (
        asyncio.timeout(TIME),
        serve(app) as root,
        client_of(f"{root}/mcp", "mallory", mallory, REVISIONS[0]) as one,
        client_of(f"{root}/mcp", "bob", Bob(), REVISIONS[0]) as other,
    ):
        calls = []
        for _ in range(10):
            calls.append(asyncio.ensure_future(one.call("far/ask")))
            await mallory.asked.acquire()
        assert (await other.call("far/ask")).text == "agreed"
        for call in calls:
            call.cancel()
        await asyncio.wait(calls)


async def test_form_of_a_disconnected_client_does_not_block() -> None:
    """At a server over stdio, which does not identify the call of a question.

    Before 2026-07-28 the response is open while the client answers: its end shows at once.
    """
    app = hub_app(stdio(revision="2025-11-25"), options=ClientOptions())
    async with asyncio.timeout(TIME), serve(app) as root:
        url = f"{root}/mcp"
        async with await Connection.open(root) as gone:
            headers = {"x-user": "mallory"}
            who = {"name": "mallory", "version": "1"}
            params = {
                "protocolVersion": "2025-11-25",
                "capabilities": {"elicitation": {}},
                "clientInfo": who,
            }
            begun = await gone.ask(
                http("POST", headers, message(id=0, method="initialize", params=params))
            )
            await begun.body()
            headers["mcp-session-id"] = begun.headers["mcp-session-id"]
            call = message(id=1, method="tools/call", params={"name": "far/ask", "arguments": {}})
            answer = await gone.ask(http("POST", headers, call))
            async for chunk in answer.chunks():
                if b"elicitation/create" in chunk:
                    break
        async with client_of(url, "bob", Bob(), REVISIONS[0]) as other:
            refused = (await other.call("far/ask")).text
            asked = (await other.call("far/ask")).text
    assert "agreed" in (refused, asked)


def message(**members: Any) -> bytes:
    """Return a JSON-RPC message."""
    return json.dumps({"jsonrpc": "2.0", **members}).encode()


@pytest.mark.parametrize("wrong", [{"separator": " "}, {"promote_after": -1}])
def test_hub_names_the_invalid_setting(wrong: dict[str, Any]) -> None:
    """When it is made."""
    with pytest.raises(ConfigurationError, match=next(iter(wrong))):
        Hub(**wrong)


def test_questions_of_anonymous_clients_are_bounded_together() -> None:
    """By session and by address, so that clients with a principal still receive questions."""
    asked, held = QuestionLimiter(), ExitStack()
    sessions = [ClientKey(session=f"{each}", address="192.0.2.1") for each in range(5)]
    far = [ClientKey(address=f"198.51.100.{each}") for each in range(737)]
    bob = [ClientKey(principal=f"bob {each}") for each in range(201)]

    def refused(client: ClientKey) -> str:
        with pytest.raises(Overloaded) as error, asked.slot(client):
            pass
        return str(error.value)

    with held:
        for client in [each for each in sessions[:4] for _ in range(16)]:
            if client is sessions[1]:
                assert "wait for the client: 16" in refused(sessions[0])
            held.enter_context(asked.slot(client))
        assert "wait for the address of the client: 64" in refused(sessions[4])
        for client in far[:736]:
            held.enter_context(asked.slot(client))
        assert "wait for anonymous clients: 800" in refused(far[736])
        for client in bob[:200]:
            held.enter_context(asked.slot(client))
        assert "wait for all clients: 1000" in refused(bob[200])
    with asked.slot(sessions[0]):
        pass
