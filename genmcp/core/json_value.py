"""JSON values: the check of those that a continuation or a job carries, and their one spelling."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from math import isfinite
from typing import TypeAlias

import msgspec

from genmcp.errors import ContractError

__all__ = ["JsonValue", "canonical", "check_json", "digest"]

JsonValue: TypeAlias = (
    str | int | float | bool | Sequence["JsonValue"] | Mapping[str, "JsonValue"] | None
)

_DEEPEST = 64


def check_json(where: str, value: object) -> None:
    """Check that *value*, which is called *where*, is JSON as `json.loads` would return it.

    Raises:
        ContractError: it is not; the message names the first place, such as `job.items[2].at`.
    """
    _check(where, value, _DEEPEST)


def _check(where: str, value: object, deeper: int) -> None:
    kind = type(value)
    if value is None or kind in (str, bool, int):
        return
    if type(value) is float:
        if not isfinite(value):
            raise ContractError(f"{where} is {value!r}, which JSON does not have")
    elif not deeper:
        raise ContractError(f"{where} nests deeper than {_DEEPEST} levels")
    elif isinstance(value, Mapping):
        for key, each in value.items():
            if type(key) is not str:
                raise ContractError(f"{where} has the key {key!r}; in JSON keys are texts")
            _check(f"{where}.{key}", each, deeper - 1)
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            _check(f"{where}[{index}]", each, deeper - 1)
    else:
        raise ContractError(
            f"{where} is {kind.__name__}, which is not JSON: it has to be text, a number, a "
            f"boolean, None, or a list or dict of these"
        )


def canonical(value: JsonValue | msgspec.Raw) -> bytes:
    """Return the one JSON text of a JSON value: keys sorted, nothing escaped that need not be.

    A `msgspec.Raw` is decoded first, so that two spellings of one value (order of keys, white
    space, escapes, `1e2` and `100.0`) give one text. An integer is not the float of equal value:
    `1` and `1.0` differ. Of a key that occurs twice, the last counts.

    Raises:
        TypeError, UnicodeEncodeError, msgspec.DecodeError: this is not a JSON value.
    """
    return _encode(_decode(value) if isinstance(value, msgspec.Raw) else value)


def digest(value: JsonValue | msgspec.Raw) -> bytes:
    """Return the SHA-256 of the canonical text, which binds a sealed value to arguments."""
    return sha256(canonical(value)).digest()


_encode = msgspec.json.Encoder(order="deterministic").encode
_decode = msgspec.json.Decoder().decode
