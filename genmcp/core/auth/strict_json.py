"""JSON of an attacker or of another server: strict, since two readers must never differ."""

import json
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from genmcp.errors import McpError
from genmcp.wire.jsonrpc import check

_MAX_DEPTH: Final = 64  # as for messages: a bound of the interpreter's differs with its version


def strict_object(text: bytes) -> dict[str, Any]:
    """Return the JSON object in *text*.

    RFC 8725, 2.4: a parser that keeps the first of two members, and one that keeps the last, see
    different objects. Duplicates, at any depth, `NaN` and infinities are refused.

    Raises:
        ValueError: it is something else.
    """
    try:
        check(text, _MAX_DEPTH)
        found = json.loads(text.decode(), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (McpError, json.JSONDecodeError):
        raise ValueError("it is not JSON in UTF-8, or nests too deeply") from None
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
