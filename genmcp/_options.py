"""Bounds of settings: declared in the annotations of their class, and checked in one place.

A class of settings annotates a bound as `Annotated[int, msgspec.Meta(ge=1)]`, mostly by one of the
names below, and calls `check_bounds` when it is constructed.
"""

from collections.abc import Mapping
from types import UnionType
from typing import Annotated, Any, TypeAlias, Union, get_args, get_origin, get_type_hints

import msgspec

from genmcp.errors import ConfigurationError

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]
"""A number of things, at least one."""

Seconds: TypeAlias = Annotated[float, msgspec.Meta(gt=0)]
"""A time that is not zero."""

Pause: TypeAlias = Annotated[float, msgspec.Meta(ge=0)]
"""A time in seconds that may be zero."""

Bound: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
"""A number of things that may be zero."""

Fraction: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1)]
"""A part of a whole, from 0 to 1."""

Part: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=1)]
"""A part of a whole that is not nothing, up to all of it."""

_WORDS = {"gt": "more than", "ge": "at least", "lt": "less than", "le": "at most"}


def check_bounds(settings: object, prefix: str | None = None) -> None:
    """Check the fields of *settings* against the bounds and types of their annotations.

    Fields without a bound are not checked.

    Args:
        settings: an object whose class annotates bounds.
        prefix: precedes the name of a setting in the message. Default: the class and a dot.

    Raises:
        ConfigurationError: a value is out of bounds, or of another type.
    """
    prefix = f"{type(settings).__name__}." if prefix is None else prefix
    for field, hint in get_type_hints(type(settings), include_extras=True).items():
        if _has_bounds(hint):
            _check(prefix + field, hint, getattr(settings, field))


def _has_bounds(hint: Any) -> bool:
    return get_origin(hint) is Annotated or any(map(_has_bounds, get_args(hint)))


def _check(name: str, hint: Any, value: Any) -> None:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        try:
            msgspec.convert(value, hint)
        except msgspec.ValidationError:
            wanted = "an integer" if arguments[0] is int else "a number"
            bounds = " and ".join(_bounds_of(arguments[1:]))
            raise ConfigurationError(
                f"{name} must be {wanted} of {bounds}, not {value!r}"
            ) from None
    elif origin in (Union, UnionType):
        # One member of a union has bounds; a value of another one, such as None, needs no check.
        bounded = next(filter(_has_bounds, arguments))
        others = tuple(get_origin(each) or each for each in arguments if each is not bounded)
        if get_origin(bounded) is not Annotated or not isinstance(value, others):
            _check(name, bounded, value)
    elif isinstance(value, Mapping):
        for key, each in value.items():
            _check(f"{name}[{key!r}]", arguments[1], each)


def _bounds_of(metadata: tuple[Any, ...]) -> list[str]:
    bounds = []
    for meta in metadata:
        for attribute, words in _WORDS.items():
            if (bound := getattr(meta, attribute, None)) is not None:
                bounds.append(f"{words} {bound:g}")
    return bounds
