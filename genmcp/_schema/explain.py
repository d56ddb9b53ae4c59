"""Why a value does not fit a schema, in words that a model can act on.

jsonschema-rs decides whether a value fits. Only values that it rejects are explained here, by a
walk over schema and value. Keywords without subschemas are decided by jsonschema-rs in the walk,
too, so that no message contradicts the verdict. References are resolved by the `Document`.

The errors of jsonschema-rs are no alternative: all errors of a value are collected before the first
is returned, in exponential time for recursive alternatives. A walk ends when its time is used up.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from time import thread_time
from typing import Any, Final, NamedTuple
from urllib.parse import quote, urljoin

import jsonschema_rs
from jsonschema_rs import Registry, Validator
from jsonschema_rs import ValidationErrorKind as Kind

from genmcp._schema.document import DEFAULT_DIALECT, DIALECT_2019, DRAFT_7, REFERENCES, Document
from genmcp._schema.limits import ValueLimits, excess
from genmcp._schema.metered import Meter
from genmcp._schema.words import (
    LEAVES,
    MAX_FAULTS,
    Finding,
    accepted_values,
    allowed_names,
    count_of,
    describe_schema,
    describe_value,
    join_pointer,
    join_words,
    mismatch,
    nearest,
    shorten,
    suggestion,
    to_json,
)
from genmcp.faults import Fault, Mismatch

#: CPU seconds to find out why a value does not fit. If they pass, faults are less specific.
SECONDS: Final = 0.02

# So many steps are made in any case: the collection of garbage may use up the time of a short walk.
_SURE_STEPS: Final = 16

# A walk ends with this many findings. The answer lists 20 of them and counts the rest.
_ENOUGH: Final = 5 * MAX_FAULTS

# Unexpected properties of an object for which a similar name is searched: more are no misspellings.
_SUGGESTIONS: Final = 5

# So many items, or properties, are checked at once to find the few that do not fit.
_CHUNK: Final = 500

# The values of which jsonschema-rs names those that are unevaluated.
_COPIED: Final = ValueLimits(values=5_000, names=100_000)

# The base URI of a schema without an absolute `$id`.
_NAMELESS: Final = "https://schema.invalid/"

# Keywords that come first, in the order of faults. The others follow in the order of the schema.
_EARLY: Final = (*REFERENCES, "required")
# Keywords with a result that depends on all other keywords of their schema.
_UNEVALUATED: Final = ("unevaluatedProperties", "unevaluatedItems")

Findings = Iterator[Finding]


class _TimeIsUp(Exception):
    """The walk has used up its time."""


class _Keyword(NamedTuple):
    """A keyword in the subschema at *pointer*."""

    pointer: str
    name: str
    schema: dict[str, Any]

    @property
    def given(self) -> Any:
        """The value of the keyword."""
        return self.schema[self.name]

    def below(self, *steps: str | int) -> str:
        """Return the pointer of a subschema in the value of the keyword."""
        return join_pointer(self.pointer, self.name, *steps)


class Explainer:
    """Explains why values do not fit *document*. Owned by its `Schema`, made on first use.

    Args:
        document: the schema.
        compile_schema: compiles for jsonschema-rs, with the dialect and formats of *document*.
        meter: bounds the time of patterns.
        validator: of the whole schema.
    """

    def __init__(
        self,
        document: Document,
        compile_schema: Callable[[dict[str, Any], Registry], Validator],
        meter: Meter,
        validator: Validator,
    ) -> None:
        self.document = document
        self.meter = meter
        self._base = urljoin(_NAMELESS, document.plain.get("$id", "")).partition("#")[0]
        self._registry = Registry([(self._base, document.plain)])
        self._compile = compile_schema
        self._checkers: dict[tuple[str, str], Validator] = {("$ref", ""): validator}
        self._plans: dict[str, list[tuple[_Keyword, _Function]]] = {}

    def explain(self, value: Any) -> tuple[str, ...]:
        """Return the faults of *value*, which does not fit: at most 20, and a count of the rest."""
        findings: list[Finding] = []
        is_complete = False
        try:
            findings.extend(islice(_Walk(self).descend(value, ""), _ENOUGH))
            is_complete = len(findings) < _ENOUGH
        # A chain of a thousand references is deeper than the stack of Python.
        except (_TimeIsUp, RecursionError):
            pass
        if not findings:
            findings = [Finding(f"{describe_value(value)} does not fit the schema")]
        lines = tuple(dict.fromkeys(Fault(each.path, each.words) for each in findings))
        if len(lines) <= MAX_FAULTS:
            return lines
        more = len(lines) - MAX_FAULTS
        rest = f"{more} more" if is_complete else f"{more} or more others"
        return (*lines[:MAX_FAULTS], f"... and {rest}")

    def plan(self, pointer: str) -> Sequence[tuple[_Keyword, "_Function"]]:
        """Return the keywords of a subschema with their functions, in the order of their faults."""
        if pointer not in self._plans:
            schema = self.document.schemas[pointer]
            words = [word for word in schema if word in _FUNCTIONS]
            if "$ref" in schema and not self.document.follows_siblings:
                words = ["$ref"]
            words.sort(key=lambda word: (word in _UNEVALUATED, word not in _EARLY))
            ignored = _IGNORED[self.document.dialect]
            self._plans[pointer] = [
                (_Keyword(pointer, word, schema), _FUNCTIONS[word])
                for word in words
                if word not in ignored
            ]
        return self._plans[pointer]

    def checker(self, keyword: str, given: Any, name: str) -> Validator:
        """Return the checker of a schema of one keyword; *name* stands for its value *given*."""
        if (keyword, name) not in self._checkers:
            self._checkers[keyword, name] = self._compile({keyword: given}, self._registry)
        return self._checkers[keyword, name]

    def subschema(self, pointer: str) -> Validator:
        """Return the checker of a subschema."""
        return self.checker("$ref", self._reference(pointer), pointer)

    def items(self, pointer: str) -> Validator:
        """Return the checker of arrays whose items are checked by a subschema."""
        return self.checker("items", {"$ref": self._reference(pointer)}, pointer)

    def _reference(self, pointer: str) -> str:
        return f"{self._base}#{quote(pointer)}"


class _Walk:
    """One walk over a value, for a time."""

    def __init__(self, explainer: Explainer) -> None:
        self.explainer = explainer
        self._end = thread_time() + SECONDS
        self._steps = 0

    def _check_time(self) -> None:
        self._steps += 1
        late = self._steps > _SURE_STEPS and thread_time() > self._end
        if late or self.explainer.meter.fault:
            raise _TimeIsUp

    def accepts(self, checker: Validator, value: Any) -> bool:
        """Return whether *checker*, compiled by jsonschema-rs, accepts *value*."""
        fits = checker.is_valid(value)
        self._check_time()
        return fits

    def matches(self, pattern: str, name: str) -> bool:
        """Return whether the name of a property matches *pattern*."""
        return self.accepts(self.explainer.checker("pattern", pattern, pattern), name)

    def fits(self, value: Any, pointer: str) -> bool:
        """Return whether a walk of *value* has no findings."""
        return next(self.descend(value, pointer), None) is None

    def descend(self, value: Any, pointer: str, *path: str | int) -> Findings:
        """Yield the findings of *value* against a subschema; *path* is its key in its parent."""
        self._check_time()
        schema = self.explainer.document.schemas[pointer]
        if schema is False:
            yield Finding(f"nothing is allowed here, got {describe_value(value)}", path=path)
        if not isinstance(schema, dict):
            return
        found = False
        for keyword, function in self.explainer.plan(pointer):
            if found and keyword.name in _UNEVALUATED:
                continue
            for finding in function(self, keyword, value):
                found = True
                finding.path = (*path, *finding.path)
                yield finding
                self._check_time()

    def descend_each(
        self, values: Sequence[Any], keys: Sequence[str | int], pointer: str
    ) -> Findings:
        """Yield the findings of *values*, at *keys* of their parent, against the same subschema."""
        for start in range(0, len(values), _CHUNK):
            chunk = values[start : start + _CHUNK]
            # Most chunks of a long array fit.
            if len(values) > _CHUNK and self.accepts(self.explainer.items(pointer), chunk):
                continue
            for key, value in zip(keys[start:], chunk, strict=False):
                yield from self.descend(value, pointer, key)


# The functions of keywords: each yields the findings of a value.


def _leaf(walk: _Walk, keyword: _Keyword, value: Any) -> Findings:
    checker = walk.explainer.checker(keyword.name, keyword.given, keyword.below())
    if not walk.accepts(checker, value):
        yield _mismatch(keyword, keyword.given, value)


def _mismatch(keyword: _Keyword, given: Any, value: Any) -> Finding:
    words = mismatch(keyword.name, given, value)
    accepts = accepted_values(keyword.name, given)
    return Finding(words, value, accepts, is_type=keyword.name == "type")


def _unique_items(walk: _Walk, keyword: _Keyword, value: Any) -> Findings:
    checker = walk.explainer.checker(keyword.name, keyword.given, keyword.below())
    if walk.accepts(checker, value):
        return
    # Bisect for the shortest prefix with a duplicate, then for its shortest such suffix.
    end = bisect_left(
        range(len(value)), True, key=lambda end: not walk.accepts(checker, value[:end])
    )
    start = bisect_left(range(end), True, key=lambda start: walk.accepts(checker, value[start:end]))
    yield Finding(f"expected items that all differ, but items {start - 1} and {end - 1} are equal")


def _reference(walk: _Walk, keyword: _Keyword, value: Any) -> Findings:
    # `$dynamicRef` is resolved statically: where its target depends on the path that led to it,
    # the finding may be missing, but not the verdict.
    target = walk.explainer.document.target(keyword.pointer, keyword.name)
    yield from walk.descend(value, target)


def _required(walk: _Walk, keyword: _Keyword, value: Any) -> Findings:
    for name in keyword.given if isinstance(value, dict) else ():
        if name not in value:
            yield _mismatch(keyword, name, value)


def _dependencies(walk: _Walk, keyword: _Keyword, value: Any) -> Findings:
    for name, needs in keyword.given.items() if isinstance(value, dict) else ():
        if name not in value:
            continue
        if not isinstance(needs, list):  # draft-07 has schemas and names in one keyword
            yield from walk.descend(value, keyword.below(name))
            continue
        for missing in needs:
            if missing not in value:
                why = f"required because {to_json(name)} is present"
                yield Finding(f"missing property {to_json(missing)}, {why}")


def _properties(walk: _Walk, keyword: _Keyword, value: Any) -> Findings:
    for name in keyword.given if isinstance(value, dict) else ():
        if name in value:
            yield from walk.descend(value[name], keyword.below(name), name)


def _pattern_properties(walk: _Walk, keyword: _Keyword, value: Any) -> Findings:
    for name in value if isinstance(value, dict) else ():
        for pattern in keyword.given:
            if walk.matches(pattern, name):
                yield from walk.descend(value[name], keyword.below(pattern), name)


def _additional_properties(walk: _Walk, keyword: _Keyword, value: Any) -> Findings:
    if not isinstance(value, dict):
        return
    named = keyword.schema.get("properties", ())
    others = [name for name in value if name not in named]
    if patterns := keyword.schema.get("patternProperties"):
        others = [name for name in others if not any(walk.matches(it, name) for it in patterns)]
    if keyword.given is not False:
        yield from walk.descend_each([value[name] for name in others], others, keyword.below())
        return
    allowed = allowed_names(keyword.schema)
    for number, name in enumerate(others):
        meant = suggestion(name, named) if number < _SUGGESTIONS else ""
        yield Finding(f"unexpected property; {meant}{allowed}", path=(name,))


def _property_names(walk: _Walk, keyword: _Keyword, value: Any) -> Findings:
    for name in value if isinstance(value, dict) else ():
        for each in walk.descend(name, keyword.below()):
            yield Finding(f"not allowed as a property name: {each.words}", path=(name,))


def _items(walk: _Walk, keyword: _Keyword, value: Any) -> Findings:
    if not isinstance(value, list):
        return
    if isinstance(keyword.given, list):
        for index, each in enumerate(value[: len(keyword.given)]):
            yield from walk.descend(each, keyword.below(index), index)
        return
    before = keyword.schema.get("prefixItems", [])
    if keyword.name == "additionalItems":
        before = keyword.schema.get("items")
    start = len(before) if isinstance(before, list) else len(value)
    if start >= len(value):
        return
    if keyword.given is False:
        yield Finding(Mismatch(f"at most {count_of(start, 'item', 'items')}", f"{len(value)}"))
    else:
        yield from walk.descend_each(value[start:], range(start, len(value)), keyword.below())


def _contains(walk: _Walk, keyword: _Keyword, value: Any) -> Findings:
    if not isinstance(value, list):
        return
    checker = walk.explainer.subschema(keyword.below())
    found = sum(walk.accepts(checker, each) for each in value)
    counts = keyword.schema if walk.explainer.document.dialect != DRAFT_7 else {}
    least, most = int(counts.get("minContains", 1)), int(counts.get("maxContains", found))
    for is_wrong, words, count in ((found < least, "least", least), (found > most, "most", most)):
        if is_wrong:
            items = count_of(count, "item", "items")
            yield Finding(f"expected at {words} {items}, each {describe_schema(keyword.given)}")


def _all_of(walk: _Walk, keyword: _Keyword, value: Any) -> Findings:
    for index in range(len(keyword.given)):
        yield from walk.descend(value, keyword.below(index))


def _alternatives(walk: _Walk, keyword: _Keyword, value: Any) -> Findings:
    branches: list[list[Finding]] = []
    for index in range(len(keyword.given)):
        # More findings would not be listed, and take as long as the value is large.
        branches.append([*islice(walk.descend(value, keyword.below(index)), _ENOUGH)])
        if keyword.name == "anyOf" and not branches[-1]:
            return
    fitting = [str(number) for number, branch in enumerate(branches, 1) if not branch]
    if not fitting:
        yield from nearest(branches)
    elif len(fitting) > 1:
        numbers = join_words(fitting, "and")
        yield Finding(f"fits alternatives {numbers} at once, but must fit exactly one of them")


def _not(walk: _Walk, keyword: _Keyword, value: Any) -> Findings:
    if walk.fits(value, keyword.below()):
        words = f"expected anything but {describe_schema(keyword.given)}"
        yield Finding(f"{words}, got {describe_value(value)}")


def _if(walk: _Walk, keyword: _Keyword, value: Any) -> Findings:
    branch = "then" if walk.fits(value, keyword.below()) else "else"
    if branch in keyword.schema:
        yield from walk.descend(value, join_pointer(keyword.pointer, branch))


def _unevaluated(walk: _Walk, keyword: _Keyword, value: Any) -> Findings:
    explainer = walk.explainer
    checker = explainer.subschema(keyword.pointer)
    # `validate` of jsonschema-rs takes exponential time for recursive alternatives. That is safe
    # here if this walk has passed through them within its own time, which is not certain with
    # dynamic references.
    is_safe = not explainer.document.uses("$dynamicRef", "$recursiveRef")
    if walk.accepts(checker, value) or not is_safe:
        return
    # It also copies the value: 200,000 values in 0.5 s, these in 2 ms.
    if excess(value, None, _COPIED):
        return
    try:
        checker.validate(value)
    except jsonschema_rs.ValidationError as error:
        match error.kind:
            case Kind.UnevaluatedProperties(names):
                for name in names[:_ENOUGH]:
                    yield Finding("unexpected property", path=(name,))
            case Kind.UnevaluatedItems(items):
                listed = ", ".join(shorten(str(each)) for each in items[:MAX_FAULTS])
                yield Finding(f"unexpected items: {listed}")


_Function = Callable[[_Walk, _Keyword, Any], Findings]
_FUNCTIONS: Final[Mapping[str, _Function]] = {
    **dict.fromkeys(LEAVES, _leaf),
    **dict.fromkeys(REFERENCES, _reference),
    **dict.fromkeys(_UNEVALUATED, _unevaluated),
    **dict.fromkeys(("dependentRequired", "dependentSchemas", "dependencies"), _dependencies),
    **dict.fromkeys(("anyOf", "oneOf"), _alternatives),
    **dict.fromkeys(("prefixItems", "items", "additionalItems"), _items),
    "uniqueItems": _unique_items,
    "required": _required,
    "properties": _properties,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "propertyNames": _property_names,
    "contains": _contains,
    "allOf": _all_of,
    "not": _not,
    "if": _if,
}
# Keywords of other dialects: they are not checked, so their values may have any shape.
_IGNORED: Final = {
    DEFAULT_DIALECT: {"additionalItems", "$recursiveRef"},
    DIALECT_2019: {"prefixItems", "$dynamicRef"},
    DRAFT_7: {
        *("prefixItems", "$dynamicRef", "$recursiveRef", "dependentRequired", "dependentSchemas"),
        *_UNEVALUATED,
    },
}
