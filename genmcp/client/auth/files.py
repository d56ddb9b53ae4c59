"""`FileTokens`: tokens in a private folder, shared by the processes of a user.

    <name>.json   a record, replaced atomically
    <name>.lock   held while the record is renewed or replaced
    <name>.new    a record that is being written, or that a killed process has left

<name> is a digest of the key. Lock files are never removed: a process that waits for one would then
hold a file that no other process sees.
"""

import asyncio
import errno
import hashlib
import os
import stat
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Final

from genmcp.client.auth.tokens import MAX_BYTES, Secret, TokenStorage, TokensUnavailable, busy_text
from genmcp.errors import ConfigurationError

# A FIFO must not block, nor a symbolic link lead elsewhere. Windows has neither flag.
_SAFELY: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)


def user_folder() -> Path:
    """Return the folder of this user for genmcp's data, by the platform's convention.

    Raises:
        ConfigurationError: this user has no home folder.
    """
    try:
        home = Path.home()
    except RuntimeError:
        raise ConfigurationError("this user has no home folder; for tokens, give path=") from None
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = home / "Library" / "Application Support"
    else:
        # XDG Base Directory Specification: a relative path is invalid and is ignored.
        given = Path(os.environ.get("XDG_DATA_HOME", ""))
        base = given if given.is_absolute() else home / ".local" / "share"
    return base / "genmcp"


class FileTokens(TokenStorage):
    """Tokens in files of mode 0600 in a folder of mode 0700, for all processes of a user.

    Files and folders that are symbolic links, belong to another user, or have rights for others are
    refused. Windows has no such modes: there the folder inherits the rights of its parent.

    Args:
        path: the folder, created if needed. Default: `genmcp/tokens` in the user's data folder,
            such as ~/.local/share.
        secret: seals the records. Default None: the files contain the tokens as JSON, protected by
            their mode only.

    Raises:
        ConfigurationError: the secret is shorter than 16 bytes.
    """

    def __init__(self, path: str | Path | None = None, *, secret: Secret | None = None) -> None:
        super().__init__(secret=secret)
        self._folder = user_folder() / "tokens" if path is None else Path(path).expanduser()

    async def read(self, key: str) -> bytes | None:
        """Return the bytes under *key*, or None."""
        return await asyncio.to_thread(self._read, self._path(key))

    async def write(self, key: str, data: bytes | None) -> None:
        """Replace the bytes under *key*. They are on the disk when this returns."""
        await asyncio.to_thread(self._write, self._path(key), data)

    @asynccontextmanager
    async def lock(self, key: str) -> AsyncIterator[None]:
        """Lock *key* in all processes. The operating system frees the lock of a process that dies.

        It is a lock on a file; filelock waits for it without blocking the event loop.
        """
        from filelock import AsyncFileLock, Timeout  # here: most clients only read

        path = self._path(key).with_suffix(".lock")
        with _as_unavailable(self._folder):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_private(self._folder, os.lstat(self._folder))
            lock = AsyncFileLock(path, timeout=self.lock_timeout, mode=0o600)
            try:
                await lock.acquire()
            except Timeout:
                raise TokensUnavailable(busy_text(self.lock_timeout)) from None
        try:
            yield
        finally:
            await lock.release()

    def place(self, key: str) -> str:
        """Return the path of the file under *key*."""
        return str(self._path(key))

    def _path(self, key: str) -> Path:
        name = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:40]
        return self._folder / f"{name}.json"

    def _read(self, path: Path) -> bytes | None:
        with _as_unavailable(self._folder):
            try:
                _check_private(self._folder, os.lstat(self._folder))
                descriptor = _open_private(path, os.O_RDONLY)
            except FileNotFoundError:
                return None
            with os.fdopen(descriptor, "rb") as file:
                data = file.read(MAX_BYTES + 1)
            if len(data) > MAX_BYTES:
                raise TokensUnavailable(f"{path} is no file of tokens: remove it to log in again")
            return data

    def _write(self, path: Path, data: bytes | None) -> None:
        """Replace the file at *path*, so that a crash at any moment leaves the old or new record.

        The temporary file has a fixed name: the caller holds the lock of the record, and the file
        of a killed process is overwritten.
        """
        temporary = path.with_suffix(".new")
        with _as_unavailable(self._folder):
            temporary.unlink(missing_ok=True)
            if data is None:
                path.unlink(missing_ok=True)
            else:
                descriptor = _open_private(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
                with os.fdopen(descriptor, "wb") as file:
                    file.write(data)
                    file.flush()
                    os.fsync(descriptor)
                temporary.replace(path)
            if sys.platform != "win32":  # where a folder cannot be opened
                descriptor = os.open(self._folder, os.O_RDONLY)
                try:
                    os.fsync(descriptor)  # otherwise a power cut may undo the rotation of a token
                finally:
                    os.close(descriptor)


def _open_private(path: Path, flags: int) -> int:
    """Open the file at *path*, and return its descriptor, if only this user can read it."""
    try:
        descriptor = os.open(path, flags | _SAFELY, 0o600)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EMLINK):  # of O_NOFOLLOW
            raise TokensUnavailable(_LINK.format(path=path)) from None
        raise
    try:
        _check_private(path, os.fstat(descriptor))
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


_LINK: Final = (
    "{path} is a symbolic link, which could lead to the tokens of another user: remove it, or give "
    "its target as path="
)


def _check_private(path: Path, found: os.stat_result) -> None:
    """Check that the file or folder at *path*, with the status *found*, is private to this user.

    Raises:
        TokensUnavailable: it is not.
    """
    if stat.S_ISLNK(found.st_mode):
        raise TokensUnavailable(_LINK.format(path=path))
    is_folder = stat.S_ISDIR(found.st_mode)
    if not is_folder and not stat.S_ISREG(found.st_mode):
        raise TokensUnavailable(f"{path} is neither a file nor a folder: remove it")
    if sys.platform == "win32":
        return
    if found.st_uid != os.geteuid():
        raise TokensUnavailable(
            f"{path} belongs to another user (uid {found.st_uid}, this process has "
            f"{os.geteuid()}): give another path=, or run as that user"
        )
    if found.st_mode & 0o077:
        mode = "700" if is_folder else "600"
        raise TokensUnavailable(
            f"{path} has mode {stat.S_IMODE(found.st_mode):o}, so that other users may have access "
            f"to the tokens: chmod {mode} '{path}'"
        )


@contextmanager
def _as_unavailable(folder: Path) -> Iterator[None]:
    """Raise TokensUnavailable in place of an error of the file system."""
    try:
        yield
    except OSError as error:
        raise TokensUnavailable(
            f"tokens cannot be stored in {folder}: {error.strerror or error}"
        ) from error
