"""Headers that mirror members of the body: `Mcp-Method`, `Mcp-Name` and `Mcp-Param-*`.

2026-07-28, Streamable HTTP, "Request Metadata". A server that reads the body must refuse a
request whose headers say something else, or intermediaries could be misled.
"""

import base64
import binascii
import re
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, Literal

import msgspec

from genmcp.errors import HeaderMismatch

__all__ = [
    "HeaderRule",
    "check_method",
    "check_name",
    "check_params",
    "decode_value",
    "encode_value",
    "mirrored",
]

_PREFIX, _SUFFIX = "=?base64?", "?="
_PLAIN = b"\t" + bytes(range(0x20, 0x7F))
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?")


class HeaderRule(msgspec.Struct, frozen=True):
    """One `x-mcp-header` annotation: the argument at *path* is mirrored in header *name*.

    *name* is the whole header name in lower case, as ASGI has it (`b"mcp-param-region"`);
    *type* the JSON Schema type: `string`, `integer` or `boolean`.
    """

    name: bytes
    path: tuple[str, ...]
    type: Literal["integer", "string", "boolean"]


def decode_value(name: str, raw: bytes | None) -> str:
    """Return the value a mirroring header stands for ("Value Encoding").

    Blanks around it do not count: not every server takes them off.

    Raises:
        HeaderMismatch: it is missing, has characters a header must not have, or is not valid
            Base64.
    """
    text = _plain(name, raw)
    if not _is_wrapped(text):
        return text
    try:
        return base64.b64decode(text[len(_PREFIX) : -len(_SUFFIX)], validate=True).decode("utf-8")
    except (binascii.Error, UnicodeDecodeError):
        raise HeaderMismatch(
            f"Header mismatch: {name} is not valid Base64 of UTF-8 text: {text}"
        ) from None


def encode_value(value: str) -> str:
    """Return *value* as a mirroring header carries it: as it is if that is safe, else Base64."""
    raw = value.encode("utf-8")
    looks_wrapped = value.startswith(_PREFIX) and value.endswith(_SUFFIX)
    if not raw.translate(None, _PLAIN) and value == value.strip() and not looks_wrapped:
        return value
    return _PREFIX + base64.b64encode(raw).decode("ascii") + _SUFFIX


def check_method(headers: Mapping[bytes, bytes], method: str) -> None:
    """Check that `Mcp-Method` is there and says *method*; it is never Base64.

    Raises:
        HeaderMismatch: it is missing or says something else; the message names both values.
    """
    if (found := _plain("Mcp-Method", headers.get(b"mcp-method"))) != method:
        raise _mismatch("Mcp-Method", found, method)


def check_name(headers: Mapping[bytes, bytes], name: str) -> None:
    """Check that `Mcp-Name` is there and stands for *name*.

    Raises:
        HeaderMismatch: it is missing or says something else; the message names both values.
    """
    if (found := decode_value("Mcp-Name", headers.get(b"mcp-name"))) != name:
        raise _mismatch("Mcp-Name", found, name)


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


def mirrored(rules: Iterable[HeaderRule], arguments: Any) -> tuple[tuple[bytes, bytes], ...]:
    """Return the headers, encoded, that repeat the annotated ones of *arguments*.

    An argument that is absent or null has none ("Client Behavior for Custom Headers").
    """
    values = ((rule.name, _at(arguments, rule.path)) for rule in rules)
    return tuple((name, _text(value)) for name, value in values if value is not None)


def _text(value: Any) -> bytes:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return encode_value(text).encode("ascii")


def _plain(label: str, raw: bytes | None) -> str:
    if raw is None:
        raise HeaderMismatch(f"Header mismatch: the {label} header is missing")
    if raw.translate(None, _PLAIN):
        raise HeaderMismatch(f"Header mismatch: {label} has characters outside visible ASCII")
    return raw.decode("ascii").strip()


def _is_wrapped(text: str) -> bool:
    # The markers do not overlap: "=?base64?=" is not the empty value but itself.
    whole = len(text) >= len(_PREFIX) + len(_SUFFIX)
    return whole and text.startswith(_PREFIX) and text.endswith(_SUFFIX)


def _mismatch(label: str, found: str, expected: str) -> HeaderMismatch:
    return HeaderMismatch(
        f"Header mismatch: {label} header value {found!r} does not match body value {expected!r}"
    )


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
        number = _NUMBER.fullmatch(text)
        return number is not None and Decimal(text) == value
    return isinstance(value, str) and text == value
