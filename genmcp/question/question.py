"""The base class of questions, the answers to elicitations, and types by name.

A question is a request to the client that a hook returns: elicitation, sampling or roots.
"""

from collections.abc import Callable, Mapping
from functools import cache, reduce
from importlib import import_module
from typing import Any, ClassVar, Generic, Literal, TypeAlias

import msgspec
from typing_extensions import TypeVar

from genmcp._schema.of_type import decoder_of, schema_of
from genmcp._schema.schema import Schema
from genmcp.core.waiting import Wait
from genmcp.errors import ConfigurationError
from genmcp.protocol.capabilities import ClientCapabilities
from genmcp.protocol.client_features import InputRequest

T_co = TypeVar("T_co", default=Any, covariant=True)


class Question(Wait[T_co], msgspec.Struct, frozen=True, tag_field="kind", omit_defaults=True):
    """A request to the client, returned by a hook: `question.then(self.answered)`.

    `T_co` is the type of the value that `then` passes to the method. A waiting call is stored, at
    the client or in a store, with its question. To keep that small, a question has the values from
    which its request is made, not the request itself.

    Attributes:
        method: `elicitation/create`, `sampling/createMessage` or `roots/list`.
    """

    method: ClassVar[str]
    asks: ClassVar[bool] = True

    @property
    def request(self) -> InputRequest:
        """The request that the client gets."""
        raise NotImplementedError

    def missing_capabilities(self, capabilities: ClientCapabilities) -> Mapping[str, Any]:
        """Return the capabilities that the question requires and the client does not declare.

        The result has the shape of ClientCapabilities, such as `{"sampling": {"tools": {}}}`. The
        request MUST NOT be sent unless the result is empty (2026-07-28, basic/patterns, "Multi
        Round-Trip Requests").
        """
        raise NotImplementedError

    def read(self, answer: Any) -> Any:
        """Validate *answer*, the decoded JSON of the client, and return the value for `Done`.

        Raises:
            ArgumentFaults: the answer is invalid. The question is then sent again with the faults,
                which are sentences for the user or the model that answered.
        """
        raise NotImplementedError

    def pack(self) -> bytes:
        """Return the question as JSON, for `genmcp.question.packing.unpack`."""
        return msgspec.json.encode(self)


T = TypeVar("T", default=Any)


class Accepted(msgspec.Struct, Generic[T], frozen=True):
    """The user accepted. *content* is the content of the form, or None for a URL.

    For a URL, the user has only agreed to open it: the client does not report the interaction
    (2026-07-28, client/elicitation, "URL Mode Elicitation Requests").
    """

    content: T = None  # type: ignore[assignment]  # the content of a URL


class Declined(msgspec.Struct, frozen=True):
    """The user declined."""


class Cancelled(msgspec.Struct, frozen=True):
    """The user dismissed the question without a choice, by closing the dialog, for example."""


Elicited: TypeAlias = Accepted[Any] | Declined | Cancelled


class _Elicitation(msgspec.Struct):
    """An ElicitResult. Its content is not validated yet, and is used only if it was accepted."""

    action: Literal["accept", "decline", "cancel"]
    content: Any = None


def read_elicitation(answer: Any, content: Callable[[Any], Any]) -> Elicited:
    """Return the user's decision in *answer*, the JSON of an ElicitResult.

    If the user accepted, *content* is called to validate the content.

    Raises:
        ArgumentFaults: *answer* is not an ElicitResult, or its content is invalid.
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
    """Convert *answer*, decoded JSON, to the type *kind*.

    Raises:
        ArgumentFaults: *answer* does not fit the type.
    """
    # Encode to JSON again: the decoder of JSON text applies the same rules as to tool arguments.
    value: K = _decoder_of(kind)(msgspec.json.encode(answer))  # type: ignore[arg-type]  # it is hashable
    return value


@cache
def _decoder_of(kind: Any) -> Callable[[bytes], Any]:
    return decoder_of(kind, Schema(schema_of(kind), origin=kind.__name__))


def import_name(kind: type) -> str:
    """Return the name by which other processes import *kind*: `module:qualname`.

    Raises:
        ConfigurationError: *kind* cannot be imported by a name, such as a class in a function.
    """
    name = f"{kind.__module__}:{kind.__qualname__}"
    # Check the name when the question is made, where the author of the tool sees the error. The
    # process that receives the answer could only fail the call.
    try:
        found = _import(name)
    except (ImportError, AttributeError):
        found = None
    if found is not kind:
        raise ConfigurationError(
            f"elicit: {kind.__qualname__} cannot be imported as {name}. Another process may get "
            f"the answer: define the type at the top level of a module"
        )
    return name


def find_type(name: str) -> Any:
    """Import the type *name*, which `import_name` returned.

    Raises:
        ConfigurationError: the module or the type does not exist in this process.
    """
    try:
        return _import(name)
    except (ImportError, AttributeError) as error:
        raise ConfigurationError(
            f"the type {name} of a question is not found in this process: {error}. The question "
            f"is from a process that runs other code"
        ) from error


def _import(name: str) -> Any:
    module, _, qualname = name.partition(":")
    return reduce(getattr, qualname.split("."), import_module(module))
