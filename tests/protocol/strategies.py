"""Hypothesis strategies for the protocol's values, made from their annotations."""

from collections.abc import Mapping, Sequence
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

import msgspec
from hypothesis import strategies as st

from genmcp.protocol.capabilities import ClientCapabilities
from genmcp.protocol.client_features import ElicitRequestParams, ElicitResult, ToolResultContent
from genmcp.protocol.content import ResourceContents
from genmcp.protocol.params import SUBSCRIPTION_ID, LoggingMessageNotificationParams, RequestMeta
from genmcp.protocol.resources import SubscriptionsListenResult
from genmcp.protocol.tools import CallToolRequestParams, CallToolResult, ToolDefinition
from genmcp.protocol.value import Integer, Value

Strategy = st.SearchStrategy[Any]

numbers = st.integers(0, 1) | st.floats(0, 1)
# The schema's JSONValue has neither null nor fractions.
scalars = st.booleans() | st.integers(0, 9) | st.text(max_size=3)
objects = st.dictionaries(st.text(max_size=3), scalars, max_size=2)
# Where the schema restricts the members of a free object, they must be objects.
free = st.dictionaries(st.text(max_size=3), objects, max_size=2)
json = scalars | objects | st.lists(scalars, max_size=2)

choices = st.lists(st.text(max_size=3), min_size=1, max_size=2)
titled = st.lists(
    st.fixed_dictionaries({"const": st.text(max_size=3), "title": st.text(max_size=3)}),
    min_size=1,
    max_size=2,
)
properties = st.one_of(
    st.fixed_dictionaries({"type": st.just("boolean")}, optional={"default": st.booleans()}),
    st.fixed_dictionaries({"type": st.just("string")}, optional={"default": st.text(max_size=3)}),
    st.fixed_dictionaries({"type": st.just("integer")}, optional={"default": st.integers(0, 9)}),
    st.fixed_dictionaries({"type": st.just("string"), "enum": choices}),
    st.fixed_dictionaries({"type": st.just("string"), "oneOf": titled}),
    st.fixed_dictionaries(
        {
            "type": st.just("array"),
            "items": st.fixed_dictionaries({"type": st.just("string"), "enum": choices}),
        }
    ),
)
forms = st.fixed_dictionaries(
    {
        "type": st.just("object"),
        "properties": st.dictionaries(st.text(max_size=3), properties, max_size=2),
    },
    optional={"$schema": st.just("https://json-schema.org/draft/2020-12/schema")},
)

#: Constraints that an annotation does not express.
MEMBERS: Mapping[tuple[type[Value], str], Strategy] = {
    (CallToolRequestParams, "arguments"): objects.map(
        lambda arguments: msgspec.Raw(msgspec.json.encode(arguments))
    ),
    (CallToolResult, "structured_content"): st.just(msgspec.UNSET) | st.none() | json,
    (LoggingMessageNotificationParams, "data"): st.none() | json,
    (ToolResultContent, "structured_content"): st.just(msgspec.UNSET) | st.none() | json,
    (ToolDefinition, "input_schema"): st.just({"type": "object", "additionalProperties": False}),
    (ToolDefinition, "output_schema"): st.sampled_from(
        [None, {"type": "object"}, {"type": "array"}, {"$ref": "#/$defs/a", "$defs": {"a": {}}}]
    ),
    (SubscriptionsListenResult, "meta"): st.just({SUBSCRIPTION_ID: 1}),
    (ElicitResult, "content"): st.none()
    | st.dictionaries(st.text(max_size=3), st.text() | st.integers() | st.lists(st.text())),
    (RequestMeta, "protocol_version"): st.just("2026-07-28"),
}
NAMES: Mapping[str, Strategy] = {
    "input_responses": st.none() | st.just({"where": {"roots": []}}),
    "cost_priority": st.none() | numbers,
    "data": st.just("aGk="),
    "intelligence_priority": st.none() | numbers,
    "priority": st.none() | numbers,
    "speed_priority": st.none() | numbers,
    "src": st.just("https://a.b/icon.png"),
    "uri": st.just("file:///a"),
    "uri_template": st.just("file:///{a}"),
    "website_url": st.none() | st.just("https://a.b/"),
}


@cache
def values(type_: type[Value]) -> Strategy:
    """Return a strategy for values of *type_* that 2026-07-28 can express."""
    if issubclass(type_, ElicitRequestParams):
        return st.builds(type_, st.text(), forms, mode=st.sampled_from(["form", None])) | st.builds(
            type_, st.text(), url=st.just("https://a.b/c"), mode=st.just("url")
        )
    if type_ is ResourceContents:
        rest = {"mime_type": st.none() | st.text(), "meta": st.none() | free}
        return st.builds(type_, uri=NAMES["uri"], text=st.text(), **rest) | st.builds(
            type_, uri=NAMES["uri"], blob=st.just("aGk="), **rest
        )
    members = {member.name: of_member(type_, member) for member in msgspec.structs.fields(type_)}
    return st.builds(type_, **members)


def of_member(type_: type[Value], member: msgspec.structs.FieldInfo) -> Strategy:
    for base in type_.__mro__:
        if (base, member.name) in MEMBERS:
            return MEMBERS[base, member.name]
    if type_ is RequestMeta and member.name == "client_capabilities":
        return values(ClientCapabilities)
    return NAMES[member.name] if member.name in NAMES else of(member.type)


def of(annotation: Any) -> Strategy:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return st.one_of([of(argument) for argument in arguments])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin in (Sequence, list):
        return st.lists(st.deferred(lambda: of(arguments[0])), max_size=2)
    if origin is Mapping:
        held = arguments[1]
        return free if held is Any else st.dictionaries(st.text(max_size=3), of(held), max_size=2)
    if isinstance(annotation, type) and issubclass(annotation, Value):
        return values(annotation)
    return PLAIN[annotation]


PLAIN: Mapping[Any, Strategy] = {
    str: st.text(max_size=5),
    **dict.fromkeys((int, Integer), st.integers(0, 1000)),
    float: st.floats(0, 1),
    bool: st.booleans(),
    NoneType: st.none(),
    Any: json,
}
