"""Tools made of a schema and a plain function: `tool(input_schema=...)`, and mappings."""

from typing import Annotated, Any

from genmcp import Channel, Depends, Suite, tool
from genmcp.registry import SessionRegistries
from genmcp.testing import connect

SCHEMA = {
    "type": "object",
    "properties": {"day": {"type": "string"}, "limit": {"type": "integer", "default": 7}},
    "required": ["day"],
}


def shelf() -> list[int]:
    return [1, 2]


def search(day: str, limit: int = 1) -> str:
    return f"{limit} of {day}"


async def test_tool_takes_a_schema_and_a_function() -> None:
    """The function gets the properties by name; `**` gets all others, and never a dependency."""

    def forward(
        channel: Channel, parts: Annotated[list[int], Depends(shelf)], **arguments: Any
    ) -> str:
        return f"{len(parts)} {sorted(arguments)}"

    tools = [
        tool(name="search", description="Searches.", input_schema=SCHEMA)(search),
        tool(name="forward", input_schema=SCHEMA)(forward),
    ]
    async with connect(Suite(name="a", tools=tools)) as client:
        listed = list(await client.tools())
        assert (listed[0].description, listed[0].input_schema) == ("Searches.", SCHEMA)
        assert (await client.call("search", {"day": "Monday"})).text == "7 of Monday"
        assert (await client.call("search", {})).is_error
        given = {"day": "Monday", "parts": {}, "channel": 1, "more": 2}
        assert (await client.call("forward", given)).text == "2 ['day', 'limit', 'more']"


async def test_tools_are_mappings() -> None:
    """As other SDKs describe them; one function may serve several tools."""
    tools = [
        {"name": "one", "description": "Searches.", "input_schema": SCHEMA, "function": search},
        {"name": "two", "function": search},
    ]
    sessions = SessionRegistries()
    sessions.add_server("ann", {"name": "shop", "tools": tools})

    server = sessions.get("ann").find("shop").server
    async with connect(server) as client:
        assert [each.name for each in await client.tools()] == ["one", "two"]
        assert (await client.call("one", {"day": "Monday"})).text == "7 of Monday"
        assert (await client.call("two", {"day": "Monday"})).text == "1 of Monday"


async def test_suite_takes_one_component_in_place_of_a_list() -> None:
    """And its version may be left out."""
    one = Suite(name="one", tools={"name": "search", "function": search})

    assert one.info.version == "0.1.0"
    async with connect(one) as client:
        assert [each.name for each in await client.tools()] == ["search"]
