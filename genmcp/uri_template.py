"""URI templates (RFC 6570, all four levels): expansion, and matching of URIs.

Expansion follows section 3 of the RFC. Matching, which returns the variables of a URI, is not
defined there. Some URIs can be split into variables in more than one way, such as `a.tar.gz` for
`{name}{.type}`. `UriTemplate.match` documents which way is chosen.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import or_
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes

import msgspec

from genmcp.errors import ConfigurationError, ContractError

#: The most characters of a URI that a template matches. No template matches a longer URI.
MAX_URI_LENGTH: Final = 8_192

_UNRESERVED: Final = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~"
_RESERVED: Final = ":/?#[]@!$&'()*+,;="

_EXPRESSION: Final = re.compile(r"(\{[^{}]*\})")
_LITERAL: Final = re.compile(r'(?:[^\x00-\x20"<>\\^`{|}%\x7f-\x9f]|%[0-9A-Fa-f]{2})*')
_VARCHAR: Final = r"(?:[A-Za-z0-9_]|%[0-9A-Fa-f]{2})"
_VARIABLE: Final = re.compile(rf"({_VARCHAR}(?:\.?{_VARCHAR})*)(?::([1-9][0-9]{{0,3}})|(\*))?")
_TRIPLET: Final = re.compile(r"(%[0-9A-Fa-f]{2})")
# One character of a URI. A percent-encoded character counts as one, so that it is never split.
_CHARACTER: Final = re.compile(r"%[0-9A-Fa-f]{2}|.", re.DOTALL)


class _Operator(msgspec.Struct, frozen=True):
    """The operator of an expression: how its values are written into the URI (appendix A).

    Attributes:
        named: whether each value is preceded by its name; *if_empty* is written between the name
            and an empty value.
        reserved: whether reserved characters and percent-encoded triplets in values are kept.
    """

    first: str
    separator: str
    named: bool = False
    if_empty: str = ""
    reserved: bool = False


_OPERATORS: Final[Mapping[str, _Operator]] = {
    "": _Operator("", ","),
    "+": _Operator("", ",", reserved=True),
    "#": _Operator("#", ",", reserved=True),
    ".": _Operator(".", "."),
    "/": _Operator("/", "/"),
    ";": _Operator(";", ";", named=True),
    "?": _Operator("?", "&", named=True, if_empty="="),
    "&": _Operator("&", "&", named=True, if_empty="="),
}


class _Variable(msgspec.Struct, frozen=True):
    """A variable of an expression; in `{name:3}` its *length* is 3, in `{name*}` it is exploded."""

    name: str
    length: int | None = None
    exploded: bool = False


class _Expression(msgspec.Struct, frozen=True):
    """An operator and its variables; *text* includes the braces."""

    text: str
    operator: _Operator
    variables: tuple[_Variable, ...]


_Part = str | _Expression
"""A part of a template: a percent-encoded literal, or an expression."""


class _Segment(msgspec.Struct, frozen=True):
    """A part of a URI for matching: the literal *before*, then any number of *characters*.

    The characters are a value. A literal of the template is a segment without variables. An
    expression with names (`{?x,y}`) is one segment for all its variables. Any other expression has
    one segment for each variable.
    """

    before: list[str]
    characters: frozenset[str] = frozenset()
    separator: str = ""
    variables: tuple[_Variable, ...] = ()
    named: bool = False


_Row = tuple[_Segment, ...]
"""The segments of one part. If a URI lacks a segment, it also lacks those after it in the row."""


class UriTemplate:
    """A URI with variables.

        books = UriTemplate("library://{shelf}/books{/path*}{?page}")
        books.expand({"shelf": "top", "path": ["a", "b"]})  # library://top/books/a/b
        books.match("library://top/books/a/b?page=2")
        # {"shelf": "top", "path": ["a", "b"], "page": "2"}

    Attributes:
        text: the text of the template.
        variables: the names of its variables, each once, in the order of the template.
        prefix: the literal that every URI of the template begins with; may be empty.

    Raises:
        ConfigurationError: the text is not a template; or it has an expression with names, the end
            of which cannot be recognised in a URI (`{?x}{&y}`: write `{?x,y}`).
    """

    __slots__ = (
        "_lists",
        "_parts",
        "_pattern",
        "_rows",
        "_segments",
        "prefix",
        "text",
        "variables",
    )

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise ConfigurationError(f"a URI template is a text, not {text!r}")
        self.text: Final = text
        self._parts = _parse(text)
        variables = [
            variable
            for part in self._parts
            if isinstance(part, _Expression)
            for variable in part.variables
        ]
        self.variables: Final = tuple(dict.fromkeys(each.name for each in variables))
        self._lists = tuple(each.name for each in variables if each.exploded)
        first = self._parts[0] if self._parts else ""
        self.prefix: Final = first if isinstance(first, str) else ""
        parts = self._parts[1:] if self.prefix else self._parts
        self._rows = tuple(map(_row, parts))
        _check_ends(text, parts, self._rows)
        self._pattern = _compile(self._rows)
        self._segments = [each for row in self._rows for each in row if each.variables]

    def __repr__(self) -> str:
        return f"UriTemplate({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, UriTemplate) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)

    def expand(self, values: Mapping[str, Any]) -> str:
        """Return the URI with *values*: texts, numbers, and lists and mappings of these.

        A variable that is missing, None, or an empty list or mapping, is left out.

        Raises:
            ContractError: a value has another type, or the value for `{name:3}` is a list.
        """
        return "".join(
            part if isinstance(part, str) else _expand(part, values) for part in self._parts
        )

    def match(self, uri: str) -> dict[str, Any] | None:
        """Return the variables of *uri*, or None if it does not match.

        The value of a variable is a percent-decoded text. The value of an exploded variable
        (`{name*}`) is a list of texts, empty if the variable is absent from the URI. The value of
        an absent `{name}` or `{+name}` is the empty text. Other absent variables are left out of
        the dict. Named variables (`{?x,y}`) may have any order in the URI. Lists without `*`, and
        mappings, can be expanded but not matched.

        If a URI can be split in more than one way, one way is chosen from left to right: an
        expression that may be absent is taken to be present, and each value is as short as
        possible. So `{name}{.type}` splits `a.tar.gz` into `a` and `tar.gz`. The URI does not match
        if in that way a variable occurs twice with different values, or the value of `{name:3}` has
        more than 3 characters; no other way is tried.

        The time is proportional to the length of the URI. No URI of more than `MAX_URI_LENGTH`
        characters matches.
        """
        if len(uri) > MAX_URI_LENGTH or not uri.startswith(self.prefix):
            return None
        values = _MatchedValues()
        try:
            for segment, text in self._texts(uri):
                values.add(segment, text)
            return {**{name: [] for name in self._lists}, **values.all()}
        except ValueError:  # no match, contradicting values, or not UTF-8
            return None

    def _texts(self, uri: str) -> Iterable[tuple[_Segment, str]]:
        if self._pattern is None:
            return _read(self._rows, _CHARACTER.findall(uri, len(self.prefix)))
        # The groups have the order of the segments; the group of an absent segment is None.
        found = self._pattern.fullmatch(uri, len(self.prefix))
        if found is None:
            raise ValueError("no match")
        pairs = zip(self._segments, found.groups(), strict=True)
        return [(segment, text) for segment, text in pairs if text is not None]


def _parse(text: str) -> tuple[_Part, ...]:
    parts: list[_Part] = []
    for piece in filter(None, _EXPRESSION.split(text)):
        if piece.startswith("{") and piece.endswith("}"):
            parts.append(_expression(text, piece))
        elif _LITERAL.fullmatch(piece):
            parts.append(_encode(piece, _RESERVED))
        else:
            raise ConfigurationError(f"URI template {text!r}: {piece!r} cannot occur in a URI")
    return tuple(parts)


def _expression(text: str, piece: str) -> _Expression:
    mark = piece[1] if piece[1] in _OPERATORS else ""
    variables = []
    for each in piece[1 + len(mark) : -1].split(","):
        found = _VARIABLE.fullmatch(each)
        if found is None:
            raise ConfigurationError(
                f"URI template {text!r}: {piece} is not an expression of RFC 6570"
            )
        name, length, exploded = found.groups()
        variables.append(_Variable(name, int(length) if length else None, exploded is not None))
    return _Expression(piece, _OPERATORS[mark], tuple(variables))


def _encode(text: str, safe: str) -> str:
    """Percent-encode *text*, except for unreserved characters and those in *safe*.

    If *safe* is not empty, percent-encoded triplets in *text* are kept (section 3.2.3).
    """
    if not safe or "%" not in text:
        return quote(text, safe=safe)
    # With a group in the pattern, `split` returns every other piece as a triplet.
    pieces = _TRIPLET.split(text)
    pieces[::2] = [quote(piece, safe=safe) for piece in pieces[::2]]
    return "".join(pieces)


# Expansion


def _expand(expression: _Expression, values: Mapping[str, Any]) -> str:
    operator = expression.operator
    pieces = [
        piece
        for variable in expression.variables
        for piece in _expand_variable(variable, operator, values.get(variable.name))
    ]
    return operator.first + operator.separator.join(pieces) if pieces else ""


def _expand_variable(variable: _Variable, operator: _Operator, value: Any) -> Sequence[str]:
    """Return the texts for *value*, to be joined by separators; empty if it is undefined."""
    if value is None:
        return []
    safe = _RESERVED if operator.reserved else ""
    if isinstance(value, list | tuple | Mapping):
        if variable.length is not None:
            raise ContractError(f"{variable.name}: only a text has a prefix, not {value!r}")
        if isinstance(value, Mapping):
            return _expand_mapping(variable, operator, value, safe)
        texts = [_encode(_text(variable, each), safe) for each in value if each is not None]
        if not variable.exploded:
            texts = [",".join(texts)] if texts else []
    else:
        texts = [_encode(_text(variable, value)[: variable.length], safe)]
    if operator.named:
        return [_with_name(variable.name, operator, text) for text in texts]
    return texts


def _expand_mapping(
    variable: _Variable, operator: _Operator, value: Mapping[str, Any], safe: str
) -> Sequence[str]:
    pairs = [
        (_encode(_text(variable, key), safe), _encode(_text(variable, each), safe))
        for key, each in value.items()
        if each is not None
    ]
    if variable.exploded and operator.named:
        return [_with_name(key, operator, text) for key, text in pairs]
    if variable.exploded:
        return [f"{key}={text}" for key, text in pairs]
    if not pairs:
        return []
    # RFC 6570, section 2.4.2: without `*`, keys and values are one list with commas.
    flat = ",".join(chain.from_iterable(pairs))
    return [_with_name(variable.name, operator, flat) if operator.named else flat]


def _with_name(name: str, operator: _Operator, text: str) -> str:
    return f"{name}={text}" if text else name + operator.if_empty


def _text(variable: _Variable, value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    raise ContractError(f"{variable.name}: {value!r} cannot be part of a URI; use a text")


# Matching


_HEX: Final = "0123456789ABCDEFabcdef"
_NARROW: Final = frozenset(_UNRESERVED) | {f"%{high}{low}" for high in _HEX for low in _HEX}
_WIDE: Final = _NARROW | {*_RESERVED}


def _row(part: _Part) -> _Row:
    if isinstance(part, str):
        return (_Segment(_CHARACTER.findall(part)),)
    operator, variables = part.operator, part.variables
    separator = operator.separator
    if operator.named:
        characters = _NARROW | {"=", separator}
        return (_Segment([operator.first], characters, separator, variables, named=True),)
    characters = _WIDE if operator.reserved else _NARROW
    return tuple(
        _Segment(
            [*(separator if number else operator.first)],
            characters | {separator} if variable.exploded else characters,
            separator,
            (variable,),
        )
        for number, variable in enumerate(variables)
    )


def _first_characters(rows: Sequence[_Row]) -> Iterator[frozenset[str]]:
    """Yield the characters with which a URI for *rows* may begin, for each possible first row."""
    for segment, *_ in rows:
        yield frozenset(segment.before[:1]) or segment.characters
        if not segment.variables:
            return


def _check_ends(text: str, parts: Sequence[_Part], rows: Sequence[_Row]) -> None:
    """Reject an expression with names if its values may contain the beginning of the next part."""
    for place, (part, row) in enumerate(zip(parts, rows, strict=True)):
        firsts = _first_characters(rows[place + 1 :]) if row[0].named else ()
        if isinstance(part, _Expression) and any(row[0].characters & first for first in firsts):
            raise ConfigurationError(
                f"URI template {text!r}: the end of {part.text} cannot be recognised; write "
                f"variables that follow one another as one expression: {{?x,y}}"
            )


def _compile(rows: Sequence[_Row]) -> re.Pattern[str] | None:
    """Return a pattern for *rows* that never backtracks; None if a URI may match in several ways.

    There is only one way if each character of a URI shows whether it continues a value or begins
    the next segment. All quantifiers can then be possessive.
    """
    pattern = ""
    for place, row in enumerate(rows):
        firsts = [*_first_characters(rows[place + 1 :])]
        nested = ""
        for number in range(len(row) - 1, -1, -1):
            segment = row[number]
            own = segment.characters.union(segment.before[:1])
            if segment.variables and any(own & first for first in firsts):
                return None
            if number + 1 < len(row) and row[number + 1].before[0] in segment.characters:
                return None
            before = re.escape("".join(segment.before))
            if not segment.variables:
                nested = before
                continue
            single = re.escape("".join(each for each in segment.characters if len(each) == 1))
            value = rf"((?:[{single}]++|%[0-9A-Fa-f]{{2}})*+){nested}"
            nested = f"(?:{before}{value})?+" if before else value
        pattern += nested
    return re.compile(pattern)


def _read(rows: Sequence[_Row], uri: list[str]) -> Iterator[tuple[_Segment, str]]:
    """Yield the segments with variables that are present in *uri*, and their texts.

    This function serves the templates for which `_compile` returns None. It makes two passes. The
    first pass, from the right, finds the positions at which each segment may begin so that the
    remaining URI matches. The second pass, from the left, takes the nearest of these positions. A
    regular expression with lazy groups would give the same result, but backtracks: its time for
    four variables in one path segment grows with the fourth power of the length.

    Raises:
        ValueError: the URI does not match.
    """
    places = bytes(len(uri)) + b"\1"
    table: list[list[tuple[_Segment, bytes, bytes]]] = []
    for row in reversed(rows):
        after = places
        table.append([])
        for segment in reversed(row):
            begins = _beginnings(segment, places, uri)
            table[-1].append((segment, begins, places))
            places = bytes(map(or_, begins, after)) if segment.variables else begins
    if not places[0]:
        raise ValueError("no match")
    place = 0
    while table:
        for segment, begins, ends in reversed(table.pop()):
            # This segment is absent, and so are the remaining segments of its expression.
            if not begins[place]:
                break
            start = place + len(segment.before)
            place = ends.index(1, start)
            if segment.variables:
                yield segment, "".join(uri[start:place])


def _beginnings(segment: _Segment, ends: bytes, uri: list[str]) -> bytes:
    """Return the positions at which *segment* may begin if it ends at one of the positions *ends*.

    Both are byte strings with a 1 at each such position of the URI.
    """
    begins = bytearray(ends)
    if segment.variables:
        for place in range(len(uri) - 1, -1, -1):
            if begins[place + 1] and uri[place] in segment.characters:
                begins[place] = 1
    size = len(segment.before)
    if not size:
        return bytes(begins)
    return bytes(
        begins[place + size] and uri[place : place + size] == segment.before
        for place in range(len(uri) + 1 - size)
    ) + bytes(min(size, len(uri) + 1))


class _MatchedValues:
    """The values of the variables, collected segment by segment during a match."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._prefixes: list[tuple[int, str, str]] = []

    def add(self, segment: _Segment, text: str) -> None:
        """Add the values in *text*. Raises ValueError if they contradict earlier ones."""
        if segment.named:
            self._add_pairs(segment, text)
            return
        (variable,) = segment.variables
        if not variable.exploded:
            self._put(variable, _decode(text))
        elif text or segment.before:
            self._set(variable.name, [_decode(each) for each in text.split(segment.separator)])

    def _add_pairs(self, segment: _Segment, text: str) -> None:
        known = {variable.name: variable for variable in segment.variables}
        given: dict[str, list[str]] = {}
        for pair in text.split(segment.separator):
            name, _, value = pair.partition("=")
            given.setdefault(name, []).append(_decode(value))
        for name, values in given.items():
            if name not in known or (len(values) > 1 and not known[name].exploded):
                raise ValueError(f"{name} is not a variable here, or is repeated")
            if known[name].exploded:
                self._set(name, values)
            else:
                self._put(known[name], values[0])

    def _put(self, variable: _Variable, value: str) -> None:
        if variable.length is None:
            self._set(variable.name, value)
        elif len(value) > variable.length:
            raise ValueError(f"{variable.name} is too long")
        else:
            self._prefixes.append((variable.length, variable.name, value))

    def _set(self, name: str, value: Any) -> None:
        if self._values.setdefault(name, value) != value:
            raise ValueError(f"{name} has two values")

    def all(self) -> dict[str, Any]:
        """Return all values. Raises ValueError if `{name:3}` is not the beginning of `{name}`."""
        for length, name, value in sorted(self._prefixes, reverse=True):
            if self._values.setdefault(name, value)[:length] != value:
                raise ValueError(f"{name} has two values")
        return self._values


def _decode(text: str) -> str:
    # Not `unquote`, which replaces bytes that are not UTF-8: two URIs would have one value.
    return unquote_to_bytes(text).decode() if "%" in text else text
