"""A schema as a document: its dialect, its subschemas, and what its references lead to.

Everything that can be wrong with a schema before it is compiled is found here.
"""

from collections.abc import Iterator, Mapping
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final
from urllib.parse import unquote, urljoin

import msgspec

from genmcp.errors import ConfigurationError
from genmcp.schema.limits import SchemaLimits

__all__ = ["DEFAULT_DIALECT", "DIALECTS", "Document", "joined"]

DEFAULT_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
DRAFT_7: Final = "http://json-schema.org/draft-07/schema"
DIALECTS: Final = (DEFAULT_DIALECT, "https://json-schema.org/draft/2019-09/schema", DRAFT_7)

# Where subschemas are (JSON Schema 2020-12 core, 10): as the keyword's value, in a list, or in a
# mapping; first those applied to the same value as the schema that holds them.
_APPLIED_TO_SAME: Final = frozenset(
    {"not", "if", "then", "else", "allOf", "anyOf", "oneOf", "dependentSchemas", "dependencies"}
)
_APPLIED_TO_PARTS: Final = frozenset(
    {
        "additionalProperties",
        "propertyNames",
        "items",
        "contains",
        "additionalItems",
        "unevaluatedItems",
        "unevaluatedProperties",
        "contentSchema",
        "prefixItems",
    }
)
_MAPPINGS: Final = frozenset(
    {"dependentSchemas", "dependencies", "properties", "patternProperties", "$defs", "definitions"}
)
_HOLDERS: Final = _APPLIED_TO_SAME | _APPLIED_TO_PARTS | _MAPPINGS
_NOT_APPLIED: Final = frozenset({"$defs", "definitions", "contentSchema"})

REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")


def joined(pointer: str, *steps: str | int) -> str:
    """*pointer* with *steps* added, escaped as RFC 6901 says."""
    return pointer + "".join(
        "/" + str(step).replace("~", "~0").replace("/", "~1") for step in steps
    )


class Document:
    """A schema whose dialect is known and whose references all stay within it.

    `plain` is a copy in plain dicts and lists. `schemas` has every subschema by its JSON
    Pointer; an object or a boolean. `order` has the pointers too, each after all that `applied`
    gives for it.

    Raises ConfigurationError, naming *origin* and the pointer within the schema.
    """

    def __init__(self, document: Mapping[str, Any], origin: str, limits: SchemaLimits) -> None:
        self.origin = origin
        self.plain = _plain(document, origin)
        self.dialect = self._dialect_of(self.plain, "")
        self.schemas: dict[str, Any] = {}
        self._bases: dict[str, str] = {}
        self._resources: dict[str, str] = {}
        self._anchors: dict[str, str] = {}
        self._targets: dict[tuple[str, str], str] = {}
        self._dynamic: list[str] = []
        self._collect("", "", limits)
        self._resolve(limits)
        self._bound_application(limits)

    @property
    def follows_siblings(self) -> bool:
        """Whether keywords beside a `$ref` count; in draft-07 they do not."""
        return self.dialect != DRAFT_7

    def refuse(self, pointer: str, why: str) -> ConfigurationError:
        """The error for what is wrong at *pointer*; to be raised by the caller."""
        return ConfigurationError(f"{self.origin}: at {pointer or '(root)'}: {why}")

    def target(self, pointer: str, keyword: str) -> str:
        """The pointer that the reference *keyword* of the schema at *pointer* leads to."""
        return self._targets[pointer, keyword]

    def uses(self, *keywords: str) -> bool:
        """Whether any subschema has one of *keywords*."""
        wanted = frozenset(keywords)
        return any(
            not wanted.isdisjoint(schema)
            for schema in self.schemas.values()
            if schema.__class__ is dict
        )

    def under(self, *keywords: str) -> set[str]:
        """The pointers of all that is applied from below *keywords*, through references too."""
        pending = [
            joined(pointer, *steps)
            for pointer, schema in self.schemas.items()
            if schema.__class__ is dict
            for steps, _ in _children(schema)
            if steps[0] in keywords
        ]
        found: set[str] = set()
        while pending:
            pointer = pending.pop()
            if pointer not in found:
                found.add(pointer)
                pending += self._graph[pointer]
        return found

    def is_recursive(self) -> bool:
        """Whether a subschema is applied, in the end, to a part of what it is applied to."""
        try:
            TopologicalSorter(self._graph).prepare()
        except CycleError:
            return True
        return False

    @cached_property
    def _graph(self) -> dict[str, list[str]]:
        return {pointer: self._leads_to(pointer) for pointer in self.schemas}

    def _leads_to(self, pointer: str) -> list[str]:
        """The pointers of what the schema at *pointer* applies, to its value or to parts of it."""
        schema = self.schemas[pointer]
        if schema.__class__ is not dict:
            return []
        below = [
            joined(pointer, *steps)
            for steps, _ in _children(schema)
            if steps[0] not in _NOT_APPLIED
        ]
        if "$dynamicRef" in schema or "$recursiveRef" in schema:
            # Which of them it leads to depends on where the value has come from.
            below += self._dynamic
        return below + self._referred(pointer)

    def _dialect_of(self, schema: dict[str, Any], pointer: str) -> str:
        named = schema.get("$schema", DEFAULT_DIALECT)
        dialect = named.removesuffix("#") if isinstance(named, str) else named
        if dialect not in DIALECTS:
            raise self.refuse(
                joined(pointer, "$schema"),
                f"the dialect {named!r} is not supported; supported are {', '.join(DIALECTS)}",
            )
        return str(dialect)

    def _collect(self, start: str, base: str, limits: SchemaLimits) -> None:
        """Note the schema at *start* and all below it; *base* is the URI of its references."""
        pending = [(start, _at(self.plain, start), base, 0)]
        while pending:
            pointer, schema, base, depth = pending.pop()
            if pointer in self.schemas:
                continue
            self.schemas[pointer] = schema
            if len(self.schemas) > limits.subschemas:
                raise self.refuse(pointer, f"more than {limits.subschemas} subschemas")
            if depth > limits.schema_depth:
                raise self.refuse(pointer, f"more than {limits.schema_depth} levels of subschemas")
            if schema.__class__ is dict:
                base = self._named(pointer, schema, base)
                pending.extend(
                    (joined(pointer, *steps), below, base, depth + 1)
                    for steps, below in _children(schema)
                )

    def _named(self, pointer: str, schema: dict[str, Any], base: str) -> str:
        """Note the names a schema gives itself; the base URI for what is below it."""
        if "$schema" in schema:
            self._dialect_of(schema, pointer)
        identifier = schema.get("$id")
        if isinstance(identifier, str):
            if identifier.startswith("#"):
                self._anchors[base + identifier] = pointer
            else:
                base = urljoin(base, identifier).removesuffix("#")
                self._resources[base] = pointer
        if not pointer:
            self._resources[base] = ""
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(schema.get(keyword), str):
                self._anchors[f"{base}#{schema[keyword]}"] = pointer
        if "$dynamicAnchor" in schema or "$recursiveAnchor" in schema:
            self._dynamic.append(pointer)
        self._bases[pointer] = base
        return base

    def _resolve(self, limits: SchemaLimits) -> None:
        """Find what every reference leads to, collecting targets outside the known keywords too."""
        resolved: set[str] = set()
        while unresolved := [pointer for pointer in self.schemas if pointer not in resolved]:
            resolved.update(unresolved)
            for pointer in unresolved:
                schema = self.schemas[pointer]
                if schema.__class__ is not dict:
                    continue
                for keyword in REFERENCES:
                    if isinstance(reference := schema.get(keyword), str):
                        target, base = self._found(pointer, keyword, reference)
                        self._targets[pointer, keyword] = target
                        self._collect(target, base, limits)

    def _found(self, pointer: str, keyword: str, reference: str) -> tuple[str, str]:
        base = self._bases[pointer]
        absolute = base + reference if reference.startswith("#") else urljoin(base, reference)
        resource, _, fragment = absolute.partition("#")
        where = joined(pointer, keyword)
        if resource not in self._resources:
            raise self.refuse(
                where,
                f"{reference!r} is not part of this schema, and nothing is ever fetched; "
                f"put what it names under $defs",
            )
        root = self._resources[resource]
        if fragment and not fragment.startswith("/"):
            if absolute not in self._anchors:
                raise self.refuse(where, f"{reference!r} leads nowhere: no such anchor")
            return self._anchors[absolute], resource
        target = root + unquote(fragment)
        if not isinstance(_at(self.plain, target), dict | bool):
            raise self.refuse(where, f"{reference!r} leads nowhere: there is no schema there")
        return target, resource

    def _bound_application(self, limits: SchemaLimits) -> None:
        """Refuse a schema that applies itself, or too many others, to one and the same value."""
        same = {pointer: self.applied(pointer) for pointer in self.schemas}
        try:
            self.order = tuple(TopologicalSorter(same).static_order())
        except CycleError as error:
            loop = " -> ".join(pointer or "(root)" for pointer in error.args[1])
            raise self.refuse(
                error.args[1][0], f"applies itself to the same value: {loop}"
            ) from None
        applied: dict[str, int] = {}
        for pointer in self.order:
            applied[pointer] = 1 + sum(applied[below] for below in same[pointer])
            if applied[pointer] > limits.applied:
                raise self.refuse(
                    pointer, f"applies more than {limits.applied} subschemas to one value"
                )

    def applied(self, pointer: str) -> list[str]:
        """The pointers of what the schema at *pointer* applies to the value it is itself given."""
        schema = self.schemas[pointer]
        if schema.__class__ is not dict:
            return []
        references = self._referred(pointer)
        if references and not self.follows_siblings:
            return references
        return references + [
            joined(pointer, *steps)
            for steps, _ in _children(schema)
            if steps[0] in _APPLIED_TO_SAME
        ]

    def _referred(self, pointer: str) -> list[str]:
        return [
            self._targets[pointer, keyword]
            for keyword in REFERENCES
            if (pointer, keyword) in self._targets
        ]


def _plain(document: Mapping[str, Any], origin: str) -> dict[str, Any]:
    if not isinstance(document, Mapping):
        raise ConfigurationError(
            f"{origin}: a schema is a JSON object, not {type(document).__name__}"
        )
    try:
        plain = msgspec.json.decode(msgspec.json.encode(dict(document)))
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigurationError(
            f"{origin}: the schema cannot be written as JSON: {error}"
        ) from None
    return dict(plain)


def _children(schema: dict[str, Any]) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Every subschema directly below: the steps to it, and itself."""
    for keyword, value in schema.items():
        if keyword not in _HOLDERS:
            continue
        if isinstance(value, list):
            yield from (((keyword, index), each) for index, each in enumerate(value))
        elif keyword not in _MAPPINGS:
            yield (keyword,), value
        elif isinstance(value, dict):
            # A list here is the other form of `dependencies`: names, not a schema.
            yield from (
                ((keyword, name), each)
                for name, each in value.items()
                if not isinstance(each, list)
            )


def _at(document: Any, pointer: str) -> Any:
    """What is at *pointer* in *document*; None when nothing is."""
    for step in pointer.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(document, dict):
            document = document.get(key)
        elif isinstance(document, list) and key.isdecimal() and int(key) < len(document):
            document = document[int(key)]
        else:
            return None
    return document
