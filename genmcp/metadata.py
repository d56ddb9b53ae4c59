"""What tools and suites say of themselves, checked when they are made."""

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from genmcp.errors import ConfigurationError
from genmcp.protocol.implementation import Icon
from genmcp.protocol.tools import ToolAnnotations

__all__ = ["annotations_of", "check_metadata"]

# 2026-07-28, server/tools, "Tool Names".
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")

_MEMBERS: Mapping[str, tuple[Any, str]] = {
    "name": (str, "a text"),
    "title": (str, "a text"),
    "description": (str, "a text"),
    "annotations": (ToolAnnotations | Mapping, "ToolAnnotations or a mapping of them"),
    "icons": (list | tuple, "a list of Icon"),
    "meta": (Mapping, "a mapping"),
    "formats": (bool | Mapping, "True, False or a mapping of checkers"),
    "on_disconnect": (str, "'finish' or 'cancel'"),
    "instructions": (str, "a text"),
    "website_url": (str, "a text"),
}


def check_metadata(owner: str, said: Mapping[str, Any]) -> None:
    """Check what *owner* says of itself; None says nothing.

    Raises:
        ConfigurationError: the message names *owner*, the member, and what it takes.
    """
    for key, (kinds, words) in _MEMBERS.items():
        value = said.get(key)
        if value is None:
            continue
        if not isinstance(value, kinds):
            raise ConfigurationError(f"{owner}.{key} must be {words}, not {value!r}")
        if isinstance(value, str) and not value.strip():
            raise ConfigurationError(f"{owner}.{key} is blank")
    name, on_disconnect = said.get("name"), said.get("on_disconnect", "finish")
    if name is not None and not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{owner}.name must be 1 to 128 letters, digits, '_', '-' or '.', not {name!r}"
        )
    if on_disconnect not in ("finish", "cancel"):
        raise ConfigurationError(
            f"{owner}.on_disconnect must be 'finish' or 'cancel', not {on_disconnect!r}"
        )
    for icon in said.get("icons") or ():
        if not isinstance(icon, Icon):
            raise ConfigurationError(f"{owner}.icons must be a list of Icon, not of {icon!r}")
    annotations_of(owner, said.get("annotations"))


def annotations_of(owner: str, given: Any) -> ToolAnnotations | None:
    """Return the annotations *given* as a struct or as a mapping with the names of the wire.

    Raises:
        ConfigurationError: there is no such annotation, or it is not of its type.
    """
    if not isinstance(given, Mapping):
        return given  # type: ignore[no-any-return]  # checked: annotations, or None
    known = [field.encode_name for field in msgspec.structs.fields(ToolAnnotations)]
    for key in given:
        if key not in known:
            raise ConfigurationError(f"{owner}.annotations: {key!r} is none of {', '.join(known)}")
    try:
        return msgspec.convert(dict(given), ToolAnnotations)
    except msgspec.ValidationError as error:
        raise ConfigurationError(f"{owner}.annotations: {error}") from None
