"""A server that was upgraded, and one that lacks the only allowed revision."""

import asyncio
import json
from typing import Any

import pytest

from genmcp import Endpoint, Suite, tool
from genmcp.client.client import Client
from genmcp.client.errors import UnsupportedRevision
from genmcp.client.options import ClientOptions
from tests.client.scripted import Asked, app_of
from tests.hub.far import NEW, OLD, Far
from tests.support.serving import serve


@tool
async def version() -> str:
    """Reports that the server is the new one."""
    return "new"


async def old(asked: Asked) -> None:
    """A server of 2025-06-18 with sessions."""
    message = json.loads(asked.body or b"{}")
    match message.get("method"):
        case "initialize":
            result: Any = {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "old", "version": "1"},
            }
        case "tools/call":
            result = {"content": [{"type": "text", "text": "old"}]}
        case "notifications/initialized":
            await asked.reply(202)
            return
        case _:
            await asked.reply(405)
            return
    answer = {"jsonrpc": "2.0", "id": message["id"], "result": result}
    await asked.reply(200, answer, mcp_session_id="s")


async def test_upgraded_server_is_probed_when_a_session_ends() -> None:
    """A server that has lost its sessions was started again, and may speak a newer revision."""
    serving: list[Any] = [app_of(old)]

    async def host(scope: Any, receive: Any, send: Any) -> None:
        await serving[-1](scope, receive, send)

    async with asyncio.timeout(20), serve(host) as url, Client(url) as client:
        assert (client.revision, (await client.call("version")).text) == ("2025-06-18", "old")
        serving.append(Endpoint(Suite(name="new", version="2", tools=[version])))
        assert (await client.call("version")).text == "new"
        assert client.revision == "2026-07-28"


@pytest.mark.parametrize(
    ("discovered", "supported", "advice"),
    [
        ({"supportedVersions": [OLD], "capabilities": {}}, (OLD,), f"the server supports {OLD}"),
        (None, (), f"does not support {NEW}"),
    ],
)
async def test_server_without_the_pinned_revision_is_explained(
    discovered: Any, supported: tuple[str, ...], advice: str
) -> None:
    """It has not violated the protocol: the error names its revisions, and the option to change."""

    async def discover(*_: object) -> Any:
        return discovered

    client = Client(Far(**{"server/discover": discover}), options=ClientOptions(revision=NEW))
    with pytest.raises(UnsupportedRevision, match=r"ClientOptions\(revision=...\)") as failed:
        await client.open()

    assert failed.value.supported == supported
    assert advice in str(failed.value)
    assert not failed.value.sent
