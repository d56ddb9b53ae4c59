"""What `read` may return, and what becomes of it.

| `read` returns | contents | media type, if none is declared |
|---|---|---|
| str | text | by the URI's suffix, else text/plain |
| bytes | blob | by the URI's suffix, else application/octet-stream |
| `(bytes, mime type)` | blob | as given |
| dict, struct, dataclass, pydantic model, number, bool | its JSON as text | application/json |
| `ResourceContents` | as they are | - |
| a list of these | one after another; a list within it is JSON | each its own |
| `ReadResourceResult` | as it is | - |
"""

import mimetypes
import posixpath
import re
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from genmcp.content import json_of
from genmcp.protocol.content import ResourceContents

__all__ = ["contents_of", "guessed_type", "size_of"]

# Python's own table, and not that of the machine it runs on; with what it learned only lately.
_TYPES: Final[Mapping[str, str]] = {
    **mimetypes.MimeTypes(filenames=()).types_map[True],
    ".markdown": "text/markdown",
    ".md": "text/markdown",
    ".toml": "application/toml",
    ".webp": "image/webp",
    ".yaml": "application/yaml",
    ".yml": "application/yaml",
}

_QUERY = re.compile(r"[?#]")


def guessed_type(path: str) -> str | None:
    """Return the media type that files with the suffix of *path* have, None if nobody knows."""
    return _TYPES.get(posixpath.splitext(path)[1].lower())


def contents_of(value: Any, uri: str, mime_type: str | None) -> list[ResourceContents]:
    """Return the contents that *value*, returned by a hook for *uri*, stands for.

    *mime_type* is the declared one.

    Raises:
        ContractError: a hook must not return such a value.
    """
    if isinstance(value, list) or (isinstance(value, tuple) and not _is_typed(value)):
        return [_contents(each, uri, mime_type) for each in value]
    return [_contents(value, uri, mime_type)]


def size_of(contents: Sequence[ResourceContents]) -> int:
    """Return how many bytes *contents* have before they are encoded."""
    return sum(
        len((each.text or "").encode()) + len(b64decode(each.blob or "")) for each in contents
    )


def _contents(value: Any, uri: str, mime_type: str | None) -> ResourceContents:
    if isinstance(value, ResourceContents):
        if value.mime_type is not None or mime_type is None:
            return value
        return msgspec.structs.replace(value, mime_type=mime_type)
    if isinstance(value, str):
        return ResourceContents(uri, text=value, mime_type=mime_type or _guessed(uri, "text/plain"))
    if _is_typed(value):
        value, mime_type = value
    if isinstance(value, bytes | bytearray | memoryview):
        return ResourceContents(
            uri,
            blob=b64encode(value).decode("ascii"),
            mime_type=mime_type or _guessed(uri, "application/octet-stream"),
        )
    text = json_of(value).decode()
    return ResourceContents(uri, text=text, mime_type=mime_type or "application/json")


def _is_typed(value: Any) -> bool:
    return isinstance(value, tuple) and [type(part) for part in value] == [bytes, str]


def _guessed(uri: str, default: str) -> str:
    return guessed_type(_QUERY.split(uri, maxsplit=1)[0]) or default
