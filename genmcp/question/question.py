"""What every question is: a request to the client, what it needs, and how its answer is read."""

from collections.abc import Mapping
from typing import Any, ClassVar

import msgspec
from typing_extensions import TypeVar

from genmcp.core.waiting import Wait
from genmcp.protocol.capabilities import ClientCapabilities
from genmcp.protocol.input_required import InputRequest

__all__ = ["Question"]

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
        """Return the question as JSON, for `unpack` of `genmcp.question.packing`."""
        return msgspec.json.encode(self)
