"""What is malformed where a revision allows it, and where it does not."""

from typing import Any

import pytest

from genmcp import Call, Channel, Endpoint, Server, Tool
from genmcp.protocol.capabilities import ServerCapabilities
from genmcp.protocol.implementation import Implementation
from genmcp.protocol.result import PaginatedResult, Result
from genmcp.server import Route
from tests.asgi import ALL, LEGACIES, Client, serving


class Reports(Tool):
    """Reports progress, and returns the request's `_meta`."""

    name = "reports"

    async def call(self, request: Call, channel: Channel) -> dict[str, Any]:
        await channel.progress(1, 2)
        return dict(request.meta)


@pytest.mark.parametrize("version", LEGACIES)
@pytest.mark.parametrize(
    "meta",
    [5, None, {"progressToken": {}}, {"io.modelcontextprotocol/logLevel": "loud"}],
    ids=["number", "null", "token", "level"],
)
async def test_session_serves_a_request_with_unusable_meta(version: str, meta: Any) -> None:
    """2025-11-25, basic, "_meta": no assumptions about values. The tool sees what is left."""
    client = await Client.begin(serving(Reports), version)
    params = {"name": "reports", "arguments": {}, "_meta": meta}

    answer = await client.send(client.request("tools/call", params))

    assert 200 == answer.status
    assert "{}" == answer.json["result"]["content"][0]["text"]


@pytest.mark.parametrize("version", ALL)
@pytest.mark.parametrize(
    ("method", "params"),
    [("notifications/initialized", 5), ("notifications/cancelled", {"requestId": {}})],
)
async def test_malformed_notification_is_400(version: str, method: str, params: Any) -> None:
    """2025-11-25, transports, "Sending Messages", point 4: an error status, no `id`."""
    client = await Client.begin(serving(Reports), version)

    answer = await client.send({"jsonrpc": "2.0", "method": method, "params": params})
    good = await client.send(client.notification("notifications/initialized"))

    assert (400, -32602) == (answer.status, answer.json["error"]["code"])
    assert "id" not in answer.json
    assert 202 == good.status


class Silent(Server):
    """A server that announces nothing."""

    @property
    def info(self) -> Implementation:
        return Implementation(name="silent", version="1")

    @property
    def capabilities(self) -> ServerCapabilities:
        return ServerCapabilities()

    @property
    def methods(self) -> frozenset[str]:
        return frozenset()

    def find(self, method: str, key: str) -> Route | None:
        return None

    async def handle(self, request: Any, channel: Channel) -> Result:
        raise NotImplementedError

    async def listed(self, method: str, cursor: str | None, channel: Channel) -> PaginatedResult:
        raise NotImplementedError


@pytest.mark.parametrize("version", LEGACIES)
async def test_get_of_a_server_that_announces_nothing_is_405(version: str) -> None:
    """2025-11-25, "Listening for Messages from the Server", point 2: no stream, and no place."""
    endpoint = Endpoint(Silent())
    client = await Client.begin(endpoint, version)

    answer = await client.send(method="GET")

    assert (405, "POST") == (answer.status, answer.headers["allow"])
