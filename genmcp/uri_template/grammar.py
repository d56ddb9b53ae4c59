"""The grammar of templates: RFC 6570, section 2, and the table of its appendix A."""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote

import msgspec

from genmcp.errors import ConfigurationError

__all__ = [
    "RESERVED",
    "UNRESERVED",
    "Expression",
    "Operator",
    "Part",
    "Variable",
    "encoded",
    "parse",
]

UNRESERVED: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
RESERVED: Final = ":/?#[]@!$&'()*+,;="


class Operator(msgspec.Struct, frozen=True):
    """How an expression expands: what stands before it and between its values.

    named: each value has its name before it. if_empty: what follows the name of an empty value.
    reserved: reserved characters of values stay as they are, and so do percent-encoded ones.
    """

    first: str
    separator: str
    named: bool = False
    if_empty: str = ""
    reserved: bool = False


_OPERATORS: Final[Mapping[str, Operator]] = {
    "": Operator("", ","),
    "+": Operator("", ",", reserved=True),
    "#": Operator("#", ",", reserved=True),
    ".": Operator(".", "."),
    "/": Operator("/", "/"),
    ";": Operator(";", ";", named=True),
    "?": Operator("?", "&", named=True, if_empty="="),
    "&": Operator("&", "&", named=True, if_empty="="),
}


class Variable(msgspec.Struct, frozen=True):
    """A variable as it stands in an expression: `{name:length}`, `{name*}` is *exploded*."""

    name: str
    length: int | None = None
    exploded: bool = False


class Expression(msgspec.Struct, frozen=True):
    """An operator and its variables; *text* is the expression with its braces."""

    text: str
    operator: Operator
    variables: tuple[Variable, ...]


Part = str | Expression
"""A literal, as it stands in URIs, or an expression."""

_EXPRESSION = re.compile(r"(\{[^{}]*\})")
_LITERAL = re.compile(r'(?:[^\x00-\x20"<>\\^`{|}%\x7f-\x9f]|%[0-9A-Fa-f]{2})*')
_VARCHAR = r"(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2})"
_VARIABLE = re.compile(rf"({_VARCHAR}(?:\.?{_VARCHAR})*)(?::([1-9][0-9]{{0,3}})|(\*))?")
_TRIPLET = re.compile(r"(%[0-9A-Fa-f]{2})")


def parse(text: str) -> tuple[Part, ...]:
    """Return the parts of the template *text*.

    Raises:
        ConfigurationError: it is no template.
    """
    parts: list[Part] = []
    for piece in filter(None, _EXPRESSION.split(text)):
        if piece.startswith("{") and piece.endswith("}"):
            parts.append(_expression(text, piece))
        elif _LITERAL.fullmatch(piece):
            parts.append(encoded(piece, RESERVED))
        else:
            raise ConfigurationError(f"URI template {text!r}: {piece!r} may not stand in a URI")
    return tuple(parts)


def encoded(text: str, safe: str) -> str:
    """Return *text* percent-encoded, except for unreserved characters and those in *safe*.

    Where reserved characters are safe, what is percent-encoded already stays as it is.
    """
    if not safe or "%" not in text:
        return quote(text, safe=safe)
    pieces = _TRIPLET.split(text)  # every other one is a triplet
    pieces[::2] = [quote(piece, safe=safe) for piece in pieces[::2]]
    return "".join(pieces)


def _expression(text: str, piece: str) -> Expression:
    mark = piece[1] if piece[1] in _OPERATORS else ""
    variables = []
    for each in piece[1 + len(mark) : -1].split(","):
        found = _VARIABLE.fullmatch(each)
        if found is None:
            raise ConfigurationError(f"URI template {text!r}: {piece} is no expression (RFC 6570)")
        name, length, exploded = found.groups()
        variables.append(Variable(name, int(length) if length else None, exploded is not None))
    return Expression(piece, _OPERATORS[mark], tuple(variables))
