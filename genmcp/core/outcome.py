"""How a wait ended: the value it brought, or why it brought none.

An outcome is the same on every carrier. One that is kept in a store is JSON.
"""

from typing import Any, Generic, NoReturn, TypeAlias

import msgspec
from typing_extensions import TypeVar

from genmcp.errors import (
    CapabilityMissing,
    WaitCancelled,
    WaitError,
    WaitTimedOut,
    WorkerLost,
    WorkRaised,
)

__all__ = ["Done", "Failed", "Outcome", "pack", "unpack"]

T = TypeVar("T", default=Any)


class Done(msgspec.Struct, Generic[T], frozen=True):
    """It brought *value*."""

    value: T

    def result(self) -> T:
        """Return the value."""
        return self.value


class Failed(msgspec.Struct, frozen=True):
    """It brought nothing; *error* is the reason.

    WorkRaised, WorkerLost, WaitTimedOut, WaitCancelled or CapabilityMissing.
    """

    error: WaitError

    def result(self) -> NoReturn:
        """Raise the error; if it leaves a hook, the client gets its text as the result.

        Raises:
            WaitError: always.
        """
        # An equal error, not the same: its traceback would hold frames that hold this outcome, and
        # with that the error, so that only the garbage collector could free the call.
        raise type(self.error)(*self.error.fields) from self.error.__cause__


Outcome: TypeAlias = Done[Any] | Failed
"""How a wait has ended."""


class _Packed(msgspec.Struct, omit_defaults=True):
    """An outcome as JSON: the value, or the stored name of the error and its fields."""

    value: msgspec.Raw = msgspec.Raw()
    failure: str = ""
    fields: list[Any] = []


# The names in stored records differ from those of the classes: records that were written before the
# classes got their present names stay readable, and processes of both releases can share a store.
_FAILURES: dict[str, type[WaitError]] = {
    "Raised": WorkRaised,
    "Lost": WorkerLost,
    "TimedOut": WaitTimedOut,
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
    """Return the outcome that was packed as *packed*."""
    found = _decoder.decode(packed)
    if found.failure:
        return Failed(_FAILURES[found.failure](*found.fields))
    return Done(_decode(found.value))
