"""Hostile schemas are accepted or rejected, at a cost proportional to their size.

By default 10,000 cases, in five parts, since one takes about 15 ms. 100,000 of them:

pytest tests/fuzz/test_schemas_survive.py --fuzz-cases 200000
"""

import resource
import sys
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from time import thread_time
from typing import Any

import pytest

from genmcp._schema.document import Document
from genmcp._schema.limits import FOREIGN_LIMITS
from genmcp._schema.schema import Schema
from genmcp.errors import ConfigurationError
from genmcp.wire.param_headers import header_rules
from tests.fuzz.conftest import Plan
from tests.support.hostile_schemas import hostile_schema

pytestmark = pytest.mark.fuzz

# The most seconds of CPU for a step. Coverage measurement makes Python code much slower.
SECONDS = 0.05 if sys.gettrace() is None else 0.25
BYTES = 20 << 20


def deep(levels: int, name: str | None) -> Any:
    """Return nested objects with a property *name*, or nested arrays."""
    value: Any = {} if name else []
    for _ in range(levels):
        value = {name: value} if name else [value]
    return value


VALUES: tuple[Any, ...] = (
    {"a": {"b": 1}, "b": [1, "x"], "": 2},
    [1, [2], {"a": None}],
    "text",
    deep(60, "a"),
    deep(60, None),
    [deep(2, None)] * 50,
    {f"k{number}": number / 7 for number in range(300)},
    [10**30 + number for number in range(300)],
    ["ab" * 200 + str(number) for number in range(100)],
)


def read_headers(schema: Any) -> None:
    """Process the input schema of a listed tool, as a client and a hub do."""
    document = Document(schema, "inputSchema", FOREIGN_LIMITS)
    header_rules(document.schemas, document.refuse)


def compile_schema(schema: Any) -> Schema:
    """Process an output schema or the schema of a form, as a client does."""
    return Schema(schema, formats=False, origin="outputSchema", limits=FOREIGN_LIMITS)


def seconds_of(read: Callable[[], Any]) -> float:
    """Return the CPU time of *read*, and check the error that it raises."""
    began = thread_time()
    try:
        read()
    except ConfigurationError as error:
        text = str(error)
        assert text.isprintable()
        assert len(text) < 2_000
    return thread_time() - began


def steps_of(schema: Any) -> Iterator[Callable[[], Any]]:
    """Return all steps in which a client processes *schema*."""
    yield partial(read_headers, schema)
    yield partial(compile_schema, schema)
    try:
        compiled = compile_schema(schema)
    except ConfigurationError:
        return
    for value in VALUES:
        yield partial(compiled.check, value)
        yield partial(compiled.fill, value)


def peak() -> int:
    """Return the peak memory of the process in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


@pytest.mark.parametrize("part", range(5))
def test_hostile_schema_is_accepted_or_rejected(plan: Plan, part: int) -> None:
    """Only a ConfigurationError is raised, within a time limit and 20 MiB per schema.

    2026-07-28, basic, "Composition-Keyword Resource Use".
    """
    cases = max(1, plan.cases // 10)
    first = plan.first + part * cases
    for number in range(first, first + cases):
        schema = hostile_schema(plan.seed, number)
        before = peak()
        try:
            for step in steps_of(schema):
                # Garbage collection and other processes slow single runs down:
                # the fastest run counts.
                if not any(seconds_of(step) < SECONDS for _ in range(5)):
                    pytest.fail(f"case {number} takes too long: {step!r:.200} {schema!r:.500}")
        except Exception as error:
            pytest.fail(f"case {number}: {error!r:.500}: {schema!r:.500}")
        assert peak() - before < BYTES, f"case {number} takes memory: {schema!r:.500}"


@contextmanager
def traced() -> Iterator[Callable[[], int]]:
    """Yield a function that returns the peak of memory allocated since the start."""
    tracemalloc.start()
    try:
        yield lambda: tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def keys(count: int, schema: Any) -> dict[str, Any]:
    return {f"k{number}": schema for number in range(count)}


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"properties": {"A" * 1_000_000: {"properties": keys(4_900, {})}}}, "1052826 bytes and"),
        ({"properties": {"A" * 100_000: {"properties": keys(4_900, {})}}}, "JSON Pointers"),
        ({"$id": "u" * 100_000, "properties": keys(1_900, {"$id": "b"})}, "URI of more than 512"),
        (
            {"properties": {f"k{n}": {"pattern": f"^[a-z]{{1,{n}}}$"} for n in range(1, 500)}},
            "more than 4096 characters of patterns",
        ),
        ({"pattern": r"\S" * 500}, "is too large"),
        ({"allOf": [{"pattern": f"[ab]*a[ab]{{{n}}}"} for n in range(800, 900)]}, "characters of"),
        ({"type": [*range(16_000)]}, "a list of more than 1000 names"),
        ({"dependencies": {"a": [*range(16_000)]}}, "a list of more than 1000 names"),
        ({"enum": [1] * 120_000}, "120001 items and properties, more than 262144 bytes"),
        ({"properties": keys(4_990, {})}, "more than 1500 subschemas"),
        ({"properties": keys(1_200, {"$ref": "#", "properties": {}})}, None),
        (
            {"$defs": keys(450, {"$dynamicAnchor": "x"}), "allOf": [{"$dynamicRef": "#x"}] * 700},
            None,
        ),
    ],
)
def test_small_schema_does_not_take_much_memory(schema: Any, words: str | None) -> None:
    """Each of these schemas used to take hundreds of megabytes, or seconds."""
    with traced() as most:
        try:
            compile_schema(schema).check({"k1": {}, "a": 1})
        except ConfigurationError as error:
            assert words is not None, str(error)
            assert words in str(error)
        else:
            assert words is None

    assert most() < BYTES


@pytest.mark.parametrize(
    "schema",
    [
        {"$id": "http://a/b", "properties": {"x": {"$id": "http://["}}},
        {"$id": "http://a/b", "properties": {"x": {"$ref": "http://["}}},
        {"$id": "http://a/b", "properties": {"x": {"$ref": "//a\u2100b/"}}},
        {"allOf": [{"$ref": "#/allOf/" + "9" * 5_000}]},
    ],
)
def test_reference_that_cannot_be_parsed_is_rejected(schema: Any) -> None:
    """ValueErrors of `urljoin` and `int` used to end the look-ups of a whole hub."""
    with pytest.raises(ConfigurationError, match=r"not a URI reference|leads nowhere"):
        read_headers(schema)


def test_error_of_a_schema_is_printable_and_short() -> None:
    """The message contains names from the schema, and reaches logs and terminals."""
    name = "\x1b]0;owned\x07\r\nWARNING forged " + "A" * 9_000
    schema = {"properties": {name: {"$ref": "http://\x9bb/" + "c" * 9_000}}}

    with pytest.raises(ConfigurationError) as caught:
        read_headers(schema)

    assert str(caught.value).isprintable()
    assert str(caught.value).startswith(r"inputSchema: at /properties/\x1b]0;owned\x07\r\nWARN")
    assert len(str(caught.value)) < 1_000
