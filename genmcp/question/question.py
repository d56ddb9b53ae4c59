"""What every question is: a request to the client, what it needs, and how its answer is read."""

from collections.abc import Callable, Mapping
from functools import cache, reduce
from importlib import import_module
from typing import Any, ClassVar, Generic, Literal, TypeAlias

import msgspec
from typing_extensions import TypeVar

from genmcp.core.waiting import Wait
from genmcp.errors import ConfigurationError
from genmcp.protocol.capabilities import ClientCapabilities
from genmcp.protocol.client_features import InputRequest
from genmcp.schema.of_type import decoder_of, schema_of
from genmcp.schema.schema import Schema

__all__ = [
    "Accepted",
    "Cancelled",
    "Declined",
    "Elicited",
    "Question",
    "elicited",
    "name_of",
    "read_as",
    "type_named",
]

T_co = TypeVar("T_co", default=Any, covariant=True)


class Question(Wait[T_co], msgspec.Struct, frozen=True, tag_field="kind", omit_defaults=True):
    """Something a hook asks its client: `question.then(self.answered)`.

    T_co is the type of the value that `then` gives to the method.

    It is a value of few bytes, so that it can wait with the client or in a store. Its members are
    what cannot be made again.

    method: the method of its request, `elicitation/create`, `sampling/createMessage` or
        `roots/list`.
    """

    method: ClassVar[str]
    asks: ClassVar[bool] = True

    @property
    def request(self) -> InputRequest:
        """The request the client gets."""
        raise NotImplementedError

    def lacking(self, capabilities: ClientCapabilities) -> Mapping[str, Any]:
        """Return what a client with these *capabilities* must declare before it may be asked.

        In the shape of ClientCapabilities, such as `{"sampling": {"tools": {}}}`; nothing if it
        may be asked (2026-07-28, basic/patterns, "Multi Round-Trip Requests": MUST NOT without).
        """
        raise NotImplementedError

    def read(self, answer: Any) -> Any:
        """Return the value of `Done` that *answer*, the client's decoded JSON, stands for.

        Raises:
            ArgumentFaults: it is no answer to this question. The faults are sentences for whoever
                gave it, who is to be asked again.
        """
        raise NotImplementedError

    def pack(self) -> bytes:
        """Return the question as JSON, for `genmcp.question.packing.unpack`."""
        return msgspec.json.encode(self)


T = TypeVar("T", default=Any)


class Accepted(msgspec.Struct, Generic[T], frozen=True):
    """The user agreed. *content* is what they filled in; None where they were sent to a URL.

    To a URL they have only agreed to go: what they do there the client does not tell
    (2026-07-28, client/elicitation, "URL Mode Elicitation Requests").
    """

    content: T = None  # type: ignore[assignment]  # None is what a URL has


class Declined(msgspec.Struct, frozen=True):
    """The user said no."""


class Cancelled(msgspec.Struct, frozen=True):
    """The user chose neither: closed the dialog, say. The specification's `cancel`."""


Elicited: TypeAlias = Accepted[Any] | Declined | Cancelled


class _Elicitation(msgspec.Struct):
    """ElicitResult before its content, of which only what is accepted counts, is looked at."""

    action: Literal["accept", "decline", "cancel"]
    content: Any = None


def elicited(answer: Any, content: Callable[[Any], Any]) -> Elicited:
    """Return what the user did, by the ElicitResult *answer*; *content* reads what they filled in.

    Raises:
        ArgumentFaults: it is no ElicitResult, or as *content* does.
    """
    result = read_as(_Elicitation, answer)
    match result.action:
        case "accept":
            return Accepted(content(result.content))
        case "decline":
            return Declined()
        case _:
            return Cancelled()


K = TypeVar("K")


def read_as(kind: type[K], answer: Any) -> K:
    """Return *answer*, JSON as it was decoded, as a *kind*.

    Raises:
        ArgumentFaults: it is none.
    """
    value: K = _decoder_of(kind)(msgspec.json.encode(answer))  # type: ignore[arg-type]  # it is hashable
    return value


@cache
def _decoder_of(kind: Any) -> Callable[[bytes], Any]:
    return decoder_of(kind, Schema(schema_of(kind), origin=kind.__name__))


def name_of(kind: type) -> str:
    """Return the name under which *kind* is found again in any process: `module:qualname`.

    Raises:
        ConfigurationError: it is not found there: local to a function, or replaced.
    """
    name = f"{kind.__module__}:{kind.__qualname__}"
    try:
        found = _found(name)
    except (ImportError, AttributeError):
        found = None
    if found is not kind:
        raise ConfigurationError(
            f"elicit: {kind.__qualname__} is not found again as {name}. The answer may come to "
            f"another process: define the type at the top level of a module"
        )
    return name


def type_named(name: str) -> Any:
    """Return the type of that *name*.

    Raises:
        ConfigurationError: there is none in this process.
    """
    try:
        return _found(name)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"the type that a question asked for, {name}, is not found in this process: {error}. "
            f"It was asked by a process that runs other code"
        ) from error


def _found(name: str) -> Any:
    module, _, qualname = name.partition(":")
    return reduce(getattr, qualname.split("."), import_module(module))
