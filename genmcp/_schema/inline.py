"""Resolves the references in the schemas that msgspec and pydantic make of types.

Many clients pass the schema of a tool to the API of a model that takes no references. These schemas
refer to their `$defs` only, by `#/$defs/NAME`.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

_MAPPINGS: Final = frozenset({"properties", "patternProperties"})
_LISTS: Final = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
_SINGLE: Final = frozenset({"items", "additionalProperties", "contains", "propertyNames", "not"})

_MOST: Final = 2_000
"""The most subschemas of a schema without references: definitions that use each other multiply."""


def inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Return *schema* with its references resolved; `$defs` keeps what refers to itself.

    A schema that would have more than 2,000 subschemas keeps its references.
    """
    definitions: Mapping[str, Any] = schema.get("$defs", {})
    if not definitions:
        return schema
    whole = {key: each for key, each in schema.items() if key != "$defs"}
    uses = {name: set(_references(each)) for name, each in definitions.items()}
    recursive = {name for name in uses if name in _reached(name, uses)}
    left = _MOST

    def resolve(part: Any) -> Any:
        nonlocal left
        left -= 1
        name = _referenced(part)
        if left < 0 or not isinstance(part, dict) or name in recursive:
            return part
        if name is None:
            # `discriminator` is no keyword of JSON Schema, and refers to the definitions.
            return with_subschemas(
                {key: each for key, each in part.items() if key != "discriminator"}, resolve
            )
        target = dict(resolve(definitions[name]))
        if target.get("title") == name:
            del target["title"]
        return {**target, **{key: each for key, each in part.items() if key != "$ref"}}

    whole = resolve(whole)
    kept = {name: with_subschemas(definitions[name], resolve) for name in sorted(recursive)}
    if left < 0:
        return _with_root(schema)
    return _with_root({**whole, "$defs": kept}) if kept else whole


def with_subschemas(schema: Mapping[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Return *schema* with each subschema directly below it replaced by *change* of it."""
    changed = dict(schema)
    for keyword, value in schema.items():
        if keyword in _MAPPINGS:
            changed[keyword] = {name: change(each) for name, each in value.items()}
        elif keyword in _LISTS:
            changed[keyword] = [change(each) for each in value]
        elif keyword in _SINGLE:
            changed[keyword] = change(value)
    return changed


def _with_root(schema: dict[str, Any]) -> dict[str, Any]:
    """Inline the root of *schema*; keep it in `$defs` only if there is a reference to it."""
    name = _referenced(schema)
    if name is None:
        return schema
    definitions = dict(schema["$defs"])
    root = definitions[name]
    if all(name not in _references(each) for each in definitions.values()):
        del definitions[name]
    return {**root, "$defs": definitions} if definitions else dict(root)


def _referenced(part: Any) -> str | None:
    """Return the name of the definition that a subschema refers to, or None."""
    reference = part.get("$ref") if isinstance(part, dict) else None
    return None if reference is None else str(reference).removeprefix("#/$defs/")


def _references(part: Any) -> Iterator[str]:
    """Yield the names of the definitions that *part* refers to, at every level."""
    found: list[str] = []

    def look(each: Any) -> Any:
        if (name := _referenced(each)) is not None:
            found.append(name)
        return with_subschemas(each, look) if isinstance(each, dict) else each

    look(part)
    yield from found


def _reached(name: str, uses: Mapping[str, set[str]]) -> set[str]:
    """Return the definitions that *name* refers to, in any number of steps."""
    reached: set[str] = set()
    pending = [*uses[name]]
    while pending:
        if (each := pending.pop()) not in reached:
            reached.add(each)
            pending.extend(uses[each])
    return reached
