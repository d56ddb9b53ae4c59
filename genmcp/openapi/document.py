"""An OpenAPI document: what its references lead to, and its schemas in JSON Schema 2020-12."""

from collections import deque
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Final
from urllib.parse import unquote

from genmcp._schema.schema import Schema
from genmcp.errors import ConfigurationError

# Subschemas of one input or output schema, and its levels. References are replaced by their targets
# from the root down: a schema that would have more keeps its upper levels.
_MAX_SUBSCHEMAS: Final = 500
_MAX_DEPTH: Final = 32
_TYPES: Final = ("string", "number", "integer", "boolean", "array", "object", "null")
_SCALARS: Final = (str, int, float, bool, type(None))
_COUNTS: Final = tuple(
    f"{end}{each}" for end in ("min", "max") for each in ("Length", "Items", "Properties")
)
_POSITIVE: Final = frozenset({"multipleOf", *_COUNTS})  # others are invalid, or without effect
# The keywords that are copied, and the types of their values. To leave one out is to accept more
# values, which the API checks anyway.
_COPIED: Final[Mapping[str, tuple[type, ...]]] = {
    **dict.fromkeys(("description", "format", "pattern"), (str,)),
    **dict.fromkeys(("default", "const"), _SCALARS[:-1]),
    **dict.fromkeys(("minimum", "maximum", "multipleOf"), (int, float)),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), (int, float)),
    **dict.fromkeys(_COUNTS, (int,)),
    **dict.fromkeys(("uniqueItems", "deprecated"), (bool,)),
}
_LISTS: Final = ("allOf", "anyOf", "oneOf", "prefixItems")
_SINGLE: Final = ("items", "additionalProperties", "not")
COMPLEX: Final = frozenset({"enum", "const", *_LISTS, "not", "patternProperties"})
# The keywords of output schemas: what clients and models read, but not its constraints. Responses
# break those: a fifth of the examples in GitHub's document do not fit the schemas beside them.
_OUTPUT: Final = ("type", "nullable", "description", "properties", "items", "allOf")
# Characters of a description: a hostile document may refer to a long one 10,000 times.
MAX_TEXT: Final = 4_096

Object = dict[str, Any]
# Schemas of the document, each with the schema that is made of it.
_Below = list[tuple[Any, dict[str, Any]]]


class UnusableOperation(Exception):
    """An operation that cannot be a tool. The message is the reason."""


@lru_cache(maxsize=1024)
def _is_linear(pattern: str) -> bool:
    """Return whether *pattern* can be matched in linear time, as the checker requires."""
    try:
        Schema({"pattern": pattern})
    except ConfigurationError:
        return False
    return True


def _types_of(node: Object) -> list[str]:
    """Return the types of *node*; none if it has any type."""
    given = node.get("type")
    types = [each for each in _TYPES if each in (given if isinstance(given, list) else [given])]
    if types and node.get("nullable") is True:  # OpenAPI 3.0 has no type "null"
        types = [*dict.fromkeys((*types, "null"))]
    return types


def alternatives(node: Object) -> list[Object]:
    """Return the schemas of one type each that *node* stands for; none if it can stay as it is.

    Models reject a type that is a list with an array or object, and null as a choice.
    """
    types = _types_of(node) or (["any", "null"] if node.get("nullable") is True else [])
    simple = COMPLEX.isdisjoint(node) and not {"array", "object"} & {*types}
    if len(types) < 2 or simple:
        return []
    bare = {key: each for key, each in node.items() if key not in ("description", "nullable")}
    if isinstance(bare.get("enum"), list):
        bare["enum"] = [each for each in bare["enum"] if each is not None]
    return [{"type": each} if each == "null" else {**bare, "type": each} for each in types]


class OpenApiDocument:
    """An OpenAPI document.

    Args:
        value: the document as it was decoded from JSON.
    """

    def __init__(self, value: Object) -> None:
        self.value = value
        self._targets: dict[str, Any] = {}

    def resolve(self, node: Any) -> tuple[Any, frozenset[str]]:
        """Return the value that *node* refers to, and the references on the way to it.

        Members beside a `$ref` replace those of its target.

        Raises:
            UnusableOperation: a reference leads nowhere, to itself or out of the document.
        """
        passed: frozenset[str] = frozenset()
        while isinstance(node, dict) and "$ref" in node:
            reference = str(node["$ref"])
            if reference in passed:
                raise UnusableOperation(f"$ref {reference[:200]!r} refers to itself")
            passed |= {reference}
            if reference not in self._targets:
                self._targets[reference] = self._at(reference)
            target = self._targets[reference]
            if len(node) > 1 and isinstance(target, dict):
                beside = {key: each for key, each in node.items() if key != "$ref"}
                target = {**target, **beside}
            node = target
        return node, passed

    def object(self, node: Any) -> Object:
        """Return the object that *node* refers to; an empty one in place of another value."""
        found, _ = self.resolve(node)
        return found if isinstance(found, dict) else {}

    def _at(self, reference: str) -> Any:
        if not reference.startswith("#"):
            raise UnusableOperation(
                f"$ref {reference[:200]!r} is outside of the document, and nothing is fetched: "
                f"bundle the document into one file"
            )
        found: Any = self.value
        try:
            for step in unquote(reference).split("/")[1:]:
                key = step.replace("~1", "/").replace("~0", "~")
                found = found[int(key)] if isinstance(found, list) else found[key]
        except (LookupError, ValueError, TypeError):
            raise UnusableOperation(f"$ref {reference[:200]!r} leads nowhere") from None
        return found

    def schema(self, given: Any, *, hidden: str) -> dict[str, Any]:
        """Return the schema *given* in JSON Schema 2020-12 and without references.

        A schema within itself, and the levels for which there is no room, accept any value.
        Properties that are *hidden* are left out.

        Raises:
            UnusableOperation: a reference cannot be resolved.
        """
        root: dict[str, Any] = {}
        # Breadth first, so that a large schema keeps its upper levels.
        pending = deque([(given, root, frozenset[str](), 0)])
        room = _MAX_SUBSCHEMAS
        while pending:
            node, made, above, depth = pending.popleft()
            node, passed = self.resolve(node)
            if not isinstance(node, dict):
                if node is False:
                    made["not"] = {}
                continue
            if hidden == "writeOnly":
                node = {key: node[key] for key in _OUTPUT if key in node}
            counted = [node.get(each) for each in ("properties", "enum", *_LISTS)]
            size = sum(len(each) for each in counted if isinstance(each, dict | list))
            below: _Below = []
            if size > room or depth > _MAX_DEPTH or not passed.isdisjoint(above):
                types = _types_of(node)
                kind = types[0] if len(types) == 1 else None
                self._fill({"type": kind, "description": node.get("description")}, made, hidden)
            elif choices := alternatives(node):
                self._fill({"description": node.get("description")}, made, hidden)
                made["anyOf"] = [{} for _ in choices]
                below = [*zip(choices, made["anyOf"], strict=True)]
            else:
                below = self._fill(node, made, hidden)
            room -= size + len(below)
            pending += [(each, into, above | passed, depth + 1) for each, into in below]
        return root

    def _fill(self, node: Object, made: dict[str, Any], hidden: str) -> _Below:
        """Copy the keywords of *node* to *made*; return the schemas below, yet to be filled."""
        below: _Below = []
        absent: set[Any] = set()

        def child(schema: Any) -> dict[str, Any]:
            below.append((schema, {}))
            return below[-1][1]

        if types := _types_of(node):
            made["type"] = types[0] if len(types) == 1 else types
            if types == ["array"]:
                made["items"] = {}
        for keyword, value in node.items():
            if type(value) in _COPIED.get(keyword, ()):
                is_invalid = keyword in _POSITIVE and value <= 0
                if not is_invalid and (keyword != "pattern" or _is_linear(value)):
                    made[keyword] = value[:MAX_TEXT] if keyword == "description" else value
            elif keyword == "properties" and isinstance(value, dict):
                absent = {
                    name for name, each in value.items() if self.object(each).get(hidden) is True
                }
                made[keyword] = {
                    str(name): child(each) for name, each in value.items() if name not in absent
                }
            elif keyword in _LISTS and isinstance(value, list) and value:
                made[keyword] = [child(each) for each in value]
            elif keyword in _SINGLE and isinstance(value, dict | bool):
                made[keyword] = child(value) if isinstance(value, dict) else value
            elif keyword == "enum" and listed(value) and {*map(type, value)} <= {*_SCALARS}:
                made["enum"] = value
        if names := listed(node.get("required")):
            names = [each for each in names if type(each) is str and each not in absent]
            made["required"] = [*dict.fromkeys(names)]
        for bound in ("Minimum", "Maximum"):
            # OpenAPI 3.0: a boolean beside `minimum`.
            if node.get(f"exclusive{bound}") is True and bound.lower() in made:
                made[f"exclusive{bound}"] = made.pop(bound.lower())
        if "patternProperties" in node:  # not supported: others must be accepted then
            made.pop("additionalProperties", None)
        return below


def listed(value: Any) -> list[Any]:
    """Return *value* if it is a list; an empty one in place of another value."""
    return value if isinstance(value, list) else []
