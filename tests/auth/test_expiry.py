"""A stream that only listens ends with its token, so that the client opens it with a new one."""

import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from genmcp import Channel, tool
from tests.support.asgi import until
from tests.support.serving import serve
from tests.support.tokens import (
    HEADERS,
    Tokens,
    access,
    bearing,
    call,
    called,
    guarded,
    request,
)

LIFE = 0.7  # seconds
LEGACY = "2025-11-25"


@pytest.fixture
async def http() -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(timeout=10) as client:
        yield client


def short_lived(seconds: float = LIFE) -> Tokens:
    return Tokens(ada=access("ada", expires=time.time() + seconds), new=access("ada"))


@tool
async def outlives(until_time: float, channel: Channel) -> str:
    """Runs until some time, and reports progress before."""
    await channel.progress(1)
    await until(lambda: time.time() > until_time, pause=0.02)
    return "done"


def initialize() -> dict[str, Any]:
    params = {
        "protocolVersion": LEGACY,
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    }
    message = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
    return {"headers": {**HEADERS}, "content": json.dumps(message)}


def messages(text: str) -> list[Any]:
    return [json.loads(line[5:]) for line in text.split("\n") if line.startswith("data: {")]


async def test_subscription_ends_with_its_token(http: httpx.AsyncClient) -> None:
    """With the response that ends it in order: 2026-07-28, "Graceful Closure"."""
    verify = short_lived()
    options = request("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    async with serve(guarded(verify=verify)) as url:
        response = await http.post(f"{url}/mcp", **bearing("ada", options))
        ended = time.time()
        refused = await called(http, f"{url}/mcp", "stolen")
        again = await called(http, f"{url}/mcp", "new")

    first, last = messages(response.text)
    assert first["method"] == "notifications/subscriptions/acknowledged"
    assert last["id"] == 1 and "result" in last
    assert ended >= verify.tokens["ada"].expires  # type: ignore[union-attr, operator]
    assert (refused.status_code, again.status_code) == (401, 200)


async def test_stream_of_session_ends_with_its_token(http: httpx.AsyncClient) -> None:
    """The body ends as a whole; the session continues with the next token of the user."""
    endpoint = guarded(verify=short_lived())
    async with serve(endpoint) as url:
        opened = await http.post(f"{url}/mcp", **bearing("ada", initialize()))
        session = {"mcp-session-id": opened.headers["mcp-session-id"]}
        listening = {**HEADERS, **session, "authorization": "Bearer ada"}
        response = await http.get(f"{url}/mcp", headers=listening)
        listening["authorization"] = "Bearer new"
        async with http.stream("GET", f"{url}/mcp", headers=listening) as reopened:
            assert reopened.status_code == 200

    assert response.status_code == 200
    assert response.headers["content-type"] == "text/event-stream"


async def test_running_call_survives_its_token(http: httpx.AsyncClient) -> None:
    """It was authorized when it began; its progress and its result still come."""
    until_time = time.time() + 2 * LIFE
    options = call("outlives", {"until_time": until_time}, progressToken=1)
    async with serve(guarded(outlives, verify=short_lived())) as url:
        response = await http.post(f"{url}/mcp", **bearing("ada", options))

    progress, result = messages(response.text)
    assert progress["method"] == "notifications/progress"
    assert result["result"]["content"][0]["text"] == "done"


async def test_stream_of_a_pair_ends_when_its_calls_have(http: httpx.AsyncClient) -> None:
    """HTTP+SSE: the responses of running calls come on the stream that listens."""
    until_time = time.time() + 2 * LIFE
    endpoint = guarded(outlives, verify=short_lived())
    app = Starlette(routes=[endpoint.sse_route("/sse")])
    events: list[str] = []
    async with serve(app) as url:
        headers = {**HEADERS, "authorization": "Bearer ada"}
        async with http.stream("GET", f"{url}/sse", headers=headers) as stream:
            async for line in stream.aiter_lines():
                if line.startswith("data: /sse?"):
                    path = line.removeprefix("data: ")
                    await http.post(f"{url}{path}", **bearing("ada", initialize()))
                    arguments = {"until_time": until_time}
                    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
                    message["params"] = {"name": "outlives", "arguments": arguments}
                    await http.post(f"{url}{path}", headers=headers, json=message)
                elif line.startswith("data: {"):
                    events.append(line)

    answered = [each for each in messages("\n".join(events)) if each.get("id") == 1]
    assert answered[0]["result"]["content"][0]["text"] == "done"


async def test_stream_of_a_pair_ends_with_its_token(http: httpx.AsyncClient) -> None:
    """Without running calls, at once."""
    app = Starlette(routes=[guarded(verify=short_lived()).sse_route("/sse")])
    async with serve(app) as url:
        headers = {"authorization": "Bearer ada"}
        response = await http.get(f"{url}/sse", headers=headers)

    assert response.text.startswith("event: endpoint")


async def test_stream_of_an_expired_token_is_not_a_loop(http: httpx.AsyncClient) -> None:
    """A verifier allows for wrong clocks: a stream that ended at once would be reopened at once."""
    endpoint = guarded(verify=short_lived(-5), endpoint={"heartbeat": 0.2})
    options = request("subscriptions/listen", {"notifications": {}})
    async with (
        serve(endpoint) as url,
        http.stream("POST", f"{url}/mcp", **bearing("ada", options)) as stream,
    ):
        lines = stream.aiter_lines()
        while not (line := await anext(lines)).startswith(":"):  # a heartbeat: it is still open
            assert '"result"' not in line
