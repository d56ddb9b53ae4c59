"""What a tool, a resource or a prompt has given, for people and for pipes."""

import base64
from collections.abc import Sequence
from typing import Any

import msgspec

from genmcp.cli.output import Output
from genmcp.protocol.content import (
    AudioContent,
    EmbeddedResource,
    ImageContent,
    ResourceContents,
    ResourceLink,
    TextContent,
)

__all__ = ["Binary", "piece_of", "write", "written"]


class Binary(msgspec.Struct, frozen=True):
    """Bytes, and what they are."""

    kind: str
    data: bytes

    def __str__(self) -> str:
        return f"{self.kind}, {len(self.data)} bytes"


Piece = str | Binary


def piece_of(content: Any) -> Piece:
    """Return the text or the bytes of a block of content, or of the contents of a resource."""
    match content:
        case TextContent():
            return content.text
        case EmbeddedResource():
            return piece_of(content.resource)
        case ResourceContents(text=str(text)):
            return text
        case ResourceContents():
            return _decoded(content.mime_type, content.blob or "")
        case ImageContent() | AudioContent():
            return _decoded(content.mime_type, content.data)
        case ResourceLink():
            return f"{content.uri} ({content.title or content.name})"
    return msgspec.json.encode(content).decode()


def write(output: Output, pieces: Sequence[Piece]) -> None:
    """Write *pieces*: bytes that are alone to a pipe or a file; elsewhere what they are."""
    match pieces:
        case [Binary() as only] if not output.is_terminal:
            output.write(only.data)
        case [Binary() as only]:
            output.say(f"[{only}; --output FILE or a pipe gets them]")
        case _:
            for each in pieces:
                output.say(written(each))


def written(piece: Piece) -> str:
    """Return *piece* as text."""
    return f"[{piece}; --json shows them]" if isinstance(piece, Binary) else piece


def _decoded(kind: str | None, data: str) -> Piece:
    kind = kind or "application/octet-stream"
    try:
        return Binary(kind, base64.b64decode(data))
    except ValueError as error:
        return f"[{kind}, which is broken: {error}]"
