"""Hostile schemas and values are rejected or checked, and no event loop is held.

2026-07-28, basic, "Composition-Keyword Resource Use". The cases are few here; many more are in
tests/fuzz/test_schemas_survive.py.
"""

import asyncio
import random
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

from genmcp import Client, Hub, Mux, ServerConfig, Suite, tool
from genmcp._schema.limits import FOREIGN_LIMITS
from genmcp._schema.schema import Schema
from genmcp.client.errors import ClientError
from genmcp.client.options import ClientOptions
from genmcp.errors import ConfigurationError
from genmcp.testing import connect
from tests.hub.far import OLD, TIME, Far, Piped, said
from tests.support.handlers import AcceptingHandler
from tests.support.held_loop import MAX_HELD, HeldLoop
from tests.support.hostile_schemas import hostile_schema

CASES = range(200)
HEADER = {"type": "string", "x-mcp-header": "Region"}
OPTIONS = ClientOptions(revision=OLD)

PATTERNS = (
    "[ab]*a[ab]{1000}c",
    "[ab]*a[ab]{300}c",
    "[ab]*a[ab]{14}c",
    "(.{0,5}a.{0,5}){9}c",
    "(a+)+$",
    "a.{1,1000}c",
    "(?i)" + r"\p{Any}" * 2,
)
Step = Callable[[dict[str, Any]], dict[str, Any]]
STEPS: tuple[Step, ...] = (
    lambda link: {"allOf": [link, link]},
    lambda link: {"anyOf": [link, {"not": link}]},
    lambda link: {"properties": {"a": link}, "patternProperties": {"a": link}},
    lambda link: {"items": link, "contains": link, "additionalProperties": link},
    lambda link: {"allOf": [link], "unevaluatedProperties": False},
)


def text(length: int) -> str:
    """Return a text that is slow to match."""
    return "".join(random.Random(length).choices("ab", k=length))


def deep(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels):
        value = {"a": value, "b": [value]}
    return value


VALUES: tuple[dict[str, Any], ...] = (
    {"a": {"b": 1}, "b": [1, "x"], "": 2},
    {"a": deep(8), "k": [[]] * 50},
    {"a": text(2_000), "b": [text(length) for length in range(900, 940)], text(1_000): 1},
    {"a": [10**30 + number for number in range(300)], "b": [10**4_000] * 2},
    {f"k{number}": number / 7 for number in range(500)},
)


def is_json(value: Any) -> bool:
    """Return whether a server can send *value*: not with half a surrogate pair, for example."""
    try:
        return bool(msgspec.json.encode(value))
    except (ValueError, RecursionError):
        return False


def schemas() -> Iterator[dict[str, Any]]:
    """Yield hostile schemas of objects."""
    for number in CASES:
        generated = hostile_schema(7, number)
        if isinstance(generated, dict) and is_json(generated):
            yield {**generated, "type": "object"}
    for pattern in PATTERNS:
        matched = {"pattern": pattern}
        yield {"type": "object", "properties": {"a": matched, "b": {"items": matched}}}
        yield {"type": "object", "additionalProperties": {"not": {"items": matched}}}
        yield {"type": "object", "patternProperties": {pattern: {}}}
    for step in STEPS:
        for links in (3, 30):
            names = [f"n{number}" for number in range(links)]
            defined = {name: step({"$ref": f"#/$defs/{name}x"}) for name in names}
            following = dict(zip((f"{name}x" for name in names), [*names[1:], "last"], strict=True))
            aliases = {name: {"$ref": f"#/$defs/{other}"} for name, other in following.items()}
            last: dict[str, Any] = {"last": {}}
            yield {"type": "object", "$ref": "#/$defs/n0", "$defs": {**defined, **aliases, **last}}


def served(document: dict[str, Any], number: int) -> Any:
    """Return a tool with the input schema *document*, or None if it is rejected."""

    def function(**arguments: Any) -> str:
        return "called"

    try:
        return tool(name=f"t{number}", description="A tool.", input_schema=document)(function)
    except ConfigurationError:
        return None


async def test_server_with_hostile_schemas_works() -> None:
    """A schema is rejected when its tool is made; the arguments of others are checked in time."""
    found = [served(schema, number) for number, schema in enumerate(schemas())]
    tools = [each for each in found if each is not None]
    suite = Suite(name="s", version="1", tools=tools)

    async with (
        asyncio.timeout(10 * TIME),
        Client(suite, options=OPTIONS) as client,
        HeldLoop.watch() as held,
    ):
        for number, made in enumerate(found):
            for value in VALUES if made is not None else ():
                result = await client.call(f"t{number}", value)
                assert result.is_error or result.text == "called"

    assert 20 < len(tools) < len(found)
    assert held.longest < MAX_HELD


def offering(offered: list[dict[str, Any]]) -> Far:
    """Return a server with a tool of each schema, for arguments and for results."""
    tools = [
        {
            "name": f"t{number}",
            "inputSchema": {**schema, "properties": {"region": HEADER}},
            "outputSchema": schema,
        }
        for number, schema in enumerate(offered)
    ]

    async def listed(far: Far, message: Any) -> Any:
        return {"tools": tools}

    async def called(far: Far, message: Any) -> Any:
        return {**said("done"), "structuredContent": VALUES[len(far.called) % len(VALUES)]}

    answers: dict[str, Any] = {"tools/list": listed}
    return Far(**answers, **{f"t{number}": called for number in range(len(offered))})


async def test_client_of_a_server_with_hostile_schemas_works() -> None:
    """A result is returned, or does not fit: schemas that are rejected check nothing."""
    offered = [*schemas()]
    far = offering(offered)

    async with (
        asyncio.timeout(10 * TIME),
        Client(far, options=OPTIONS) as client,
        HeldLoop.watch() as held,
    ):
        await client.tools()
        for number in range(len(offered)):
            for _ in VALUES:
                try:
                    assert (await client.call(f"t{number}")).text == "done"
                except ClientError as error:
                    assert "outputSchema" in str(error)

    assert held.longest < MAX_HELD


async def test_client_with_hostile_forms_works() -> None:
    """A form is declined, filled with its defaults, or rejected."""
    far = Piped()
    handler = AcceptingHandler()

    async with (
        asyncio.timeout(10 * TIME),
        Client(far, handler=handler, options=OPTIONS),
        HeldLoop.watch() as held,
    ):
        for number, schema in enumerate(schemas()):
            params = {"message": "Who?", "requestedSchema": schema}
            request = {"id": number, "method": "elicitation/create", "params": params}
            far.questions.put_nowait(request)
            answer = await far.replies.get()
            assert answer["result"]["action"] if "result" in answer else answer["error"]

    assert held.longest < MAX_HELD


async def test_hub_with_a_hostile_member_works() -> None:
    """Calls of other members are answered while the lists of one are read."""

    @tool
    async def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    good = Suite(name="good", version="1", tools=[add])
    far = offering([*schemas()])
    async with asyncio.timeout(10 * TIME), Hub(options=OPTIONS) as hub:
        server = Mux(hub.server())
        await hub.add(ServerConfig("good", target=good))
        async with Client(server, options=OPTIONS) as client, HeldLoop.watch() as held:
            await hub.add(ServerConfig("evil", target=far))
            for number in range(0, 100, 10):
                assert (await client.call("good/add", {"a": number, "b": 1})).text
                await client.call(f"evil/t{number}", VALUES[number % len(VALUES)])

    assert held.longest < MAX_HELD


@pytest.mark.parametrize("schema", [*schemas()][len(CASES) :])
def test_hostile_schema_is_applied_or_rejected(schema: dict[str, Any]) -> None:
    """Nothing but a ConfigurationError is raised."""
    try:
        compiled = Schema(schema, limits=FOREIGN_LIMITS)
    except ConfigurationError as error:
        assert str(error).isprintable()
    else:
        for value in VALUES:
            assert all(compiled.check(value))


LONG = "property_number_{}_with_a_long_name_of_some_record_in_a_table_of_a_database"
CLOSED = {
    "type": "object",
    "properties": {LONG.format(number): {} for number in range(200)},
    "additionalProperties": False,
}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (CLOSED, {LONG.format(f"x{number}"): 1 for number in range(20)}),
        (
            {"anyOf": [{**CLOSED, "properties": {"colour": {}}}, {"type": "null"}]},
            {f"colour{number}": 1 for number in range(5_000)},
        ),
    ],
)
async def test_explanation_does_not_hold_the_loop(schema: Any, value: Any) -> None:
    """Unexpected names took milliseconds each, in an alternative also those not listed."""

    @tool(input_schema={"type": "object", "properties": {"a": schema}})
    def function(**arguments: Any) -> str:
        """Does nothing."""
        return "called"

    async with connect(Suite(name="s", version="1", tools=[function])) as client:
        await client.call("function", {"a": {"colour": 1, "x": 1}})  # compiles, imports difflib
        async with HeldLoop.watch() as held:
            result = await client.call("function", {"a": value})

    assert "unexpected property" in result.text
    assert held.longest < MAX_HELD
