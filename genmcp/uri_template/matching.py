"""From a URI back to variables, in time proportional to its length.

A template is a row of literals and runs: a run is what stands for a variable, made of the
characters its values may expand to. Where more than one reading of a URI is possible, one rule
decides, from left to right: what may be there is there, and takes as little as it can.

How: the places between the characters of a URI are the bits of one integer. From the end of the
URI leftwards, each part tells at which places it may begin so that all that follows fits: a
literal by a shift, a run by an addition, whose carry runs through a row of ones. Nothing is ever
tried twice. Then one walk from the left takes, of the places left over, the nearest.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, reduce
from operator import and_
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec

from genmcp.errors import ConfigurationError
from genmcp.uri_template.grammar import RESERVED, UNRESERVED, Expression, Part, Variable

__all__ = ["Matcher"]

_NARROW = UNRESERVED + "%"
_WIDE = _NARROW + RESERVED

_BAD_TRIPLET = re.compile(r"%(?![0-9A-Fa-f]{2})")


class _Run(msgspec.Struct, frozen=True):
    """A row of *characters* after the literal *before*, and the variables it stands for.

    Where names stand in the URI, one run has all variables of its expression.
    """

    before: str
    characters: str
    separator: str
    variables: tuple[Variable, ...]
    named: bool


_Row = tuple[_Run, ...]
"""The runs of one expression: each may be missing, and then so are those after it."""

_Chances = list[tuple[_Run, int, int]]
"""Of each run of a row, the places where it may begin, and where it may end."""


class Matcher:
    """What finds the variables of a template in URIs.

    Raises:
        ConfigurationError: nothing tells where an expression ends.
    """

    def __init__(self, parts: Sequence[Part]) -> None:
        self._parts = [part if isinstance(part, str) else _row(part) for part in parts]
        expressions = [part for part in parts if isinstance(part, Expression)]
        self._lists = [
            variable.name
            for expression in expressions
            for variable in expression.variables
            if variable.exploded
        ]
        for place, part in enumerate(parts):
            if isinstance(part, Expression) and part.operator.named:
                _check_end(part, parts[place + 1 :])

    def match(self, uri: str) -> dict[str, Any] | None:
        """Return the variables *uri* has, or None if it is none of this template's."""
        if _BAD_TRIPLET.search(uri):
            return None
        try:
            scan = _Scan(uri)
            found = _Found()
            for run, text in self._texts(scan):
                found.add(run, text)
            return found.variables(self._lists)
        except ValueError:  # not ASCII, not UTF-8, or texts that do not go together
            return None

    def _texts(self, scan: "_Scan") -> Iterator[tuple[_Run, str]]:
        """Yield each run that is there, and its text.

        Raises:
            ValueError: the URI is none of this template's.
        """
        chances: list[_Chances] = []
        places = 1  # the end of the URI
        for part in reversed(self._parts):
            if isinstance(part, str):
                places = scan.before(part, places)
                chances.append([])
            else:
                row, places = _before(part, places, scan)
                chances.append(row)
        if not scan.has(places, 0):
            raise ValueError("no match")
        place = 0
        for part in self._parts:
            if isinstance(part, str):
                place += len(part)
            for run, begins, ends in chances.pop():
                if not scan.has(begins, place):
                    break
                start = place + len(run.before)
                place = scan.next(ends, start)
                yield run, scan.uri[start:place]


def _before(row: _Row, after: int, scan: "_Scan") -> tuple[_Chances, int]:
    """Return the chances of *row* where its end is one of *after*, and where it may begin."""
    chances: _Chances = []
    places = after
    for run in reversed(row):
        begins = scan.before(run.before, scan.through(run.characters, places))
        chances.append((run, begins, places))
        places = after | begins
    return chances[::-1], places


class _Scan:
    """A URI and sets of places in it: bit n is the place with n characters to its right."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self._data = uri.encode("ascii")
        percent = self._of("%")
        self._between = ~(percent | percent >> 1)  # not within a percent-encoded character

    def _of(self, characters: str) -> int:
        """Return the places that have one of *characters* to their left."""
        return int(self._data.translate(_table(characters)) or b"0", 2)

    def before(self, literal: str, places: int) -> int:
        """Return where *literal* begins that ends at one of *places*."""
        if not literal:
            return places
        at = [self._of(each) << number + 1 for number, each in enumerate(literal)]
        return reduce(and_, at, places << len(literal)) & self._between

    def through(self, characters: str, places: int) -> int:
        """Return where a row of *characters*, which may be none, begins that ends at *places*."""
        row = self._of(characters)
        return ((row + (places & row) ^ row) | places) & self._between

    def has(self, places: int, place: int) -> bool:
        """Whether *place*, counted from the left, is one of *places*."""
        return bool(places >> len(self.uri) - place & 1)

    def next(self, places: int, place: int) -> int:
        """Return the first of *places* that is at *place* or to its right; there is one."""
        right = len(self.uri) - place
        return len(self.uri) + 1 - (places & (2 << right) - 1).bit_length()


class _Found:
    """The values of variables, and their beginnings where no more is known of them."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._prefixes: list[tuple[int, str, str]] = []

    def add(self, run: _Run, text: str) -> None:
        """Take in what *run* has. Raises ValueError if it does not fit."""
        if run.named:
            self._add_pairs(run, text)
            return
        (variable,) = run.variables
        if not variable.exploded:
            self._put(variable, _decoded(text))
        elif text or run.before:
            self._set(variable.name, [_decoded(each) for each in text.split(run.separator)])

    def _add_pairs(self, run: _Run, text: str) -> None:
        known = {variable.name: variable for variable in run.variables}
        given: dict[str, list[str]] = {}
        for pair in text.split(run.separator):
            name, _, value = pair.partition("=")
            given.setdefault(name, []).append(_decoded(value))
        for name, values in given.items():
            if name not in known or (len(values) > 1 and not known[name].exploded):
                raise ValueError(f"{name} does not stand here, or not twice")
            if known[name].exploded:
                self._set(name, values)
            else:
                self._put(known[name], values[0])

    def _put(self, variable: Variable, value: str) -> None:
        if variable.length is None:
            self._set(variable.name, value)
        elif len(value) > variable.length:
            raise ValueError(f"{variable.name} is too long")
        else:
            self._prefixes.append((variable.length, variable.name, value))

    def _set(self, name: str, value: Any) -> None:
        if self._values.setdefault(name, value) != value:
            raise ValueError(f"{name} is two things")

    def variables(self, lists: Sequence[str]) -> dict[str, Any]:
        """Return all of them, *lists* perhaps empty. Raises ValueError if two do not agree."""
        for length, name, value in sorted(self._prefixes, reverse=True):
            if self._values.setdefault(name, value)[:length] != value:
                raise ValueError(f"{name} is two things")
        return {**{name: [] for name in lists}, **self._values}


def _row(expression: Expression) -> _Row:
    operator, variables = expression.operator, expression.variables
    if operator.named:
        characters = _NARROW + "=" + operator.separator
        return (_Run(operator.first, characters, operator.separator, variables, named=True),)
    characters = _WIDE if operator.reserved else _NARROW
    return tuple(
        _Run(
            operator.separator if number else operator.first,
            characters + operator.separator if variable.exploded else characters,
            operator.separator,
            (variable,),
            named=False,
        )
        for number, variable in enumerate(variables)
    )


def _check_end(expression: Expression, rest: Sequence[Part]) -> None:
    """Refuse an *expression* of names that goes on, as far as one can see, into the *rest*."""
    (run,) = _row(expression)
    for follows in _first_characters(rest):
        if set(follows) & set(run.characters):
            raise ConfigurationError(
                f"nothing tells where {expression.text} ends; give variables that follow one "
                f"another one expression: {{?x,y}}"
            )


def _first_characters(parts: Sequence[Part]) -> Iterator[str]:
    for part in parts:
        if isinstance(part, str):
            yield part[0]
            return
        yield part.operator.first or _row(part)[0].characters


def _decoded(text: str) -> str:
    return unquote_to_bytes(text).decode() if "%" in text else text


@cache
def _table(characters: str) -> bytes:
    """Return what makes a `1` of *characters*, and a `0` of others."""
    members: Mapping[int, bool] = dict.fromkeys(characters.encode(), True)
    return bytes(b"01"[members.get(each, False)] for each in range(256))
