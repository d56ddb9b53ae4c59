"""Copies of values, for callers to do with as they like."""

from typing import TypeVar

import msgspec

from genmcp.protocol.value import Value, decoder_for

__all__ = ["copied"]

V = TypeVar("V", bound=Value)


def copied(value: V) -> V:
    """Return a copy of *value*, of the lists and dictionaries in it as well."""
    copy: V = decoder_for(type(value)).decode(msgspec.json.encode(value))
    return copy
