"""Tasks that have failed: SEP-2663, "Task Execution Errors"."""

from typing import Any

from genmcp import Channel, McpError, Tool, ToolRequest
from tests.support.asgi import MODERN, TASKS, Client, serving


class Fails(Tool):
    """Reports progress, and fails with a protocol error."""

    name = "fails"
    task = "always"

    async def call(self, request: ToolRequest, channel: Channel) -> Any:
        await channel.progress(1, 2, "half of it")
        raise McpError("The disk is full", {"free": 0}, code=-32050)


async def test_failed_task_says_why_in_its_status_message() -> None:
    """`statusMessage` is the error's text, not the last progress; the error is there whole."""
    endpoint = serving(Fails())
    client = Client(endpoint, MODERN)
    declared = {"io.modelcontextprotocol/clientCapabilities": TASKS}

    handle = await client.send(client.call("fails", progressToken="p", **declared))
    task = {"taskId": handle.json["result"]["taskId"]}
    found: dict[str, Any] = {"status": "working"}
    while found["status"] == "working":
        got = await client.send(client.request("tasks/get", task, **declared))
        found = got.json["result"]
    await endpoint.aclose()

    assert (found["status"], found["statusMessage"]) == ("failed", "The disk is full")
    error = {"code": -32050, "message": "The disk is full", "data": {"free": 0}}
    assert (error, False) == (found["error"], "result" in found)
