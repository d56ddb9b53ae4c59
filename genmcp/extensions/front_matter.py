"""The YAML front matter of a `SKILL.md`, as JSON values.

This is the only module that imports PyYAML, whose parser gives events. Its constructor is not used:
it reads dates and `yes` as values that are no JSON, as YAML 1.1 does, and expands an alias of an
alias without bound. Here plain scalars have the types of YAML 1.2's core schema. Anchors, aliases,
tags and complex keys are errors, since front matter comes from servers of others.
"""

import re
from collections.abc import Callable, Iterator
from math import isfinite
from typing import Any, Final

from genmcp.extras import missing_extra

try:
    import yaml
except ImportError as error:
    raise missing_extra("Skills", "skills", error) from error

_MAX_BYTES: Final = 64 * 1024
_MAX_DEPTH: Final = 16
_DELIMITER: Final = re.compile(rb"---[ \t]*")
_END: Final = re.compile(rb"(?:---|\.\.\.)[ \t]*")
_WORDS: Final = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
# Plain scalars that are numbers, and their types.
_NUMBERS: Final[tuple[tuple[re.Pattern[str], Callable[[str], float]], ...]] = (
    (re.compile(r"[-+]?[0-9]{1,300}"), int),
    (re.compile(r"0x[0-9a-fA-F]{1,250}"), lambda text: int(text, 16)),
    (re.compile(r"0o[0-7]{1,250}"), lambda text: int(text, 8)),
    (re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"), float),
    (re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"), lambda _: float("inf")),
)


class FrontMatterError(ValueError):
    """A text has no front matter, or one that cannot be read. The message says where and why."""


def read_front_matter(data: bytes) -> dict[str, Any]:
    """Return the front matter at the beginning of *data*, a file, as a JSON object.

    Raises:
        FrontMatterError: there is none, or it is invalid.
    """
    head = data[:_MAX_BYTES].removeprefix(b"\xef\xbb\xbf")
    lines = [line.removesuffix(b"\r") for line in head.split(b"\n")]
    if not _DELIMITER.fullmatch(lines[0]):
        raise FrontMatterError("there is no front matter: the first line must be ---")
    end = next((at for at, line in enumerate(lines[1:], 1) if _END.fullmatch(line)), None)
    if end is None:
        raise FrontMatterError(f"the front matter does not end within {_MAX_BYTES} bytes")
    try:
        # An empty line in place of the delimiter, so that PyYAML counts lines as the file does.
        text = b"\n".join([b"", *lines[1:end]]).decode()
    except UnicodeDecodeError:
        raise FrontMatterError("the front matter is not UTF-8") from None
    try:
        value = _document(yaml.parse(text, yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise FrontMatterError(" ".join(str(error).split())) from None
    if not isinstance(value, dict):
        raise FrontMatterError("the front matter must be a mapping")
    return value


def _document(events: Iterator[yaml.Event]) -> Any:
    """Return the value of the only document in *events*."""
    values: list[Any] = []
    for event in events:
        if isinstance(event, yaml.DocumentStartEvent) and (event.version or event.tags or values):
            raise _error(event, "neither a directive nor a second document can be here")
        if isinstance(event, yaml.NodeEvent):
            values.append(_value(event, events, 0))
    return values[0] if values else None


def _value(event: yaml.Event, events: Iterator[yaml.Event], depth: int) -> Any:
    """Return the value that begins with *event*."""
    _check(event)
    if depth > _MAX_DEPTH:
        raise _error(event, "it is nested too deeply")
    if isinstance(event, yaml.ScalarEvent):
        return _typed(event) if event.style is None else _text(event)
    if isinstance(event, yaml.SequenceStartEvent):
        items: list[Any] = []
        while not isinstance(item := next(events), yaml.SequenceEndEvent):
            items.append(_value(item, events, depth + 1))
        return items
    members: dict[str, Any] = {}
    while not isinstance(key := next(events), yaml.MappingEndEvent):
        if not isinstance(key, yaml.ScalarEvent):
            raise _error(key, "a key must be a text")
        _check(key)
        name = _text(key)
        if name in members:
            raise _error(key, f"{name!r} is there twice")
        members[name] = _value(next(events), events, depth + 1)
    return members


def _check(event: yaml.Event) -> None:
    if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
        raise _error(event, "anchors and aliases cannot be here")
    if getattr(event, "tag", None) is not None:
        raise _error(event, "a tag cannot be here")


def _typed(event: yaml.ScalarEvent) -> Any:
    """Return a plain scalar as the type of YAML 1.2's core schema that it has."""
    text = _text(event)
    if text in _WORDS:
        return _WORDS[text]
    for pattern, number in _NUMBERS:
        if pattern.fullmatch(text):
            value = number(text)
            if not isfinite(value):
                raise _error(event, "a number is too large for JSON")
            return value
    return text


def _text(event: yaml.ScalarEvent) -> str:
    text: str = event.value
    if any("\ud800" <= char <= "\udfff" for char in text):  # by an escape
        raise _error(event, "a surrogate is no character")
    return text


def _error(event: yaml.Event, reason: str) -> FrontMatterError:
    assert event.start_mark is not None  # events of a parser have one
    return FrontMatterError(f"line {event.start_mark.line + 1}: {reason}")
