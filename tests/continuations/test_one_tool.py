"""One tool, without any code about revisions, for clients of all revisions."""

import asyncio
from typing import Any

import msgspec
import pytest

from genmcp import (
    Accepted,
    CapabilityMissing,
    Channel,
    Continue,
    Done,
    Failed,
    Outcome,
    Tool,
    ToolRequest,
    elicit,
    roots,
    sample,
)
from tests.support.asgi import MODERN, PATIENCE, Connection, serving
from tests.support.asking import CAPABILITIES, ROOTS, SAMPLED, AnsweringClient, text_of


class Confirm(msgspec.Struct):
    sure: bool


class Tidy(Tool):
    """Deletes files, after listing them and asking for confirmation."""

    name = "tidy"

    async def call(self, request: ToolRequest, channel: Channel) -> Any:
        channel.assigns["begun"] = True
        return Continue("looked", {"where": roots(), "how": sample("How does one tidy up?")})

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> Any:
        own = channel.context.own_assigns
        match tag, outcome:
            case "looked", Done({"where": [root, *_], "how": how}):
                channel.assigns["where"] = root.uri
                channel.assigns["how"] = how.content.text
                return Continue("counted", self.count(root.uri))
            case "counted", Done(files):
                channel.assigns["files"] = files
                return Continue("asked", elicit(f"Tidy up {files} files?", Confirm))
            case "asked", Done(Accepted(Confirm(sure=True))):
                return f"{own} by {channel.request.arguments['who']}"
            case "asked", Failed(CapabilityMissing()):
                return (
                    f"{channel.context.own_assigns} by {channel.request.arguments['who']}, unasked"
                )
            case _, Failed(error):
                raise error
        return "Left alone."

    async def count(self, where: str) -> int:
        await asyncio.sleep(0)
        return len(where)


ANSWERS = {
    "roots/list": ROOTS,
    "sampling/createMessage": SAMPLED,
    "elicitation/create": {"action": "accept", "content": {"sure": True}},
}
TASKS: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}


async def with_retries(client: AnsweringClient, call: dict[str, Any]) -> str:
    """Call as a client of 2026-07-28: send the request again with the answers."""
    answer = await client.send(call)
    while answer.json["result"]["resultType"] == "input_required":
        answer = await client.send(client.retry(answer, **answered(answer.json["result"])))
    return text_of(answer)


def answered(result: dict[str, Any]) -> dict[str, Any]:
    """Return the answers to the questions of *result*."""
    return {name: ANSWERS[each["method"]] for name, each in result["inputRequests"].items()}


async def with_requests(client: AnsweringClient, call: dict[str, Any]) -> str:
    """Call as an earlier client: respond to requests of the server during the call."""
    async with client.open(call) as connection:
        while "method" in (message := await connection.message()):
            await client.respond(message, ANSWERS[message["method"]])
        await connection.over()
    return text_of(connection)


async def with_a_task(client: AnsweringClient, call: dict[str, Any]) -> str:
    """Call as a client with tasks: poll the task, and answer its questions."""
    result = (await client.send(call)).json["result"]
    task = {"taskId": result["taskId"]}

    async def send(method: str, **params: Any) -> Connection:
        request = client.request(method, {**task, **params})
        return await client.send(request, headers={"mcp-name": task["taskId"]})

    async with asyncio.timeout(PATIENCE):
        while result["status"] != "completed":
            if result["status"] == "input_required":
                await send("tasks/update", inputResponses=answered(result))
            result = (await send("tasks/get")).json["result"]
    text: str = result["result"]["content"][0]["text"]
    return text


@pytest.mark.parametrize(
    ("version", "capabilities", "calls", "asks"),
    [
        (MODERN, CAPABILITIES, with_retries, True),
        (MODERN, {**CAPABILITIES, **TASKS}, with_retries, True),
        (MODERN, {**CAPABILITIES, **TASKS}, with_a_task, True),
        ("2025-11-25", CAPABILITIES, with_requests, True),
        ("2025-06-18", CAPABILITIES, with_requests, True),
        ("2025-03-26", CAPABILITIES, with_requests, False),  # the client has no elicitation
    ],
)
async def test_one_tool_asks_clients_of_all_revisions(
    version: str, capabilities: Any, calls: Any, asks: bool
) -> None:
    """Two questions at once, work in this process, and another question, in each kind of call."""
    tool = Tidy()
    if calls is with_a_task:
        tool.task = "always"
    client = await AnsweringClient.begin(serving(tool), version, capabilities=capabilities)

    text = await calls(client, client.call("tidy", {"who": "Ada"}))
    await client.app.aclose()

    own = {"begun": True, "where": "file:///home", "how": "Paris", "files": 12}
    assert text == f"{own} by Ada{'' if asks else ', unasked'}"
