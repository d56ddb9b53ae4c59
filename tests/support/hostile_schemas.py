"""JSON Schemas that a hostile server may send, generated from a seed and a number."""

import random
from collections.abc import Callable
from typing import Any, Final

__all__ = ["hostile_schema"]

_DRAFTS: Final = (
    "https://json-schema.org/draft/2020-12/schema",
    "https://json-schema.org/draft/2019-09/schema#",
    "http://json-schema.org/draft-07/schema#",
    "http://json-schema.org/draft-04/schema#",
)
_ONE: Final = [
    "not",
    "if",
    "then",
    "else",
    "items",
    "contains",
    "propertyNames",
    "additionalProperties",
    "additionalItems",
    "unevaluatedItems",
    "unevaluatedProperties",
    "contentSchema",
]
_SEVERAL: Final = ["allOf", "anyOf", "oneOf", "prefixItems", "items"]
_NAMED: Final = [
    "properties",
    "patternProperties",
    "$defs",
    "definitions",
    "dependentSchemas",
    "dependencies",
    "x-parts",
]
_COUNTS: Final = [
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
    "minProperties",
    "maxProperties",
    "minContains",
    "maxContains",
    "minimum",
    "maximum",
    "exclusiveMinimum",
    "exclusiveMaximum",
    "multipleOf",
]
_REFERENCES: Final = ["$ref", "$dynamicRef", "$recursiveRef"]
_UNEVALUATED: Final = ["unevaluatedProperties", "unevaluatedItems"]
_IDENTIFIERS: Final = ["$id", "$anchor", "$dynamicAnchor", "$schema"]

_URIS: Final = (
    "#", "", "#/", "#a", "#/$defs/a", "#/properties/a", "#/properties/a/items/0", "#/x-parts/b",
    "http://[", "http://[::1", "//[", "http://a\u2100b/", "http://a:99999999999/", "http://a/b",
    "b", "../c", "?", "urn:x", "file:///etc/passwd", "%", "%zz", "#%zz", "#/%zz", "#/%ff", "#/~2",
    "#/~", "#/allOf/" + "9" * 5_000, "#/allOf/-1", "#/allOf/\u0663", "#/allOf/\u00b2", "#/allOf/01",
    "#/allOf/0", "\x00", "\x1b[31m", "http://a/\ud83d", "::", "http://", "a" * 3_000,
)  # fmt: skip
_PATTERNS: Final = (
    "a", "^[a-z]+$", "(", "[", "(?=a)", r"(a)\1", "(a+)+$", "a{1000}", "a{100000}", r"\S" * 100,
    r"\w" * 300, r"\p{L}" * 200, "((a{100}){100}){100}", r"[\p{L}\p{N}]{500}",
    "(?i:[a-\uffff])" * 60, "a|" * 2_000, "\\", r"\u", r"\cA",
    r"\x{110000}", "(?P<a>b)", "a{2,1}", "[z-a]",
    "*", "(" * 300,
    "\x1b", "a.{1,1000}c", r"[ab]*a[ab]{300}c", "[[a-z]&&[b]]", r"\p{Nope}", "x" * 20_000,
    r"[ab]*a[ab]{1000}c", "(?i)" + r"\p{Any}" * 50, r"\cA" * 300, r"\d" * 250, r"^\p{L}{1,100}$",
)  # fmt: skip
_NAMES: Final = ("a", "b", "", "/", "~", "~1", "a/b", "%", "$ref", "\x1b[2J", "\u202e", "\x9b", "k")
_TYPES: Final = ("object", "array", "string", "integer", "number", "boolean", "null", "any", "")
_NUMBERS: Final = (0, 1, -1, 2, 0.5, 1e-300, 1e300, 1e308, 2**63, 2**64, -(2**63) - 1, 10**400, 0.1)


def hostile_schema(seed: int, number: int) -> Any:
    """Return case *number* of *seed*: most are small, one in fifty is as large as allowed."""
    luck = random.Random(f"{seed}:{number}")
    if luck.random() < 0.02:
        return luck.choice(_LARGE)(luck)
    schema = _schema(luck, luck.choice((1, 2, 3, 4)))
    if isinstance(schema, dict) and luck.random() < 0.7:
        schema.setdefault("type", "object")
    return schema


def _schema(luck: random.Random, depth: int) -> Any:
    if luck.random() < 0.04:
        return _anything(luck, 2)
    schema: dict[str, Any] = {}
    for _ in range(luck.choice((0, 1, 1, 2, 3, 5))):
        keyword, value = _keyword(luck, depth)
        schema[keyword] = _anything(luck, 2) if luck.random() < 0.06 else value
    return schema


def _keyword(luck: random.Random, depth: int) -> tuple[str, Any]:
    def below() -> Any:
        return _schema(luck, depth - 1) if depth else luck.choice(({}, True, False))

    match luck.randrange(12):
        case 0:
            return luck.choice(_ONE), below()
        case 1:
            return luck.choice(_SEVERAL), [below() for _ in range(luck.choice((0, 1, 2, 3)))]
        case 2 | 3:
            names = [_name(luck) for _ in range(luck.choice((0, 1, 2, 4)))]
            return luck.choice(_NAMED), {name: below() for name in names}
        case 4:
            return luck.choice(_REFERENCES), luck.choice(_URIS)
        case 5:
            kind = luck.choice(_IDENTIFIERS)
            return kind, luck.choice(_DRAFTS if kind == "$schema" else _URIS)
        case 6:
            return luck.choice(_COUNTS), luck.choice(_NUMBERS)
        case 7:
            return "pattern", luck.choice(_PATTERNS)
        case 8:
            types = [luck.choice(_TYPES) for _ in range(2)]
            return "type", luck.choice((types, types[0]))
        case 9:
            header = luck.choice(("Region", "region", "a b", "", "\r\n", "x" * 9_000, 5))
            return "x-mcp-header", header
        case 10:
            return "format", luck.choice(("regex", "email", "uri", "date-time", "\x1b", "nope"))
        case _:
            kind = luck.choice(("enum", "const", "default", "required", "dependentRequired"))
            return kind, _anything(luck, 3)


def _name(luck: random.Random) -> str:
    return luck.choice(_PATTERNS if luck.random() < 0.1 else _NAMES)


def _anything(luck: random.Random, depth: int) -> Any:
    match luck.randrange(8 if depth else 6):
        case 0:
            return luck.choice(_NUMBERS)
        case 1:
            return luck.choice(_URIS)
        case 2:
            return luck.choice((None, True, False))
        case 3:
            return luck.choice(_PATTERNS)
        case 4:
            return luck.choice(_TYPES)
        case 5:
            return _name(luck)
        case 6:
            return [_anything(luck, depth - 1) for _ in range(luck.choice((0, 1, 3)))]
        case _:
            return {_name(luck): _anything(luck, depth - 1) for _ in range(luck.choice((0, 1, 3)))}


def _many(luck: random.Random, count: int, schema: Any) -> dict[str, Any]:
    return {f"k{index}": schema for index in range(luck.randrange(count // 2, count))}


def _long_name_above_many(luck: random.Random) -> Any:
    name = luck.choice(("A", "\u00e9", "\U0001f600", "/", "~")) * luck.choice((100, 5_000, 60_000))
    return {"properties": {name: {"properties": _many(luck, 2_400, {})}}}


def _base_above_many(luck: random.Random) -> Any:
    inner = luck.choice(({"$id": "b"}, {"$anchor": "b"}, {"$ref": "#"}, {"$ref": "b"}))
    base = "http://a/" + "A" * luck.choice((100, 480, 2_000, 100_000))
    return {"$id": base, "properties": _many(luck, 2_400, inner)}


def _many_patterns(luck: random.Random) -> Any:
    pattern = luck.choice(
        (r"\S{%d}", r"^[a-z]{1,%d}$", r"\w\w\w\w%d", r"a.{1,400}c%d", r"\p{L}{%d}")
    )
    named = luck.random() < 0.5
    count = luck.choice((20, 100, 2_000))
    if named:
        return {"patternProperties": {pattern % index: {} for index in range(1, count)}}
    return {"properties": {f"k{i}": {"pattern": pattern % i} for i in range(1, count)}}


def _doubling(luck: random.Random) -> Any:
    def step(number: int) -> Any:
        reference = {"$ref": f"#/$defs/n{number + 1}"}
        return luck.choice(
            (
                {"properties": {"a": reference, "b": reference}},
                {"items": reference, "additionalProperties": reference},
                {"allOf": [reference, reference]},
                {"anyOf": [reference, {"not": reference}]},
                {"properties": {"a": reference}, "patternProperties": {"a": reference}},
                {"items": reference, "contains": reference},
                {"allOf": [reference], luck.choice(_UNEVALUATED): luck.choice((False, reference))},
            )
        )

    last = luck.choice(({}, {"type": "string"}, {"items": {"$ref": "#/$defs/n0"}}))
    count = luck.choice((3, 8, 40))
    links = {f"n{n}": step(n) for n in range(count)}
    return {"$defs": {**links, f"n{count}": last}, "$ref": "#/$defs/n0"}


def _recursive(luck: random.Random) -> Any:
    below = luck.choice(({"$ref": "#"}, {"$ref": "#/$defs/a"}, {"$dynamicRef": "#a"}))
    parts: list[dict[str, Any]] = [
        {"properties": {"a": below}},
        {"patternProperties": {"a": below}},
        {"additionalProperties": below},
        {"items": below},
        {"contains": below},
        {luck.choice(_UNEVALUATED): below},
    ]
    branches = [luck.choice(parts) for _ in range(luck.choice((2, 5, 300)))]
    tree = {luck.choice(("anyOf", "oneOf", "allOf")): branches, "$dynamicAnchor": "a"}
    return {**tree, **luck.choice(parts), "$defs": {"a": luck.choice((tree, {}))}}


def _constants(luck: random.Random) -> Any:
    count = luck.choice((10, 1_000, 10_000))
    number = luck.choice((1, 0.5, 2**70, 1e300))
    constants = [number * index for index in range(1, count)]
    rule = luck.choice(({"enum": constants}, {"anyOf": [{"const": it} for it in constants[:400]]}))
    return {"items": rule, "additionalProperties": rule}


def _deep(luck: random.Random) -> Any:
    value: Any = {}
    keyword = luck.choice(("items", "not", "default", "const", "properties"))
    for _ in range(luck.choice((60, 70, 300, 900, 20_000))):
        value = {keyword: value}
    return value


def _dynamic(luck: random.Random) -> Any:
    count = luck.choice((10, 600))
    anchors = {f"a{n}": {"$dynamicAnchor": f"x{n}"} for n in range(count)}
    return {"$defs": anchors, "properties": _many(luck, 2 * count, {"$dynamicRef": "#x1"})}


def _long_values(luck: random.Random) -> Any:
    size = luck.choice((1_000, 32_000, 120_000))
    items: Any = luck.choice(([1] * size, [*range(size)], [[]] * size, ["a" * size]))
    keyword = luck.choice(
        ["enum", "const", "required", "default", "type", "examples", "items", "allOf"]
    )
    if luck.random() < 0.2:
        return {"dependencies": {"a": items}, "dependentRequired": {"a": items}}
    return {"$schema": luck.choice(_DRAFTS), keyword: items}


def _wide(luck: random.Random) -> Any:
    rule = {"type": luck.choice(("string", "object")), "x-mcp-header": "A"}
    part = luck.choice(({}, rule, {"const": 1}, {"format": "email"}, {"$ref": "#/$defs/a"}))
    return {"type": "object", "properties": _many(luck, 2_400, part), "$defs": {"a": {}}}


def _alternatives(luck: random.Random) -> Any:
    branch = luck.choice(({"$ref": "#"}, {"items": {"$ref": "#"}}, {"const": "a"}, {}))
    return {"properties": {"a": {luck.choice(("anyOf", "oneOf", "allOf")): [branch] * 1_950}}}


_LARGE: Final[tuple[Callable[[random.Random], Any], ...]] = (
    _long_name_above_many,
    _base_above_many,
    _many_patterns,
    _doubling,
    _recursive,
    _constants,
    _deep,
    _dynamic,
    _long_values,
    _wide,
    _alternatives,
)
