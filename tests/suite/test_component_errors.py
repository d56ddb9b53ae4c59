"""Errors of resources and prompts with a text, and the `data` of errors."""

from typing import Any

import msgspec
import pytest

from genmcp import (
    CallToolResult,
    Channel,
    Prompt,
    PromptError,
    PromptRequest,
    Resource,
    ResourceError,
    Suite,
    Tool,
    ToolError,
    ToolRequest,
    result,
)
from genmcp.resources import ResourceRepo
from tests.support.asgi import MODERN
from tests.support.speaking import VERSIONS, Answer, speak


class Offline(Resource):
    """A resource whose backend is down."""

    uri = "shelf://1"
    name = "shelf"
    error: type[Exception] = ResourceError

    async def read(self, key: str, channel: Channel) -> Any:
        raise self.error("The shelf is being moved.")


class Undecided(Prompt):
    """A prompt that cannot be made."""

    name = "undecided"

    async def get(self, request: PromptRequest, channel: Channel) -> Any:
        raise PromptError("No text has been approved.")


async def answer_to(target: Suite, version: str, method: str, **params: Any) -> Answer:
    async with speak(target, version) as client:
        return await client.request(method, params)


@pytest.mark.parametrize("version", VERSIONS)
async def test_resource_error_shows_its_text(
    version: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Resources have no `isError`: the text is that of a -32603, HTTP 200.

    2026-07-28, server/resources, "Error Handling": -32603 for internal errors.
    """
    suite = Suite(name="test", version="1", resources=[Offline])

    answer = await answer_to(suite, version, "resources/read", uri="shelf://1")

    assert (answer.status, answer.error["code"]) == (200, -32603)
    assert answer.error["message"] == "The shelf is being moved."
    assert not caplog.records


@pytest.mark.parametrize("version", VERSIONS)
async def test_tool_error_of_a_resource_is_no_server_error(version: str) -> None:
    """Helpers shared with tools may raise it: the text is meant to be shown here, too."""

    class Shared(Offline):
        error = ToolError

    suite = Suite(name="test", version="1", resources=[Shared])

    answer = await answer_to(suite, version, "resources/read", uri="shelf://1")

    assert (answer.status, answer.error["code"]) == (200, -32603)
    assert answer.error["message"] == "The shelf is being moved."


@pytest.mark.parametrize("version", VERSIONS)
async def test_prompt_error_shows_its_text(version: str) -> None:
    """2026-07-28, server/prompts, "Error Handling": -32603 for internal errors."""
    suite = Suite(name="test", version="1", prompts=[Undecided])

    answer = await answer_to(suite, version, "prompts/get", name="undecided")

    assert (answer.status, answer.error["code"]) == (200, -32603)
    assert answer.error["message"] == "No text has been approved."


async def test_log_of_a_failure_stays_on_its_line(caplog: pytest.LogCaptureFixture) -> None:
    """A client chose the URI: no forged records, no escape sequences for a terminal."""

    class Broken(ResourceRepo):
        name = "broken"
        prefix = "broken://"

        async def read(self, key: Any, channel: Channel) -> Any:
            raise RuntimeError("no")

    suite = Suite(name="test", version="1", resources=[Broken])

    await answer_to(suite, "2025-11-25", "resources/read", uri="broken://a\n\x1b[31mERROR forged")

    (record,) = caplog.records
    assert "forged" in record.getMessage()
    assert record.getMessage().isprintable()


class Pair(msgspec.Struct):
    a: int


class Add(Tool[Pair]):
    """Takes a number."""

    name = "add"

    async def call(self, request: ToolRequest[Pair], channel: Channel) -> str:
        return "added"


class Typed(Prompt[Pair]):
    """Takes a number."""

    name = "typed"

    async def get(self, request: PromptRequest[Pair], channel: Channel) -> str:
        return "typed"


@pytest.mark.parametrize("version", VERSIONS)
async def test_error_data_has_one_shape(version: str) -> None:
    """`name` or `uri` identifies the component; `faults` have a pointer and both values."""
    suite = Suite(name="test", version="1", tools=[Add], prompts=[Typed], resources=[Offline])
    async with speak(suite, version) as client:
        absent = [
            await client.request(method, {member: "no://thing"})
            for method, member in (
                ("tools/call", "name"),
                ("prompts/get", "name"),
                ("resources/read", "uri"),
            )
        ]
        called = await client.call("add", {"a": "x"})
        got = await client.request("prompts/get", {"name": "typed", "arguments": {"a": "x"}})
        malformed = await client.request("tools/list", {"cursor": 5})

    name, uri = {"name": "no://thing"}, {"uri": "no://thing"}
    assert [name, name, uri] == [each.error["data"] for each in absent]
    in_result = called.result["_meta"]["io.genmcp/error"]
    for data, of in ((in_result, "add"), (got.error["data"], "typed")):
        assert of == data["name"]
        (fault,) = data["faults"]
        assert fault["pointer"] == "/a"
        assert fault["expected"] == "an integer"
        assert fault["actual"] == 'the string "x"'
    (fault,) = malformed.error["data"]["faults"]
    assert (
        fault["pointer"],
        fault["expected"],
        fault["actual"],
    ) == ("/cursor", "a string or null", "an integer")


@pytest.mark.parametrize("version", VERSIONS)
async def test_reserved_meta_of_a_result_is_not_sent_before_2026(version: str) -> None:
    """A hub passes on results of 2026 servers: no earlier revision defines those keys."""

    class Passing(Tool):
        """Passes on a result."""

        name = "passing"

        async def call(self, request: ToolRequest, channel: Channel) -> CallToolResult:
            meta = {"io.modelcontextprotocol/serverInfo": {"name": "far", "version": "1"}}
            return result("x", meta={**meta, "com.example/a": 1})

    async with speak(Suite(name="test", version="1", tools=[Passing]), version) as client:
        meta = (await client.call("passing")).result["_meta"]

    assert meta["com.example/a"] == 1
    assert (version == MODERN) is ("io.modelcontextprotocol/serverInfo" in meta)
