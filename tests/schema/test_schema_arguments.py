"""The arguments of a tool are decoded from JSON text to the values of its hooks."""

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import attrs
import msgspec
import pydantic
import pytest
from msgspec import Meta, Raw, Struct
from typing_extensions import TypeAliasType

from genmcp._schema.arguments import arguments_of
from genmcp._schema.of_type import schema_of
from genmcp.errors import ArgumentFaults, ConfigurationError, MalformedParams
from genmcp.wire.param_headers import HeaderRule


class Place(Struct):
    """Where it is."""

    city: Annotated[str, Meta(description="A city's name.", min_length=1)]
    part: "Place | None" = None


class Weather(Struct, forbid_unknown_fields=True):
    """The search term."""

    place: Place
    days: Annotated[int, Meta(ge=1)] = 1
    unit: Literal["C", "F"] = "C"
    region: Annotated[str, Meta(extra_json_schema={"x-mcp-header": "Region"})] = ""
    spans: tuple[int, int] = (1, 2)
    counts: dict[str, int] = msgspec.field(default_factory=dict)


@dataclass
class Range:
    """From and to."""

    low: int
    high: int = 10
    steps: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ValueError("low is above high")


class Query(TypedDict):
    """A query."""

    text: str
    limit: NotRequired[int]


class Price(Struct):
    by_city: dict[str, Decimal]


@attrs.define
class Point:
    x: int


class Inner(pydantic.BaseModel):
    x: int = pydantic.Field(description="The x.", ge=0)


class Model(pydantic.BaseModel):
    """A model."""

    model_config = pydantic.ConfigDict(extra="forbid")

    a: int
    inner: Inner | int = 3
    many: list[int] = []

    @pydantic.field_validator("a")
    @classmethod
    def odd(cls, value: int) -> int:
        """Refuse even values."""
        if value % 2 == 0:
            raise ValueError("a must be odd")
        return value


def faults_of(decode: Callable[[bytes], Any], text: bytes) -> list[str]:
    """Return the faults of arguments that do not fit."""
    with pytest.raises(ArgumentFaults) as caught:
        decode(text)
    return list(caught.value.faults)


def test_arguments_without_a_source_are_any_object() -> None:
    """The tool lists an object without properties, and gets a dict."""
    arguments = arguments_of(None)

    assert arguments.schema == {"type": "object", "properties": {}}
    assert arguments.headers == ()
    assert arguments.decode(b'{"a":1}') == {"a": 1}


@pytest.mark.parametrize("absent", [b"", Raw(), Raw(b"{}")])
def test_absent_arguments_are_an_empty_object(absent: Any) -> None:
    """2026-07-28, schema, CallToolRequestParams: `arguments` is optional."""
    assert arguments_of({"type": "object"}).decode(absent) == {}


@pytest.mark.parametrize("source", [None, {"type": "object"}, Range, Model, Weather])
@pytest.mark.parametrize("text", [b"[]", b"null", b'"s"', b"1"])
def test_arguments_other_than_an_object_are_malformed(source: Any, text: bytes) -> None:
    """2026-07-28, schema, CallToolRequestParams: `arguments` is an object."""
    with pytest.raises(MalformedParams, match="arguments must be an object"):
        arguments_of(source).decode(text)


@pytest.mark.parametrize("source", [None, {"type": "object"}, Range, Model])
@pytest.mark.parametrize("text", [b'{"low":"\\ud800"}', b'{"low":"\xff"}', b"{"])
def test_arguments_of_invalid_json_are_malformed(source: Any, text: bytes) -> None:
    """Text that is not JSON in UTF-8 is rejected."""
    with pytest.raises(MalformedParams, match="arguments cannot be read"):
        arguments_of(source).decode(text)


@pytest.mark.parametrize("source", [None, {"type": "object"}, Query])
@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b'{"text":"", "limit":1e999}', "(root): a number is out of range"),
        (b'{"text":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "(root): nested too deeply"),
        (
            b'{"text":' + b"[" * 100 + b"]" * 100 + b"}",
            "(root): expected at most 64 levels of nesting, got more",
        ),
    ],
)
def test_arguments_have_bounded_numbers_and_nesting(source: Any, text: bytes, fault: str) -> None:
    """Values that cannot be represented, or would exhaust the stack, are faults."""
    assert faults_of(arguments_of(source).decode, text) == [fault]


def test_json_schema_is_listed_unchanged_and_applied() -> None:
    """The tool gets a dict that fits, with defaults."""
    document = {
        "properties": {
            "city": {"type": "string", "x-mcp-header": "City"},
            "unit": {"enum": ["C", "F"], "default": "C"},
        },
        "required": ["city"],
        "type": "object",
    }
    arguments = arguments_of(document)

    assert document is arguments.schema
    assert arguments.headers == (HeaderRule(b"mcp-param-city", ("city",), "string"),)
    assert arguments.decode(b'{"city":"Oslo"}') == {"city": "Oslo", "unit": "C"}
    assert faults_of(arguments.decode, b'{"unit":"K"}') == [
        '(root): missing required property "city"',
        '/unit: expected "C" or "F"; got the string "K"',
    ]


def test_arguments_take_formats() -> None:
    """A tool may turn formats off."""
    document = {"type": "object", "properties": {"a": {"format": "email"}}}
    arguments = arguments_of(document, formats=False)

    assert arguments.decode(b'{"a":"x"}') == {"a": "x"}


@pytest.mark.parametrize("source", [{}, {"type": "array"}, {"type": ["object", "null"]}])
def test_schema_of_another_type_than_object_is_rejected(source: Any) -> None:
    """2026-07-28, schema, Tool: `inputSchema` has the type object; the message names the remedy."""
    with pytest.raises(ConfigurationError, match='the root of the schema needs "type": "object"'):
        arguments_of(source)


@pytest.mark.parametrize("source", [int, list[int]])
def test_type_of_another_json_value_is_rejected(source: Any) -> None:
    """The arguments of a tool have names."""
    with pytest.raises(ConfigurationError, match="is not read from a JSON object"):
        arguments_of(source)


@pytest.mark.parametrize("source", ["x", b"x", 5, [dict], (1,), {"a"}])
def test_value_in_place_of_a_type_is_rejected(source: Any) -> None:
    """The message names the option."""
    with pytest.raises(ConfigurationError, match="input_schema: expected a type or a JSON Schema"):
        arguments_of(source)


@pytest.mark.parametrize("source", [object, len])
def test_type_without_a_json_form_is_rejected(source: Any) -> None:
    """The message contains the reason."""
    with pytest.raises(ConfigurationError, match=r"cannot describe JSON: .*not supported"):
        arguments_of(source)


def test_pydantic_model_without_a_schema_is_rejected() -> None:
    """A field without a JSON form is found when the schema is made."""

    class Callback(pydantic.BaseModel):
        call: Callable[[], int]

    with pytest.raises(ConfigurationError, match="cannot describe JSON"):
        arguments_of(Callback)


def test_schema_of_a_struct_is_self_contained() -> None:
    """The root is inlined, references are in `$defs`, and descriptions are kept."""
    schema = schema_of(Weather)

    assert schema["type"] == "object"
    assert schema["description"] == "The search term."
    assert schema["properties"]["place"] == {"$ref": "#/$defs/Place"}
    assert list(schema["$defs"]) == ["Place"]
    assert schema["$defs"]["Place"]["properties"]["city"]["description"] == "A city's name."
    assert schema["properties"]["spans"]["default"] == [1, 2]


def test_schema_of_a_recursive_struct_has_a_definition() -> None:
    """The root stays in `$defs`, since a reference leads to it."""
    schema = schema_of(Place)

    assert schema["type"] == "object"
    assert list(schema["$defs"]) == ["Place"]


@pytest.mark.parametrize(
    ("source", "text", "value"),
    [
        (Weather, b'{"place":{"city":"Oslo"}}', Weather(Place("Oslo"))),
        (Range, b'{"low":1}', Range(1)),
        (Query, b'{"text":"a"}', {"text": "a"}),
        (Point, b'{"x":1}', Point(1)),
        (Model, b'{"a":3,"inner":{"x":1}}', Model(a=3, inner=Inner(x=1))),
    ],
)
def test_arguments_are_decoded_to_their_type(source: Any, text: bytes, value: Any) -> None:
    """Structs, dataclasses, TypedDicts, attrs classes and pydantic models."""
    assert value == arguments_of(source).decode(Raw(text))


def test_type_may_annotate_a_header() -> None:
    """`extra_json_schema` puts the annotation into the schema."""
    assert arguments_of(Weather).headers == (
        HeaderRule(b"mcp-param-region", ("region",), "string"),
    )


@pytest.mark.parametrize(
    ("source", "text", "faults"),
    [
        (
            Weather,
            b'{"place":{"city":""},"days":0,"x":1}',
            [
                "/place/city: expected at least 1 character, got 0",
                "/days: expected a number of at least 1, got the number 0",
                "/x: unexpected property; allowed are place, days, unit, region, spans, counts",
            ],
        ),
        (Range, b'{"low":"a"}', ['/low: expected an integer, got the string "a"']),
        (Range, b'{"low":11}', ["(root): low is above high"]),
        (Query, b"{}", ['(root): missing required property "text"']),
        (
            Range,
            b'{"low":1,"steps":[1.0]}',
            ["/steps/0: expected an integer, got a number with a decimal point"],
        ),
        (Price, b'{"by_city":{"Oslo":"x"}}', ["/by_city: Invalid decimal string"]),
    ],
)
def test_all_faults_of_a_type_are_listed(source: Any, text: bytes, faults: list[str]) -> None:
    """They have the words of a JSON Schema, or those of msgspec if only the type rejects them."""
    assert faults == faults_of(arguments_of(source).decode, text)


def test_all_faults_of_a_pydantic_model_are_listed() -> None:
    """Each has a JSON Pointer; at most 20 are listed."""
    decode = arguments_of(Model).decode

    assert faults_of(decode, b'{"a":2,"inner":{"x":-1},"many":[1,null],"z":1}') == [
        "/a: a must be odd",
        "/inner/x: expected greater than or equal to 0, got the number -1",
        "/inner: expected a valid integer, got an object with 1 property",
        "/many/1: expected a valid integer, got null",
        "/z: unexpected property",
    ]
    assert faults_of(decode, b"{}") == ['(root): missing required property "a"']
    assert faults_of(decode, b'{"a":1,"many":[%s"x"]}' % (b'"x",' * 24))[-1] == "... and 5 more"


class And(pydantic.BaseModel):
    args: "list[And | Or | str]"


class Or(pydantic.BaseModel):
    args: "list[And | Or | str]"


class Ordered(pydantic.BaseModel):
    args: "Annotated[Ordered | Second | str, pydantic.Field(union_mode='left_to_right')]"


class Second(Ordered):
    more: int = 0


class Base(pydantic.BaseModel):
    below: "Base | Derived | None" = None


class Derived(Base):
    more: int = 0


@pytest.mark.parametrize("kind", [And, Ordered, Base, And | Or])
def test_recursive_union_needs_a_discriminator(kind: Any) -> None:
    """Pydantic tries both at each level: 180 bytes would take a minute."""

    class Search(pydantic.BaseModel):
        where: kind

    with pytest.raises(ConfigurationError, match=r"/below|/args.*Field\(discriminator=\.\.\.\)"):
        arguments_of(Search)


class All(pydantic.BaseModel):
    all: "list[All | Some | str]"


class Some(pydantic.BaseModel):
    any: "list[All | Some | str]"


class Plus(pydantic.BaseModel):
    op: Literal["+"]
    all: "list[Sum | str]"


class Minus(pydantic.BaseModel):
    op: Literal["-"]
    all: "list[Sum | str]"


Sum = Annotated[Plus | Minus, pydantic.Field(discriminator="op")]
Json = TypeAliasType("Json", "dict[str, Json] | list[Json] | str | None")
Plus.model_rebuild()
Minus.model_rebuild()


@pytest.mark.parametrize("kind", [All, Sum, Json, pydantic.JsonValue])
def test_recursive_union_of_distinct_types_is_read(kind: Any) -> None:
    """Where the value selects one alternative, the time is linear."""

    class Search(pydantic.BaseModel):
        where: kind

    decode = arguments_of(Search).decode
    deep: Any = "x"
    for _ in range(25):
        deep = {"all": [deep], "op": "+"}

    assert type(decode(msgspec.json.encode({"where": deep}))) is Search
    assert faults_of(decode, msgspec.json.encode({"where": 1.5, "x": 1}))


class Numbers(pydantic.BaseModel):
    numbers: list[int] = []
    times: list[datetime] = []


def text_of(**arguments: Any) -> bytes:
    return msgspec.json.encode(arguments)


def test_large_value_fits_the_schema_of_a_pydantic_model() -> None:
    """Pydantic has no bounds. The schema has, and reads no number from a text."""
    decode = arguments_of(Numbers).decode

    assert decode(text_of(numbers=["3"] * 500)).numbers == [3] * 500
    assert len(decode(text_of(times=["2026-01-02T03:04:00"] * 60_000)).times) == 60_000
    assert faults_of(decode, text_of(numbers=[1] * 59_999 + ["3"])) == [
        '/numbers/59999: expected an integer, got the string "3"'
    ]
    assert faults_of(decode, text_of(numbers=[""] * 300_000)) == [
        "(root): expected at most 200000 items and properties in all, got more"
    ]


def test_missing_properties_of_a_large_value_are_listed() -> None:
    """Each error of pydantic would copy the object: 50,000 values for each missing property."""
    fields: dict[str, Any] = {f"f{n}": (int, ...) for n in range(100)}
    model = pydantic.create_model("Wide", **fields)
    faults = faults_of(arguments_of(model).decode, text_of(**{f"k{n}": 1 for n in range(50_000)}))

    assert faults[0] == '(root): missing required property "f0"'
    assert faults[-1] == "... and 80 or more others"


def test_long_names_above_errors_of_a_model_are_not_copied() -> None:
    """Each error of pydantic has the names of all values that it is in."""

    class Times(pydantic.BaseModel):
        times: dict[str, list[datetime]]

    decode = arguments_of(Times).decode

    assert decode(text_of(times={"n" * 100_000: ["2026-01-02T03:04:00"]}))
    assert faults_of(decode, text_of(times={"n" * 100_000: ["never"] * 1_000})) == [
        "(root): expected property names of at most 500 characters, got a longer one"
    ]


def test_thousands_of_errors_of_a_model_are_not_all_read() -> None:
    """The schema explains them; those of validators have one fault."""

    def even(number: int) -> int:
        if number % 2:
            raise ValueError("odd")
        return number

    class Even(pydantic.BaseModel):
        numbers: list[Annotated[int, pydantic.AfterValidator(even)]]

    decode = arguments_of(Even).decode

    assert faults_of(decode, text_of(numbers=[""] * 2_000))[-1] == "... and 80 or more others"
    assert faults_of(decode, text_of(numbers=[1] * 900))[-1] == "... and 880 more"
    assert faults_of(decode, text_of(numbers=[1] * 2_000)) == [
        "(root): an object with 1 property does not fit, for 2000 reasons"
    ]


def test_pattern_of_a_type_takes_linear_time() -> None:
    """msgspec matches with `re`, and only text that the linear engine has accepted."""

    class Code(Struct):
        code: Annotated[str, Meta(pattern="^(a+)+$")]

    decode = arguments_of(Code).decode

    assert decode(b'{"code":"aa"}') == Code("aa")
    assert "expected text that matches" in faults_of(decode, b'{"code":"%s!"}' % (b"a" * 10_000))[0]


def test_exception_of_a_type_is_raised_unchanged() -> None:
    """An exception of the code of a type other than ValueError is for the caller."""

    class Broken(Struct):
        def __post_init__(self) -> None:
            raise RuntimeError("broken")

    with pytest.raises(RuntimeError, match="broken"):
        arguments_of(Broken).decode(b"{}")
