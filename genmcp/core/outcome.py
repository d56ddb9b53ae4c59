"""How a wait ended: the value it brought, or why it brought none.

An outcome is the same on every carrier. One that is kept in a store is JSON.
"""

from typing import Any, Generic, NoReturn, TypeAlias

import msgspec
from typing_extensions import TypeVar

from genmcp.errors import Cancelled, Failure, Lost, Raised, TimedOut, Unable

__all__ = ["Done", "Failed", "Outcome", "pack", "unpack"]

T = TypeVar("T", default=Any)


class Done(msgspec.Struct, Generic[T], frozen=True):
    """It brought *value*."""

    value: T

    def result(self) -> T:
        """Return the value."""
        return self.value


class Failed(msgspec.Struct, frozen=True):
    """It brought nothing; *error* says why: Raised, Lost, TimedOut, Cancelled or Unable."""

    error: Failure

    def result(self) -> NoReturn:
        """Raise the error; if it leaves a hook, the client gets its text as the result.

        Raises:
            Failure: always.
        """
        # An equal error, not the same: its traceback would hold frames that hold this outcome, and
        # with that the error, so that only the garbage collector could free the call.
        raise type(self.error)(*self.error.fields) from self.error.__cause__


Outcome: TypeAlias = Done[Any] | Failed
"""How a wait has ended."""


class _Packed(msgspec.Struct, omit_defaults=True):
    """An outcome as JSON: the value, or the name of the failure and its fields."""

    value: msgspec.Raw = msgspec.Raw()
    failure: str = ""
    fields: list[Any] = []


_FAILURES: dict[str, type[Failure]] = {
    kind.__name__: kind for kind in (Raised, Lost, TimedOut, Cancelled, Unable)
}
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
    return _encode(_Packed(failure=type(error).__name__, fields=list(error.fields)))


def unpack(packed: bytes) -> Outcome:
    """Return the outcome that was packed as *packed*."""
    found = _decoder.decode(packed)
    if found.failure:
        return Failed(_FAILURES[found.failure](*found.fields))
    return Done(_decode(found.value))
