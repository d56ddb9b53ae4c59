"""JSON of an attacker or of another server: strict, since two readers must never differ."""

import json
from collections.abc import Sequence
from typing import Any, NoReturn


def strict_object(text: bytes) -> dict[str, Any]:
    """Return the JSON object in *text*.

    RFC 8725, 2.4: a parser that keeps the first of two members, and one that keeps the last, see
    different objects. Duplicates, at any depth, `NaN` and infinities are refused.

    Raises:
        ValueError: it is something else.
    """
    try:
        found = json.loads(text.decode(), object_pairs_hook=_unique, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (UnicodeError, json.JSONDecodeError):
        raise ValueError("it is not JSON in UTF-8") from None
    if not isinstance(found, dict):
        raise ValueError("it is not a JSON object")
    return found


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("it has two members of one name")
    return found


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")
