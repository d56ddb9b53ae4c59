"""Why a value does not fit a schema, found by asking the compiled checker piece by piece.

The checker's own list of faults is not used whole: it is as long as there are faults, and grows
exponentially where a recursive schema offers alternatives. Here only parts that do not fit are
entered, the number of questions is bounded, and every verdict, of patterns too, is the checker's.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any, Final
from urllib.parse import quote, urljoin

from jsonschema_rs import Registry, ValidationError, Validator
from jsonschema_rs import ValidationErrorKind as Kind

from genmcp.schema.alternatives import Found, Path, nearest
from genmcp.schema.document import REFERENCES, Document, joined
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

__all__ = ["Explainer"]

# How often the checker is asked for one explanation, how many items of an array are asked about
# at once, and how many faults are looked for.
_MOST_QUESTIONS: Final = 2_000
_CHUNK: Final = 500
_ENOUGH: Final = 5 * MOST_FAULTS

# Keywords that look at the value alone and need no other subschema. `pattern` is asked about by
# itself, when the value is not already too long for it.
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
        "format",
        "minItems",
        "maxItems",
        "uniqueItems",
        "minProperties",
        "maxProperties",
        "required",
        "contentEncoding",
        "contentMediaType",
    }
)

# Names a schema that has no absolute `$id`; nothing is fetched from there, or from anywhere.
_NAMELESS: Final = "https://schema.invalid/"


class Explainer:
    """Explains faults of values against one schema; it keeps the checkers it has needed.

    *compiled* makes a checker of a schema, with the dialect and formats of the whole one.
    """

    def __init__(
        self, document: Document, compiled: Callable[[dict[str, Any], Registry], Validator]
    ) -> None:
        self.document = document
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

    def leaves(self, pointer: str) -> Validator:
        """The checker of those keywords at *pointer* that look at the value alone."""
        schema = self.document.schemas[pointer]
        return self._checker(
            pointer, "leaves", lambda: {key: schema[key] for key in schema if key in _LEAVES}
        )

    def each(self, pointer: str) -> Validator:
        """The checker of arrays whose items all fit the subschema at *pointer*."""
        return self._checker(pointer, "each", lambda: {"items": self._reference(pointer)})

    def containing(self, pointer: str, least: int) -> Validator:
        """The checker of arrays with *least* items that fit the `contains` of *pointer*."""
        inner = self._reference(joined(pointer, "contains"))
        return self._checker(pointer, "contains", lambda: {"contains": inner, "minContains": least})

    def pattern(self, pattern: str) -> Validator:
        """The checker of text that matches *pattern*."""
        return self._checker(pattern, "pattern", lambda: {"pattern": pattern})

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

    @property
    def is_over(self) -> bool:
        """Whether the search ended before everything was looked at."""
        return len(self.found) >= _ENOUGH or self.questions <= 0

    def enter(self, pointer: str, value: Any, path: Path) -> None:
        """Find what of *value*, which is at *path*, does not fit the schema at *pointer*."""
        schema = self.schemas[pointer]
        if schema is False:
            self.add(path, f"nothing is allowed here, got {came(value)}")
        elif schema is not True and not self.is_over and not self.fits(pointer, value):
            self.look(pointer, value, path)

    def look(self, pointer: str, value: Any, path: Path) -> None:
        """Look at every keyword for what *value*, which is known not to fit, does not satisfy."""
        schema = self.schemas[pointer]
        before = len(self.found)
        for look in self._looks(schema):
            look(pointer, schema, value, path)
        if len(self.found) == before:
            self._say_generally(pointer, value, path)

    def fits(self, pointer: str, value: Any) -> bool:
        """Whether *value* fits the schema at *pointer*; one question."""
        self.questions -= 1
        return self.explainer.whole(pointer).is_valid(value)

    def add(self, path: Path, words: str) -> None:
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
            if keyword in schema:
                self.enter(self.explainer.document.target(pointer, keyword), value, path)

    def _leaves(self, pointer: str, schema: dict[str, Any], value: Any, path: Path) -> None:
        before = len(self.found)
        if not schema.keys().isdisjoint(_LEAVES):
            for error in self.explainer.leaves(pointer).iter_errors(value):
                self._add_finding(error, value, path)
        if "pattern" in schema and len(self.found) == before:
            for error in self.explainer.pattern(schema["pattern"]).iter_errors(value):
                self._add_finding(error, value, path)

    def _add_finding(self, error: ValidationError, value: Any, path: Path) -> None:
        kind = error.kind
        self.found.append(
            Found(path, expected(kind, value), value, wanted(kind), isinstance(kind, Kind.Type))
        )

    def _objects(self, pointer: str, schema: dict[str, Any], value: Any, path: Path) -> None:
        if not isinstance(value, dict):
            return
        properties = schema.get("properties", {})
        for name in (name for name in properties if name in value):
            self.enter(joined(pointer, "properties", name), value[name], (*path, name))
        patterns = {
            pattern: self.explainer.pattern(pattern)
            for pattern in schema.get("patternProperties", ())
        }
        for pattern, checker in patterns.items():
            for name in filter(checker.is_valid, value):
                if self.is_over:
                    return
                below = joined(pointer, "patternProperties", pattern)
                self.enter(below, value[name], (*path, name))
        others = (
            name
            for name in value
            if name not in properties and not any(each.is_valid(name) for each in patterns.values())
        )
        if "additionalProperties" in schema:
            self._others(joined(pointer, "additionalProperties"), schema, value, path, others)
        if "propertyNames" in schema:
            self._names(joined(pointer, "propertyNames"), value, path)
        self._dependencies(pointer, schema, value, path)

    def _others(
        self,
        pointer: str,
        schema: dict[str, Any],
        value: dict[str, Any],
        path: Path,
        others: Iterator[str],
    ) -> None:
        for name in others:
            if self.is_over:
                return
            if self.schemas[pointer] is False:
                self.add((*path, name), f"unexpected property; {_allowed(schema)}")
            else:
                self.enter(pointer, value[name], (*path, name))

    def _names(self, pointer: str, value: dict[str, Any], path: Path) -> None:
        for name in value:
            if self.is_over:
                return
            for each in self._apart(pointer, name, ()):
                self.add((*path, name), f"not allowed as a property name: {each.words}")

    def _dependencies(
        self, pointer: str, schema: dict[str, Any], value: dict[str, Any], path: Path
    ) -> None:
        for keyword in ("dependentRequired", "dependentSchemas", "dependencies"):
            for name, needs in schema.get(keyword, {}).items():
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
        each = self.explainer.each(pointer)
        for start in range(fixed, len(value), _CHUNK):
            chunk = value[start : start + _CHUNK]
            if each.is_valid(chunk):
                continue
            for index, item in enumerate(chunk, start):
                if self.is_over:
                    return
                self.enter(pointer, item, (*path, index))

    def _contained(
        self, pointer: str, schema: dict[str, Any], value: Sequence[Any], path: Path
    ) -> None:
        least = schema.get("minContains", 1)
        what = f"each {described(schema['contains'])}"
        if not self.explainer.containing(pointer, least).is_valid(value):
            self.add(path, f"expected at least {counted(least, 'item', 'items')}, {what}")
        most = schema.get("maxContains", len(value))
        fitting = filter(self.explainer.whole(joined(pointer, "contains")).is_valid, value)
        if len([*islice(fitting, most + 1)]) > most:
            self.add(path, f"expected at most {counted(most, 'item', 'items')}, {what}")

    def _compositions(self, pointer: str, schema: dict[str, Any], value: Any, path: Path) -> None:
        for index, _ in enumerate(schema.get("allOf", ())):
            self.enter(joined(pointer, "allOf", index), value, path)
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                below = [joined(pointer, keyword, index) for index in range(len(schema[keyword]))]
                self._alternatives(keyword, below, value, path)
        if "not" in schema and self.fits(joined(pointer, "not"), value):
            self.add(path, f"expected anything but {described(schema['not'])}, got {came(value)}")
        if "if" in schema:
            branch = "then" if self.fits(joined(pointer, "if"), value) else "else"
            if branch in schema:
                self.enter(joined(pointer, branch), value, path)

    def _alternatives(self, keyword: str, below: list[str], value: Any, path: Path) -> None:
        fitting = [index for index, each in enumerate(below, 1) if self.fits(each, value)]
        if not fitting:
            self.found += nearest([self._apart(each, value, path) for each in below], path)
        elif keyword == "oneOf" and len(fitting) > 1:
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
        if not self.is_over and ("unevaluatedProperties" in schema or "unevaluatedItems" in schema):
            try:
                self.explainer.whole(pointer).validate(value)
            except ValidationError as error:
                match error.kind:
                    case Kind.UnevaluatedProperties(names):
                        for name in names[:_ENOUGH]:
                            self.add((*path, name), "unexpected property")
                        return
                    case Kind.UnevaluatedItems(items):
                        self.add(
                            path, f"unexpected items: {', '.join(map(str, items[:MOST_FAULTS]))}"
                        )
                        return
        self.add(path, f"{came(value)} does not fit the schema")


def _allowed(schema: dict[str, Any]) -> str:
    names = [*schema.get("properties", ())]
    patterns = [f"names that match {each}" for each in schema.get("patternProperties", ())]
    return (
        f"allowed are {', '.join(names[:30] + patterns)}" if names + patterns else "none is allowed"
    )
