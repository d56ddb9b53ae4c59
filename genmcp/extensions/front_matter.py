"""The YAML front matter of a `SKILL.md`, as JSON values.

It is read by a parser of our own: block mappings and sequences, flow ones, plain, quoted and block
scalars, with the types of YAML 1.2's core schema. Anchors, aliases, tags and complex keys are
errors, and so is what is no JSON. Front matter comes from servers of others, and a full YAML parser
expands an alias of an alias without bound.
"""

import re
from string import hexdigits
from typing import Any, Final

_MAX_BYTES: Final = 64 * 1024
_MAX_DEPTH: Final = 16
_DELIMITER: Final = re.compile(rb"---[ \t]*")
_END: Final = re.compile(rb"(?:---|\.\.\.)[ \t]*")
_INT: Final = re.compile(r"[-+]?[0-9]{1,300}")
_FLOAT: Final = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_WORDS: Final = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_ESCAPES: Final = dict(zip('0abtnvfre "/\\N_', '\0\a\b\t\n\v\f\r\x1b "/\\\x85\xa0', strict=True))
_CODES: Final = {"x": 2, "u": 4, "U": 8}
#: The end of a line that a backslash precedes.
_FOLD: Final = "\r"
_BLOCK: Final = re.compile(r"([|>])([+-]?)([1-9]?)([+-]?)(?:[ \t]+#.*)?[ \t]*")


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
        text = b"\n".join(lines[1:end]).decode()
    except UnicodeDecodeError:
        raise FrontMatterError("the front matter is not UTF-8") from None
    value = _Blocks(text.split("\n")).document()
    if not isinstance(value, dict):
        raise FrontMatterError("the front matter must be a mapping")
    return value


class _Blocks:
    """Reads the lines of one document."""

    def __init__(self, lines: list[str]) -> None:
        self._lines = lines
        self._at = 0

    def document(self) -> Any:
        found = self._peek()
        value = None if found is None else self._node(found[0], 0)
        if self._peek() is not None:
            raise self._error("wrong indentation")
        return value

    def _error(self, reason: str) -> FrontMatterError:
        return FrontMatterError(f"line {self._at + 2}: {reason}")

    def _peek(self) -> tuple[int, str] | None:
        """Return the indentation and text of the next line that has content; None at the end."""
        while self._at < len(self._lines):
            line = self._lines[self._at]
            text = line.lstrip(" ")
            if text.strip() and not text.lstrip().startswith("#"):
                if text.startswith("\t"):
                    raise self._error("a tab indents")
                return len(line) - len(text), text
            self._at += 1
        return None

    def _node(self, indent: int, depth: int) -> Any:
        """Return the value that begins at the next line, which has this *indent*."""
        if depth > _MAX_DEPTH:
            raise self._error("it is nested too deeply")
        found = self._peek()
        assert found is not None
        text = found[1]
        if text.startswith("- ") or text.rstrip() == "-":
            return self._sequence(indent, depth)
        if self._key(text) is not None:
            return self._mapping(indent, depth)
        self._at += 1
        return self._scalar(text, indent - 1)

    def _sequence(self, indent: int, depth: int) -> list[Any]:
        items: list[Any] = []
        while (found := self._peek()) is not None and found[0] == indent:
            text = found[1]
            if not (text.startswith("- ") or text.rstrip() == "-"):
                break
            rest = text[1:].lstrip()
            if not rest or rest.startswith("#"):
                self._at += 1
                items.append(self._below(indent, depth))
            elif rest.startswith("- ") or self._key(rest) is not None:
                # The item is a block of its own, which begins where its text does.
                inner = indent + len(text) - len(rest)
                self._lines[self._at] = " " * inner + rest
                items.append(self._node(inner, depth + 1))
            else:
                self._at += 1
                items.append(self._scalar(rest, indent))
        return items

    def _mapping(self, indent: int, depth: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        while (found := self._peek()) is not None and found[0] == indent:
            parsed = self._key(found[1])
            if parsed is None:
                raise self._error("it must be a key and a value")
            key, rest = parsed
            if key in members:
                raise self._error(f"{key!r} is there twice")
            self._at += 1
            if not rest or rest.startswith("#"):
                members[key] = self._below(indent, depth, sequence=True)
            else:
                members[key] = self._scalar(rest, indent)
        return members

    def _below(self, indent: int, depth: int, *, sequence: bool = False) -> Any:
        """Return the block below a line with this *indent*; None if there is none.

        The items of a *sequence* may have the indentation of its key.
        """
        found = self._peek()
        if found is not None and found[0] > indent:
            return self._node(found[0], depth + 1)
        if sequence and found is not None and found[0] == indent and found[1].startswith("- "):
            return self._sequence(indent, depth + 1)
        return None

    def _key(self, text: str) -> tuple[str, str] | None:
        """Return the key that *text* begins with, and what follows it; None without a key."""
        if text[0] in "\"'":
            flow = _Flow(text, self._error)
            try:
                key = flow.quoted()
            except FrontMatterError:
                return None
            rest = text[flow.at :].lstrip()
            at = 0 if rest.startswith(":") else -1
            text = rest
        elif text[0] in "[]{}&*!|>%@`,#" or text.startswith("? "):
            return None
        else:
            at = _colon(text, 0)
            key = text[:at].rstrip()
            if " #" in key:
                return None
        if at < 0 or text[at + 1 : at + 2] not in ("", " ", "\t"):
            return None
        return key, text[at + 1 :].strip()

    def _scalar(self, text: str, indent: int) -> Any:
        """Return the value of *text* and of the lines below it that are indented more."""
        if text[0] in "|>":
            return self._block_scalar(text, indent)
        quoted = text[0] in "\"'[{"
        parts, breaks = [text.strip() if quoted else _uncommented(text)], 0
        while self._at < len(self._lines):
            line = self._lines[self._at]
            content = line.strip()
            if content and len(line) - len(line.lstrip(" ")) <= indent:
                break
            if content.startswith("#") and not quoted:
                break
            self._at += 1
            if not content:
                breaks += 1
                continue
            # A backslash before the end of a line has a meaning within '"' alone: see `_FOLD`.
            fold = _FOLD if parts[-1].endswith("\\") else " "
            parts += ["\n" * breaks or fold, content if quoted else _uncommented(content)]
            breaks = 0
        whole = "".join(parts)
        if quoted:
            return _Flow(whole, self._error).all(0)
        if whole[0] in "&*!%@`,]}" or whole.startswith(("? ", "- ")):
            raise self._error(f"{whole[0]!r} cannot begin a value here")
        if _colon(whole, 0) >= 0:
            raise self._error("a value with ': ' must be quoted")
        return _typed(whole, self._error)

    def _block_scalar(self, header: str, indent: int) -> str:
        match = _BLOCK.fullmatch(header)
        if match is None:
            raise self._error("'|' and '>' begin a block of text")
        style, before, width, after = match.groups()
        lines: list[str] = []
        deep = indent + int(width) if width else 0
        while self._at < len(self._lines):
            line = self._lines[self._at]
            here = len(line) - len(line.lstrip(" "))
            if line.strip():
                deep = deep or here
                if here < deep or deep <= indent:
                    break
            self._at += 1
            lines.append(line[deep:] if deep else "")
        while lines and not lines[-1].strip(" "):
            lines.pop()
        text = "\n".join(lines) if style == "|" else _folded(lines)
        if "+" in before + after:
            raise self._error("'+' keeps the blank lines after a block, which have no meaning here")
        return text if not text or "-" in before + after else text + "\n"


class _Flow:
    """Reads quoted scalars, and sequences and mappings in brackets."""

    def __init__(self, text: str, error: Any) -> None:
        self._text = text
        self._error = error
        self.at = 0

    def all(self, depth: int) -> Any:
        """Return the value that is the whole text, except for a comment."""
        value = self._value(depth)
        rest = self._text[self.at :]
        if rest.strip() and not re.match(r"\s+#", rest):
            raise self._error("there is more after the end of the value")
        return value

    def _skip(self) -> str:
        while self._text[self.at : self.at + 1] in (" ", "\t", "\n", _FOLD):
            self.at += 1
        return self._text[self.at : self.at + 1]

    def _value(self, depth: int) -> Any:
        if depth > _MAX_DEPTH:
            raise self._error("it is nested too deeply")
        match self._skip():
            case '"' | "'":
                return self.quoted()
            case "[":
                return self._items(depth)
            case "{":
                return self._members(depth)
        return _typed(self._plain(), self._error)

    def _plain(self) -> str:
        begin = self.at
        while (char := self._text[self.at : self.at + 1]) and char not in ",[]{}":
            if char == ":" and self._text[self.at + 1 : self.at + 2] in ("", " ", ",", "]", "}"):
                break
            self.at += 1
        text = self._text[begin : self.at].replace(_FOLD, " ").strip()
        if text[:1] in ("&", "*", "!", "%", "@", "`", "|", ">", "#", "?") or " #" in text:
            raise self._error(f"{text[0]!r} cannot be in a value here")
        return text

    def _items(self, depth: int) -> list[Any]:
        items: list[Any] = []
        self.at += 1
        while self._skip() != "]":
            items.append(self._value(depth + 1))
            self._separator("]")
        self.at += 1
        return items

    def _members(self, depth: int) -> dict[str, Any]:
        members: dict[str, Any] = {}
        self.at += 1
        while (char := self._skip()) != "}":
            key = self.quoted() if char in ('"', "'") else self._plain()
            if not key or key in members:
                raise self._error(f"{key!r} is there twice, or is no key")
            if self._skip() != ":":
                raise self._error("a key must be followed by ':'")
            self.at += 1
            members[key] = None if self._skip() in (",", "}") else self._value(depth + 1)
            self._separator("}")
        self.at += 1
        return members

    def _separator(self, end: str) -> None:
        found = self._skip()
        if found == ",":
            self.at += 1
        elif found != end:
            raise self._error(f"',' or {end!r} is missing")

    def quoted(self) -> str:
        """Return the scalar in quotes at this place."""
        quote = self._text[self.at]
        found: list[str] = []
        self.at += 1
        while char := self._text[self.at : self.at + 1]:
            self.at += 1
            if char == quote:
                if quote == '"' or self._text[self.at : self.at + 1] != "'":
                    return "".join(found)
                self.at += 1
            elif char == "\\" and quote == '"':
                char = self._escaped()
            elif char == _FOLD:
                char = " "
            found.append(char)
        raise self._error("a quotation mark is missing")

    def _escaped(self) -> str:
        char = self._text[self.at : self.at + 1]
        self.at += 1
        if char == _FOLD:
            return ""
        if char in _CODES:
            digits = self._text[self.at : self.at + _CODES[char]]
            self.at += len(digits)
            if len(digits) == _CODES[char] and {*digits} <= {*hexdigits}:
                code = int(digits, 16)
                if code < 0x110000 and not 0xD800 <= code < 0xE000:
                    return chr(code)
        elif char in _ESCAPES:
            return _ESCAPES[char]
        raise self._error("an unknown escape")


def _colon(text: str, begin: int) -> int:
    """Return the place of the first colon that ends a key in *text*; -1 without one."""
    while (at := text.find(":", begin)) >= 0:
        if text[at + 1 : at + 2] in ("", " ", "\t", "\n"):
            return at
        begin = at + 1
    return -1


def _uncommented(text: str) -> str:
    """Return a line of a plain scalar without its comment."""
    cut = min((at for at in (text.find(" #"), text.find("\t#")) if at >= 0), default=len(text))
    return text[:cut].strip()


def _folded(lines: list[str]) -> str:
    """Return the text of a `>` block: a single line break between two plain lines is a space."""
    text, blank, wide = "", 0, True
    for number, line in enumerate(lines):
        if not line:
            blank += 1
            continue
        here = line[0] in " \t"
        if number == blank and not text:
            text = "\n" * blank
        elif here or wide:
            text += "\n" * (blank + 1)
        else:
            text += "\n" * blank or " "
        text, blank, wide = text + line, 0, here
    return text


def _typed(text: str, error: Any) -> Any:
    """Return a plain scalar as the type of YAML 1.2's core schema that it has."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text):
        return int(text)
    if re.fullmatch(r"0x[0-9a-fA-F]{1,250}|0o[0-7]{1,250}", text):
        return int(text, 0)
    if _FLOAT.fullmatch(text):
        value = float(text)
        if value in (float("inf"), float("-inf")):
            raise error("a number is too large")
        return value
    if re.fullmatch(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", text):
        raise error("infinity is no JSON")
    return text
