"""The output of a command: results on standard output, log records on standard error.

Text that a server sent is sanitized before it reaches a terminal, which would otherwise obey its
escape sequences. Output to a pipe or a file is left as it is.
"""

import base64
import logging
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any, Final

import click
import msgspec

from genmcp.protocol.content import (
    AudioContent,
    EmbeddedResource,
    ImageContent,
    ResourceContents,
    ResourceLink,
    TextContent,
)

_UNITS: Final = (("d", 86400.0), ("h", 3600.0), ("m", 60.0))

# The advice of a flow names options of `OAuth`. Those of the commands have other names.
_OAUTH_OPTIONS: Final = {
    r"\bresource=None\b": "--no-resource",
    r"\bassume_pkce=True\b": "--assume-pkce",
    r"\bOAuth\(redirect_uri=\.\.\.\)": "--port",
    r"\bclient_id=,?": "--client-id",
    r"\bscopes=": "--scope",
    r"\bissuer=(?=')": "--issuer ",
    r"\bissuer=,?": "--issuer",
    r"\bresource=(?=')": "--resource ",
}


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield *rows* as aligned columns below *headings*; nothing if there are no rows."""
    if not rows:
        return
    cells = [[one_line(cell) or "-" for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    for row in (headings, *cells):
        padded = [f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)]
        yield "  ".join(padded).rstrip()


def duration(seconds: float) -> str:
    """Return *seconds* as a short text, such as "5s", "12m" or "3d"."""
    for unit, length in _UNITS:
        if seconds >= length:
            return f"{int(seconds // length)}{unit}"
    return f"{max(0, int(seconds))}s"


def sanitize(text: str) -> str:
    """Return *text* without unprintable characters other than line ends and tabs."""
    return "".join(
        character for character in text if character.isprintable() or character in "\n\t"
    )


def one_line(text: str) -> str:
    """Return *text*, sanitized, in one line."""
    return " ".join(sanitize(text).split())


def as_command_options(text: str) -> str:
    """Return *text* with the options of `OAuth` replaced by those of the commands."""
    for pattern, option in _OAUTH_OPTIONS.items():
        text = re.sub(pattern, option, text)
    return text


class CommandError(click.ClickException):
    """A command failed, for another reason than its usage. The exit status is 1."""


class OutputWriter:
    """Writes the result of a command. Owned by `private_output`.

    Args:
        descriptor: an open file descriptor; None if standard output is closed.
    """

    def __init__(self, descriptor: int | None) -> None:
        self._descriptor = descriptor
        self.is_terminal = self._descriptor is not None and os.isatty(self._descriptor)

    def write_line(self, text: str) -> None:
        """Write *text* with a line end; to a terminal, sanitized."""
        if self.is_terminal:
            text = sanitize(text)
        self.write_bytes((text if text.endswith("\n") else f"{text}\n").encode(errors="replace"))

    def write_json(self, value: Any) -> None:
        """Write *value* as indented JSON."""
        self.write_line(msgspec.json.format(msgspec.json.encode(value)).decode())

    def write_table(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Write *rows* as aligned columns below *headings*; nothing if there are no rows."""
        for line in table(headings, rows):
            self.write_line(line)

    def write_bytes(self, data: bytes) -> None:
        """Write *data* as it is.

        Raises:
            CommandError: the output is closed, or cannot be written to.
            BrokenPipeError: the reader of a pipe has closed it.
        """
        if self._descriptor is None:
            raise CommandError("cannot write the output: standard output is closed")
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._descriptor, rest) :]
        except BrokenPipeError:
            raise
        except OSError as error:
            raise CommandError(f"cannot write the output: {error.strerror}") from None


@contextmanager
def private_output() -> Iterator[OutputWriter]:
    """Give a writer for the real standard output, and redirect descriptor 1 to 2.

    A tool of this process may print, or start programs that do. Their output must not end up
    within the JSON of a result.
    """
    if sys.stdout is None:  # standard output is closed
        yield OutputWriter(None)
        return
    sys.stdout.flush()
    real = os.dup(1)
    try:
        os.dup2(2, 1)
        with redirect_stdout(sys.stderr):
            yield OutputWriter(real)
    finally:
        os.dup2(real, 1)
        os.close(real)


class BinaryContent(msgspec.Struct, frozen=True):
    """Decoded bytes of an image, a sound or a resource, with their media type."""

    media_type: str
    data: bytes

    def __str__(self) -> str:
        return f"{self.media_type}, {len(self.data)} bytes"


Content = str | BinaryContent


def content_of(block: Any) -> Content:
    """Return the text or bytes of a content block, or of the contents of a resource."""
    match block:
        case TextContent():
            return block.text
        case EmbeddedResource():
            return content_of(block.resource)
        case ResourceContents(text=str(text)):
            return text
        case ResourceContents():
            return _decode_base64(block.mime_type, block.blob or "")
        case ImageContent() | AudioContent():
            return _decode_base64(block.mime_type, block.data)
        case ResourceLink():
            return f"{block.uri} ({block.title or block.name})"
    return msgspec.json.encode(block).decode()


def write_contents(output: OutputWriter, contents: Sequence[Content]) -> None:
    """Write *contents* as text. A single binary content is written to a pipe or file as bytes."""
    match contents:
        case [BinaryContent() as only] if not output.is_terminal:
            output.write_bytes(only.data)
        case [BinaryContent() as only]:
            output.write_line(f"[{only}; use a pipe or a file to get them]")
        case _:
            for each in contents:
                output.write_line(text_of(each))


def text_of(content: Content) -> str:
    """Return *content* as text; bytes as a description of them."""
    return f"[{content}; --json shows them]" if isinstance(content, BinaryContent) else content


def _decode_base64(media_type: str | None, data: str) -> Content:
    media_type = media_type or "application/octet-stream"
    try:
        return BinaryContent(media_type, base64.b64decode(data))
    except ValueError as error:
        return f"[{media_type} with malformed base64: {error}]"


class _SanitizingFormatter(logging.Formatter):
    """Removes escape sequences from log records, and indents every line after the first.

    Records quote text of peers, in which a line end could forge a record.
    """

    def format(self, record: logging.LogRecord) -> str:
        return sanitize(super().format(record)).replace("\n", "\n  ")


def log_to_stderr(*, serves: bool) -> None:
    """Log to standard error, unless the application has configured logging already.

    Args:
        serves: whether this process is a server or worker, which logs at INFO with the time of
            each record. Other commands print a result, and log warnings only.
    """
    handler = logging.StreamHandler()
    prefix = "%(asctime)s %(levelname)s " if serves else "%(levelname)s: "
    handler.setFormatter(_SanitizingFormatter(f"{prefix}%(message)s"))
    level = logging.INFO if serves else logging.WARNING
    logging.basicConfig(level=level, handlers=[handler])
    for chatty in ("httpx", "watchfiles.main"):  # they log each request and file scan at INFO
        logging.getLogger(chatty).setLevel(logging.WARNING)
