"""`Directory` serves the files of a folder as resources, and no file outside of that folder."""

import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from errno import EACCES, EINVAL, EISDIR, ELOOP, ENAMETOOLONG, ENOENT, ENOTDIR, ENXIO, EPERM
from itertools import islice
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote_to_bytes

from typing_extensions import Unpack

from genmcp.channel import Channel
from genmcp.content import guessed_type
from genmcp.errors import ConfigurationError, InvalidParams
from genmcp.protocol.content import ResourceDefinition
from genmcp.resources.resource import Description, ResourceRepo

Names = tuple[str, ...]
"""A path within the folder, name by name."""

# No name of a file, or none that a URI can have: half of a surrogate pair is no text.
_FORBIDDEN: Final = re.compile("[/\\\\\0\ud800-\udfff" + (":]" if os.name == "nt" else "]"))

# Errors that mean that a file does not exist or cannot be read. ENXIO: a socket, or a pipe without
# a reader.
_ABSENT: Final = {EACCES, EINVAL, EISDIR, ELOOP, ENAMETOOLONG, ENOENT, ENOTDIR, ENXIO, EPERM}

# Windows has neither `dir_fd` nor O_NOFOLLOW: the whole path is opened at once there.
_AT: Final = os.open in os.supports_dir_fd
_NOFOLLOW: Final = getattr(os, "O_NOFOLLOW", 0)
_READ: Final = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)

_PAGE_SIZE: Final = 100  # files; a suite makes its own pages of them


class Directory(ResourceRepo):
    """The files of a folder and its subfolders. A file's URI is *prefix* followed by its path.

        Directory("handbook", prefix="handbook://", name="handbook")

    A file in UTF-8 is read as text, any other file as a blob. The media type is guessed from the
    suffix. A file outside of the folder cannot be read by any URI, name or link. Links are followed
    only to targets within the folder; the list has links to files, but not the files behind a link
    to a folder.

    Attributes:
        root: the folder. Required.
        prefix: the prefix of the URIs. Default "file:///".
        hidden: whether to serve files and folders with names that begin with a dot. Default False.
        max_bytes: the size in bytes of the largest file that is read. Larger files are listed, but
            reading them is an error. Default 4 MiB.
        name: the name of the template in the list. Default: the name of the folder.
        title, description, icons, meta, annotations, mime_type, cache_ttl, cache_scope, scopes:
            as of `ResourceRepo`.

    Raises:
        ConfigurationError: the folder does not exist, or `max_bytes` is not positive.
    """

    description: str | None = None
    root: str | os.PathLike[str]
    prefix: str = "file:///"
    hidden: bool = False
    max_bytes: int = 4 * 1024 * 1024

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        prefix: str | None = None,
        hidden: bool | None = None,
        max_bytes: int | None = None,
        **attributes: Unpack[Description],
    ) -> None:
        options = {"root": root, "prefix": prefix, "hidden": hidden, "max_bytes": max_bytes}
        for key, value in options.items():
            if value is not None:
                setattr(self, key, value)
        self.describe(attributes)
        owner = type(self).__name__
        folder = getattr(self, "root", None)
        if folder is None or not Path(folder).is_dir():
            raise ConfigurationError(f"{owner}.root must be a folder, not {folder!r}")
        if not isinstance(self.max_bytes, int) or self.max_bytes < 1:
            raise ConfigurationError(f"{owner}.max_bytes must be 1 or more, not {self.max_bytes!r}")
        self._root = Path(folder).absolute()
        if self.name is None:
            self.name = self._root.name or "files"
        self.template = self.prefix + "{+path}"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.root} as {self.prefix}>"

    def parse_uri(self, uri: str) -> Names | None:
        """Return the names on the path to the file; None if *uri* cannot be that of a file."""
        return self._names(uri.removeprefix(self.prefix))

    def list(self, cursor: Any, channel: Channel, /) -> Any:
        """Return a page of the files, sorted by path, and the cursor of the next page."""
        last = () if cursor is None else self._names(cursor)
        if last is None:
            raise InvalidParams(f"Invalid cursor: {cursor}")
        page = [*islice(self._after(last), _PAGE_SIZE)]
        following = _quoted(page[-1][0]) if len(page) == _PAGE_SIZE else None
        return [self._definition(names, status) for names, status in page], following

    def read(self, key: Names, channel: Channel, /) -> str | bytes | None:
        """Return the contents of a file: a str if they are UTF-8; None if it does not exist.

        Raises:
            InvalidParams: the file has more than `max_bytes` bytes.
        """
        data = self._data(key)
        if data is not None and len(data) > self.max_bytes:
            raise InvalidParams(
                f"Resource too large: more than {self.max_bytes} bytes",
                {"uri": self.prefix + _quoted(key), "limit": self.max_bytes},
            )
        try:
            return data if data is None or b"\0" in data else data.decode()
        except UnicodeDecodeError:
            return data

    def _names(self, path: Any) -> Names | None:
        """Return the names in a *path* of a URI, percent-decoded; None for a forbidden name."""
        if not isinstance(path, str) or not path.isascii() or "?" in path or "#" in path:
            return None
        try:
            names = tuple(unquote_to_bytes(name).decode() for name in path.split("/"))
        except UnicodeDecodeError:  # overlong forms among others
            return None
        return names if all(map(self._allows, names)) else None

    def _allows(self, name: str) -> bool:
        """Return whether *name* is the name of a file that may be served."""
        if name in ("", ".", "..") or _FORBIDDEN.search(name):
            return False
        return self.hidden or not name.startswith(".")

    def _definition(self, names: Names, status: os.stat_result) -> ResourceDefinition:
        return ResourceDefinition(
            self.prefix + _quoted(names),
            names[-1],
            mime_type=self.mime_type or guessed_type(names[-1]),
            size=status.st_size,
            annotations=self.given_annotations,
        )

    def _after(self, last: Names, parents: Names = ()) -> Iterator[tuple[Names, os.stat_result]]:
        """Yield the files below *parents* that come after *last*, with their status.

        They are sorted by name within each folder. *last* need not exist any more; `()` yields all
        files. Both *last* and the names of the files begin at the root.
        """
        first, rest = last[:1], last[1:]
        for name, is_folder in self._entries(parents):
            names = (*parents, name)
            if first and name < first[0]:
                continue
            if is_folder:
                yield from self._after(rest if first == (name,) else (), names)
            elif last != (name,) and (status := self._status(names)) is not None:
                yield names, status

    def _entries(self, parents: Names) -> Sequence[tuple[str, bool]]:
        """Return the names in a folder, in their order, and whether each is a folder itself."""
        with _absent_is_empty(), os.scandir(self._path(parents)) as found:
            return sorted(
                (each.name, each.is_dir(follow_symlinks=False))
                for each in found
                if self._allows(each.name)
            )
        return ()

    def _status(self, names: Names) -> os.stat_result | None:
        """Return the size of a file, and more; None if it does not exist."""
        with _absent_is_empty():
            found = self._path(self._real(names)).lstat()
            return found if stat.S_ISREG(found.st_mode) else None
        return None

    def _data(self, names: Names) -> bytes | None:
        """Return the bytes of a file, at most one more than `max_bytes`; None without a file."""
        with _absent_is_empty():
            descriptor = self._open(self._real(names))
            try:
                # The open file is checked and not the path, which may have been replaced by a pipe
                # meanwhile: reading a pipe could block.
                if stat.S_ISREG(os.fstat(descriptor).st_mode):
                    with os.fdopen(descriptor, "rb", closefd=False) as file:
                        return file.read(self.max_bytes + 1)
            finally:
                os.close(descriptor)
        return None

    def _path(self, names: Names) -> Path:
        return Path(os.path.realpath(self._root), *names)

    def _real(self, names: Names) -> Names:
        """Resolve all links on the path of *names*, and return the resulting path below the root.

        Raises:
            OSError: the file does not exist, or the path leads out of the root or to a hidden file.
        """
        # Links are resolved first and the result is compared with the real root, so that neither
        # `..` nor a link leads outside.
        root = self._path(())
        # Not `Path.resolve`, which raises another exception than OSError for a loop of links.
        path = Path(os.path.realpath(root.joinpath(*names), strict=True))
        found = path.relative_to(root).parts if path.is_relative_to(root) else ()
        if not found or not all(map(self._allows, found)):
            raise FileNotFoundError(ENOENT, "outside, or hidden")
        return found

    def _open(self, names: Names) -> int:
        """Open the file at *names* and return its descriptor. No link on the path is followed."""
        # Open folder by folder without following links: a folder may have been replaced by a link
        # since the check in `_real`. Windows cannot do that, and opens the path at once.
        if not _AT:
            return os.open(self._path(names), _READ)
        descriptor = os.open(self._path(()), _READ)
        for name in names:
            try:
                inner = os.open(name, _READ | _NOFOLLOW, dir_fd=descriptor)
            finally:
                os.close(descriptor)
            descriptor = inner
        return descriptor


@contextmanager
def _absent_is_empty() -> Iterator[None]:
    """Leave the block at an error which means that a file does not exist or cannot be read."""
    try:
        yield
    except OSError as error:
        if error.errno not in _ABSENT:
            raise


def _quoted(names: Names) -> str:
    return "/".join(quote(name, safe="") for name in names)
