"""Headers that mirror members of the body: `Mcp-Method`, `Mcp-Name` and `Mcp-Param-*`.

2026-07-28, Streamable HTTP, "Request Metadata". A server that reads the body must refuse a
request whose headers say something else, or intermediaries could be misled.
"""

import base64
import binascii
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from genmcp.errors import HeaderMismatch

__all__ = ["HeaderRule", "check_mirrored", "check_params", "decode_value", "encode_value"]

_PREFIX, _SUFFIX = b"=?base64?", b"?="
_PLAIN = frozenset(range(0x20, 0x7F)) | {0x09}


class HeaderRule(msgspec.Struct, frozen=True):
    """One `x-mcp-header` annotation: the argument at *path* is mirrored in header *name*.

    *name* is the whole header name in lower case, as ASGI has it (`b"mcp-param-region"`);
    *type* the JSON Schema type: `string`, `integer` or `boolean`.
    """

    name: bytes
    path: tuple[str, ...]
    type: Literal["integer", "string", "boolean"]


def decode_value(name: str, raw: bytes) -> str:
    """Return the value a mirroring header stands for ("Value Encoding").

    Raises:
        HeaderMismatch: it has characters a header must not have, or is not valid Base64.
    """
    if not _PLAIN.issuperset(raw):
        raise HeaderMismatch(f"Header mismatch: {name} has characters outside visible ASCII")
    if not (raw.startswith(_PREFIX) and raw.endswith(_SUFFIX) and len(raw) > len(_PREFIX)):
        return raw.decode("ascii").strip()
    encoded = raw[len(_PREFIX) : -len(_SUFFIX)]
    try:
        return base64.b64decode(encoded, validate=True).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError):
        raise HeaderMismatch(
            f"Header mismatch: {name} is not valid Base64 of UTF-8 text: {raw.decode('ascii')}"
        ) from None


def encode_value(value: str) -> str:
    """Return *value* as a mirroring header carries it: as it is if that is safe, else Base64."""
    raw = value.encode("utf-8")
    sentinel = raw.startswith(_PREFIX) and raw.endswith(_SUFFIX)
    if _PLAIN.issuperset(raw) and value == value.strip() and not sentinel:
        return value
    return (_PREFIX + base64.b64encode(raw) + _SUFFIX).decode("ascii")


def check_mirrored(headers: Mapping[bytes, bytes], name: bytes, label: str, expected: str) -> None:
    """Check that header *name* is there and stands for *expected*.

    Raises:
        HeaderMismatch: it is missing or says something else; the message names both values.
    """
    raw = headers.get(name)
    if raw is None:
        raise HeaderMismatch(f"Header mismatch: the {label} header is missing")
    if raw == expected.encode("utf-8") and raw[:2] != b"=?":
        return
    found = decode_value(label, raw)
    if found != expected:
        raise HeaderMismatch(
            f"Header mismatch: {label} header value {found!r} does not match "
            f"body value {expected!r}"
        )


def check_params(
    headers: Mapping[bytes, bytes], rules: Iterable[HeaderRule], arguments: Any
) -> None:
    """Check every annotated argument of a call against its `Mcp-Param-*` header.

    An argument that is absent or null has no header ("Server Behavior for Custom Headers").

    Raises:
        HeaderMismatch: a header is missing, malformed, not wanted, or says something else.
    """
    for rule in rules:
        label = rule.name.decode("ascii").title()
        value = _at(arguments, rule.path)
        raw = headers.get(rule.name)
        if value is None:
            if raw is not None:
                raise HeaderMismatch(
                    f"Header mismatch: {label} is given, but the body has no value for it"
                )
            continue
        if raw is None:
            raise HeaderMismatch(
                f"Header mismatch: the {label} header is missing; it mirrors /{'/'.join(rule.path)}"
            )
        if not _says(decode_value(label, raw), value):
            raise HeaderMismatch(f"Header mismatch: {label} does not match the body value")


def _at(arguments: Any, path: tuple[str, ...]) -> Any:
    for step in path:
        if not isinstance(arguments, dict):
            return None
        arguments = arguments.get(step)
    return arguments


def _says(text: str, value: Any) -> bool:
    """Whether header text *text* stands for the JSON *value*; numbers compare as numbers."""
    if isinstance(value, bool):
        return text == ("true" if value else "false")
    if isinstance(value, int | float):
        try:
            return float(text) == value if not text.lstrip("-").isdigit() else int(text) == value
        except ValueError:
            return False
    return isinstance(value, str) and text == value
