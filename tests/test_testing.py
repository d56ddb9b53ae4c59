"""`genmcp.testing`: a client in memory."""

from typing import Any

import pytest

from genmcp import Channel, Endpoint, InvalidParams, McpError, Mux, Suite, Tool, tool
from genmcp.protocol.params import NotificationParams
from genmcp.testing import Notification, connect
from genmcp.tool import Call


@tool
async def greet(name: str, channel: Channel) -> str:
    """Greets somebody."""
    await channel.progress(1, 2)
    await channel.log("debug", name)
    await channel.notify("notifications/tools/list_changed", NotificationParams())
    return f"Hello, {name}."


SUITE = Suite(name="test", version="1", tools=[greet])


async def test_testing_client_discovers_lists_and_calls() -> None:
    """Answers are values of the protocol."""
    async with connect(SUITE) as client:
        discovered = await client.request("server/discover")
        (listed,) = await client.tools()
        answer = await client.call("greet", {"name": "Ada"})

    assert "2026-07-28" == discovered.supported_versions[0]
    assert ("greet", "Greets somebody.") == (listed.name, listed.description)
    assert "Hello, Ada." == answer.content[0].text  # type: ignore[union-attr]


async def test_testing_client_keeps_what_it_is_told_on_the_way() -> None:
    """Progress and logs are kept with every other notification, in order."""
    async with connect(SUITE) as client:
        await client.call("greet", {"name": "Ada"})

    assert [(1, 2)] == [(said.progress, said.total) for said in client.progress]
    assert [("debug", "Ada")] == [(said.level, said.data) for said in client.logs]
    methods = [said.method for said in client.notifications]
    assert ["notifications/progress", "notifications/message"] == methods[:2]
    assert (
        Notification("notifications/tools/list_changed", NotificationParams())
        == (client.notifications[2])
    )


async def test_testing_client_raises_errors() -> None:
    """An error answer is an McpError with its code, data and HTTP status."""

    @tool
    async def refuse() -> None:
        raise InvalidParams("never", {"a": 1})

    async with connect(Suite(name="test", version="1", tools=[refuse])) as client:
        with pytest.raises(McpError, match="never") as refused:
            await client.call("refuse")
        with pytest.raises(McpError) as unknown:
            await client.request("no/such/method")

    assert (-32602, {"a": 1}, 200) == (
        refused.value.code,
        refused.value.data,
        refused.value.status,
    )
    assert (-32601, 404) == (unknown.value.code, unknown.value.status)


async def test_testing_client_mirrors_arguments_in_headers() -> None:
    """A tool with `x-mcp-header` is called as the specification wants it."""

    class Query(Tool):
        name = "query"
        input_schema = {
            "type": "object",
            "properties": {
                "region": {"type": "string", "x-mcp-header": "Region"},
                "limit": {"type": "integer", "x-mcp-header": "Limit"},
                "where": {
                    "type": "object",
                    "properties": {"city": {"type": "string", "x-mcp-header": "City"}},
                },
            },
        }

        async def call(self, request: Call, channel: Channel) -> Any:
            return request.arguments

    arguments = {"region": "north", "limit": 5, "where": {"city": "Tromsø"}}
    async with connect(Suite(name="test", version="1", tools=[Query])) as client:
        whole = await client.call("query", arguments)
        less = await client.call("query", {"region": "north"})

    assert arguments == whole.structured_content
    assert {"region": "north"} == less.structured_content


async def test_testing_client_takes_what_an_endpoint_takes() -> None:
    """A server, a mux, or an endpoint with options; the latter two stay open behind it."""
    mux = Mux(SUITE)
    for target in (SUITE, mux, Endpoint(mux)):
        async with connect(target) as client:
            assert not (await client.call("greet", {"name": "Ada"})).is_error
    await mux.aclose()
