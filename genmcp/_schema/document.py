"""A schema as a document: its dialect, subschemas, identifiers and references.

All checks of a schema before it is compiled are here. References are resolved within the schema
(JSON Schema 2020-12 core, 8.2: `$id` and `$anchor`); nothing is fetched.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final
from urllib.parse import unquote, urljoin

import msgspec

from genmcp._schema.limits import SchemaLimits
from genmcp._schema.words import escape, join_pointer, mismatch
from genmcp._wire.jsonrpc import printable
from genmcp.errors import ConfigurationError

DEFAULT_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
DRAFT_7: Final = "http://json-schema.org/draft-07/schema"
DIALECT_2019: Final = "https://json-schema.org/draft/2019-09/schema"
DIALECTS: Final = (DEFAULT_DIALECT, DIALECT_2019, DRAFT_7)

# The keywords of which the value is a subschema, or a list or mapping of subschemas (JSON Schema
# 2020-12 core, 10). The subschemas of these first ones apply to the same value as the schema.
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

# Characters of an error message that come from the schema.
_MAX_POINTER: Final = 200
_MAX_REASON: Final = 600

# Keywords whose value is a list of schemas.
_LISTS: Final = ("allOf", "anyOf", "oneOf", "items", "prefixItems")

# JSON Schema has seven types, counting integers.
_MAX_TYPES: Final = 7

# A node of the graph of subschemas, with edges to all dynamic anchors. Its name is no JSON Pointer.
_ANY_DYNAMIC: Final = "*"

# An array index of RFC 6901. Nine digits are enough for any list in a schema, and `int` raises an
# error for more than 4,300 digits.
_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,8}")


#: The keywords that refer to another schema.
REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_REFERRING: Final = frozenset(REFERENCES)
_NAMING: Final = frozenset(
    {"$schema", "$id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", *REFERENCES}
)

_Refuse = Callable[[str, str], ConfigurationError]
"""Returns the error for a fault at a pointer: takes the pointer and the reason."""

# Characters of a reference that an error shows.
_SHOWN: Final = 200


class Document:
    """A schema with a supported dialect, and with all references resolved within it.

    Time and memory are proportional to the size of the schema, except for the pointers: a long name
    recurs in all pointers below it. They are bounded by `SchemaLimits.pointers`.

    Attributes:
        plain: a copy of the schema in plain dicts and lists.
        schemas: every subschema by its JSON Pointer; an object or a boolean.
        order: the pointers, each after those that `applied` returns for it.

    Raises:
        ConfigurationError: the schema is invalid; names *origin* and the pointer within the
            schema. No schema causes another exception.
    """

    def __init__(self, document: Mapping[str, Any], origin: str, limits: SchemaLimits) -> None:
        self.origin = origin
        self.plain = _plain(document, origin, limits)
        self.dialect = self._dialect_of(self.plain, "")
        self.schemas: dict[str, Any] = {}
        self._below: dict[str, list[tuple[str, str]]] = {}
        self._identifiers = _Identifiers(self.refuse, limits)
        self._targets: dict[tuple[str, str], str] = {}
        self._referring: list[str] = []
        self._dynamic: list[str] = []
        self._room = limits.pointers
        self._collect("", "", limits)
        self._resolve(limits)
        self._bound_application(limits)

    @property
    def follows_siblings(self) -> bool:
        """Whether keywords beside a `$ref` apply; in draft-07 they are ignored."""
        return self.dialect != DRAFT_7

    def refuse(self, pointer: str, why: str) -> ConfigurationError:
        """Return the error for a fault at *pointer*, for the caller to raise.

        The schema may be from an untrusted server, and the message is logged: it is escaped and
        shortened.
        """
        place = printable(pointer, _MAX_POINTER) or "(root)"
        return ConfigurationError(f"{self.origin}: at {place}: {printable(why, _MAX_REASON)}")

    def target(self, pointer: str, keyword: str) -> str:
        """Return the pointer of the target of the reference *keyword* at *pointer*."""
        return self._targets[pointer, keyword]

    def uses(self, *keywords: str) -> bool:
        """Return whether any subschema has one of *keywords*."""
        wanted = frozenset(keywords)
        return any(
            not wanted.isdisjoint(schema)
            for schema in self.schemas.values()
            if schema.__class__ is dict
        )

    def under(self, *keywords: str) -> set[str]:
        """Return the pointers of all subschemas applied below *keywords*, references included."""
        pending = [
            below
            for children in self._below.values()
            for keyword, below in children
            if keyword in keywords
        ]
        found: set[str] = set()
        while pending:
            pointer = pending.pop()
            if pointer not in found:
                found.add(pointer)
                pending += self._graph[pointer]
        found.discard(_ANY_DYNAMIC)
        return found

    def is_recursive(self) -> bool:
        """Return whether a subschema is applied again to a part of its own value."""
        try:
            TopologicalSorter(self._graph).prepare()
        except CycleError:
            return True
        return False

    @cached_property
    def _graph(self) -> dict[str, list[str]]:
        graph = {pointer: self._leads_to(pointer) for pointer in self.schemas}
        graph[_ANY_DYNAMIC] = self._dynamic
        return graph

    def _leads_to(self, pointer: str) -> list[str]:
        """Return the pointers of the subschemas applied to the value and to parts of it."""
        schema = self.schemas[pointer]
        if schema.__class__ is not dict:
            return []
        below = [
            child for keyword, child in self._below.get(pointer, ()) if keyword not in _NOT_APPLIED
        ]
        if "$dynamicRef" in schema or "$recursiveRef" in schema:
            # The anchor it resolves to depends on the dynamic scope. One node leads to all anchors,
            # since an edge from every reference to every anchor would be quadratic.
            below.append(_ANY_DYNAMIC)
        return below + self._targets_of(pointer)

    def _dialect_of(self, schema: dict[str, Any], pointer: str) -> str:
        named = schema.get("$schema", DEFAULT_DIALECT)
        dialect = named.removesuffix("#") if isinstance(named, str) else named
        if dialect not in DIALECTS:
            raise self.refuse(
                join_pointer(pointer, "$schema"),
                f"the dialect {str(named)[:200]!r} is not supported; "
                f"supported are {', '.join(DIALECTS)}",
            )
        return str(dialect)

    def _collect(self, start: str, base: str, limits: SchemaLimits) -> None:
        """Record the schema at *start* and all below it; *base* is its base URI."""
        schemas = self.schemas
        pending = [(start, _at(self.plain, start), base, 0)]
        while pending:
            pointer, schema, base, depth = pending.pop()
            if pointer in schemas:
                continue
            schemas[pointer] = schema
            if len(schemas) > limits.subschemas:
                raise self._too_many(pointer, limits.subschemas, "subschemas", "subschemas")
            if depth > limits.schema_depth:
                raise self._too_many(
                    pointer, limits.schema_depth, "levels of subschemas", "schema_depth"
                )
            if schema.__class__ is not dict:
                continue
            if not pointer or not _NAMING.isdisjoint(schema):
                base = self._identifiers.record(pointer, schema, base)
                self._record_references(pointer, schema)
            self._check_lists(pointer, schema)
            if _HOLDERS.isdisjoint(schema):
                continue
            children = self._below[pointer] = []
            for keyword, below, child in _children(pointer, schema):
                self._spend(len(below), pointer, limits)
                children.append((keyword, below))
                pending.append((below, child, base, depth + 1))

    def _record_references(self, pointer: str, schema: dict[str, Any]) -> None:
        """Record dynamic anchors and references, which are resolved once all schemas are known."""
        if "$schema" in schema:
            self._dialect_of(schema, pointer)
        if "$dynamicAnchor" in schema or "$recursiveAnchor" in schema:
            self._dynamic.append(pointer)
        if not _REFERRING.isdisjoint(schema):
            self._referring.append(pointer)

    def _check_lists(self, pointer: str, schema: dict[str, Any]) -> None:
        """Reject lists for which the meta-schema would report an error for each item.

        These errors contain copies of the faulty value: 400 bytes for each byte of such a list.
        """
        kinds = schema.get("type")
        if isinstance(kinds, list) and len(kinds) > _MAX_TYPES:
            raise self.refuse(join_pointer(pointer, "type"), f"more than {_MAX_TYPES} types")
        for keyword in _LISTS:
            listed = schema.get(keyword)
            for index, each in enumerate(listed if isinstance(listed, list) else ()):
                if not isinstance(each, dict | bool):
                    raise self.refuse(
                        join_pointer(pointer, keyword, index),
                        mismatch("type", ["boolean", "object"], each),
                    )
        needs = schema.get("dependencies")
        for name, each in needs.items() if isinstance(needs, dict) else ():
            if isinstance(each, list) and not all(isinstance(it, str) for it in each):
                raise self.refuse(
                    join_pointer(pointer, "dependencies", name), "expected names of properties"
                )

    def _too_many(self, pointer: str, limit: int, noun: str, setting: str) -> ConfigurationError:
        return self.refuse(pointer, f"more than {limit} {noun} (SchemaLimits.{setting})")

    def _spend(self, characters: int, pointer: str, limits: SchemaLimits) -> None:
        """Count the *characters* of a pointer that is about to be stored."""
        self._room -= characters
        if self._room < 0:
            raise self.refuse(
                pointer,
                f"the JSON Pointers of its subschemas have more than {limits.pointers} characters "
                f"in all; use shorter names, or fewer levels below long ones "
                f"(SchemaLimits.pointers)",
            )

    def _resolve(self, limits: SchemaLimits) -> None:
        """Resolve every reference; collect the targets that are not below a known keyword."""
        # The list grows while it is iterated: a target may contain references.
        for pointer in self._referring:
            for keyword in REFERENCES:
                if isinstance(reference := self.schemas[pointer].get(keyword), str):
                    target, base = self._identifiers.find(pointer, keyword, reference)
                    if target not in self.schemas and not isinstance(
                        _at(self.plain, target), dict | bool
                    ):
                        raise self.refuse(
                            join_pointer(pointer, keyword),
                            f"{reference[:_SHOWN]!r} leads nowhere: no schema is at that place",
                        )
                    self._spend(len(target), pointer, limits)
                    self._targets[pointer, keyword] = target
                    self._collect(target, base, limits)

    def _bound_application(self, limits: SchemaLimits) -> None:
        """Reject a schema that applies itself, or too many others, to the same value."""
        same = {}
        for pointer in self.schemas:
            if applied := self.applied(pointer):
                same[pointer] = applied
        try:
            after = [*TopologicalSorter(same).static_order()]
        except CycleError as error:
            loop = " -> ".join(pointer or "(root)" for pointer in error.args[1])
            raise self.refuse(
                error.args[1][0], f"applies itself to the same value: {loop}"
            ) from None
        counts = dict.fromkeys(self.schemas, 1)
        for pointer in after:
            counts[pointer] += sum(counts[below] for below in same.get(pointer, ()))
            if counts[pointer] > limits.applied:
                raise self.refuse(
                    pointer,
                    f"applies more than {limits.applied} subschemas to one value "
                    f"(SchemaLimits.applied)",
                )
        self.order = (*self.schemas.keys() - same.keys(), *filter(same.__contains__, after))

    def applied(self, pointer: str) -> list[str]:
        """Return the pointers of the subschemas that are applied to the same value."""
        schema = self.schemas[pointer]
        if schema.__class__ is not dict:
            return []
        references = self._targets_of(pointer)
        if references and not self.follows_siblings:
            return references
        children = self._below.get(pointer, ())
        return references + [child for keyword, child in children if keyword in _APPLIED_TO_SAME]

    def _targets_of(self, pointer: str) -> list[str]:
        if pointer not in self._identifiers.bases:
            return []
        return [
            self._targets[pointer, keyword]
            for keyword in REFERENCES
            if (pointer, keyword) in self._targets
        ]


def _plain(document: Mapping[str, Any], origin: str, limits: SchemaLimits) -> dict[str, Any]:
    if not isinstance(document, Mapping):
        raise ConfigurationError(
            f"{origin}: a schema is a JSON object, not {type(document).__name__}"
        )
    try:
        text = msgspec.json.encode(dict(document))
        held = text.count(b",") + text.count(b"[") + text.count(b"{")
        # A schema beyond its limits is not decoded, since that takes many times its size in memory.
        is_small = len(text) <= limits.schema_size and held <= limits.schema_values
        plain = msgspec.json.decode(text) if is_small else {}
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise ConfigurationError(
            f"{origin}: the schema cannot be written as JSON: {printable(str(error))}"
        ) from None
    if len(text) > limits.schema_size:
        raise ConfigurationError(
            f"{origin}: the schema has {len(text)} bytes, more than {limits.schema_size} "
            f"(SchemaLimits.schema_size)"
        )
    if held > limits.schema_values:
        raise ConfigurationError(
            f"{origin}: the schema has more than {limits.schema_values} items and properties "
            f"(SchemaLimits.schema_values)"
        )
    return dict(plain)


def _children(pointer: str, schema: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Yield every subschema directly below *schema* with its keyword and its pointer."""
    for keyword, value in schema.items():
        if keyword not in _HOLDERS:
            continue
        place = f"{pointer}/{keyword}"
        if isinstance(value, list):
            for index, each in enumerate(value):
                yield keyword, f"{place}/{index}", each
        elif keyword not in _MAPPINGS:
            yield keyword, place, value
        elif isinstance(value, dict):
            for name, each in value.items():
                # A list here is the other form of `dependencies`: names, not a schema.
                if not isinstance(each, list):
                    yield keyword, f"{place}/{escape(name)}", each


def _at(document: Any, pointer: str) -> Any:
    """Return the value at *pointer* in *document*; None if it does not exist."""
    for step in pointer.split("/")[1:]:
        key = step.replace("~1", "/").replace("~0", "~")
        if isinstance(document, dict):
            document = document.get(key)
        elif isinstance(document, list) and _INDEX.fullmatch(key) and int(key) < len(document):
            document = document[int(key)]
        else:
            return None
    return document


class _Identifiers:
    """The identifiers of one schema, and the resolution of its references. Owned by the Document.

    Attributes:
        bases: the base URI of each schema that has references, by its pointer.
    """

    def __init__(self, refuse: _Refuse, limits: SchemaLimits) -> None:
        self.bases: dict[str, str] = {}
        self._refuse = refuse
        self._limits = limits
        self._left = limits.pointers
        self._resources: dict[str, str] = {}
        self._anchors: dict[str, str] = {}

    def record(self, pointer: str, schema: dict[str, Any], base: str) -> str:
        """Record the identifiers of *schema*, and return the base URI of its subschemas."""
        identifier = schema.get("$id")
        if isinstance(identifier, str):
            where = join_pointer(pointer, "$id")
            if identifier.startswith("#"):
                self._anchors[self._count(base + identifier, where)] = pointer
            else:
                absolute = self._absolute(base, identifier, where)
                base = self._count(absolute, where).removesuffix("#")
                self._resources[base] = pointer
        if not pointer:
            self._resources[base] = ""
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(schema.get(keyword), str):
                anchor = f"{base}#{schema[keyword]}"
                self._anchors[self._count(anchor, join_pointer(pointer, keyword))] = pointer
        if not _REFERRING.isdisjoint(schema):
            self.bases[pointer] = base
        return base

    def find(self, pointer: str, keyword: str, reference: str) -> tuple[str, str]:
        """Return the pointer that a reference resolves to, and the base URI there.

        Raises ConfigurationError for an invalid reference, or one outside this schema.
        """
        base, where = self.bases[pointer], join_pointer(pointer, keyword)
        if reference.startswith("#"):
            resource, fragment = base, reference[1:]
        else:
            resource, _, fragment = self._absolute(base, reference, where).partition("#")
        if resource not in self._resources:
            raise self._refuse(
                where,
                f"{reference[:_SHOWN]!r} is not part of this schema, and nothing is ever fetched; "
                f"put its target under $defs",
            )
        if not fragment or fragment.startswith("/"):
            return self._resources[resource] + unquote(fragment), resource
        anchor = f"{resource}#{fragment}"
        if anchor not in self._anchors:
            raise self._refuse(where, f"{reference[:_SHOWN]!r} leads nowhere: no such anchor")
        return self._anchors[anchor], resource

    def _count(self, uri: str, pointer: str) -> str:
        """Count *uri*, which is about to be stored, towards the limits, and return it.

        References below it are resolved against it repeatedly, so its length and the total length
        of all URIs are bounded.
        """
        self._left -= len(uri)
        if len(uri) > self._limits.uri or self._left < 0:
            raise self._refuse(
                pointer, f"a URI of more than {self._limits.uri} characters (SchemaLimits.uri)"
            )
        return uri

    def _absolute(self, base: str, reference: str, pointer: str) -> str:
        try:
            return urljoin(base, reference)
        except ValueError as error:  # for example an unterminated IPv6 address
            raise self._refuse(
                pointer, f"{reference[:_SHOWN]!r} is not a URI reference: {error}"
            ) from None
