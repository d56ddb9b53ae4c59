"""The `default`s of properties, filled into values that leave those properties out."""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

from genmcp.schema.document import Document
from genmcp.schema.pointers import joined

__all__ = ["filler_of"]

Plans = dict[str, tuple[dict[str, Any], dict[str, str]]]
"""By pointer: the defaults of a schema's properties, and where its properties' schemas are."""


def filler_of(document: Document, most: int) -> Callable[[Any], Any]:
    """Return a function that fills in the defaults of *document*; without any, the identity.

    Defaults are those of `properties`, at every level and through references. Existing values are
    never replaced, and a default is not filled in further.

    Raises ConfigurationError if properties that refer to each other result in more than *most*
    places to visit.
    """
    plans: Plans = {}
    pending = [""]
    while pending:
        pointer = pending.pop()
        if pointer not in plans:
            plans[pointer] = plan = _plan(document, pointer)
            pending.extend(plan[1].values())
            most -= len(plan[1])
            if most < 0:
                raise document.refuse(pointer, "too many references between properties")
    if not any(defaults for defaults, _ in plans.values()):
        return _unchanged
    return lambda value: _filled(value, "", plans)


def _unchanged(value: Any) -> Any:
    return value


def _filled(value: Any, pointer: str, plans: Plans) -> Any:
    if value.__class__ is not dict:
        return value
    defaults, below = plans[pointer]
    filled = {
        name: _filled(each, below[name], plans) if name in below else each
        for name, each in value.items()
    }
    for name, default in defaults.items():
        if name not in filled:
            filled[name] = deepcopy(default)
    return filled


def _plan(document: Document, pointer: str) -> tuple[dict[str, Any], dict[str, str]]:
    defaults: dict[str, Any] = {}
    below: dict[str, str] = {}
    for place in _with_references(document, pointer):
        for name in document.schemas[place].get("properties", ()):
            first = joined(place, "properties", name)
            places = _with_references(document, first)
            # Properties that only refer to the same schema share its plan: a plan for each would be
            # quadratic if all of them refer to the schema that contains them.
            below[name] = next(
                (each for each in places if "properties" in document.schemas[each]), first
            )
            for each in places:
                if "default" in document.schemas[each]:
                    defaults.setdefault(name, document.schemas[each]["default"])
    return defaults, below


def _with_references(document: Document, pointer: str) -> list[str]:
    """*pointer* and what it refers to, in turn; only those that are objects."""
    places: list[str] = []
    while document.schemas[pointer].__class__ is dict:
        places.append(pointer)
        if "$ref" not in document.schemas[pointer]:
            break
        pointer = document.target(pointer, "$ref")
    return places
