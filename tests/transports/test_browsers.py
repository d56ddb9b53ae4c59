"""CORS: the requests that a web page needs, and those it must not make."""

import asyncio
from typing import Any

import pytest

from genmcp import Channel, Security, Tool, ToolRequest
from tests.support.asgi import Client, serving

PAGE = "https://app.example.com"


class Greet(Tool):
    """Greets."""

    name = "greet"

    async def call(self, request: ToolRequest, channel: Channel) -> str:
        await channel.progress(1)
        return "hello"


def endpoint() -> Any:
    return serving(Greet, security=Security(allowed_origins=[PAGE]))


async def test_preflight_allows_every_header_of_every_revision() -> None:
    """204, with the methods, the headers (`Mcp-Param-*` among them) and the readable headers."""
    client = Client(endpoint())

    answer = await client.send(
        method="OPTIONS",
        headers={
            "origin": PAGE,
            "access-control-request-method": "POST",
            "access-control-request-headers": "mcp-param-region, x-other",
        },
    )

    allowed = answer.headers["access-control-allow-headers"].split(", ")
    assert (answer.status, answer.body) == (204, b"")
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert set(allowed) == {
        "accept",
        "authorization",
        "content-type",
        "dpop",
        "last-event-id",
        "mcp-method",
        "mcp-name",
        "mcp-param-region",
        "mcp-protocol-version",
        "mcp-session-id",
    }
    assert set(answer.headers["access-control-allow-methods"].split(", ")) == {
        "GET",
        "POST",
        "DELETE",
        "OPTIONS",
    }


async def test_preflight_is_not_asked_who_it_is() -> None:
    """Browsers send it without credentials, which a `principal` may insist on."""

    def who(scope: Any) -> str:
        raise LookupError("no credentials")

    client = Client(serving(Greet, security=Security(allowed_origins=[PAGE]), principal=who))

    answer = await client.send(method="OPTIONS", headers={"origin": PAGE})

    assert answer.status == 204


async def test_options_without_a_page_names_the_methods() -> None:
    """A client without an origin gets the allowed methods."""
    answer = await Client(endpoint()).send(method="OPTIONS")

    assert (answer.status, answer.headers["allow"]) == (204, "GET, POST, DELETE, OPTIONS")
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize("token", [None, 1])
async def test_answers_can_be_read_by_the_page(token: int | None) -> None:
    """JSON and streams alike."""
    client = Client(endpoint())
    meta: dict[str, Any] = {} if token is None else {"progressToken": token}

    answer = await client.send(client.call("greet", **meta), headers={"origin": PAGE})

    assert answer.is_stream == bool(token)
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert "mcp-session-id" in answer.headers["access-control-expose-headers"]
    assert answer.headers["vary"] == "origin"


@pytest.mark.parametrize("how", ["unknown", "body", "head", "method", "session", "crash"])
async def test_errors_can_be_read_by_the_page(how: str) -> None:
    """A page must be able to distinguish a 404 of its session from a network failure."""
    client = Client(endpoint())
    if how == "session":
        client = await Client.begin(client.app, "2025-11-25")
        client.session = "forged"
    if how == "crash":
        client.app._admission._copied = ("key",)
        client.scope = {"state": 3}
    ways: dict[str, dict[str, Any]] = {
        "unknown": {"message": client.call("sing")},
        "body": {"body": [b"{"]},
        "head": {"message": client.call("greet"), "headers": {"content-type": "text/plain"}},
        "method": {"method": "PUT"},
        "session": {"method": "GET"},
        "crash": {"message": client.call("greet")},
    }
    sent = ways[how]

    answer = await client.send(**{**sent, "headers": {**sent.get("headers", {}), "origin": PAGE}})

    assert "error" in answer.json
    assert answer.headers["access-control-allow-origin"] == PAGE


async def test_a_listening_page_can_read_its_stream() -> None:
    """GET carries the headers too."""
    client = await Client.begin(endpoint(), "2025-11-25")
    async with client.open(method="GET", headers={"origin": PAGE}) as listener:
        await listener.started()
        await asyncio.sleep(0)

    assert listener.headers["access-control-allow-origin"] == PAGE


@pytest.mark.parametrize("method", ["OPTIONS", "POST", "GET", "DELETE"])
async def test_pages_that_are_not_allowed_get_nothing(method: str) -> None:
    """403 for every method, which names the origin and the setting, and no CORS header."""
    client = Client(endpoint())

    answer = await client.send(
        client.call("greet") if method == "POST" else None,
        method=method,
        headers={"origin": "https://evil.example"},
    )

    assert answer.status == 403
    assert "https://evil.example" in answer.json["error"]["message"]
    assert "allowed_origins" in answer.json["error"]["message"]
    assert "access-control-allow-origin" not in answer.headers


@pytest.mark.parametrize(
    "accept",
    [
        "application/json, text/html;q=0.9",
        "text/html;q=0, */*",
        "text/event-stream, text/html",
        "application/json, text/html",
        "*/*",
        "text/html;q=x",
    ],
)
async def test_client_that_prefers_json_gets_no_page(accept: str) -> None:
    """The page is for browsers: a client of the protocol gets the error that it can read."""
    answer = await Client(endpoint()).send(method="GET", headers={"accept": accept})

    assert answer.status == 405
    assert answer.headers["content-type"] == "application/json"
    assert answer.json["error"]["message"]
