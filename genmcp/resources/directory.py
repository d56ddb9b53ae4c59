"""`Directory` serves the files of a folder as resources, and no file outside of that folder."""

import errno
import os
import stat
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import quote, unquote_to_bytes

from msgspec.structs import replace
from typing_extensions import Unpack

from genmcp.channel import Channel
from genmcp.content import guessed_type
from genmcp.errors import ConfigurationError, InvalidParams
from genmcp.protocol.content import Annotations, ResourceDefinition
from genmcp.resources.resource import Description, ResourceRepo

Names = tuple[str, ...]
"""A path within the folder, name by name."""

_FORBIDDEN: Final = {"/", "\\", "\0", *(":" if os.name == "nt" else "")}

_ABSENT: Final = {
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ELOOP,
    errno.ENAMETOOLONG,
    errno.EACCES,
    errno.EPERM,
    errno.EINVAL,
    errno.ENXIO,  # a socket, or a pipe without a reader
}

# Windows has neither `dir_fd` nor O_NOFOLLOW: the whole path is opened at once there.
_AT: Final = os.open in os.supports_dir_fd
_NOFOLLOW: Final = getattr(os, "O_NOFOLLOW", 0)
_READ: Final = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)

_SETTLED: Final = 2.0
"""Seconds after a change of a folder from which on any further change has a later timestamp.

The listing of a folder is cached by that timestamp, so only older listings are cached."""

_KEPT: Final = 100_000
"""The maximum number of cached file names. Cached folders are not read again for each page."""

_Entries = Sequence[tuple[str, bool]]
"""The names in a folder, in order, and whether each is a folder itself."""


class Directory(ResourceRepo):
    """The files of a folder and its subfolders. A file's URI is *prefix* followed by its path.

        Directory("handbook", prefix="handbook://", name="handbook")

    A file in UTF-8 is read as text, any other file as a blob. The media type is guessed from the
    suffix. A file outside of the folder cannot be read by any URI, name or link.

    Attributes:
        root: the folder. Required.
        prefix: the prefix of the URIs. Default "file:///".
        hidden: whether to serve files and folders with names that begin with a dot. Default False.
        max_bytes: the size in bytes of the largest file that is read. Larger files are listed, but
            reading them is an error. Default 4 MiB.
        page_size: the maximum number of files in one page of the list. Default 100.
        name: the name of the template in the list. Default: the name of the folder.
        title, description, icons, meta, annotations, mime_type, cache_ttl, cache_scope, scopes:
            as of `ResourceRepo`.

    Raises:
        ConfigurationError: the folder does not exist, or a number is not positive.
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
        """Return the names on the path to the file; None if *uri* cannot be that of a file."""
        return self._names(uri.removeprefix(self.prefix))

    def list(self, cursor: Any, channel: Channel, /) -> Any:
        """Return a page of the files, sorted by path, and the cursor of the next page."""
        last = () if cursor is None else self._names(cursor)
        if last is None:
            raise InvalidParams(f"Invalid cursor: {cursor}")
        page = list(islice(self._files.after(last), self.page_size))
        following = _quoted(page[-1][0]) if len(page) == self.page_size else None
        return [self._definition(names, status) for names, status in page], following

    def read(self, key: Names, channel: Channel, /) -> str | bytes | None:
        """Return the contents of a file: a str if they are UTF-8; None if it does not exist.

        Raises:
            InvalidParams: the file has more than `max_bytes` bytes.
        """
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
        """Return the names in a *path* of a URI, percent-decoded; None for a forbidden name."""
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
    """Return a Unix time in ISO 8601; None if the year is out of range."""
    try:
        moment = datetime.fromtimestamp(seconds, UTC)
    except (OverflowError, ValueError, OSError):
        return None
    return moment.isoformat(timespec="seconds").replace("+00:00", "Z")


class Files:
    """The files below a folder. Links are followed only to targets below that folder.

    A list includes links to files, but not the files behind a link to a folder.

    Args:
        root: the folder, or a link to one.
        hidden: whether names that begin with a dot are included.
    """

    def __init__(self, root: str, *, hidden: bool) -> None:
        self._root = root
        self._hidden = hidden
        # By folder: the time of its last change in ns, and its entries.
        self._entries: dict[Path, tuple[int, _Entries]] = {}
        self._kept = 0

    def allows(self, name: str) -> bool:
        """Return whether *name* is the name of a file that may be served."""
        if name in ("", ".", "..") or not _FORBIDDEN.isdisjoint(name):
            return False
        return self._hidden or not name.startswith(".")

    def status(self, names: Names) -> os.stat_result | None:
        """Return the size and times of a file; None if it does not exist."""
        try:
            found = self._path(self._real(names)).lstat()
        except OSError as error:
            _check_absent(error)
            return None
        return found if stat.S_ISREG(found.st_mode) else None

    def read(self, names: Names, limit: int) -> bytes | None:
        """Return the first *limit* bytes of a file; None if it does not exist."""
        try:
            descriptor = self._open(self._real(names))
        except OSError as error:
            _check_absent(error)
            return None
        # Check the open file and not the path, which may have been replaced by a pipe meanwhile:
        # reading a pipe could block.
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                return file.read(limit)
        finally:
            os.close(descriptor)

    def after(self, last: Names) -> Iterator[tuple[Names, os.stat_result]]:
        """Yield the files that come after *last* in the order of the list, with their status.

        The list is sorted by name within each folder. *last* need not exist any more; `()` yields
        all files.
        """
        folders: list[tuple[Names, Names, Iterator[tuple[str, bool]]]]
        folders = [((), last, self._entries_from((), last))]
        while folders:
            parents, rest, entries = folders[-1]
            entry = next(entries, None)
            if entry is None:
                folders.pop()
                continue
            name, is_folder = entry
            names = (*parents, name)
            inner = rest[1:] if rest[:1] == (name,) else ()
            if is_folder:
                folders.append((names, inner, self._entries_from(names, inner)))
            elif names != last and (status := self.status(names)) is not None:
                yield names, status

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
        if not found or not all(map(self.allows, found)):
            raise FileNotFoundError(errno.ENOENT, "outside, or hidden")
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

    def _entries_from(self, parents: Names, rest: Names) -> Iterator[tuple[str, bool]]:
        try:
            entries = self._entries_of(self._path(parents))
        except OSError as error:
            _check_absent(error)
            return iter(())
        first = bisect_left(entries, (rest[0], False)) if rest else 0
        return map(entries.__getitem__, range(first, len(entries)))

    def _entries_of(self, path: Path) -> _Entries:
        changed = path.stat().st_mtime_ns
        known, entries = self._entries.get(path, (None, ()))
        if known == changed:
            return entries
        self._kept -= len(entries)
        with os.scandir(path) as found:
            entries = sorted(
                (entry.name, entry.is_dir(follow_symlinks=False))
                for entry in found
                if self.allows(entry.name) and _is_text(entry.name)
            )
        self._kept += len(entries)
        if self._kept > _KEPT:
            self._entries.clear()
            self._kept = len(entries)
        # A second change within the resolution of the file system's clock would not be detected.
        settled = time.time() - changed / 1e9 > _SETTLED
        self._entries[path] = (changed if settled else -1, entries)
        return entries


def _is_text(name: str) -> bool:
    """Return whether *name* can be encoded in UTF-8, as a URI requires."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_absent(error: OSError) -> None:
    """Raise *error* unless it means that the file does not exist or cannot be read."""
    if error.errno not in _ABSENT:
        raise error
