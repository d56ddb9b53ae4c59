"""`@tool` with pydantic: models and constraints as parameters, and models as results."""

from dataclasses import dataclass
from datetime import date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from threading import Lock
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pytest
from pydantic import AnyUrl, BaseModel, Field, computed_field

from genmcp import Channel, ConfigurationError, Continue, Suite, elicit, prompt, tool
from genmcp.protocol.content import TextContent
from genmcp.protocol.tools import CallToolResult, ToolDefinition
from genmcp.testing import connect
from tests.support.handlers import AcceptingHandler


class Part(BaseModel):
    """A part in the store room."""

    name: str
    count: int = Field(default=1, ge=1)


class Order(BaseModel):
    parts: list[Part]
    note: str | None = None
    ordered: datetime | None = None


class Wish(BaseModel):
    sure: bool = True


class Size(msgspec.Struct):
    width: int


@dataclass
class Box:
    part: Part
    size: int = 1


class Tree(BaseModel):
    name: str
    below: "list[Tree]" = []


class Cat(BaseModel):
    kind: Literal["cat"]
    discriminator: str = "x"


class Dog(BaseModel):
    kind: Literal["dog"]


class Priced(BaseModel):
    price: Decimal
    link: AnyUrl

    @computed_field  # type: ignore[prop-decorator]
    @property
    def taxed(self) -> Decimal:
        return self.price * 2


def suite(*tools: Any) -> Suite:
    return Suite(name="test", version="1", tools=tools)


async def listed(function: Any, version: str | None = None) -> ToolDefinition:
    async with connect(suite(function), revision=version) as client:
        return (await client.tools())[0]


async def call(function: Any, version: str | None = None, **arguments: Any) -> CallToolResult:
    async with connect(suite(function), revision=version) as client:
        return await client.call(function.__name__, arguments)


def kinds(schema: Any) -> list[str]:
    """Return the names of all keywords in *schema*, at every level."""
    if isinstance(schema, list):
        return [name for each in schema for name in kinds(each)]
    if not isinstance(schema, dict):
        return []
    return [*schema, *(name for each in schema.values() for name in kinds(each))]


@tool
async def reorder(
    order: Order,
    others: list[Part],
    days: Annotated[int, Field(ge=1, le=30, description="How long it may take.")] = 7,
    box: Box | None = None,
    city: str = Field("Bonn", max_length=4),
    colour: Annotated[str, "Of the box."] = "red",
    weight: Annotated[int, msgspec.Meta(gt=0, description="In kg.")] = 1,
    *,
    channel: Channel,
) -> str:
    assert channel.request is not None
    assert type(order) is Order
    assert all(type(each) is Part for each in (*others, *order.parts))
    assert box is None or (type(box), type(box.part)) == (Box, Part)
    return f"{order.parts[0].count} {len(others)} {days} {city} {colour} {weight}"


async def test_models_and_constraints_are_parameters() -> None:
    """The function gets instances, with the defaults of its signature and of the models."""
    parts = [{"name": "screw", "count": 2}]

    plain = await call(reorder, order={"parts": parts}, others=[])
    full = await call(
        reorder,
        order={"parts": parts},
        others=parts,
        days=30,
        box={"part": parts[0]},
        city="Rome",
    )

    assert (plain.text, full.text) == ("2 0 7 Bonn red 1", "2 1 30 Rome red 1")


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ({"order": {"parts": [{"name": "a", "count": 0}]}}, "/order/parts/0/count: "),
        ({"order": {}}, '/order: missing required property "parts"'),
        ({"order": {"parts": []}, "days": 31}, "/days: "),
        ({"order": {"parts": []}, "weight": 0}, "/weight: "),
        ({"order": {"parts": []}, "city": "Paris"}, "/city: "),
        (
            {"order": {"parts": []}, "box": {"part": {}}},
            '/box/part: missing required property "name"',
        ),
        ({"order": {"parts": []}, "dyas": 3}, '/dyas: unexpected property; did you mean "days"?'),
    ],
)
async def test_invalid_arguments_are_named_with_their_place(arguments: Any, fault: str) -> None:
    """The text for the model has each fault and its place, as with other types."""
    result = await call(reorder, others=[], **arguments)

    assert result.is_error
    assert fault in result.text


async def test_schema_has_parameters_in_order_and_no_references() -> None:
    """Many clients pass the schema to a model API that does not resolve `$ref`."""
    schema = (await listed(reorder)).input_schema

    assert list(schema["properties"]) == [
        *("order", "others", "days", "box", "city", "colour", "weight")
    ]
    assert schema["required"] == ["order", "others"]
    assert schema["additionalProperties"] is False
    assert not {"$ref", "$defs"} & set(kinds(schema))
    days = schema["properties"]["days"]
    assert (days["maximum"], days["default"], days["description"]) == (
        *(30, 7, "How long it may take."),
    )
    assert schema["properties"]["weight"]["description"] == "In kg."
    assert schema["properties"]["colour"]["description"] == "Of the box."


async def test_recursive_type_keeps_its_references() -> None:
    """A recursive schema cannot be written without `$ref`."""

    @tool
    async def plant(tree: Tree, trees: list[Tree]) -> int:
        return len(tree.below) + len(trees)

    schema = (await listed(plant)).input_schema
    result = await call(plant, tree={"name": "a", "below": [{"name": "b"}]}, trees=[])

    assert list(schema["$defs"]) == ["Tree"]
    assert result.structured_content == 1


async def test_union_by_discriminator_is_inlined() -> None:
    """A `discriminator` refers to definitions, so it is left out; a property of that name stays."""

    @tool
    async def feed(pet: Annotated[Cat | Dog, Field(discriminator="kind")]) -> str:
        return type(pet).__name__

    pet = (await listed(feed)).input_schema["properties"]["pet"]

    assert "discriminator" not in pet
    assert "discriminator" in pet["oneOf"][0]["properties"]
    assert (await call(feed, pet={"kind": "dog"})).text == "Dog"


@tool
async def search(count: int = 2) -> list[Part]:
    """Finds parts."""
    return [Part(name="screw", count=count)] * 2


async def test_list_of_models_is_structured() -> None:
    """Programs get structured content, and need not parse the text."""
    found = [{"name": "screw", "count": 2}] * 2

    assert (await listed(search)).output_schema["type"] == "array"  # type: ignore[index]
    assert (await call(search)).structured_content == found


@pytest.mark.parametrize("version", ["2025-06-18", "2025-11-25"])
async def test_result_is_wrapped_where_it_has_to_be_an_object(version: str) -> None:
    """Before 2026-07-28 structured content must be an object."""
    schema = (await listed(search, version)).output_schema
    result = await call(search, version)

    assert schema is not None
    assert (schema["type"], schema["required"]) == ("object", ["result"])
    assert schema["properties"]["result"]["type"] == "array"
    assert result.structured_content == {"result": [{"name": "screw", "count": 2}] * 2}


async def test_schema_that_refers_to_its_root_is_not_wrapped() -> None:
    """Inside of another schema, the reference `#` would mean the outer one."""
    numbers = {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"$ref": "#"}]}}

    @tool(output_schema=numbers)
    async def nested() -> Any:
        return [1, [2]]

    assert (await listed(nested)).output_schema == numbers
    assert (await listed(nested, "2025-11-25")).output_schema is None
    assert (await call(nested, "2025-11-25")).structured_content == {"result": [1, [2]]}


@pytest.mark.parametrize(
    ("kind", "value", "schema"),
    [
        (int, 3, {"type": "integer"}),
        (list[int], [1, 2], {"type": "array", "items": {"type": "integer"}}),
        (bool | None, None, {"anyOf": [{"type": "boolean"}, {"type": "null"}]}),
        (dict[str, int], {"a": 1}, {"type": "object", "additionalProperties": {"type": "integer"}}),
    ],
)
async def test_plain_result_is_structured(kind: Any, value: Any, schema: Any) -> None:
    """Numbers and lists have an output schema, too."""

    @tool
    async def give() -> kind:
        return value

    assert (await listed(give)).output_schema == schema
    assert (await call(give)).structured_content == value


async def test_result_has_the_schema_of_its_serialization() -> None:
    """It includes computed fields, and a Decimal is a string."""

    @tool
    async def price() -> Priced:
        return Priced(price=Decimal("1.5"), link=AnyUrl("https://example.com/"))

    schema = (await listed(price)).output_schema

    assert schema is not None
    assert sorted(schema["required"]) == ["link", "price", "taxed"]
    assert (await call(price)).structured_content == {
        "price": "1.5",
        "link": "https://example.com/",
        "taxed": "3.0",
    }


async def test_type_of_pydantic_outside_of_a_model_is_sent() -> None:
    """E.g. a dict of pydantic URLs."""

    @tool
    async def links() -> dict[str, AnyUrl]:
        return {"home": AnyUrl("https://example.com/a")}

    assert (await call(links)).structured_content == {"home": "https://example.com/a"}


async def test_naive_time_is_sent_as_it_was_accepted() -> None:
    """SQLite returns times without a zone, which the format `date-time` would reject."""

    @tool
    async def copy(order: Order) -> Order:
        return order

    @tool
    async def now() -> Order:
        return Order(parts=[], ordered=datetime(2026, 1, 2, 3, 4))  # noqa: DTZ001 - the subject

    async with connect(suite(copy, now)) as client:
        sent = await client.call("now")
        again = await client.call("copy", {"order": sent.structured_content})

    assert sent.structured_content["ordered"] == "2026-01-02T03:04:00"
    assert again.structured_content == sent.structured_content


async def test_step_gets_the_arguments_of_models() -> None:
    """The arguments are validated again in the process that resumes the call."""

    @tool
    async def buy(part: Part) -> Part | Continue:
        return elicit("Sure?", Wish).then(bought)

    @buy.step
    async def bought(wish: Wish, part: Part) -> Part:
        assert type(part) is Part
        return part if wish.sure else Part(name="none")

    async with connect(suite(buy), handler=AcceptingHandler()) as client:
        result = await client.call("buy", {"part": {"name": "screw"}})

    assert result.structured_content == {"name": "screw", "count": 1}


def test_parameter_of_an_unknown_type_is_named() -> None:
    """The error names the parameter; pydantic's own would only name the type."""
    with pytest.raises(ConfigurationError, match=r"odd: parameter lock cannot stand .*schema for"):

        @tool
        async def odd(part: Part, lock: Lock) -> None: ...


class Loose(BaseModel):
    count: int


class Strict(BaseModel, strict=True):
    count: int


@tool
async def plain(count: int = 1, share: float = 1, sure: bool = True) -> str:
    return f"{count} {share} {sure}"


@tool
async def with_field(
    count: Annotated[int, Field(ge=1)] = 1, share: float = 1, sure: bool = True
) -> str:
    return f"{count} {share} {sure}"


@pytest.mark.parametrize("function", [plain, with_field])
@pytest.mark.parametrize("wrong", [{"count": "3"}, {"share": "1.5"}, {"sure": "true"}])
async def test_text_is_no_number_with_and_without_pydantic(function: Any, wrong: Any) -> None:
    """One constraint of pydantic does not change what the other parameters take."""
    refused = await call(function, **wrong)

    assert refused.is_error
    assert f"- /{next(iter(wrong))}: " in refused.text
    assert (await call(function, share=2)).text == "1 2.0 True"


async def test_other_types_are_read_from_texts_as_before() -> None:
    """JSON has no dates, enums, UUIDs, sets and decimals."""

    class Kind(Enum):
        NEW = "new"

    @tool
    async def take(
        day: date,
        kind: Kind,
        id: UUID,
        price: Decimal,
        wait: timedelta,
        words: set[str],
        size: Annotated[tuple[int, ...], Field(min_length=1)],
    ) -> str:
        return f"{day} {kind} {id.int} {price} {wait} {words} {size}"

    result = await call(
        take,
        day="2026-01-04",
        kind="new",
        id=str(UUID(int=1)),
        price="1.50",
        wait="PT3S",
        words=["a"],
        size=[1],
    )
    assert result.text == "2026-01-04 Kind.NEW 1 1.50 0:00:03 {'a'} (1,)"


async def test_model_is_read_by_its_own_configuration() -> None:
    """Pydantic converts texts to numbers in a model that does not say otherwise."""

    @tool
    async def take(loose: Loose, strict: Strict | None = None) -> str:
        return f"{loose.count}"

    assert (await call(take, loose={"count": "3"})).text == "3"
    assert (await call(take, loose={"count": 3}, strict={"count": "3"})).is_error


async def test_prompt_and_template_still_read_numbers_from_texts() -> None:
    """Their arguments are always texts."""

    @prompt
    def review(number: Annotated[int, Field(ge=1)], day: date, share: float | None = None) -> str:
        return f"{number + 1} {day} {share}"

    given = {"number": "3", "day": "2026-01-04", "share": "1.5"}
    async with connect(Suite(name="test", prompts=[review])) as client:
        message = (await client.prompt("review", given)).messages[0]
    assert message.content == TextContent("4 2026-01-04 1.5")
