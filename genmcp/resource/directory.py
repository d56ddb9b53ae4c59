"""A folder's files as resources."""

import os
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote, unquote_to_bytes

from msgspec.structs import replace
from typing_extensions import Unpack

from genmcp.channel import Channel
from genmcp.errors import ConfigurationError, InvalidParams
from genmcp.protocol.content import Annotations, ResourceDefinition
from genmcp.resource.contents import guessed_type
from genmcp.resource.described import Description
from genmcp.resource.files import Files, Names
from genmcp.resource.repo import ResourceRepo

__all__ = ["Directory"]


class Directory(ResourceRepo):
    """The files of a folder and of those in it, under *prefix* and their path.

        Directory("handbook", prefix="handbook://", name="handbook")

    What is UTF-8 is read as text, everything else as a blob; media types are told by suffixes.
    Only files below the folder are there, whatever a URI, a name or a link says.

    root: the folder. prefix: what stands before a path.
    hidden: whether files and folders are there whose names begin with a dot.
    max_bytes: the largest file that is read; larger ones are listed with their size.
    page_size: how many files are looked at for one page of a list.
    name: what the template is listed as; otherwise the folder's name.

    Raises:
        ConfigurationError: there is no such folder, or a number is not positive.
    """

    description: str | None = None
    root: str | os.PathLike[str]
    prefix: str = "file:///"
    hidden: bool = False
    max_bytes: int = 4 * 1024 * 1024
    page_size: int = 100

    _OPTIONS: ClassVar = ("root", "prefix", "hidden", "max_bytes", "page_size")

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        prefix: str | None = None,
        hidden: bool | None = None,
        max_bytes: int | None = None,
        page_size: int | None = None,
        **attributes: Unpack[Description],
    ) -> None:
        for key, value in zip(
            self._OPTIONS, (root, prefix, hidden, max_bytes, page_size), strict=True
        ):
            if value is not None:
                setattr(self, key, value)
        self.describe(attributes)
        owner = type(self).__name__
        folder = getattr(self, "root", None)
        if folder is None or not Path(folder).is_dir():
            raise ConfigurationError(f"{owner}.root must be a folder, not {folder!r}")
        for key in ("max_bytes", "page_size"):
            if not isinstance(getattr(self, key), int) or getattr(self, key) < 1:
                raise ConfigurationError(
                    f"{owner}.{key} must be 1 or more, not {getattr(self, key)!r}"
                )
        path = Path(folder).absolute()
        if self.name is None:
            self.name = path.name or "files"
        self.template = self.prefix + "{+path}"
        self._files = Files(str(path), hidden=self.hidden)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.root} as {self.prefix}>"

    def parse_uri(self, uri: str) -> Names | None:
        """Return the names on the way to the file, None if no file can be there."""
        return self._names(uri.removeprefix(self.prefix))

    def list(self, cursor: Any, channel: Channel, /) -> Any:
        """Return the files, by their names, folder by folder."""
        last = () if cursor is None else self._names(cursor)
        if last is None:
            raise InvalidParams(f"Invalid cursor: {cursor}")
        page = list(islice(self._files.after(last), self.page_size))
        following = _quoted(page[-1][0]) if len(page) == self.page_size else None
        return [self._definition(names, status) for names, status in page], following

    def read(self, key: Names, channel: Channel, /) -> str | bytes | None:
        """Return what a file holds."""
        data = self._files.read(key, self.max_bytes + 1)
        if data is None:
            return None
        if len(data) > self.max_bytes:
            raise InvalidParams(
                f"Resource too large: more than {self.max_bytes} bytes",
                {"uri": self.prefix + _quoted(key), "limit": self.max_bytes},
            )
        try:
            return data if b"\0" in data else data.decode()
        except UnicodeDecodeError:
            return data

    def _names(self, path: Any) -> Names | None:
        """Return the names in a *path* of a URI, each percent-decoded once."""
        if not isinstance(path, str) or not path.isascii() or "?" in path or "#" in path:
            return None
        try:
            names = tuple(unquote_to_bytes(name).decode() for name in path.split("/"))
        except UnicodeDecodeError:  # overlong forms among others
            return None
        return names if all(map(self._files.allows, names)) else None

    def _definition(self, names: Names, status: os.stat_result) -> ResourceDefinition:
        return ResourceDefinition(
            self.prefix + _quoted(names),
            names[-1],
            mime_type=self.mime_type or guessed_type(names[-1]),
            size=status.st_size,
            annotations=replace(
                self.given_annotations or Annotations(), last_modified=_time(status.st_mtime)
            ),
        )


def _quoted(names: Names) -> str:
    return "/".join(quote(name, safe="") for name in names)


def _time(seconds: float) -> str | None:
    """Return a time as ISO 8601 has it; None if it is none of our years."""
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return None
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")
