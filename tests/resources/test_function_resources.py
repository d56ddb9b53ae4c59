"""Functions under `@resource`: URIs and templates of URIs, whose variables are parameters."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import Field

from genmcp import (
    Accepted,
    Channel,
    ClientHandler,
    ConfigurationError,
    Continue,
    Depends,
    Directory,
    Resource,
    ServerError,
    Suite,
    elicit,
    resource,
)
from genmcp.completion import prefix_matches
from genmcp.protocol import ResourceDefinition
from genmcp.protocol.prompts import ResourceTemplateReference
from genmcp.testing import connect

STOCK = {1: "chain", 2: "tyre"}


def shelf() -> dict[int, str]:
    return STOCK


def entries(cursor: Any, channel: Channel) -> list[ResourceDefinition]:
    return [ResourceDefinition(f"stock://{number}", name) for number, name in STOCK.items()]


def numbers(argument: str, value: str, context: object, channel: Channel) -> Sequence[str]:
    return prefix_matches(map(str, STOCK), value)


@resource("stock://{part}", mime_type="application/json", list=entries, complete=numbers)
async def stock(
    part: int, parts: Annotated[dict[int, str], Depends(shelf)], channel: Channel
) -> dict[str, Any] | None:
    """The stock of a part."""
    return {"part": part, "name": parts[part]} if part in parts else None


@resource("stock://{part}/{direction}")
def movements(part: int, direction: Literal["in", "out"]) -> str:
    return f"{direction} of {part}"


@resource("stock://all")
def everything(channel: Channel) -> str:
    """All parts."""
    return ", ".join(STOCK.values())


@resource("pages://{+path}{?lines,parts*}")
def page(
    path: str,
    lines: Annotated[int, Field(ge=1)] = 10,
    parts: list[int] = [],  # noqa: B006
) -> list[str]:
    return [path, f"{lines} {parts}"]


@resource("cellar://{part}")
def cellar(part: int) -> Continue:
    return elicit("Fetch it?").then(fetched)


@cellar.step
def fetched(answer: object, part: int, channel: Channel) -> str:
    return f"fetched {part}"


class Agrees(ClientHandler):
    async def handle_elicitation_create(self, message: str, schema: Mapping[str, Any]) -> Accepted:
        return Accepted({})


class Desk:
    @resource("desk://{drawer}")
    def drawer(self, drawer: int) -> str:
        return f"drawer {drawer}"


def suite(*resources: object) -> Suite:
    return Suite(name="stock", resources=resources or (stock, movements, everything, page))


async def text_of(uri: str, *resources: object) -> str:
    async with connect(suite(*resources), handler=Agrees()) as client:
        contents = (await client.read(uri)).contents
        return " | ".join(str(each.text) for each in contents)


@pytest.mark.parametrize(
    ("uri", "text"),
    [
        ("stock://1", '{"part":1,"name":"chain"}'),
        ("stock://2/out", "out of 2"),
        ("stock://all", "chain, tyre"),
        ("pages://a/b", "a/b | 10 []"),
        ("pages://a%20b?parts=1&parts=2&lines=3", "a b | 3 [1, 2]"),
    ],
)
async def test_variables_get_the_types_of_the_parameters(uri: str, text: str) -> None:
    """Numbers, lists and defaults are read as in the arguments of a tool; templates may overlap."""
    assert await text_of(uri) == text


@pytest.mark.parametrize(
    ("uri", "fault"),
    [
        ("stock://x", '/part: expected an integer, got the string "x"'),
        ("stock://1/up", '/direction: expected "in" or "out"'),
        ("pages://a?lines=0", "/lines: "),
    ],
)
async def test_invalid_variable_is_named(uri: str, fault: str) -> None:
    """A client can correct its URI; the function does not run, and there is no internal error."""
    async with connect(suite()) as client:
        with pytest.raises(ServerError) as caught:
            await client.read(uri)

    assert caught.value.code == -32602
    assert f"Invalid variables in {uri}:\n- {fault}" in str(caught.value)
    assert caught.value.data["uri"] == uri


@pytest.mark.parametrize("uri", ["stock://3", "stock://1/in/2", "stock:1"])
async def test_none_and_other_uris_are_not_found(uri: str) -> None:
    """The function has returned None, or no template matches."""
    async with connect(suite()) as client:
        with pytest.raises(ServerError, match="not found"):
            await client.read(uri)


async def test_lists_have_the_function_as_description() -> None:
    """A URI without variables is a resource; one with variables is a template, with `list=`."""
    async with connect(suite()) as client:
        resources = list(await client.resources())
        templates = list(await client.templates())

    assert [each.uri for each in resources] == ["stock://1", "stock://2", "stock://all"]
    assert (resources[2].name, resources[2].description) == ("everything", "All parts.")
    assert [each.uri_template for each in templates] == [
        "stock://{part}",
        "stock://{part}/{direction}",
        "pages://{+path}{?lines,parts*}",
    ]
    assert templates[0].description == "The stock of a part."
    assert templates[0].mime_type == "application/json"


async def test_variables_are_completed() -> None:
    """By `complete=`, or without it by the values of a Literal."""
    async with connect(suite()) as client:
        first = await client.complete(ResourceTemplateReference("stock://{part}"), "part", "")
        second = await client.complete(
            ResourceTemplateReference("stock://{part}/{direction}"), "direction", "o"
        )

    assert (first.values, second.values) == (["1", "2"], ["out"])


async def test_function_continues_in_a_step() -> None:
    """The step gets the answer and the variables of the URI, converted again."""
    assert await text_of("cellar://7", cellar) == "fetched 7"


async def test_method_of_an_instance_is_a_resource() -> None:
    """As with tools: the method of the class has no instance."""
    assert await text_of("desk://4", Desk().drawer) == "drawer 4"
    with pytest.raises(ConfigurationError, match=r"instance\.drawer"):
        suite(Desk.drawer)


async def test_resource_takes_a_template_and_a_function() -> None:
    """The short form without a decorator has the same conversions."""

    def line(number: int) -> str:
        """A line."""
        return "x" * number

    given = Resource("lines://{number}", line)
    unnamed = Resource("words://{word}", lambda word: word)

    assert await text_of("lines://3", given) == "xxx"
    async with connect(suite(given, unnamed)) as client:
        templates = [(each.name, each.description) for each in await client.templates()]
        assert templates == [("line", "A line."), ("words://{word}", None)]


async def test_earlier_prefix_hides_a_template(tmp_path: Path) -> None:
    """As before, a repository has every URI of its prefix if it was declared first."""
    (tmp_path / "1").write_text("a file")

    assert await text_of("stock://1", Directory(tmp_path, prefix="stock://"), stock) == "a file"
    assert json.loads(await text_of("stock://1", stock, Directory(tmp_path, prefix="stock://")))


async def test_suite_adds_and_removes_functions() -> None:
    """A template is found by its text, a resource by its URI."""
    made = suite(stock)
    made.add(everything)
    made.remove("stock://{part}", everything)

    async with connect(made) as client:
        with pytest.raises(ServerError):
            await client.read("stock://1")
