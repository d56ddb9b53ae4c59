"""The request headers that repeat members of the body: `Mcp-Method`, `Mcp-Name`, `Mcp-Param-*`.

2026-07-28, Streamable HTTP, "Request Metadata". Proxies route by these headers without parsing
the body, so a server must reject a request whose headers and body differ: a client could
otherwise have one tool authorized and another one executed.

`header_rules` reads the `x-mcp-header` annotations of a tool's input schema ("Custom Headers
from Tool Parameters"), `param_headers` writes the headers of a call, and `check_params` compares
them with its arguments.
"""

import base64
import binascii
import re
from collections.abc import Callable, Iterable, Mapping
from decimal import Decimal
from typing import Any, Final, Literal, cast

import msgspec

from genmcp.errors import HeaderMismatch

#: The keyword that annotates a property of an input schema.
ANNOTATION: Final = "x-mcp-header"

_PREFIX, _SUFFIX = "=?base64?", "?="
_PLAIN = b"\t" + bytes(range(0x20, 0x7F))
# The exponent is limited to three digits: Decimal("1e999999999") == 1 takes seconds to compute.
_NUMBER = re.compile(r"-?[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]{1,3})?")
_TOKEN: Final = re.compile(r"[!#$%&'*+\-.^_`|~0-9A-Za-z]+")
_TYPES: Final = ("integer", "string", "boolean")


class HeaderRule(msgspec.Struct, frozen=True):
    """One `x-mcp-header` annotation: header *name* repeats the argument at *path*.

    *name* is the whole header name in lower case, as ASGI has it (`b"mcp-param-region"`);
    *type* is the JSON Schema type of the argument.
    """

    name: bytes
    path: tuple[str, ...]
    type: Literal["integer", "string", "boolean"]


def header_rules(
    schemas: Mapping[str, Any], refuse: Callable[[str, str], Exception]
) -> tuple[HeaderRule, ...]:
    """Return the rules of all annotations in *schemas*, the subschemas by their JSON Pointers.

    *refuse* makes the error of an annotation that violates a constraint of "Schema Extension",
    from the pointer and the reason.
    """
    rules: dict[bytes, HeaderRule] = {}
    for pointer, schema in schemas.items():
        if schema.__class__ is not dict or ANNOTATION not in schema:
            continue
        rule = _rule(pointer, schema, refuse)
        if rule.name in rules:
            raise refuse(
                pointer,
                f"duplicate {ANNOTATION} {schema[ANNOTATION]!r}; header names are compared "
                f"without regard to case",
            )
        rules[rule.name] = rule
    return tuple(rules.values())


def _rule(
    pointer: str, schema: Mapping[str, Any], refuse: Callable[[str, str], Exception]
) -> HeaderRule:
    name = schema[ANNOTATION]
    if not isinstance(name, str) or not _TOKEN.fullmatch(name):
        raise refuse(
            pointer,
            f"{ANNOTATION} {name!r} is not a header name: one or more letters, digits and "
            f"!#$%&'*+-.^_`|~",
        )
    steps = [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]
    if not steps or any(step != "properties" for step in steps[::2]) or len(steps) % 2:
        raise refuse(
            pointer,
            f"{ANNOTATION} may only be on a property that is reached from the root through "
            f"`properties` alone, not through arrays, compositions, conditions or `$ref`",
        )
    type_ = schema.get("type")
    if type_ not in _TYPES:
        raise refuse(
            pointer, f"{ANNOTATION} needs the type integer, string or boolean here, not {type_!r}"
        )
    return HeaderRule(
        f"mcp-param-{name}".lower().encode(),
        tuple(steps[1::2]),
        cast(Literal["integer", "string", "boolean"], type_),
    )


def encode_value(value: str) -> str:
    """Return *value* as a header value ("Value Encoding"): unchanged if safe, else Base64."""
    raw = value.encode("utf-8")
    # A value that looks like Base64 already is wrapped as well, or it would be decoded.
    looks_wrapped = value.startswith(_PREFIX) and value.endswith(_SUFFIX)
    if not raw.translate(None, _PLAIN) and value == value.strip() and not looks_wrapped:
        return value
    return _PREFIX + base64.b64encode(raw).decode("ascii") + _SUFFIX


def decode_value(name: str, raw: bytes | None) -> str:
    """Return the value that header *name* encodes ("Value Encoding").

    Raises:
        HeaderMismatch: the header is missing, contains a character outside visible ASCII, or is
            not valid Base64.
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


def param_headers(rules: Iterable[HeaderRule], arguments: Any) -> tuple[tuple[bytes, bytes], ...]:
    """Return the `Mcp-Param-*` headers of a call with these *arguments*.

    An argument that is absent or null has none ("Client Behavior for Custom Headers").
    """
    values = ((rule.name, _value_at(arguments, rule.path)) for rule in rules)
    return tuple((name, _encode_argument(value)) for name, value in values if value is not None)


def check_method(headers: Mapping[bytes, bytes], method: str) -> None:
    """Check that `Mcp-Method` equals *method*; it is never Base64.

    Raises:
        HeaderMismatch: the header is missing or differs; the message names both values.
    """
    if (found := _plain("Mcp-Method", headers.get(b"mcp-method"))) != method:
        raise _mismatch("Mcp-Method", found, method)


def check_name(headers: Mapping[bytes, bytes], name: str) -> None:
    """Check that `Mcp-Name` encodes *name*.

    Raises:
        HeaderMismatch: the header is missing or differs; the message names both values.
    """
    if (found := decode_value("Mcp-Name", headers.get(b"mcp-name"))) != name:
        raise _mismatch("Mcp-Name", found, name)


def check_params(
    headers: Mapping[bytes, bytes], rules: Iterable[HeaderRule], arguments: Any
) -> None:
    """Check every annotated argument of a call against its `Mcp-Param-*` header.

    An argument that is absent or null has no header ("Server Behavior for Custom Headers").

    Raises:
        HeaderMismatch: a header is missing, malformed, superfluous, or differs from its argument.
    """
    for rule in rules:
        label = rule.name.decode("ascii").title()
        value = _value_at(arguments, rule.path)
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
        if not _represents(decode_value(label, raw), value):
            raise HeaderMismatch(f"Header mismatch: {label} does not match the body value")


def _encode_argument(value: Any) -> bytes:
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return encode_value(text).encode("ascii")


def _plain(label: str, raw: bytes | None) -> str:
    if raw is None:
        raise HeaderMismatch(f"Header mismatch: the {label} header is missing")
    if raw.translate(None, _PLAIN):
        raise HeaderMismatch(f"Header mismatch: {label} has characters outside visible ASCII")
    # RFC 9110, section 5.5: surrounding whitespace is not part of the value. Some ASGI servers
    # leave it there.
    return raw.decode("ascii").strip()


def _is_wrapped(text: str) -> bool:
    # Prefix and suffix must not overlap: "=?base64?=" is a literal, not an empty encoded value.
    whole = len(text) >= len(_PREFIX) + len(_SUFFIX)
    return whole and text.startswith(_PREFIX) and text.endswith(_SUFFIX)


def _mismatch(label: str, found: str, expected: str) -> HeaderMismatch:
    return HeaderMismatch(
        f"Header mismatch: {label} header value {found!r} does not match body value {expected!r}"
    )


def _value_at(arguments: Any, path: tuple[str, ...]) -> Any:
    for step in path:
        if not isinstance(arguments, dict):
            return None
        arguments = arguments.get(step)
    return arguments


def _represents(text: str, value: Any) -> bool:
    """Return whether *text* represents the JSON *value*; numbers are compared as numbers."""
    if isinstance(value, bool):
        return text == ("true" if value else "false")
    if isinstance(value, int | float):
        number = _NUMBER.fullmatch(text)
        return number is not None and Decimal(text) == value
    return isinstance(value, str) and text == value
