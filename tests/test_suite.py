"""Suite: a server made of tools, and its metadata."""

import re
from typing import Any

import pytest

from genmcp import (
    Channel,
    ConfigurationError,
    Suite,
    Tool,
    ToolRequest,
    tool,
)
from genmcp.protocol.capabilities import Icon
from genmcp.testing import connect
from tests.support.speaking import VERSIONS, speak


class Echo(Tool):
    """Says it again."""

    name = "echo"

    async def call(self, request: ToolRequest, channel: Channel) -> dict[str, Any]:
        return request.arguments


@tool
async def shout(text: str) -> str:
    """Says it loudly."""
    return text.upper()


class Needy(Echo):
    def __init__(self, city: str) -> None:
        self.city = city


ABOUT: dict[str, Any] = {
    "title": "The Test",
    "description": "Tests.",
    "instructions": "Call echo first.",
    "website_url": "https://example.com",
    "icons": [Icon("https://example.com/i.png")],
}


async def test_suite_takes_classes_instances_and_functions() -> None:
    """Tools are listed in the order in which they were given."""
    other = Echo()
    other.name = "other"

    async with connect(Suite(name="test", version="1", tools=[shout, Echo, other])) as client:
        names = [each.name for each in await client.tools()]

    assert names == ["shout", "echo", "other"]


async def test_suite_may_be_empty() -> None:
    """Its list of tools is empty."""
    async with connect(Suite(name="test", version="1")) as client:
        assert await client.tools() == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": ""}, "Suite: name must be a text, not ''"),
        ({"name": None}, "Suite: name must be a text, not None"),
        ({"version": " "}, "Suite: version must be a text, not ' '"),
        ({"version": 1}, "Suite: version must be a text, not 1"),
        ({"title": " "}, "Suite.title is blank"),
        ({"title": 5}, "Suite.title must be a text, not 5"),
        ({"instructions": ""}, "Suite.instructions is blank"),
        ({"icons": ["x"]}, "Suite.icons must be a list of Icon, not of 'x'"),
        ({"tools": {Echo}}, "Suite: tools must be a list of tools, not {<class"),
        ({"tools": None}, "Suite: tools must be a list of tools, not None"),
        ({"tools": ["echo"]}, "'echo' is not a tool: give a Tool class, an instance, or"),
        ({"tools": [dict]}, "<class 'dict'> is not a tool"),
        ({"tools": [print]}, "<built-in function print> is not a tool"),
        ({"tools": [Tool]}, "Tool has no name"),
        ({"tools": [Needy]}, "Needy takes arguments; give an instance of it: "),
        ({"tools": [Echo, shout, Echo()]}, "Suite: two tools are called 'echo'"),
        ({"resources": Echo}, "Suite: resources must be a list of resources, not <class"),
        ({"tools": {"name": "a"}}, 'a tool as a mapping has a "function"'),
        ({"resources": [Echo]}, "<class 'tests.test_suite.Echo'> is not a resource"),
        ({"prompts": None}, "Suite: prompts must be a list of prompts, not None"),
        ({"prompts": [Echo]}, "<class 'tests.test_suite.Echo'> is not a prompt"),
        ({"providers": [Echo]}, "<class 'tests.test_suite.Echo'> is not a Provider"),
        ({"page_size": 0}, "Suite: page_size must be 1 or more, not 0"),
        ({"page_size": True}, "Suite: page_size must be 1 or more, not True"),
    ],
)
def test_suite_rejects_invalid_metadata(options: dict[str, Any], message: str) -> None:
    """The constructor raises an error that lists the accepted values."""
    with pytest.raises(ConfigurationError, match="^" + re.escape(message)):
        Suite(**{"name": "test", "version": "1", **options})


@pytest.mark.parametrize("version", VERSIONS[:-1])
async def test_suite_introduces_itself_in_the_handshake(version: str) -> None:
    """The result of `initialize` has the metadata that the revision supports."""
    suite = Suite(name="test", version="1.2", **ABOUT)

    async with speak(suite, version) as client:
        result = (await client.initialize()).result

    info = result["serverInfo"]
    assert (info["name"], info["version"]) == ("test", "1.2")
    assert result["instructions"] == "Call echo first."
    assert result["capabilities"] == {"logging": {}, "tools": {"listChanged": True}}
    assert (version >= "2025-06-18") is ("title" in info)
    if version == "2025-11-25":
        assert info == {
            "name": "test",
            "version": "1.2",
            "title": "The Test",
            "description": "Tests.",
            "websiteUrl": "https://example.com",
            "icons": [{"src": "https://example.com/i.png"}],
        }


async def test_suite_introduces_itself_in_every_result() -> None:
    """2026-07-28: `server/discover`, and `serverInfo` in the `_meta` of each result."""
    suite = Suite(name="test", version="1.2", **ABOUT, tools=[Echo])

    async with speak(suite) as client:
        discovered = (await client.request("server/discover", {})).result
        called = (await client.call("echo")).result

    assert discovered["instructions"] == "Call echo first."
    assert discovered["capabilities"] == {
        "logging": {},
        "tools": {"listChanged": True},
        "extensions": {"io.modelcontextprotocol/tasks": {}},
    }
    for result in (discovered, called):
        info = result["_meta"]["io.modelcontextprotocol/serverInfo"]
        assert (info["name"], info["title"], info["description"]) == ("test", "The Test", "Tests.")


async def test_suite_without_metadata_has_a_name_and_a_version() -> None:
    """The default metadata is a name and a version."""
    async with speak(Suite(name="test", version="1"), "2025-11-25") as client:
        result = (await client.initialize()).result

    assert result["serverInfo"] == {"name": "test", "version": "1"}
    assert "instructions" not in result


@pytest.mark.parametrize("version", VERSIONS)
async def test_suite_rejects_an_unknown_tool(version: str) -> None:
    """An unknown tool is -32602, and the error has its name."""
    async with speak(Suite(name="test", version="1", tools=[Echo]), version) as client:
        answer = await client.call("nothing")

    assert (answer.error["code"], answer.error["data"]) == (-32602, {"name": "nothing"})


@pytest.mark.parametrize("version", VERSIONS)
async def test_suite_rejects_an_unknown_cursor(version: str) -> None:
    """A cursor that this server did not issue is -32602."""
    async with speak(Suite(name="test", version="1", tools=[Echo]), version) as client:
        answer = await client.request("tools/list", {"cursor": "x"})

    assert (answer.error["code"], answer.error["message"]) == (-32602, "Invalid cursor")


def test_suite_has_a_readable_repr() -> None:
    """Its `repr` has the name, the version and the number of tools."""
    assert repr(Suite(name="test", version="1", tools=[Echo])) == "<Suite test 1, 1 tools>"


def test_suite_finds_each_kind_by_its_method() -> None:
    """A resource is not found under a tool's name."""
    suite = Suite(name="test", version="1", tools=[Echo])

    assert None is not suite.find("tools/call", "echo")
    assert None is suite.find("prompts/get", "echo")
    assert None is suite.find("resources/read", "echo")
    assert None is suite.find("tasks/get", "echo")


def test_suite_rejects_unknown_options() -> None:
    """A misspelled option is a TypeError, as with any constructor."""
    with pytest.raises(TypeError, match="unexpected keyword argument 'tool'"):
        Suite(name="test", version="1", tool=[Echo])  # type: ignore[call-arg]
