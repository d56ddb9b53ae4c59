"""Match URIs against URI templates (RFC 6570, all four levels).

The RFC defines expansion only. Every URI of a template must have one reading here, so that matching
needs no search: a template whose variables cannot be told apart in a URI is refused when it is
made.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes

import msgspec
from msgspec.structs import replace

from genmcp.errors import ConfigurationError

#: The most characters of a URI that a template matches. No template matches a longer URI.
MAX_URI_LENGTH: Final = 8_192

_MAX_LENGTH: Final = 1_024  # of a template: compiling its pattern takes time, also that of a peer's

_UNRESERVED: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_RESERVED: Final = ":/?#[]@!$&'()*+,;="

_EXPRESSION: Final = re.compile(r"(\{[^{}]*\})")
_LITERAL: Final = re.compile(r'(?:[^\x00-\x20"<>\\^`{|}%\x7f-\x9f]|%[0-9A-Fa-f]{2})*')
_VARCHAR: Final = r"(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2})"
_VARIABLE: Final = re.compile(rf"({_VARCHAR}(?:\.?{_VARCHAR})*)(?::([1-9][0-9]{{0,3}})|(\*))?")


class _Operator(msgspec.Struct, frozen=True):
    """The operator of an expression (RFC 6570, appendix A).

    Attributes:
        first: written before the values; an expression without values is absent with it.
        separator: written between the values.
        named: whether each value is preceded by its name.
        reserved: whether values may contain reserved characters.
    """

    first: str
    separator: str
    named: bool = False
    reserved: bool = False


_OPERATORS: Final[Mapping[str, _Operator]] = {
    "": _Operator("", ","),
    "+": _Operator("", ",", reserved=True),
    "#": _Operator("#", ",", reserved=True),
    ".": _Operator(".", "."),
    "/": _Operator("/", "/"),
    ";": _Operator(";", ";", named=True),
    "?": _Operator("?", "&", named=True),
    "&": _Operator("&", "&", named=True),
}

# A path ends at the first of them (RFC 3986, section 3.3), so that `{?x}` may follow `{+path}`.
_ENDS_OF_PATHS: Final = frozenset("?#")


class _Variable(msgspec.Struct, frozen=True):
    """A variable of an expression; in `{name:3}` its *length* is 3, in `{name*}` it is exploded."""

    name: str
    length: int | None
    exploded: bool

    def decode(self, text: str) -> str:
        """Return *text*, a value in a URI, percent-decoded.

        Raises:
            ValueError: it is not UTF-8, or too long.
        """
        # Not `unquote`, which replaces bytes that are not UTF-8: two URIs would have one value.
        value = unquote_to_bytes(text).decode() if "%" in text else text
        if self.length is not None and len(value) > self.length:
            raise ValueError(f"{self.name} has more than {self.length} characters")
        return value


class _Expression(msgspec.Struct, frozen=True):
    """An expression of a template.

    Attributes:
        text: its text, with the braces.
        operator: its operator.
        variables: its variables.
        characters: the characters that its part of a URI may have, besides triplets, after the
            first one of the operator.
        several: whether there may be several values, between separators.
    """

    text: str
    operator: _Operator
    variables: Sequence[_Variable]
    characters: frozenset[str]
    several: bool

    @property
    def pattern(self) -> str:
        """A pattern for its part of a URI, which never backtracks."""
        single = re.escape("".join(sorted(self.characters)))
        values = rf"((?:[{single}]++|%[0-9A-Fa-f]{{2}})*+)"
        first = re.escape(self.operator.first)
        return f"(?:{first}{values})?+" if first else values

    def values(self, text: str | None) -> dict[str, Any]:
        """Return the values in *text*, the group of its pattern; None if the URI lacks it.

        Raises:
            ValueError: *text* does not fit.
        """
        values: dict[str, Any] = {each.name: [] for each in self.variables if each.exploded}
        if text is None:
            return values
        if self.operator.named:
            return {**values, **self._named(text.split(self.operator.separator))}
        last = self.variables[-1]
        # A single value of `{+path}` or `{.type}` may contain the separator.
        given = text.split(self.operator.separator) if self.several else [text]
        if last.exploded:
            place = len(self.variables) - 1
            rest = given[place:] if text or self.operator.first else []
            values[last.name], given = [last.decode(each) for each in rest], given[:place]
        elif len(given) > len(self.variables):
            raise ValueError(f"more values than in {self.text}")
        pairs = zip(self.variables, given, strict=False)
        return {**values, **{each.name: each.decode(value) for each, value in pairs}}

    def _named(self, pairs: Sequence[str]) -> dict[str, Any]:
        variables = {each.name: each for each in self.variables}
        values: dict[str, Any] = {}
        for name, _, text in (each.partition("=") for each in pairs):
            variable = variables.get(name)
            if variable is None or (name in values and not variable.exploded):
                raise ValueError(f"{name} is not a variable here, or is repeated")
            value = variable.decode(text)
            values[name] = [*values.get(name, ()), value] if variable.exploded else value
        return values


_Part = str | _Expression
"""A part of a template: a percent-encoded literal, or an expression."""


class UriTemplate:
    """A URI with variables.

        books = UriTemplate("library://{shelf}/books{/path*}{?page}")
        books.match("library://top/books/a/b?page=2")
        # {"shelf": "top", "path": ["a", "b"], "page": "2"}

    Attributes:
        text: the text of the template.
        variables: the names of its variables, in the order of the template.
        prefix: the literal that every URI of the template begins with; may be empty.

    Raises:
        ConfigurationError: the text is not a template, has a variable twice, or is ambiguous: a
            value may contain the character that follows it, as in `{name}.{type}`.
    """

    __slots__ = ("_expressions", "_pattern", "_suffix", "prefix", "text", "variables")

    def __init__(self, text: str) -> None:
        if not isinstance(text, str) or len(text) > _MAX_LENGTH:
            raise ConfigurationError(
                f"a URI template is a text of at most {_MAX_LENGTH} characters, not {text!r}"
            )
        self.text: Final = text
        parts = list(_parts(text))
        self.prefix: Final = _pop_literal(parts, 0)
        # A literal at the end is compared by itself: a value before it may contain its characters.
        self._suffix = _pop_literal(parts, -1)
        self._expressions = [each for each in parts if isinstance(each, _Expression)]
        names = [variable.name for each in self._expressions for variable in each.variables]
        if twice := [name for name, count in Counter(names).items() if count > 1]:
            raise ConfigurationError(
                f"URI template {text!r}: {twice[0]} occurs twice, and a URI may have two values "
                f"for it; use two names"
            )
        self.variables: Final = tuple(names)
        self._pattern = re.compile(
            "".join(_pattern(text, each, parts[place + 1 :]) for place, each in enumerate(parts))
        )

    def __repr__(self) -> str:
        return f"UriTemplate({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UriTemplate) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def match(self, uri: str) -> dict[str, Any] | None:
        """Return the variables of *uri*, or None if it does not match.

        The value of a variable is a percent-decoded text. The value of an exploded variable
        (`{name*}`) is a list of texts, empty if the variable is absent from the URI. The value of
        an absent `{name}` or `{+name}` is the empty text. Other absent variables are left out of
        the dict. Named variables (`{?x,y}`) may have any order in the URI. The value of `{name:3}`
        has at most 3 characters.

        The time is proportional to the length of the URI. No URI of more than `MAX_URI_LENGTH`
        characters matches.
        """
        if len(uri) > MAX_URI_LENGTH or not uri.startswith(self.prefix):
            return None
        if not uri.endswith(self._suffix):
            return None
        found = self._pattern.fullmatch(uri, len(self.prefix), len(uri) - len(self._suffix))
        if found is None:
            return None
        values: dict[str, Any] = {}
        try:
            for expression, text in zip(self._expressions, found.groups(), strict=True):
                values |= expression.values(text)
        except ValueError:
            return None
        return values


def _parts(text: str) -> Iterator[_Part]:
    for piece in filter(None, _EXPRESSION.split(text)):
        if piece.startswith("{") and piece.endswith("}"):
            yield _expression(text, piece)
        elif _LITERAL.fullmatch(piece):
            yield quote(piece, safe=_RESERVED + "%")
        else:
            raise ConfigurationError(f"URI template {text!r}: {piece!r} cannot occur in a URI")


def _pop_literal(parts: list[_Part], place: int) -> str:
    """Remove and return the literal at *place*; return the empty text if an expression is there."""
    if parts and isinstance(parts[place], str):
        return str(parts.pop(place))
    return ""


def _expression(text: str, piece: str) -> _Expression:
    mark = piece[1] if piece[1] in _OPERATORS else ""
    operator, variables = _OPERATORS[mark], []
    for each in piece[1 + len(mark) : -1].split(","):
        found = _VARIABLE.fullmatch(each)
        if found is None:
            raise ConfigurationError(
                f"URI template {text!r}: {piece} is not an expression of RFC 6570"
            )
        name, length, exploded = found.groups()
        variables.append(_Variable(name, int(length) if length else None, exploded is not None))
    characters = _UNRESERVED.union(_RESERVED if operator.reserved else "")
    several = operator.named or len(variables) > 1 or variables[0].exploded
    mixed = not operator.named and any(each.exploded for each in variables[:-1])
    if several and (mixed or operator.separator in characters):
        raise ConfigurationError(
            f"URI template {text!r}: {piece} is ambiguous: a value may contain "
            f"{operator.separator!r}, which separates values; write one variable, and split its "
            f"value"
        )
    if several:
        characters = characters.union(operator.separator, "=" if operator.named else "")
    return _Expression(piece, operator, variables, characters, several)


def _pattern(text: str, part: _Part, following: Sequence[_Part]) -> str:
    """Return the pattern of *part*, whose end the next character of a URI shows.

    Raises:
        ConfigurationError: *part* may contain that character.
    """
    if isinstance(part, str):
        return re.escape(part)
    own = part.characters
    for each in following:
        if isinstance(each, str):
            begins, shown = frozenset(each[0]), repr(each)
        else:
            begins, shown = frozenset(each.operator.first) or each.characters, each.text
        if part.operator == _OPERATORS["+"]:
            own -= begins & _ENDS_OF_PATHS
        # An absent expression ends where it would have begun.
        if begins & own.union("%", part.operator.first):
            raise ConfigurationError(
                f"URI template {text!r} is ambiguous: {part.text} may contain the beginning of "
                f"{shown}. Write variables that follow one another as one expression, such as "
                f"{{/x,y}} or {{?x,y}}; put a character between others that no value has, such "
                f"as '/'; or write one variable, and split its value"
            )
        if isinstance(each, str):  # it is never absent
            break
    return replace(part, characters=own).pattern
