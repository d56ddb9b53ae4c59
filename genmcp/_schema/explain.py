"""Why a value does not fit a schema: the errors of jsonschema, in words a model can act on.

jsonschema-rs decides whether a value fits, and only values that it rejects are explained here.
The keyword functions of jsonschema walk schema and value. They call back into `_Walk`, which
takes the place of jsonschema's validator classes for three reasons:

- Keywords that read text (`pattern`, `patternProperties`, `format`) are decided by jsonschema-rs,
  whose engine is linear in the text. jsonschema uses `re`, which can be exponential.
- References are resolved by the `Document`, within the schema; nothing is fetched.
- A walk ends when its time is used up. Recursive alternatives are exponential otherwise.

jsonschema is imported by this module, and this module by the first explanation.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from time import thread_time
from typing import Any, Final
from urllib.parse import quote, urljoin

import jsonschema
import jsonschema_rs
import msgspec
from jsonschema_rs import Registry, Validator
from jsonschema_rs import ValidationErrorKind as Kind

from genmcp._schema.document import DEFAULT_DIALECT, DIALECT_2019, DRAFT_7, REFERENCES, Document
from genmcp._schema.limits import SchemaLimits
from genmcp._schema.words import (
    MAX_FAULTS,
    Finding,
    Path,
    accepted_values,
    allowed_names,
    count_of,
    describe_schema,
    describe_value,
    join_pointer,
    join_words,
    mismatch,
    nearest,
    to_json,
)
from genmcp.faults import Fault, Mismatch

# A walk ends with this many findings. The answer lists 20 of them and counts the rest.
_ENOUGH: Final = 5 * MAX_FAULTS

# The base URI of a schema without an absolute `$id`.
_NAMELESS: Final = "https://schema.invalid/"

_VALIDATORS: Final = {
    DEFAULT_DIALECT: jsonschema.Draft202012Validator,
    DIALECT_2019: jsonschema.Draft201909Validator,
    DRAFT_7: jsonschema.Draft7Validator,
}
_is_type: Final = jsonschema.Draft202012Validator.TYPE_CHECKER.is_type

# Keywords that come first, in the order of faults. The others follow in the order of the schema.
_EARLY: Final = (*REFERENCES, "required")
# Keywords with a result that depends on all other keywords of their schema.
_UNEVALUATED: Final = ("unevaluatedProperties", "unevaluatedItems")

Findings = Iterator[Finding]


class _TimeIsUp(Exception):
    """The walk has used up its time."""


class Explainer:
    """Explains why values do not fit *document*. Owned by its `Schema`, made on first use.

    Args:
        document: the schema.
        compile_schema: compiles for jsonschema-rs, with the dialect and formats of *document*.
        limits: `explanation_time` bounds each walk.
        clock: returns the CPU seconds that this thread has used.
    """

    def __init__(
        self,
        document: Document,
        compile_schema: Callable[[dict[str, Any], Registry], Validator],
        limits: SchemaLimits,
        clock: Callable[[], float] = thread_time,
    ) -> None:
        self.document = document
        self.limits = limits
        self.clock = clock
        # Subschemas are plain objects that live as long as the document, so their ids are stable.
        self.pointers = {id(each): pointer for pointer, each in document.schemas.items()}
        known = _VALIDATORS[document.dialect].VALIDATORS
        own = {word: each for word, each in _FUNCTIONS.items() if word in known or word in _CONTENT}
        self._functions: dict[str, Any] = {**known, **own}
        self._base = urljoin(_NAMELESS, document.plain.get("$id", "")).partition("#")[0]
        self._registry = Registry([(self._base, document.plain)])
        self._compile = compile_schema
        self._checkers: dict[tuple[str, Any], Validator] = {}
        self._plans: dict[int, list[tuple[str, Any]]] = {}

    def explain(self, value: Any) -> tuple[str, ...]:
        """Return the faults of *value*, which does not fit: at most 20, and a count of the rest.

        If `SchemaLimits.explanation_time` passes before the first fault is found, as in an array
        of a hundred thousand items, the value is narrowed to a part that does not fit, and only
        that part is explained.
        """
        path: Path = ()
        findings, is_complete = self._walk("", value)
        if not findings:
            pointer, value, path = self._narrow(value)
            if path:
                findings, is_complete = self._walk(pointer, value)
        if not findings:
            findings = [Finding(f"{describe_value(value)} does not fit the schema")]
        lines = tuple(dict.fromkeys(Fault((*path, *each.path), each.words) for each in findings))
        if len(lines) <= MAX_FAULTS:
            return lines
        more = len(lines) - MAX_FAULTS
        rest = f"{more} more" if is_complete else f"{more} or more others"
        return (*lines[:MAX_FAULTS], f"... and {rest}")

    def _walk(self, pointer: str, value: Any) -> tuple[list[Finding], bool]:
        """Return the findings of *value* against a subschema, and whether these are all."""
        findings: list[Finding] = []
        walk = _Walk(self)
        try:
            findings.extend(islice(walk.descend(value, self.document.schemas[pointer]), _ENOUGH))
        # A chain of a thousand references is deeper than the stack of Python.
        except (_TimeIsUp, RecursionError):
            return findings, False
        return findings, len(findings) < _ENOUGH

    def _narrow(self, value: Any) -> tuple[str, Any, Path]:
        """Return a subschema, a part of *value* that it rejects, and the path of that part."""
        walk = _Walk(self)
        pointer = ""
        path: Path = ()
        try:
            while below := self._misfit(walk, pointer, value):
                pointer, steps = below
                path = (*path, *steps)
                for step in steps:
                    value = value[step]
        except _TimeIsUp:
            pass
        return pointer, value, path

    def _misfit(self, walk: "_Walk", pointer: str, value: Any) -> tuple[str, Path] | None:
        """Return a subschema of the one at *pointer* that rejects *value* or a part of it."""
        schema = self.document.schemas[pointer]
        if schema.__class__ is not dict:
            return None
        keywords = {keyword for keyword, _ in self.plan(schema)}
        same = [self.document.target(pointer, word) for word in REFERENCES if word in keywords]
        if "allOf" in keywords:
            same += [join_pointer(pointer, "allOf", index) for index in range(len(schema["allOf"]))]
        for below in same:
            if not walk.accepts(self.subschema(below), value):
                return below, ()
        for (keyword, *rest), keys in _parts(schema, value):
            below = join_pointer(pointer, keyword, *rest)
            if keyword not in keywords or not keys:
                continue
            checker = self.subschema(below, "items")
            # Bisection checks each part about twice. A check of every single item would take
            # seconds for an array of a hundred thousand items.
            while len(keys) > 1:
                half = keys[: len(keys) // 2]
                fits = walk.accepts(checker, [value[key] for key in half])
                keys = keys[len(half) :] if fits else half
            if not walk.accepts(checker, [value[keys[0]]]):
                return below, (keys[0],)
        return None

    def plan(self, schema: dict[str, Any]) -> list[tuple[str, Any]]:
        """Return the keywords of *schema* with their functions, in the order of their faults."""
        plan = self._plans.get(id(schema))
        if plan is None:
            words = [word for word in schema if word in self._functions]
            if "$ref" in schema and not self.document.follows_siblings:
                words = ["$ref"]
            words.sort(key=lambda word: (word in _UNEVALUATED, word not in _EARLY))
            plan = self._plans[id(schema)] = [(word, self._functions[word]) for word in words]
        return plan

    def subschema(self, pointer: str, keyword: str = "") -> Validator:
        """Return the checker of a subschema; with *keyword* `items`, of arrays of such values."""
        reference: dict[str, Any] = {"$ref": f"{self._base}#{quote(pointer)}"}
        schema = {keyword: reference} if keyword else reference
        return self._checker((f"{keyword}#", pointer), schema)

    def keyword(self, keyword: str, given: Any) -> Validator:
        """Return the checker of one keyword; its value *given* is an object of the document."""
        return self._checker((keyword, id(given)), {keyword: given})

    def _checker(self, key: tuple[str, Any], schema: dict[str, Any]) -> Validator:
        checker = self._checkers.get(key)
        if checker is None:
            checker = self._checkers[key] = self._compile(schema, self._registry)
        return checker


def _parts(schema: dict[str, Any], value: Any) -> Iterator[tuple[Path, Sequence[Any]]]:
    """Yield the keywords of *schema* for parts of *value*, with the keys of these parts."""
    if isinstance(value, dict):
        named = schema.get("properties", {})
        for name in named:
            yield ("properties", name), [name] if name in value else []
        if "patternProperties" not in schema:
            yield ("additionalProperties",), [name for name in value if name not in named]
    elif isinstance(value, list | tuple):
        is_list = isinstance(schema.get("items"), list)
        first, rest = ("items", "additionalItems") if is_list else ("prefixItems", "items")
        count = min(len(schema.get(first, ())), len(value))
        for index in range(count):
            yield (first, index), [index]
        yield (rest,), range(count, len(value))


class _Walk:
    """One walk over a value, and the validator that jsonschema's keyword functions call."""

    def __init__(self, explainer: Explainer) -> None:
        self.explainer = explainer
        self._left = explainer.limits.explanation_time
        self._longest = self._left / 2
        self._since = explainer.clock()

    def accepts(self, checker: Validator, value: Any) -> bool:
        """Return whether *checker*, compiled by jsonschema-rs, accepts *value*."""
        self._spend()
        return checker.is_valid(value)

    def matches(self, pattern: str, text: str) -> bool:
        """Return whether *text* matches *pattern*."""
        return self.accepts(self.explainer.keyword("pattern", pattern), text)

    def _spend(self) -> None:
        now = self.explainer.clock()
        # One long pause, such as a garbage collection, must not end an explanation.
        self._left -= min(now - self._since, self._longest)
        self._since = now
        if self._left <= 0:
            raise _TimeIsUp

    # The methods below are those of jsonschema's validators that its keyword functions call.

    def is_type(self, value: Any, name: str) -> bool:
        """Return whether *value* is of the JSON Schema type *name*."""
        return bool(_is_type(value, name))

    def evolve(self, *, schema: Any) -> "_Subvalidator":
        """Return the validator of a subschema."""
        return _Subvalidator(self, schema)

    def descend(
        self,
        instance: Any,
        schema: Any,
        path: str | int | None = None,
        schema_path: str | int | None = None,
    ) -> Findings:
        """Yield the findings of *instance* against *schema*; *path* is its key in its parent."""
        self._spend()
        step = () if path is None else (path,)
        if schema is False:
            words = f"nothing is allowed here, got {describe_value(instance)}"
            yield Finding(words, path=step)
        if not isinstance(schema, dict):
            return
        found = False
        for keyword, function in self.explainer.plan(schema):
            if found and keyword in _UNEVALUATED:
                continue
            for error in function(self, schema[keyword], instance, schema) or ():
                found = True
                finding = error
                if isinstance(error, jsonschema.ValidationError):
                    finding = _finding_of(error, keyword, instance, schema)
                finding.path = (*step, *finding.path)
                yield finding


class _Subvalidator(msgspec.Struct):
    """The validator of one subschema, for functions that need its verdict only."""

    walk: _Walk
    schema: Any

    def is_valid(self, instance: Any) -> bool:
        """Return whether *instance* fits."""
        return next(self.walk.descend(instance, self.schema), None) is None


def _finding_of(
    error: jsonschema.ValidationError, keyword: str, value: Any, schema: dict[str, Any]
) -> Finding:
    """Return the finding for an error that a function of jsonschema has just made."""
    match keyword:
        case "items" | "additionalItems":
            first = schema.get("items" if keyword == "additionalItems" else "prefixItems", ())
            items = count_of(len(first), "item", "items")
            return Finding(Mismatch(f"at most {items}", f"{len(value)}"))
        case "contains":
            is_most = error.validator == "maxContains"
            count = int(schema["maxContains"] if is_most else schema.get("minContains", 1))
            words = f"at {'most' if is_most else 'least'} {count_of(count, 'item', 'items')}"
            return Finding(f"expected {words}, each {describe_schema(schema['contains'])}")
        case "not":
            return Finding(
                f"expected anything but {describe_schema(schema['not'])}, "
                f"got {describe_value(value)}"
            )
    return _leaf(keyword, schema[keyword], value)


def _leaf(keyword: str, given: Any, value: Any) -> Finding:
    words, accepts = mismatch(keyword, given, value), accepted_values(keyword, given)
    return Finding(words, value, accepts, is_type=keyword == "type")


# The functions that replace those of jsonschema, with the same parameters.

_READERS: Final = ("format", "pattern")


def _check_keyword(walk: _Walk, given: Any, value: Any, schema: Any, *, keyword: str) -> Findings:
    """Apply a keyword by jsonschema-rs, since jsonschema is slow, inexact, or exponential."""
    is_text = keyword in _READERS and isinstance(value, str)
    # A text that is too long has that fault alone, and is not read.
    if is_text and len(value) > schema.get("maxLength", len(value)):
        return
    if not walk.accepts(walk.explainer.keyword(keyword, given), value):
        yield _leaf(keyword, given, value)


def _unique_items(walk: _Walk, given: Any, value: Any, schema: Any) -> Findings:
    checker = walk.explainer.keyword("uniqueItems", given)
    if walk.accepts(checker, value):
        return
    # Bisect for the shortest prefix with a duplicate, then for its shortest such suffix.
    end = bisect_left(
        range(len(value)), True, key=lambda end: not walk.accepts(checker, value[:end])
    )
    start = bisect_left(range(end), True, key=lambda start: walk.accepts(checker, value[start:end]))
    yield Finding(f"expected items that all differ, but items {start - 1} and {end - 1} are equal")


def _reference(walk: _Walk, given: Any, value: Any, schema: Any, *, keyword: str) -> Findings:
    # `$dynamicRef` is resolved statically: where its target depends on the path that led to it,
    # the finding may be missing, but not the verdict.
    document = walk.explainer.document
    target = document.target(walk.explainer.pointers[id(schema)], keyword)
    yield from walk.descend(value, document.schemas[target])


def _required(walk: _Walk, names: Any, value: Any, schema: Any) -> Findings:
    if isinstance(value, dict):
        for name in names:
            if name not in value:
                yield _leaf("required", name, value)


def _dependencies(walk: _Walk, needs: Any, value: Any, schema: Any) -> Findings:
    present = [name for name in needs if name in value] if isinstance(value, dict) else ()
    for name in present:
        if not isinstance(needs[name], list):  # draft-07 has schemas and names in one keyword
            yield from walk.descend(value, needs[name])
            continue
        for missing in needs[name]:
            if missing not in value:
                why = f"required because {to_json(name)} is present"
                yield Finding(f"missing property {to_json(missing)}, {why}")


def _pattern_properties(walk: _Walk, patterns: Any, value: Any, schema: Any) -> Findings:
    for name in value if isinstance(value, dict) else ():
        for pattern, below in patterns.items():
            if walk.matches(pattern, name):
                yield from walk.descend(value[name], below, name)


def _additional_properties(walk: _Walk, given: Any, value: Any, schema: Any) -> Findings:
    named, patterns = schema.get("properties", ()), schema.get("patternProperties", ())
    for name in value if isinstance(value, dict) else ():
        if name in named or any(walk.matches(pattern, name) for pattern in patterns):
            continue
        if given is False:
            yield Finding(f"unexpected property; {allowed_names(schema, name)}", path=(name,))
        else:
            yield from walk.descend(value[name], given, name)


def _property_names(walk: _Walk, given: Any, value: Any, schema: Any) -> Findings:
    for name in value if isinstance(value, dict) else ():
        for each in walk.descend(name, given):
            yield Finding(f"not allowed as a property name: {each.words}", path=(name,))


def _alternatives(walk: _Walk, given: Any, value: Any, schema: Any, *, one: bool) -> Findings:
    branches: list[list[Finding]] = []
    for each in given:
        branches.append([*walk.descend(value, each)])
        if not (one or branches[-1]):
            return
    fitting = [str(number) for number, branch in enumerate(branches, 1) if not branch]
    if not fitting:
        yield from nearest(branches)
    elif len(fitting) > 1:
        numbers = join_words(fitting, "and")
        yield Finding(f"fits alternatives {numbers} at once, but must fit exactly one of them")


def _unevaluated(walk: _Walk, given: Any, value: Any, schema: Any) -> Findings:
    explainer = walk.explainer
    checker = explainer.subschema(explainer.pointers[id(schema)])
    # `validate` of jsonschema-rs takes exponential time for recursive alternatives. That is safe
    # here if this walk has passed through them within its own time, which is not certain with
    # dynamic references.
    is_safe = not explainer.document.uses("$dynamicRef", "$recursiveRef")
    if walk.accepts(checker, value) or not is_safe:
        return
    try:
        checker.validate(value)
    except jsonschema_rs.ValidationError as error:
        match error.kind:
            case Kind.UnevaluatedProperties(names):
                for name in names[:_ENOUGH]:
                    yield Finding("unexpected property", path=(name,))
            case Kind.UnevaluatedItems(items):
                yield Finding(f"unexpected items: {', '.join(map(str, items[:MAX_FAULTS]))}")


_CONTENT: Final = ("contentEncoding", "contentMediaType")
_FUNCTIONS: Final = {
    **{
        keyword: partial(_check_keyword, keyword=keyword)
        for keyword in (*_READERS, *_CONTENT, "const", "enum", "multipleOf")
    },
    **{keyword: partial(_reference, keyword=keyword) for keyword in REFERENCES},
    **dict.fromkeys(_UNEVALUATED, _unevaluated),
    "uniqueItems": _unique_items,
    "required": _required,
    "dependentRequired": _dependencies,
    "dependencies": _dependencies,
    "patternProperties": _pattern_properties,
    "additionalProperties": _additional_properties,
    "propertyNames": _property_names,
    "anyOf": partial(_alternatives, one=False),
    "oneOf": partial(_alternatives, one=True),
}
