"""What every value of the protocol derives from, and how its members are called on the wire."""

from functools import cache
from typing import Any, dataclass_transform

import msgspec

__all__ = ["Value", "decoder_for", "wire_name"]


@cache
def wire_name(field: str) -> str:
    """Return the name *field* has on the wire: `_meta`, or its camelCase."""
    if field == "meta":
        return "_meta"
    first, *rest = field.split("_")
    return first + "".join(map(str.capitalize, rest))


# Type checkers do not see that msgspec inherits `frozen`; this tells them.
@dataclass_transform(frozen_default=True, field_specifiers=(msgspec.field,))
class Value(msgspec.Struct, frozen=True, omit_defaults=True, rename=wire_name):
    """An object of the protocol: immutable, compared by its members.

    A member the specification requires has no default and is always sent; an optional one
    is None when it is absent, and then not sent. Members a value does not have are ignored
    when it is decoded.
    """


@cache
def decoder_for(type_: Any) -> msgspec.json.Decoder[Any]:
    """Return the decoder of *type_*, made once.

    Its `decode` raises `msgspec.DecodeError` for what is not JSON and
    `msgspec.ValidationError` for JSON of another shape.
    """
    return msgspec.json.Decoder(type_)
