"""A schema as a document: its dialect, subschemas, identifiers and references.

All checks of a schema before it is compiled are here. References are resolved within the schema
(JSON Schema 2020-12 core, 8.2: `$id` and `$anchor`); nothing is fetched.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from urllib.parse import unquote, urljoin

import msgspec

from genmcp._schema.limits import MAX_DEPTH, SchemaLimits
from genmcp._schema.words import escape, join_pointer
from genmcp.errors import ConfigurationError
from genmcp.wire.jsonrpc import printable

DEFAULT_DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
DRAFT_7: Final = "http://json-schema.org/draft-07/schema"
DIALECT_2019: Final = "https://json-schema.org/draft/2019-09/schema"
DIALECTS: Final = (DEFAULT_DIALECT, DIALECT_2019, DRAFT_7)

# The keywords of which the value is a subschema, or a list or mapping of subschemas (JSON Schema
# 2020-12 core, 10).
_SINGLE: Final = frozenset(
    {
        *("not", "if", "then", "else", "items", "additionalItems", "unevaluatedItems", "contains"),
        *("additionalProperties", "unevaluatedProperties", "propertyNames", "contentSchema"),
    }
)
_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_MAPPINGS: Final = frozenset(
    {"dependentSchemas", "dependencies", "properties", "patternProperties", "$defs", "definitions"}
)
_HOLDERS: Final = _SINGLE | _LISTS | _MAPPINGS
_NOT_APPLIED: Final = frozenset({"$defs", "definitions", "contentSchema"})

# Characters of an error message that come from the schema.
_MAX_POINTER: Final = 200
_MAX_REASON: Final = 600

# Bytes of a schema that an item or a property counts at least.
_ITEM_SIZE: Final = 16
# Numbers beyond 10 to the power of 100: jsonschema-rs takes 30 us for each.
_HUGE: Final = 1e100
_MAX_HUGE: Final = 200
# Names in a list. The meta-schema reports an error for each item of a faulty list that may also be
# something else: a copy of the whole list.
_MAX_NAMES: Final = 1_000
# Characters in a URI that identifies a part of the schema: others are resolved against it.
_MAX_URI: Final = 512

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
    recurs in all pointers below it. Together they are as long as the schema may be.

    Args:
        document: the schema.
        origin: the option that it is from, for error messages.
        limits: bounds on its size.

    Attributes:
        plain: a copy of the schema in plain dicts and lists.
        schemas: every subschema by its JSON Pointer; an object or a boolean.

    Raises:
        ConfigurationError: the schema is invalid; names *origin* and the pointer within the
            schema. No schema causes another exception.
    """

    def __init__(self, document: Mapping[str, Any], origin: str, limits: SchemaLimits) -> None:
        self.origin = origin
        self.plain = _plain(document, origin, limits)
        self.dialect = self._dialect_of(self.plain, "")
        self.schemas: dict[str, Any] = {}
        self._limits = limits
        self._below: dict[str, list[tuple[str, str]]] = {}
        self._identifiers = _Identifiers(self.refuse)
        self._targets: dict[tuple[str, str], str] = {}
        self._referring: list[str] = []
        self._room = limits.schema_size
        self._collect("", "")
        self._resolve()

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

    def referenced(self, pointer: str) -> dict[str, dict[str, Any]]:
        """Return the subschema at *pointer* and those that it refers to, in a chain, by pointer.

        The chain ends at a boolean, or where it returns to itself. Of a longer one, the first 64
        are returned.
        """
        found: dict[str, dict[str, Any]] = {}
        while pointer not in found and len(found) < MAX_DEPTH:
            if self.schemas[pointer].__class__ is not dict:
                break
            found[pointer] = self.schemas[pointer]
            pointer = self._targets.get((pointer, "$ref"), pointer)
        return found

    def uses(self, *keywords: str) -> bool:
        """Return whether any subschema has one of *keywords*."""
        wanted = frozenset(keywords)
        return any(
            not wanted.isdisjoint(schema)
            for schema in self.schemas.values()
            if schema.__class__ is dict
        )

    def applied(self, pointer: str) -> list[tuple[str, str]]:
        """Return the subschemas that the one at *pointer* applies to its value, and to parts of it.

        Each is the keyword that applies it, and its pointer.
        """
        references = []
        if pointer in self._identifiers.bases:
            references = [
                (keyword, self._targets[pointer, keyword])
                for keyword in REFERENCES
                if (pointer, keyword) in self._targets
            ]
            if references and not self.follows_siblings:
                return references
        children = self._below.get(pointer, ())
        return references + [each for each in children if each[0] not in _NOT_APPLIED]

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

    def _collect(self, start: str, base: str) -> None:
        """Record the schema at *start* and all below it; *base* is its base URI."""
        schemas, most = self.schemas, self._limits.subschemas
        pending = [(start, _at(self.plain, start), base, 0)]
        while pending:
            pointer, schema, base, depth = pending.pop()
            if pointer in schemas:
                continue
            schemas[pointer] = schema
            if len(schemas) > most:
                raise self.refuse(pointer, f"more than {most} subschemas")
            if depth > MAX_DEPTH:
                raise self.refuse(pointer, f"more than {MAX_DEPTH} levels of subschemas")
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
                self._spend(len(below), pointer)
                children.append((keyword, below))
                pending.append((below, child, base, depth + 1))

    def _record_references(self, pointer: str, schema: dict[str, Any]) -> None:
        """Record references, which are resolved once all schemas are known."""
        if "$schema" in schema and self._dialect_of(schema, pointer) != self.dialect:
            where = join_pointer(pointer, "$schema")
            raise self.refuse(where, "a part of a schema has the dialect of the whole")
        if not _REFERRING.isdisjoint(schema):
            self._referring.append(pointer)

    def _check_lists(self, pointer: str, schema: dict[str, Any]) -> None:
        """Reject long lists of names for which the meta-schema would report too many errors."""
        lists = {"type": schema.get("type")}
        if isinstance(schema.get("dependencies"), dict):
            lists |= schema["dependencies"]
        for names in lists.values():
            if isinstance(names, list) and len(names) > _MAX_NAMES:
                raise self.refuse(pointer, f"a list of more than {_MAX_NAMES} names")

    def _spend(self, characters: int, pointer: str) -> None:
        """Count the *characters* of a pointer that is about to be stored."""
        self._room -= characters
        if self._room < 0:
            raise self.refuse(
                pointer,
                f"the JSON Pointers of its subschemas have more than {self._limits.schema_size} "
                f"characters in all; use shorter names, or fewer levels below long ones",
            )

    def _resolve(self) -> None:
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
                    self._spend(len(target), pointer)
                    self._targets[pointer, keyword] = target
                    self._collect(target, base)


def _plain(document: Mapping[str, Any], origin: str, limits: SchemaLimits) -> dict[str, Any]:
    if not isinstance(document, Mapping):
        raise ConfigurationError(
            f"{origin}: a schema is a JSON object, not {type(document).__name__}"
        )
    try:
        text = msgspec.json.encode(dict(document))
        size = _ITEM_SIZE * (text.count(b",") + text.count(b"[") + text.count(b"{"))
        # A schema beyond its limits is not decoded, since that takes many times its size in memory.
        is_small = max(size, len(text)) <= limits.schema_size
        plain = _decode(text) if is_small else {}
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise ConfigurationError(
            f"{origin}: the schema cannot be written as JSON: {printable(str(error))}"
        ) from None
    if not is_small:
        raise ConfigurationError(
            f"{origin}: the schema has {len(text)} bytes and {size // _ITEM_SIZE} items and "
            f"properties, more than {limits.schema_size} bytes, of which each of them counts "
            f"{_ITEM_SIZE}"
        )
    return dict(plain)


def _decode(text: bytes) -> Any:
    """Return the value of *text*. Raises ValueError for many huge numbers."""
    huge = 0

    def read_number(number: str) -> float:
        nonlocal huge
        huge += abs(float(number)) > _HUGE
        if huge > _MAX_HUGE:
            raise ValueError(f"more than {_MAX_HUGE} numbers beyond {_HUGE:g}")
        return float(number)

    return msgspec.json.Decoder(float_hook=read_number).decode(text)


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

    def __init__(self, refuse: _Refuse) -> None:
        self.bases: dict[str, str] = {}
        self._refuse = refuse
        self._resources: dict[str, str] = {}
        self._anchors: dict[str, str] = {}

    def record(self, pointer: str, schema: dict[str, Any], base: str) -> str:
        """Record the identifiers of *schema*, and return the base URI of its subschemas."""
        identifier = schema.get("$id")
        if isinstance(identifier, str):
            where = join_pointer(pointer, "$id")
            if identifier.startswith("#"):
                self._anchors[self._bounded(base + identifier, where)] = pointer
            else:
                absolute = self._absolute(base, identifier, where)
                base = self._bounded(absolute, where).removesuffix("#")
                self._resources[base] = pointer
        if not pointer:
            self._resources[base] = ""
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(schema.get(keyword), str):
                anchor = f"{base}#{schema[keyword]}"
                self._anchors[self._bounded(anchor, join_pointer(pointer, keyword))] = pointer
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

    def _bounded(self, uri: str, pointer: str) -> str:
        """Return *uri*, which is about to be stored, if it is not too long."""
        if len(uri) > _MAX_URI:
            raise self._refuse(pointer, f"a URI of more than {_MAX_URI} characters")
        return uri

    def _absolute(self, base: str, reference: str, pointer: str) -> str:
        try:
            return urljoin(base, reference)
        except ValueError as error:  # for example an unterminated IPv6 address
            raise self._refuse(
                pointer, f"{reference[:_SHOWN]!r} is not a URI reference: {error}"
            ) from None
