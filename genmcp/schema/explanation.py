"""Why a value does not fit a schema, found by asking the compiled checker piece by piece.

The checker's own list of faults is not used: it is as long as there are faults, grows
exponentially where a recursive schema offers alternatives, and copies the faulty value into each.
Here only parts that do not fit are entered, the number of questions and the time they take are
bounded, and every verdict, of patterns too, is the checker's.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from time import thread_time
from typing import Any, Final
from urllib.parse import quote, urljoin

import msgspec
from jsonschema_rs import Registry, ValidationError, Validator
from jsonschema_rs import ValidationErrorKind as Kind

from genmcp.schema.alternatives import Found, Path, nearest
from genmcp.schema.document import DEFAULT_DIALECT, DIALECT_2019, DRAFT_7, Document
from genmcp.schema.identifiers import REFERENCES
from genmcp.schema.pieces import clash, misfits
from genmcp.schema.pointers import joined
from genmcp.schema.words import (
    MOST_FAULTS,
    came,
    counted,
    described,
    expected,
    fault,
    listed,
    shown,
    wanted,
)
from genmcp.wire.jsonrpc import printable

__all__ = ["Explainer"]

# How often the checker is asked for one explanation, for how many seconds of the thread's own
# time, and how many faults are looked for.
_MOST_QUESTIONS: Final = 2_000
_LONGEST: Final = 0.008
_ENOUGH: Final = 5 * MOST_FAULTS

# A value whose JSON is longer is not given to the checker for a fault of its own, since that
# holds a copy of the value.
_COPIED: Final = 16_384

# Keywords that look at the value alone and need no other subschema. Those that read a text are
# asked about last, when it is not already too long for them.
_READERS: Final = ("format", "pattern")
_LEAVES: Final = frozenset(
    {
        "type",
        "enum",
        "const",
        "multipleOf",
        "minimum",
        "maximum",
        "exclusiveMinimum",
        "exclusiveMaximum",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "uniqueItems",
        "minProperties",
        "maxProperties",
        "contentEncoding",
        "contentMediaType",
    }
)

# Keywords that a dialect does not define: its meta-schema has not checked their values.
_OLD: Final = frozenset({"prefixItems", "$dynamicRef"})
_STRANGE: Final = {
    DEFAULT_DIALECT: frozenset({"additionalItems", "$recursiveRef"}),
    DIALECT_2019: _OLD,
    DRAFT_7: _OLD
    | {
        "$recursiveRef",
        "dependentRequired",
        "dependentSchemas",
        "maxContains",
        "minContains",
        "unevaluatedItems",
        "unevaluatedProperties",
    },
}

# Characters of a name that is shown, or compared with others.
_LONGEST_NAME: Final = 100

# Names a schema that has no absolute `$id`; nothing is fetched from there, or from anywhere.
_NAMELESS: Final = "https://schema.invalid/"


class Explainer:
    """Explains faults of values against one schema; it keeps the checkers it has needed.

    *compiled* makes a checker of a schema, with the dialect and formats of the whole one; *clock*
    gives the seconds that the thread has worked.
    """

    def __init__(
        self,
        document: Document,
        compiled: Callable[[dict[str, Any], Registry], Validator],
        clock: Callable[[], float] = thread_time,
    ) -> None:
        self.document = document
        self.clock = clock
        self._name = urljoin(_NAMELESS, document.plain.get("$id", "")).partition("#")[0]
        self._registry = Registry([(self._name, document.plain)])
        self._compiled = compiled
        self._checkers: dict[tuple[str, str], Validator] = {}

    def explain(self, value: Any) -> tuple[str, ...]:
        """The faults of a value that does not fit: at most 20, then a line that counts the rest."""
        search = _Search(self)
        search.look("", value, ())
        lines = tuple(dict.fromkeys(fault(each.path, each.words) for each in search.found))
        if len(lines) <= MOST_FAULTS:
            return lines
        more = len(lines) - MOST_FAULTS
        rest = f"{more} or more others" if search.is_over else f"{more} more"
        return (*lines[:MOST_FAULTS], f"... and {rest}")

    def whole(self, pointer: str) -> Validator:
        """The checker of the subschema at *pointer*."""
        return self._checker(pointer, "", lambda: self._reference(pointer))

    def leaf(self, pointer: str, keyword: str) -> Validator:
        """The checker of one keyword at *pointer* that looks at the value alone."""
        given = self.document.schemas[pointer][keyword]
        return self._checker(pointer, keyword, lambda: {keyword: given})

    def each(self, pointer: str, keyword: str) -> Validator:
        """The checker of values all of whose parts fit the subschema at *pointer*.

        *keyword* says which parts: `items` or `propertyNames`.
        """
        return self._checker(pointer, keyword, lambda: {keyword: self._reference(pointer)})

    def mapped(self, pointer: str, keyword: str) -> Validator:
        """The checker of one *keyword* at *pointer* that applies subschemas by name or pattern."""
        keys = self.document.schemas[pointer][keyword]
        return self._checker(
            pointer,
            keyword,
            lambda: {keyword: {k: self._reference(joined(pointer, keyword, k)) for k in keys}},
        )

    def others(self, pointer: str) -> Validator:
        """The checker of `additionalProperties` at *pointer*: all other properties fit."""
        schema = self.document.schemas[pointer]
        inner = self._reference(joined(pointer, "additionalProperties"))
        return self._checker(
            pointer,
            "additionalProperties",
            lambda: {
                **{
                    keyword: dict.fromkeys(schema.get(keyword, ()), True)
                    for keyword in ("properties", "patternProperties")
                },
                "additionalProperties": inner,
            },
        )

    def containing(self, pointer: str, bound: str, count: int) -> Validator:
        """The checker of arrays with as many items that fit the `contains` as *bound* says."""
        inner = self._reference(joined(pointer, "contains"))
        return self._checker(
            pointer, bound, lambda: {"contains": inner, "minContains": 0, bound: count}
        )

    def matching(self, pattern: str) -> Validator:
        """The checker of text that matches *pattern*."""
        return self._checker(pattern, "matching", lambda: {"pattern": pattern})

    def _reference(self, pointer: str) -> dict[str, Any]:
        return {"$ref": f"{self._name}#{quote(pointer)}"}

    def _checker(self, key: str, part: str, schema: Callable[[], dict[str, Any]]) -> Validator:
        checker = self._checkers.get((key, part))
        if checker is None:
            checker = self._checkers[key, part] = self._compiled(schema(), self._registry)
        return checker


class _Search:
    """One search for the faults of one value."""

    def __init__(self, explainer: Explainer) -> None:
        self.explainer = explainer
        self.schemas = explainer.document.schemas
        self.found: list[Found] = []
        self.questions = _MOST_QUESTIONS
        self.left = _LONGEST
        self.since = explainer.clock()

    @property
    def is_over(self) -> bool:
        """Whether the search ended before everything was looked at."""
        return len(self.found) >= _ENOUGH or self.questions <= 0

    def ask(self, checker: Validator, value: Any) -> bool:
        """Whether *value* fits; once the search is over everything does, without a question."""
        now = self.explainer.clock()
        # One pause, such as a collection of garbage, does not end a search.
        self.left -= min(now - self.since, _LONGEST / 2)
        self.since = now
        if self.left <= 0:
            self.questions = 0
        if self.is_over:
            return True
        self.questions -= 1
        return checker.is_valid(value)

    def fits(self, pointer: str, value: Any) -> bool:
        """Whether *value* fits the schema at *pointer*."""
        return self.is_over or self.ask(self.explainer.whole(pointer), value)

    def enter(self, pointer: str, value: Any, path: Path) -> None:
        """Find what of *value*, which is at *path*, does not fit the schema at *pointer*."""
        if not self.fits(pointer, value):
            self.look(pointer, value, path)

    def look(self, pointer: str, value: Any, path: Path) -> None:
        """Look at every keyword for what *value*, which is known not to fit, does not satisfy."""
        schema = self.schemas[pointer]
        if schema is False:
            self.add(path, f"nothing is allowed here, got {came(value)}")
            return
        strange = _STRANGE[self.explainer.document.dialect]
        if not strange.isdisjoint(schema):
            schema = {word: each for word, each in schema.items() if word not in strange}
        before = len(self.found)
        for look in self._looks(schema):
            look(pointer, schema, value, path)
        if len(self.found) == before:
            self._say_generally(pointer, value, path)

    def add(self, path: Path, words: str) -> None:
        """Note a fault."""
        self.found.append(Found(path, words))

    def _looks(
        self, schema: dict[str, Any]
    ) -> Iterator[Callable[[str, dict[str, Any], Any, Path], None]]:
        yield self._references
        if "$ref" in schema and not self.explainer.document.follows_siblings:
            return
        yield self._leaves
        yield self._objects
        yield self._arrays
        yield self._compositions

    def _references(self, pointer: str, schema: dict[str, Any], value: Any, path: Path) -> None:
        for keyword in REFERENCES:
            if isinstance(schema.get(keyword), str):
                self.enter(self.explainer.document.target(pointer, keyword), value, path)

    def _leaves(self, pointer: str, schema: dict[str, Any], value: Any, path: Path) -> None:
        before = len(self.found)
        for keyword in schema:
            if keyword in _LEAVES:
                self._leaf(pointer, keyword, value, path)
        if "required" in schema and isinstance(value, dict):
            missing = (name for name in schema["required"] if name not in value)
            for name in islice(missing, _ENOUGH):
                self.add(path, expected("required", name, value))
        for keyword in _READERS:
            if keyword in schema and len(self.found) == before:
                self._leaf(pointer, keyword, value, path)

    def _leaf(self, pointer: str, keyword: str, value: Any, path: Path) -> None:
        checker = self.explainer.leaf(pointer, keyword)
        if self.ask(checker, value):
            return
        given = self.schemas[pointer][keyword]
        words = expected(keyword, given, value)
        if keyword == "uniqueItems":
            one, other = clash(len(value), lambda start, end: self.ask(checker, value[start:end]))
            which = "some" if self.is_over else f"items {one} and {other}"
            words = f"expected items that all differ, but {which} are equal"
        self.found.append(Found(path, words, value, wanted(keyword, given), keyword == "type"))

    def _objects(self, pointer: str, schema: dict[str, Any], value: Any, path: Path) -> None:
        if not isinstance(value, dict):
            return
        if "properties" in schema:
            names = {name: value[name] for name in schema["properties"] if name in value}
            checker = self.explainer.mapped(pointer, "properties")
            for name in self._misfits(checker, names):
                self.look(joined(pointer, "properties", name), value[name], (*path, name))
        if "patternProperties" in schema:
            self._matched(pointer, schema, value, path)
        if "additionalProperties" in schema:
            below = joined(pointer, "additionalProperties")
            for name in self._misfits(self.explainer.others(pointer), value):
                if self.schemas[below] is False:
                    self.add((*path, name), f"unexpected property; {_allowed(schema, name)}")
                else:
                    self.look(below, value[name], (*path, name))
        if "propertyNames" in schema:
            self._names(joined(pointer, "propertyNames"), value, path)
        self._dependencies(pointer, schema, value, path)

    def _misfits(self, checker: Validator, value: dict[str, Any]) -> Iterator[str]:
        """The names of those properties that do not fit, where *checker* judges each alone."""
        if self.ask(checker, value):
            return
        names, values = [*value], [*value.values()]

        def fit(start: int, end: int) -> bool:
            some = zip(names[start:end], values[start:end], strict=True)
            return self.ask(checker, dict(some))

        for index in misfits(len(names), fit):
            yield names[index]

    def _matched(
        self, pointer: str, schema: dict[str, Any], value: dict[str, Any], path: Path
    ) -> None:
        checker = self.explainer.mapped(pointer, "patternProperties")
        for name in self._misfits(checker, value):
            for pattern in schema["patternProperties"]:
                if self.ask(self.explainer.matching(pattern), name) and not self.is_over:
                    below = joined(pointer, "patternProperties", pattern)
                    self.enter(below, value[name], (*path, name))

    def _names(self, pointer: str, value: dict[str, Any], path: Path) -> None:
        for name in self._misfits(self.explainer.each(pointer, "propertyNames"), value):
            for each in self._apart(pointer, name, ()):
                self.add((*path, name), f"not allowed as a property name: {each.words}")

    def _dependencies(
        self, pointer: str, schema: dict[str, Any], value: dict[str, Any], path: Path
    ) -> None:
        for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            for name, needs in schema.get(keyword, {}).items():
                if self.is_over:
                    return
                if name not in value:
                    continue
                if not isinstance(needs, list):
                    self.enter(joined(pointer, keyword, name), value, path)
                    continue
                for missing in (each for each in needs if each not in value):
                    why = f"required because {shown(name)} is present"
                    self.add(path, f"missing property {shown(missing)}, {why}")

    def _arrays(self, pointer: str, schema: dict[str, Any], value: Any, path: Path) -> None:
        if not isinstance(value, list | tuple):
            return
        first, rest = ("prefixItems", "items")
        if isinstance(schema.get("items"), list):
            first, rest = ("items", "additionalItems")
        fixed = len(schema.get(first, ()))
        for index, item in enumerate(value[:fixed]):
            self.enter(joined(pointer, first, index), item, (*path, index))
        if rest in schema and len(value) > fixed:
            self._rest(joined(pointer, rest), value, path, fixed)
        if "contains" in schema:
            self._contained(pointer, schema, value, path)

    def _rest(self, pointer: str, value: Sequence[Any], path: Path, fixed: int) -> None:
        if self.schemas[pointer] is False:
            items = counted(fixed, "item", "items")
            self.add(path, f"expected at most {items}, got {len(value)}")
            return
        each = self.explainer.each(pointer, "items")
        others = value[fixed:]
        for index in misfits(len(others), lambda start, end: self.ask(each, others[start:end])):
            self.look(pointer, others[index], (*path, fixed + index))

    def _contained(
        self, pointer: str, schema: dict[str, Any], value: Sequence[Any], path: Path
    ) -> None:
        bounds = {"minContains": schema.get("minContains", 1)}
        if "maxContains" in schema:
            bounds["maxContains"] = schema["maxContains"]
        for bound, count in bounds.items():
            if not self.ask(self.explainer.containing(pointer, bound, count), value):
                least = "least" if bound == "minContains" else "most"
                items = counted(int(count), "item", "items")
                what = f"each {described(schema['contains'])}"
                self.add(path, f"expected at {least} {items}, {what}")
                return

    def _compositions(self, pointer: str, schema: dict[str, Any], value: Any, path: Path) -> None:
        for index, _ in enumerate(schema.get("allOf", ())):
            self.enter(joined(pointer, "allOf", index), value, path)
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                below = [joined(pointer, keyword, index) for index in range(len(schema[keyword]))]
                self._alternatives(keyword, below, value, path)
        if "not" in schema and self.fits(joined(pointer, "not"), value) and not self.is_over:
            self.add(path, f"expected anything but {described(schema['not'])}, got {came(value)}")
        if "if" in schema:
            branch = "then" if self.fits(joined(pointer, "if"), value) else "else"
            if branch in schema:
                self.enter(joined(pointer, branch), value, path)

    def _alternatives(self, keyword: str, below: list[str], value: Any, path: Path) -> None:
        fitting = [index for index, each in enumerate(below, 1) if self.fits(each, value)]
        if not fitting:
            self.found += nearest([self._apart(each, value, path) for each in below], path)
        elif keyword == "oneOf" and len(fitting) > 1 and not self.is_over:
            numbers = listed([str(number) for number in fitting], "and")
            self.add(path, f"fits alternatives {numbers} at once, but must fit exactly one of them")

    def _apart(self, pointer: str, value: Any, path: Path) -> list[Found]:
        """The faults against one alternative, not yet counted as faults of the whole."""
        kept, self.found = self.found, []
        self.enter(pointer, value, path)
        apart, self.found = self.found, kept
        return apart

    def _say_generally(self, pointer: str, value: Any, path: Path) -> None:
        """Say that *value* does not fit, where no keyword could be found that says why.

        The rest is `unevaluatedProperties` and `unevaluatedItems`, which depend on all others.
        """
        schema = self.schemas[pointer]
        general = f"{came(value)} does not fit the schema"
        if self.is_over or not ("unevaluatedProperties" in schema or "unevaluatedItems" in schema):
            self.add(path, general)
        elif len(msgspec.json.encode(value)) > _COPIED:
            self.add(path, f"{general}; something in it is unexpected")
        else:
            self.found += _unevaluated(self.explainer.whole(pointer), value, path) or [
                Found(path, general)
            ]


def _unevaluated(checker: Validator, value: Any, path: Path) -> list[Found]:
    try:
        checker.validate(value)
    except ValidationError as error:
        match error.kind:
            case Kind.UnevaluatedProperties(names):
                return [Found((*path, name), "unexpected property") for name in names[:_ENOUGH]]
            case Kind.UnevaluatedItems(items):
                listing = ", ".join(map(str, items[:MOST_FAULTS]))
                return [Found(path, f"unexpected items: {listing}")]
    return []


def _allowed(schema: dict[str, Any], name: str) -> str:
    names = [*schema.get("properties", ())]
    patterns = [f"names that match {each}" for each in schema.get("patternProperties", ())]
    if not names and not patterns:
        return "none is allowed"
    allowed = ", ".join(printable(each, _LONGEST_NAME) for each in (names[:30] + patterns[:30]))
    near = _nearest(name, names)
    return (
        f"did you mean {shown(near)}? allowed are {allowed}" if near else f"allowed are {allowed}"
    )


def _nearest(name: str, names: Sequence[str]) -> str | None:
    """Return which of *names* is most like *name*, if one is."""
    if len(name) > _LONGEST_NAME:  # the comparison is quadratic
        return None
    from difflib import get_close_matches  # rarely needed, and a server should start fast

    short = [each for each in names[:200] if len(each) <= _LONGEST_NAME]
    return next(iter(get_close_matches(name, short, 1)), None)
