"""Unknown arguments, and the listing of tools for clients that read schemas."""

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
import pydantic
import pytest

from genmcp import Channel, ConfigurationError, Suite, Tool, ToolRequest, tool
from genmcp.resources import ResourceRepo
from tests.support.speaking import speak


class NoteStruct(msgspec.Struct):
    title: str
    body: str = ""


@dataclass
class NoteClass:
    title: str
    body: str = ""


class NoteDict(TypedDict):
    title: str
    body: NotRequired[str]


class NoteModel(pydantic.BaseModel):
    title: str
    body: str = ""


@pydantic.dataclasses.dataclass
class NoteModelClass:
    title: str
    body: str = ""


class RenamedStruct(msgspec.Struct, rename={"text": "body"}):
    title: str
    text: str = ""


class TaggedStruct(msgspec.Struct, tag="note", tag_field="kind"):
    title: str
    body: str = ""


class OpenModel(pydantic.BaseModel, extra="allow"):
    title: str
    body: str = ""


class IgnoringModel(pydantic.BaseModel, extra="ignore"):
    title: str
    body: str = ""


class AliasedModel(pydantic.BaseModel):
    title: str
    body: str = pydantic.Field("", validation_alias=pydantic.AliasChoices("body", "bdoy"))


class NamedModel(pydantic.BaseModel, populate_by_name=True):
    title: str
    bdoy: str = pydantic.Field("", alias="body")


class MigratingModel(pydantic.BaseModel):
    title: str
    body: str = ""

    @pydantic.model_validator(mode="before")
    @classmethod
    def migrate(cls, data: Any) -> Any:
        return data


def taking(type_: Any, **attributes: Any) -> Suite:
    """Return a suite whose tool `save` has arguments of *type_*."""

    async def call(self: Any, request: ToolRequest[Any], channel: Channel) -> str:
        return "saved"

    kind = type("Save", (Tool,), {"name": "save", "input_schema": type_, "call": call})
    made = kind()
    for name, value in attributes.items():
        setattr(made, name, value)
    return Suite(name="notes", version="1", tools=[made])


async def schema_of(server: Suite) -> dict[str, Any]:
    """Return the input schema of the only tool of *server*."""
    async with speak(server) as client:
        (listed,) = (await client.request("tools/list", {})).result["tools"]
    found: dict[str, Any] = listed["inputSchema"]
    return found


CLOSED = [NoteStruct, NoteClass, NoteDict, NoteModel, NoteModelClass, RenamedStruct, TaggedStruct]


@pytest.mark.parametrize("type_", CLOSED)
async def test_misspelt_argument_is_refused(type_: Any) -> None:
    """Otherwise `bdoy` would save a note with an empty body."""
    async with speak(taking(type_)) as client:
        right = (await client.call("save", {"title": "a", "body": "b"})).result
        wrong = (await client.call("save", {"title": "a", "bdoy": "b"})).result

    assert right["content"][0]["text"] == "saved"
    assert wrong["isError"] is True
    text = wrong["content"][0]["text"]
    assert '/bdoy: unexpected property; did you mean "body"?' in text
    assert "allowed are" in text


@pytest.mark.parametrize("type_", CLOSED)
async def test_closed_type_is_listed_as_closed(type_: Any) -> None:
    """The listing has `additionalProperties: false`, like that of a function under `@tool`."""
    assert (await schema_of(taking(type_)))["additionalProperties"] is False


@pytest.mark.parametrize(
    "type_", [OpenModel, IgnoringModel, AliasedModel, NamedModel, MigratingModel]
)
async def test_type_that_allows_extra_gets_it(type_: Any) -> None:
    """A pydantic model with `extra`, or with aliases that its schema does not list."""
    server = taking(type_)
    async with speak(server) as client:
        result = (await client.call("save", {"title": "a", "bdoy": "b"})).result

    assert result["content"][0]["text"] == "saved"
    assert (await schema_of(server)).get("additionalProperties") is not False


async def test_tool_may_ignore_extra_arguments() -> None:
    """By an option, because structs and dataclasses cannot declare it."""
    server = taking(NoteStruct, extra_arguments="ignore")
    async with speak(server) as client:
        result = (await client.call("save", {"title": "a", "bdoy": "b"})).result

    assert result["content"][0]["text"] == "saved"
    assert "additionalProperties" not in await schema_of(server)


def test_extra_arguments_has_two_values() -> None:
    """The error for another value names the option."""
    with pytest.raises(ConfigurationError, match=r"Save.extra_arguments must be 'forbid' or 'igno"):
        taking(NoteStruct, extra_arguments="allow")


async def test_unlike_argument_gets_no_suggestion() -> None:
    """Neither does one so long that the comparison would be expensive."""
    async with speak(taking(NoteStruct)) as client:
        other = (await client.call("save", {"title": "a", "priority": 1})).result
        long = (await client.call("save", {"title": "a", "body" * 50_000: 1})).result

    assert "unexpected property; allowed are title, body" in other["content"][0]["text"]
    assert "did you mean" not in long["content"][0]["text"]


async def test_tool_without_arguments_lists_properties() -> None:
    """mcpadapt reads `inputSchema["properties"]` of every tool."""

    class Empty(msgspec.Struct):
        pass

    assert (await schema_of(taking(None)))["properties"] == {}
    assert (await schema_of(taking({"type": "object"})))["properties"] == {}
    assert (await schema_of(taking(Empty)))["properties"] == {}


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Choices(msgspec.Struct):
    colour: Colour
    unit: Literal["C", "F"] | None = None
    count: Literal[1, 2] = 1
    mixed: Literal["a", 1] = 1
    several: list[Literal["a", "b"]] = []
    pair: tuple[Literal["a"], Literal[2]] = ("a", 2)
    named: dict[str, Literal["x"]] = {}
    noted: Annotated[Literal["y"], msgspec.Meta(description="One.")] = "y"


async def test_choices_are_listed_with_their_type() -> None:
    """Clients that make classes or forms of a schema look only at `type`."""
    schema = await schema_of(taking(Choices))
    properties = schema["properties"]

    assert properties["colour"]["type"] == "string"
    assert properties["unit"]["anyOf"] == [
        {"enum": ["C", "F"], "type": "string"},
        {"type": "null"},
    ]
    assert properties["count"]["type"] == "integer"
    assert sorted(properties["mixed"]["type"]) == ["integer", "string"]
    assert properties["several"]["items"]["type"] == "string"
    assert [each["type"] for each in properties["pair"]["prefixItems"]] == ["string", "integer"]
    assert properties["named"]["additionalProperties"]["type"] == "string"
    assert properties["noted"]["type"] == "string"


class Repair(pydantic.BaseModel):
    opened: datetime


async def test_naive_datetime_is_sent() -> None:
    """SQLite returns such values; they are not a `date-time`, but other servers send them, too."""

    @tool
    async def repair() -> Repair:
        """Returns a repair."""
        return Repair(opened=datetime(2026, 1, 2, 3, 4))  # noqa: DTZ001

    async with speak(Suite(name="s", version="1", tools=[repair])) as client:
        result = (await client.call("repair", {})).result

    assert result["structuredContent"] == {"opened": "2026-01-02T03:04:00"}


@pytest.mark.parametrize("template", [{"a": 1}, ["notes://{id}"], 5, {"a"}])
def test_template_of_another_type_is_refused(template: Any) -> None:
    """An unhashable value used to be a TypeError of a cache."""
    attributes = {"name": "notes", "template": template, "read": lambda self, key, channel: None}
    repo = type("Notes", (ResourceRepo,), attributes)

    with pytest.raises(ConfigurationError, match=r"Notes.template must be a text or a UriTemplate"):
        Suite(name="s", version="1", resources=[repo])
