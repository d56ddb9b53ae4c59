"""Malformed messages, where a revision allows them and where not."""

import gc
from typing import Any

import msgspec
import pytest

from genmcp import Channel, Endpoint, Server, Tool, ToolRequest
from genmcp.protocol.capabilities import Implementation, ServerCapabilities
from genmcp.protocol.value import PaginatedResult, Result
from genmcp.server import Route
from tests.support.asgi import ALL, LEGACIES, Client, serving
from tests.support.garbage import no_collections as no_collections

pytestmark = pytest.mark.slow


class Reports(Tool):
    """Reports progress, and returns the request's `_meta`."""

    name = "reports"

    async def call(self, request: ToolRequest, channel: Channel) -> dict[str, Any]:
        await channel.progress(1, 2)
        return dict(request.meta)


@pytest.mark.parametrize("version", LEGACIES)
@pytest.mark.parametrize(
    "meta",
    [5, None, {"progressToken": {}}, {"io.modelcontextprotocol/logLevel": "loud"}],
    ids=["number", "null", "token", "level"],
)
async def test_session_serves_a_request_with_unusable_meta(version: str, meta: Any) -> None:
    """2025-11-25, basic, "_meta": no assumptions about values. The tool gets the valid ones."""
    client = await Client.begin(serving(Reports), version)
    params = {"name": "reports", "arguments": {}, "_meta": meta}

    answer = await client.send(client.request("tools/call", params))

    assert answer.status == 200
    assert answer.json["result"]["content"][0]["text"] == "{}"


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

    assert (answer.status, answer.json["error"]["code"]) == (400, -32602)
    assert "id" not in answer.json
    assert good.status == 202


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

    assert (answer.status, answer.headers["allow"]) == (405, "POST")


MEMBER = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": []}}
RESPONSE = {"jsonrpc": "2.0", "id": 1, "result": {}}


@pytest.mark.parametrize("version", ["2026-07-28", "2025-03-26"])
@pytest.mark.parametrize(
    "rejected",
    [
        lambda client: client.call("no"),
        lambda client: client.request("tools/list", {"cursor": 1}),
        lambda client: client.request("unknown/method"),
        lambda client: MEMBER,
        lambda client: RESPONSE,
        lambda client: [client.call("no"), MEMBER, RESPONSE],
    ],
    ids=["name", "params", "method", "notification", "response", "batch"],
)
async def test_rejected_message_leaves_no_cyclic_garbage(
    version: str, rejected: Any, no_collections: None
) -> None:
    """An error refers to the frames that it went through, which must not refer to the error."""
    app = serving(Reports)
    client = await Client.begin(app, version)
    message = rejected(client)

    async def send(answer: Any) -> None: ...

    async def garbage(times: int) -> int:
        for _ in range(times):
            bodies = [msgspec.json.encode(message)]

            async def receive(bodies: list[bytes] = bodies) -> dict[str, Any]:
                return {"type": "http.request", "body": bodies.pop()}

            names = client._headers(message if isinstance(message, dict) else None)
            headers = [(name.encode(), value.encode()) for name, value in names.items()]
            await app({"type": "http", "method": "POST", "headers": headers}, receive, send)
        return gc.collect()

    await garbage(5)

    assert await garbage(20) == await garbage(10)
