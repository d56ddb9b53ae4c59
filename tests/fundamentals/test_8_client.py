"""The eighth chapter: the client, which works with any MCP server."""

import asyncio

import pytest

from genmcp import Client, RequestTimeout, ServerError, Suite, SyncClient, ToolError, tool


@tool
def divide(a: float, b: float) -> float:
    """Divides a by b."""
    if b == 0:
        raise ToolError("b is zero.")
    return a / b


@tool
async def sleep() -> None:
    """Never returns."""
    await asyncio.Event().wait()


suite = Suite(name="tutorial", version="1.0", tools=[divide, sleep])


async def test_client_of_a_server_in_this_process() -> None:
    """Without a socket: for tests, and for servers that only this application uses."""
    async with Client(suite) as client:
        names = [tool.name for tool in await client.tools()]
        result = await client.call("divide", {"a": 1, "b": 4})

    assert (names, result.text) == (["divide", "sleep"], "0.25")


async def test_failed_tool_is_a_result() -> None:
    """It is not an exception, because a model should read why the tool failed."""
    async with Client(suite) as client:
        result = await client.call("divide", {"a": 1, "b": 0})

    assert (result.is_error, result.text) == (True, "b is zero.")


async def test_error_response_is_an_exception() -> None:
    """The message is that of the server."""
    async with Client(suite) as client:
        with pytest.raises(ServerError, match="multiply"):
            await client.call("multiply", {"a": 1, "b": 0})


async def test_timeout_cancels_the_call() -> None:
    """The total in seconds, given with the call or in ClientOptions."""
    async with Client(suite) as client:
        with pytest.raises(RequestTimeout):
            await client.call("sleep", timeout=0.01)


def test_sync_client_needs_no_event_loop() -> None:
    """It has the same methods, but they block."""
    with SyncClient(suite) as client:
        result = client.call("divide", {"a": 1, "b": 4})

    assert result.text == "0.25"
