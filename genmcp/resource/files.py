"""The files of a folder, and nothing outside of it, whatever names and links there are."""

import errno
import os
import stat
import time
from bisect import bisect_left
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

__all__ = ["Files", "Names"]

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
    errno.ENXIO,  # a socket, or a pipe nobody reads
}

# Windows has neither; there a path is opened whole.
_AT: Final = os.open in os.supports_dir_fd
_NOFOLLOW: Final = getattr(os, "O_NOFOLLOW", 0)
_READ: Final = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)

_SETTLED: Final = 2.0
"""After how many seconds a folder that changes again has another time of change, at the latest."""

_KEPT: Final = 100_000
"""How many names of folders are kept, so that they need not be read and sorted for each page."""

_Entries = Sequence[tuple[str, bool]]
"""The names in a folder, in order, and whether each is a folder itself."""


class Files:
    """The files below *root*, which may itself be a link.

    hidden: whether names that begin with a dot are there. Links are followed only to what is
    below *root*, and, while listing, only to files.
    """

    def __init__(self, root: str, *, hidden: bool) -> None:
        self._root = root
        self._hidden = hidden
        self._entries: dict[Path, tuple[int, _Entries]] = {}  # with the time of the last change
        self._kept = 0

    def allows(self, name: str) -> bool:
        """Whether a file may be called *name* here."""
        if name in ("", ".", "..") or not _FORBIDDEN.isdisjoint(name):
            return False
        return self._hidden or not name.startswith(".")

    def status(self, names: Names) -> os.stat_result | None:
        """Return the size and times of a file; None if there is none."""
        try:
            found = self._path(self._real(names)).lstat()
        except OSError as error:
            _check_absent(error)
            return None
        return found if stat.S_ISREG(found.st_mode) else None

    def read(self, names: Names, limit: int) -> bytes | None:
        """Return the first *limit* bytes of a file; None if there is none."""
        try:
            descriptor = self._open(self._real(names))
        except OSError as error:
            _check_absent(error)
            return None
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return None
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                return file.read(limit)
        finally:
            os.close(descriptor)

    def after(self, last: Names) -> Iterator[tuple[Names, os.stat_result]]:
        """Yield the files that come after *last*, in the order of their names, folder by folder.

        *last* need not be there any more; `()` comes before all of them.
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
        """Return where *names* are without links.

        Raises:
            OSError: nowhere, or where nobody may see them.
        """
        root = self._path(())
        # Path.resolve tells of loops by another error.
        path = Path(os.path.realpath(root.joinpath(*names), strict=True))
        found = path.relative_to(root).parts if path.is_relative_to(root) else ()
        if not found or not all(map(self.allows, found)):
            raise FileNotFoundError(errno.ENOENT, "outside, or hidden")
        return found

    def _open(self, names: Names) -> int:
        """Open what *names* are, following no link, even one that was put there just now."""
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
        # What changes within the grain of the clock would go unseen.
        settled = time.time() - changed / 1e9 > _SETTLED
        self._entries[path] = (changed if settled else -1, entries)
        return entries


def _is_text(name: str) -> bool:
    """Whether *name* has a place in a URI, which is UTF-8."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check_absent(error: OSError) -> None:
    """Raise *error* unless it says that there is nothing for us."""
    if error.errno not in _ABSENT:
        raise error
