"""The outcome of a wait: its value or its failure; and the JSON values that it may carry.

An outcome has the same type whether this process, the client or the store keeps the wait. In a
store the outcome is JSON.
"""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from math import isfinite
from typing import Any, Generic, NoReturn, TypeAlias

import msgspec
from typing_extensions import TypeVar

from genmcp.errors import (
    CapabilityMissing,
    ContractError,
    JobExpired,
    WaitCancelled,
    WaitError,
    WaitTimedOut,
    WorkerLost,
    WorkRaised,
)

T = TypeVar("T", default=Any)


class Done(msgspec.Struct, Generic[T], frozen=True):
    """The wait has ended with *value*."""

    value: T

    def result(self) -> T:
        """Return the value."""
        return self.value


class Failed(msgspec.Struct, frozen=True):
    """The wait has failed.

    error: WorkRaised, WorkerLost, WaitTimedOut, WaitCancelled or CapabilityMissing.
    """

    error: WaitError

    def result(self) -> NoReturn:
        """Raise the error. If it leaves a hook, the client gets its text as the result.

        Raises:
            WaitError: always.
        """
        # An equal error, not the same: its traceback would hold frames that hold this outcome, and
        # with that the error, so that only the garbage collector could free the call.
        raise type(self.error)(*self.error.fields) from self.error.__cause__


Outcome: TypeAlias = Done[Any] | Failed
"""The outcome of a wait."""


class _Packed(msgspec.Struct, omit_defaults=True):
    """An outcome as JSON: the value, or the stored name of the error and its fields.

    parts: the packed outcomes of several jobs, a list or dict, in place of the value.
    """

    value: msgspec.Raw = msgspec.Raw()
    failure: str = ""
    fields: list[Any] = []
    parts: "list[_Packed] | dict[str, _Packed] | None" = None


# The names in stored records differ from those of the classes: records that were written before the
# classes got their present names stay readable, and processes of both releases can share a store.
_FAILURES: dict[str, type[WaitError]] = {
    "Raised": WorkRaised,
    "Lost": WorkerLost,
    "TimedOut": WaitTimedOut,
    "Expired": JobExpired,
    "Cancelled": WaitCancelled,
    "Unable": CapabilityMissing,
}
_NAMES: dict[type[WaitError], str] = {kind: name for name, kind in _FAILURES.items()}
_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(_Packed)
_decode = msgspec.json.Decoder().decode


def pack(outcome: Outcome) -> bytes:
    """Return *outcome* as JSON.

    Raises:
        TypeError, ValueError: its value is not JSON.
    """
    if isinstance(outcome, Done):
        return _encode(_Packed(value=msgspec.Raw(_encode(outcome.value))))
    error = outcome.error
    return _encode(_Packed(failure=_NAMES[type(error)], fields=list(error.fields)))


def unpack(packed: bytes) -> Outcome:
    """Return the outcome that `pack` has packed."""
    return _unpacked(_decoder.decode(packed))


def _unpacked(found: _Packed) -> Outcome:
    if found.failure:
        return Failed(_FAILURES[found.failure](*found.fields))
    if isinstance(found.parts, list):
        return Done([_unpacked(each) for each in found.parts])
    if found.parts is not None:
        return Done({key: _unpacked(each) for key, each in found.parts.items()})
    return Done(_decode(found.value))


def has_succeeded(packed: bytes) -> bool:
    """Return whether the *packed* outcome is a value."""
    return not _decoder.decode(packed).failure


def pack_all(packed: Sequence[bytes], keys: Sequence[str], *, values: bool) -> bytes:
    """Return the packed outcome of several jobs, whose outcomes are *packed*.

    Args:
        packed: the outcomes of the jobs.
        keys: their keys, for a dict; empty for a list.
        values: whether the result consists of the values of the jobs, which have all succeeded, and
            not of their outcomes.
    """
    found = [_decoder.decode(each) for each in packed]
    if not values:
        return _encode(_Packed(parts=dict(zip(keys, found, strict=True)) if keys else found))
    raw = [each.value for each in found]
    whole = _encode(dict(zip(keys, raw, strict=True)) if keys else raw)
    return _encode(_Packed(value=msgspec.Raw(whole)))


JsonValue: TypeAlias = (
    str | int | float | bool | Sequence["JsonValue"] | Mapping[str, "JsonValue"] | None
)

# A value is checked when a hook returns it, not when it is stored. The traceback then shows the
# code of the hook, and a value that is not JSON fails with the memory store, too, not only after a
# deploy with another store. 64 levels are the default of `Limits.max_depth` for clients.
_MAX_DEPTH = 64


_REMEDY = "it has to be text, a number, a boolean, None, or a list or dict of these"


def check_json(where: str, value: object, remedy: str = _REMEDY) -> None:
    """Check that *value* is JSON as `json.loads` would return it.

    Args:
        where: its name in error messages.
        value: the value to check.
        remedy: ends the message about a value of another type.

    Raises:
        ContractError: it is not; the message names the first place, such as `job.items[2].at`.
    """
    _check(where, value, remedy, _MAX_DEPTH)


def _check(where: str, value: object, remedy: str, deeper: int) -> None:
    # Exact types: a subclass of str or int, such as an enum, would come back as its base.
    kind = type(value)
    if value is None or kind in (str, bool, int):
        return
    if type(value) is float:
        if not isfinite(value):
            raise ContractError(f"{where} is {value!r}, which JSON does not have")
    elif not deeper:
        raise ContractError(f"{where} nests deeper than {_MAX_DEPTH} levels")
    elif isinstance(value, Mapping):
        for key, each in value.items():
            if type(key) is not str:
                raise ContractError(f"{where} has the key {key!r}; in JSON keys are texts")
            _check(f"{where}.{key}", each, remedy, deeper - 1)
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            _check(f"{where}[{index}]", each, remedy, deeper - 1)
    else:
        raise ContractError(f"{where} is {kind.__name__}, which is not JSON: {remedy}")


def canonical(value: JsonValue | msgspec.Raw) -> bytes:
    """Return the one JSON text of a JSON value: keys sorted, minimal escapes.

    A `msgspec.Raw` is decoded first, so that two spellings of one value (order of keys, white
    space, escapes, `1e2` and `100.0`) give one text. An integer is not the float of equal value:
    `1` and `1.0` differ. Of a duplicate key, the last value counts.

    Raises:
        TypeError, UnicodeEncodeError, msgspec.DecodeError: this is not a JSON value.
    """
    return _encode_canonical(_decode_any(value) if isinstance(value, msgspec.Raw) else value)


def digest(value: JsonValue | msgspec.Raw) -> bytes:
    """Return the SHA-256 of the canonical text, which binds a sealed value to arguments."""
    return sha256(canonical(value)).digest()


_encode_canonical = msgspec.json.Encoder(order="deterministic").encode
_decode_any = msgspec.json.Decoder().decode
