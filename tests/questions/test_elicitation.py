"""Questions to the client's user: their form, and the decoding of answers."""

import dataclasses
from collections.abc import Mapping
from datetime import date
from enum import Enum, IntEnum
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import msgspec
import pydantic
import pytest
from msgspec import Meta

from genmcp.core.outcome import Done, Outcome
from genmcp.errors import ArgumentFaults, ConfigurationError, ContractError
from genmcp.protocol.capabilities import ClientCapabilities, ElicitationCapability
from genmcp.protocol.client_features import ElicitRequest
from genmcp.question.elicitation import FormQuestion, elicit, elicit_url
from genmcp.question.packing import unpack
from genmcp.question.question import Accepted, Cancelled, Declined, Question

# 2026-07-28, client/elicitation, "Requested Schema": every kind of property there is.
EVERYTHING: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "who": {
            "type": "string",
            "title": "Your name",
            "description": "As on the card",
            "minLength": 3,
            "maxLength": 50,
            "default": "John Doe",
        },
        "mail": {"type": "string", "format": "email"},
        "age": {"type": "integer", "minimum": 18, "maximum": 100, "default": 30},
        "score": {"type": "number", "default": 95.5},
        "verified": {"type": "boolean", "default": True},
        "plain": {"type": "string", "enum": ["Red", "Green"], "default": "Red"},
        "legacy": {"type": "string", "enum": ["r", "g"], "enumNames": ["Red", "Green"]},
        "titled": {
            "type": "string",
            "oneOf": [{"const": "r", "title": "Red"}, {"const": "g", "title": "Green"}],
        },
        "several": {
            "type": "array",
            "minItems": 1,
            "maxItems": 2,
            "items": {"type": "string", "enum": ["Red", "Green"]},
            "default": ["Red"],
        },
        "severalTitled": {
            "type": "array",
            "items": {"anyOf": [{"const": "r", "title": "Red"}, {"const": "g", "title": "Green"}]},
        },
    },
    "required": ["mail"],
}


class Size(Enum):
    """Out of alphabetical order."""

    SMALL = "small"
    MEDIUM = "medium"
    LARGE = "large"


class Number(IntEnum):
    """Not a text, and therefore not a choice of a form."""

    ONE = 1


class Order(msgspec.Struct, rename="camel"):
    """The article to order.

    And the number of items.
    """

    full_name: Annotated[str, Meta(title="Name", description="Yours", pattern="^[A-Z]")]
    size: Size
    amount: Annotated[int, Meta(gt=0, lt=10)]
    note: str | None
    price: Annotated[float, Meta(gt=0, lt=9.5)] = 1.5
    speed: Literal["slow", "fast"] | None = None
    extras: list[Literal["tomato", "cheese"]] = []
    sizes: list[Size] | None = None
    on: date | None = None
    gift: bool = False


@dataclasses.dataclass
class Person:
    name: str
    age: int | None = 7
    kind: Literal["b", "a", None] = None
    weight: int | float = 1


class Flags(TypedDict):
    loud: bool
    quick: NotRequired[Literal["yes", "no"]]


class Model(pydantic.BaseModel):
    """A pydantic model."""

    name: str = pydantic.Field(min_length=2, description="Yours")
    size: Size = Size.MEDIUM
    fixed: Literal["x"] = "x"
    age: int | None = pydantic.Field(gt=2)
    tags: list[Size] = pydantic.Field(
        default=[], json_schema_extra={"items": {"anyOf": [{"const": "small", "title": "S"}]}}
    )

    @pydantic.field_validator("name")
    @classmethod
    def _no_bob(cls, name: str) -> str:
        if name == "Bob":
            raise ValueError("not Bob again")
        return name

    @pydantic.model_validator(mode="after")
    def _grown(self) -> "Model":
        if self.age == 99:
            raise ValueError("nobody is that old")
        return self


class Nested(msgspec.Struct):
    address: Flags


class Mixed(msgspec.Struct):
    which: int | str


class Counted(msgspec.Struct):
    number: Number


class Tagged(msgspec.Struct):
    tags: list[str]


class Short(msgspec.Struct):
    """A default that a user could not enter is not part of the form."""

    code: Annotated[str, Meta(min_length=4)] = ""


class Row(msgspec.Struct, array_like=True):
    a: int


class Outer:
    class Inner(msgspec.Struct):
        a: int = 0


def requested(question: Question) -> Mapping[str, Any]:
    """The schema a client gets."""
    request = question.request
    assert isinstance(request, ElicitRequest)
    assert request.params.requested_schema is not None
    return request.params.requested_schema


def accepted(question: Question, **content: Any) -> Any:
    """The content of an accepted form."""
    value = question.read({"action": "accept", "content": content})
    assert isinstance(value, Accepted)
    return value.content


def faults(question: Question, answer: Any) -> tuple[str, ...]:
    with pytest.raises(ArgumentFaults) as refused:
        question.read(answer)
    return refused.value.faults


def test_schema_is_sent_unchanged() -> None:
    """Every kind of property of the specification is taken, and the order of all keys is kept."""
    question = elicit("Who are you?", EVERYTHING)

    assert msgspec.json.encode(EVERYTHING) == msgspec.json.encode(requested(question))
    assert question.method == "elicitation/create"
    assert msgspec.json.decode(msgspec.json.encode(question.request)) == {
        "method": "elicitation/create",
        "params": {"message": "Who are you?", "requestedSchema": EVERYTHING, "mode": "form"},
    }


def test_question_keeps_the_schema_it_was_made_with() -> None:
    """The question has the values at the time it was made."""
    schema: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "string"}}}
    question = elicit("?", schema)
    schema["properties"]["b"] = {"type": "object"}

    assert requested(question)["properties"].keys() == {"a"}


@pytest.mark.parametrize(
    ("property_", "fault"),
    [
        ({"type": "object", "properties": {}}, "/properties/a/type: expected "),
        ({"type": ["string", "null"]}, "/properties/a/type: expected "),
        ({"$ref": "#/$defs/x"}, '/properties/a: missing required property "type"'),
        ({"anyOf": [{"type": "string"}]}, '/properties/a: missing required property "type"'),
        ({"type": "string", "pattern": "^a"}, "/properties/a/pattern: unexpected property"),
        ({"type": "string", "format": "password"}, "/properties/a/format: expected "),
        ({"type": "string", "enum": [1]}, "/properties/a/enum/0: expected a string"),
        ({"type": "string", "enum": []}, "/properties/a/enum: expected at least 1 item"),
        ({"type": "string", "oneOf": [{"const": "x"}]}, "/properties/a/oneOf/0: missing"),
        ({"type": "integer", "minimum": "1"}, "/properties/a/minimum: expected a number"),
        ({"type": "string", "minLength": -1}, "/properties/a/minLength: expected a number of at"),
        ({"type": "array"}, '/properties/a: missing required property "items"'),
        ({"type": "array", "items": {"type": "string"}}, "/properties/a/items: missing"),
        ({"type": "array", "items": {"anyOf": [{"type": "string"}]}}, "/properties/a/items/anyOf"),
        ({"type": "boolean", "default": "yes"}, "/properties/a/default: expected a boolean"),
        ({"type": "integer", "minimum": 3, "default": 1}, "default: at /a: expected a number of"),
        ({"type": "string", "enum": ["x"], "default": "y"}, 'default: at /a: expected "x"'),
    ],
)
def test_property_that_no_form_has_is_rejected(property_: dict[str, Any], fault: str) -> None:
    """The error names the place in the schema."""
    with pytest.raises(ConfigurationError) as refused:
        elicit("?", {"type": "object", "properties": {"a": property_}})

    assert f"elicit: at {fault}" in str(refused.value) or f"elicit: {fault}" in str(refused.value)


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        ({"type": "array"}, "at /type: expected"),
        ({"type": "object"}, 'at (root): missing required property "properties"'),
        ({"type": "object", "properties": {}, "allOf": []}, "at /allOf: unexpected property"),
        ({"type": "object", "properties": {}, "required": ["x"]}, "at /required: 'x' is not one"),
        ({"type": "object", "properties": {}, "title": object()}, "cannot be written as JSON"),
        ({"type": "object", "properties": {}, "$schema": "http://x"}, "'http://x' is not supp"),
    ],
)
def test_schema_that_is_no_form_is_rejected(schema: dict[str, Any], fault: str) -> None:
    """The root of a form is an object of properties, and nothing else."""
    with pytest.raises(ConfigurationError) as refused:
        elicit("?", schema)

    assert fault in str(refused.value)


def test_form_of_a_type_is_flat() -> None:
    """No references, no null, no exclusive bounds; choices as they are declared, not sorted."""
    assert requested(elicit("?", Order)) == {
        "type": "object",
        "description": "The article to order.\n\nAnd the number of items.",
        "properties": {
            "fullName": {"type": "string", "title": "Name", "description": "Yours"},
            "size": {
                "type": "string",
                "description": "Out of alphabetical order.",
                "enum": ["small", "medium", "large"],
            },
            "amount": {"type": "integer", "minimum": 1, "maximum": 9},
            "note": {"type": "string"},
            "price": {"type": "number", "minimum": 0, "maximum": 9.5, "default": 1.5},
            "speed": {"type": "string", "enum": ["slow", "fast"]},
            "extras": {
                "type": "array",
                "items": {"type": "string", "enum": ["tomato", "cheese"]},
                "default": [],
            },
            "sizes": {
                "type": "array",
                "items": {"type": "string", "enum": ["small", "medium", "large"]},
            },
            "on": {"type": "string", "format": "date"},
            "gift": {"type": "boolean", "default": False},
        },
        "required": ["fullName", "size", "amount"],
    }


def test_form_of_a_dataclass() -> None:
    """Null among its choices is a choice left empty, and an int or float is a number."""
    assert requested(elicit("?", Person)) == {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "age": {"type": "integer", "default": 7},
            "kind": {"type": "string", "enum": ["b", "a"]},
            "weight": {"type": "number", "default": 1},
        },
        "required": ["name"],
    }


def test_form_of_a_typed_dict() -> None:
    """Fields that are not required may be left empty."""
    question = elicit("?", Flags)

    assert requested(question) == {
        "type": "object",
        "properties": {
            "loud": {"type": "boolean"},
            "quick": {"type": "string", "enum": ["yes", "no"]},
        },
        "required": ["loud"],
    }
    assert accepted(question, loud=True, quick=None) == {"loud": True}


def test_form_of_a_pydantic_model() -> None:
    """With the titles and bounds of its fields."""
    assert requested(elicit("?", Model)) == {
        "type": "object",
        "description": "A pydantic model.",
        "properties": {
            "name": {"type": "string", "title": "Name", "description": "Yours", "minLength": 2},
            "size": {
                "type": "string",
                "description": "Out of alphabetical order.",
                "enum": ["small", "medium", "large"],
                "default": "medium",
            },
            "fixed": {"type": "string", "title": "Fixed", "enum": ["x"], "default": "x"},
            "age": {"type": "integer", "title": "Age", "minimum": 3},
            "tags": {
                "type": "array",
                "title": "Tags",
                "items": {"anyOf": [{"const": "small", "title": "S"}]},
                "default": [],
            },
        },
        "required": ["name"],
    }


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        (Nested, "elicit: Nested: at /properties/address/type: expected"),
        (Mixed, 'elicit: Mixed: at /properties/which: missing required property "type"'),
        (Counted, "elicit: Counted: at /properties/number/enum/0: expected a string"),
        (Tagged, 'elicit: Tagged: at /properties/tags/items: missing required property "enum"'),
        (Row, "elicit: Row cannot be a form"),
        (int, "elicit: int cannot be a form"),
        (dict, "elicit: dict cannot be a form"),
        (object(), "elicit: the form must be a class or a schema"),
        (list[int], "elicit: the form must be a class or a schema"),
        (complex, "cannot describe JSON"),
    ],
)
def test_type_that_is_no_form_is_rejected(kind: Any, fault: str) -> None:
    """The error names the type and the property."""
    with pytest.raises(ConfigurationError) as refused:
        elicit("?", kind)

    assert fault in str(refused.value)


def test_type_that_cannot_be_imported_is_rejected() -> None:
    """A type that is local to a function, or a name that means another type now."""

    class Local(msgspec.Struct):
        a: int

    renamed = msgspec.defstruct("Order", [("a", int)], module=__name__)
    lost = msgspec.defstruct("Lost", [("a", int)], module="no.such.module")
    for kind in (Local, renamed, lost):
        with pytest.raises(ConfigurationError, match="at the top level of a module"):
            elicit("?", kind)


def test_accepted_form_is_an_instance_of_its_type() -> None:
    """Null and missing members are empty, also where the type requires a null."""
    question = elicit("?", Order)

    assert Order("Ann", Size.LARGE, 2, None, extras=["cheese"], on=date(2026, 7, 28)) == accepted(
        question,
        fullName="Ann",
        size="large",
        amount=2.0,
        price=None,
        extras=["cheese"],
        on="2026-07-28",
    )
    assert accepted(question, fullName="Ann", size="large", amount=2, note="quick").note == "quick"
    assert accepted(elicit("?", Person), name="Ann", age=None) == Person("Ann")
    assert accepted(elicit("?", Model), name="Ann") == Model(name="Ann", age=None)
    assert accepted(elicit("?", Short)) == Short("")
    assert accepted(elicit("?", Outer.Inner), a=3) == Outer.Inner(3)


def test_accepted_schema_is_a_dict_with_defaults() -> None:
    """In the order of the form; other members are ignored."""
    question = elicit("?", EVERYTHING)
    content = accepted(question, age=40.0, mail="a@example.com", admin=True, legacy=None)

    assert list(content.items()) == [
        ("who", "John Doe"),
        ("mail", "a@example.com"),
        ("age", 40),
        ("score", 95.5),
        ("verified", True),
        ("plain", "Red"),
        ("several", ["Red"]),
    ]
    assert isinstance(content["age"], int)
    content["several"].append("Green")
    assert accepted(question, mail="a@example.com")["several"] == ["Red"]


def test_empty_text_is_an_empty_number_or_choice() -> None:
    """Some clients send it; where a text may be empty, it is the text."""
    content = accepted(elicit("?", EVERYTHING), mail="a@example.com", age="", legacy="", plain="")

    assert (content["age"], content["plain"]) == (30, "Red")
    assert "legacy" not in content
    assert faults(elicit("?", EVERYTHING), {"action": "accept", "content": {"mail": ""}}) == (
        "mail: please fill it in",
    )
    assert accepted(elicit("?", Person), name="", age="") == Person("")


def test_required_property_may_have_a_default() -> None:
    """A missing member has its default."""
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer", "default": 0}},
        "required": ["a"],
    }

    assert elicit("?", schema).read({"action": "accept"}) == Accepted({"a": 0})


def test_declining_and_dismissing_are_answers() -> None:
    """Content that the client sends is ignored."""
    question = elicit("?", Order)

    assert question.read({"action": "decline", "content": {"size": {}}}) == Declined()
    assert question.read({"action": "cancel"}) == Cancelled()
    assert question.read(msgspec.Raw(b'{"action":"decline","content":null}')) == Declined()


def test_confirmation_has_an_empty_form() -> None:
    """A question without a form has an empty one."""
    question = elicit("Delete 3 files?")

    assert requested(question) == {"type": "object", "properties": {}}
    assert question.read({"action": "accept"}) == Accepted({})
    assert question.read({"action": "accept", "content": {"x": 1}}) == Accepted({})


def test_answers_match_patterns() -> None:
    """As values of `Done`, with and without their content."""

    def reply_to(outcome: Outcome) -> str:
        match outcome:
            case Done(Accepted(Person(name))):
                return f"I am {name}"
            case Done(Accepted()):
                return "yes"
            case Done(Declined()):
                return "no"
            case Done(Cancelled()):
                return "closed"
        return "?"

    outcomes = (Done(Accepted(Person("Ann"))), Done(Accepted()), Done(Declined()))
    assert [reply_to(each) for each in outcomes] == ["I am Ann", "yes", "no"]
    assert reply_to(Done(Cancelled())) == "closed"


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({}, ["mail: please fill it in"]),
        ({"mail": None}, ["mail: please fill it in"]),
        ({"mail": "x"}, ['mail: expected an e-mail address; got the string "x"']),
        ({"who": "Al"}, ["mail: please fill it in", "Your name: expected at least 3 characters"]),
        ({"mail": "a@b.no", "age": 3}, ["age: expected a number of at least 18"]),
        ({"mail": "a@b.no", "age": True}, ["age: expected an integer, got the boolean true"]),
        ({"mail": "a@b.no", "titled": "b"}, ['titled: expected "r" or "g"; got the string "b"']),
        ({"mail": "a@b.no", "several": []}, ["several: expected at least 1 item, got 0"]),
        ({"mail": "a@b.no", "several": ["Blue"]}, ['several: expected "Red" or "Green"; got']),
        ({"mail": "a@b.no", "severalTitled": "r"}, ["severalTitled: expected an array"]),
        (7, ["/content: expected an object, got the number 7"]),
    ],
)
def test_faults_of_a_schema_name_its_titles(content: Any, expected: list[str]) -> None:
    """In the words of the form: its titles where it has some, no pointers."""
    found = faults(elicit("?", EVERYTHING), {"action": "accept", "content": content})

    assert len(expected) == len(found)
    for begins, line in zip(expected, found, strict=True):
        assert line.startswith(begins)


def test_faults_of_a_type_are_explained() -> None:
    """Also constraints that a form cannot express, and errors of the type's own code."""
    good = {"fullName": "Ann", "size": "large", "amount": 2}

    def faults_of(kind: type, **content: Any) -> tuple[str, ...]:
        return faults(elicit("?", kind), {"action": "accept", "content": content})

    assert faults_of(Order, **good, price=9.5) == (
        "price: expected a number less than 9.5, got the number 9.5",
    )
    (named,) = faults_of(Order, **{**good, "fullName": "ann"})
    assert named.startswith("Name: expected text that matches")
    assert faults_of(Model, name="Bob") == ("Name: not Bob again",)
    assert faults_of(Model, name="Ann", age=99) == ("the form: nobody is that old",)


@pytest.mark.parametrize(
    "answer", [None, 3, "yes", [], {}, {"action": "maybe"}, {"content": {}}, {"action": None}]
)
def test_invalid_elicit_result_is_rejected(answer: Any) -> None:
    """The question is then sent again."""
    for question in (elicit("?"), elicit_url("?", "https://example.com/")):
        assert faults(question, answer)


def test_url_question_has_no_content() -> None:
    """Content that the client sends with a confirmation is dropped."""
    question = elicit_url("Your key, please.", "https://example.com/key?q=1")

    assert msgspec.json.decode(msgspec.json.encode(question.request)) == {
        "method": "elicitation/create",
        "params": {
            "message": "Your key, please.",
            "mode": "url",
            "url": "https://example.com/key?q=1",
        },
    }
    assert question.read({"action": "accept", "content": {"key": "secret"}}) == Accepted()
    assert question.read({"action": "decline"}) == Declined()
    assert question.read({"action": "cancel"}) == Cancelled()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "/key",
        "example.com",
        "mailto:a@b.no",
        "https://a b",
        "https:///path",
        "https://a.example:port/",
        "https://good.example\\@evil.example/",
        "javascript:alert(1)",
        "javascript://x/%0aalert(1)",
        "data:text/html,x",
        "file:///etc/passwd",
        "file://host/",
        "http://example.com/",
        "http://127.0.0.1.example.com/",
        None,
    ],
)
def test_elicit_url_rejects_dangerous_urls(url: Any) -> None:
    """2026-07-28, client/elicitation: `url` MUST contain a valid URL, and SHOULD be https."""
    with pytest.raises(ConfigurationError, match="elicit_url: the user"):
        elicit_url("?", url)


@pytest.mark.parametrize(
    "url",
    [
        "https://example.com/a?b=c",
        "https://xn--bcher-kva.example",
        "http://localhost:8000/",
        "http://app.localhost/",
        "http://127.0.0.1/",
        "http://[::1]:80/",
    ],
)
def test_elicit_url_allows_https_and_loopback(url: str) -> None:
    """Security Best Practices, "URL Scheme Validation"."""
    params: Any = elicit_url("?", url).request.params
    assert params.url == url


def test_elicit_url_allows_given_schemes() -> None:
    """But no scheme by which a URL runs code."""
    assert elicit_url("?", "vscode://x/y", schemes=["vscode"])
    assert elicit_url("?", "http://example.com/", schemes=["http"])
    for schemes in (["javascript"], ["data"], ["HTTP"], "http", [5], [""]):
        with pytest.raises(ConfigurationError, match="elicit_url: schemes"):
            elicit_url("?", "https://example.com/", schemes=schemes)  # type: ignore[arg-type]


@pytest.mark.parametrize("message", ["", " ", None, 3])
def test_empty_message_is_rejected(message: Any) -> None:
    """The user must be able to read the question."""
    with pytest.raises(ContractError, match="message must be a non-empty str"):
        elicit(message)
    with pytest.raises(ContractError, match="message must be a non-empty str"):
        elicit_url(message, "https://example.com/")


@pytest.mark.parametrize(
    ("declared", "for_form", "for_url"),
    [
        (None, {"elicitation": {}}, {"elicitation": {"url": {}}}),
        (ElicitationCapability(), {}, {"elicitation": {"url": {}}}),
        (ElicitationCapability(form={}), {}, {"elicitation": {"url": {}}}),
        (ElicitationCapability(url={}), {"elicitation": {"form": {}}}, {}),
        (ElicitationCapability(form={}, url={}), {}, {}),
    ],
)
def test_question_needs_the_declared_mode(
    declared: ElicitationCapability | None, for_form: Any, for_url: Any
) -> None:
    """2026-07-28, client/elicitation, "Capabilities": an empty object is forms only."""
    capabilities = ClientCapabilities(elicitation=declared)

    assert for_form == elicit("?").missing_capabilities(capabilities)
    assert for_url == elicit_url("?", "https://example.com/").missing_capabilities(capabilities)


@pytest.mark.parametrize(
    "question",
    [
        elicit("Sure?"),
        elicit("Who?", EVERYTHING),
        elicit("What?", Order),
        elicit("What?", Outer.Inner),
        elicit_url("Where?", "https://example.com/"),
    ],
)
def test_packed_question_is_restored(question: Question) -> None:
    """It is equal, and has the same request."""
    again = unpack(question.pack())

    assert question == again
    assert msgspec.json.encode(question.request) == msgspec.json.encode(again.request)


def test_only_the_name_of_a_type_is_packed() -> None:
    """Only its name is; the rest is made again."""
    packed = elicit("What?", Order).pack()

    assert {"kind": "form", "message": "What?", "type_name": f"{__name__}:Order"} == (
        msgspec.json.decode(packed)
    )


@pytest.mark.parametrize("name", ["no.such.module:A", f"{__name__}:Gone", f"{__name__}:Outer.Gone"])
def test_packed_type_that_is_missing_is_an_error(name: str) -> None:
    """In a process that runs other code, the question cannot be unpacked."""
    packed = FormQuestion("?", type_name=name).pack()

    with pytest.raises(
        ConfigurationError, match=f"{name} of a question is not found in this process"
    ):
        unpack(packed)


def test_packed_name_of_another_type_is_rejected() -> None:
    """The name must refer to a type that elicit accepts."""
    with pytest.raises(ConfigurationError, match="cannot be a form"):
        unpack(FormQuestion("?", type_name=f"{__name__}:Row").pack())
    with pytest.raises(ConfigurationError, match="a class or a schema"):
        unpack(FormQuestion("?", type_name=f"{__name__}:EVERYTHING").pack())


def test_value_that_is_no_packed_question_is_rejected() -> None:
    """A value that is not a question."""
    for packed in (b"", b"{}", b'{"kind":"riddle"}'):
        with pytest.raises(msgspec.DecodeError):
            unpack(packed)
