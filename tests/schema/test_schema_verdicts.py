"""The verdicts of jsonschema-rs are compared with those of jsonschema.

Where they differ, jsonschema-rs decides. Every known difference is in KNOWN, with its reason; the
random schemas avoid them.
"""

from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genmcp._schema.schema import Schema
from genmcp.errors import ConfigurationError

pytestmark = pytest.mark.slow

KNOWN: list[tuple[str, dict[str, Any], Any, bool]] = [
    (
        "$ matches at the end alone; `re` also before a last newline",
        {"pattern": "^a$"},
        "a\n",
        False,
    ),
    (r"\d is ASCII, as in ECMA-262; `re` takes every digit", {"pattern": r"^\d$"}, "٣", False),
    (r"\w is ASCII, as in ECMA-262; `re` takes every letter", {"pattern": r"^\w$"}, "é", False),
    (
        "contentEncoding is asserted in draft-07; jsonschema never does",
        {"$schema": "http://json-schema.org/draft-07/schema#", "contentEncoding": "base64"},
        "{",
        False,
    ),
    ("multiples are exact; floating-point division is not", {"multipleOf": 0.1}, 0.3, True),
    ("... of huge numbers too", {"multipleOf": 0.01}, 1e308, True),
    ("a minute may have a leap second", {"format": "date-time"}, "2016-12-31T23:59:60Z", True),
    ("... in a time too", {"format": "time"}, "23:59:60Z", True),
]


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Explanations take as long as they need: a slow machine changes none of them."""
    monkeypatch.setattr("genmcp._schema.explain.SECONDS", float("inf"))


def agrees(document: dict[str, Any], value: Any, verdict: bool) -> bool:
    """Return whether jsonschema has the same verdict."""
    cls = jsonschema.validators.validator_for(document, jsonschema.Draft202012Validator)
    checker = cls(document, format_checker=cls.FORMAT_CHECKER)
    return bool(checker.is_valid(value)) is verdict


@pytest.mark.parametrize(("reason", "document", "value", "verdict"), KNOWN)
def test_known_difference_still_exists(
    reason: str, document: dict[str, Any], value: Any, verdict: bool
) -> None:
    """The verdict in the list is that of jsonschema-rs, and jsonschema has another."""
    assert verdict is not bool(Schema(document).check(value)), reason
    assert not agrees(document, value, verdict), reason


def test_pattern_may_have_unicode_classes() -> None:
    r"""`\p{..}` is ECMA-262; `re` cannot compile it, and so jsonschema cannot either."""
    assert not Schema({"pattern": r"^\p{Lu}$"}).check("É")


KEYS = st.sampled_from(["a", "b", "c"])
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-4, 4),
    st.sampled_from([0.5, 1.0, -2.5]),
    st.sampled_from(["", "a", "ab", "abc", "2026-07-28"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(KEYS, below, max_size=3),
    max_leaves=6,
)
TYPES = st.sampled_from(["null", "boolean", "integer", "number", "string", "array", "object"])
COUNTS = st.integers(0, 3)


def one(keyword: str, value: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Return schemas of one keyword."""
    return value.map(lambda given: {keyword: given})


LEAVES = st.one_of(
    st.just({}),
    st.booleans(),
    one("type", TYPES | st.lists(TYPES, min_size=1, max_size=2, unique=True)),
    one("enum", st.lists(VALUES, min_size=1, max_size=3)),
    one("const", VALUES),
    *(one(keyword, st.integers(-3, 3)) for keyword in ("minimum", "maximum")),
    *(one(keyword, st.integers(-3, 3)) for keyword in ("exclusiveMinimum", "exclusiveMaximum")),
    one("multipleOf", st.sampled_from([1, 2, 0.5])),
    *(one(keyword, COUNTS) for keyword in ("minLength", "maxLength", "minItems", "maxItems")),
    *(one(keyword, COUNTS) for keyword in ("minProperties", "maxProperties")),
    one("pattern", st.sampled_from(["^a", "b", "^[a-c]{2}$"])),
    one("format", st.sampled_from(["date", "ipv4", "unheard-of"])),
    one("uniqueItems", st.booleans()),
    one("required", st.lists(KEYS, max_size=2, unique=True)),
    one("dependentRequired", st.dictionaries(KEYS, st.lists(KEYS, max_size=2, unique=True))),
    st.just({"$ref": "#/$defs/named"}),
)


def composed(below: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return schemas with subschemas."""
    several = st.lists(below, min_size=1, max_size=3)
    named = st.dictionaries(KEYS, below, max_size=2)
    parts = [
        *(one(keyword, several) for keyword in ("allOf", "anyOf", "oneOf", "prefixItems")),
        *(one(keyword, named) for keyword in ("properties", "dependentSchemas")),
        *(one(keyword, below) for keyword in ("not", "items", "contains", "propertyNames")),
        *(one(keyword, below) for keyword in ("additionalProperties", "unevaluatedProperties")),
        one("unevaluatedItems", below),
        one("patternProperties", st.dictionaries(st.sampled_from(["^a", "b"]), below, max_size=2)),
        st.fixed_dictionaries({"if": below}, optional={"then": below, "else": below}),
        st.fixed_dictionaries(
            {"contains": below}, optional={"minContains": COUNTS, "maxContains": COUNTS}
        ),
        LEAVES.filter(lambda leaf: isinstance(leaf, dict)),
    ]
    return st.lists(st.one_of(parts), min_size=1, max_size=3).map(
        lambda chosen: {keyword: value for part in chosen for keyword, value in part.items()}
    )


DOCUMENTS = st.tuples(
    st.recursive(LEAVES, composed, max_leaves=6).map(
        lambda schema: schema if isinstance(schema, dict) else {"not": not schema}
    ),
    LEAVES.filter(lambda leaf: leaf != {"$ref": "#/$defs/named"}),
).map(lambda pair: {**pair[0], "$defs": {"named": pair[1]}})


@settings(max_examples=600, derandomize=True, deadline=None)
@given(DOCUMENTS, VALUES)
def test_verdicts_agree_and_rejections_are_explained(document: dict[str, Any], value: Any) -> None:
    """Both agree on random schemas and values; each fault has an explanation."""
    try:
        schema = Schema(document)
    except ConfigurationError:
        pytest.fail(f"{document} was refused")
    faults = schema.check(value)

    assert agrees(document, value, not faults)
    assert all(fault.startswith(("(root): ", "/", "... and ")) for fault in faults)
    assert not [fault for fault in faults if "does not satisfy" in fault or "the schema" in fault]
