"""`FileTokens`: tokens in a private folder, shared by the processes of a user.

    <name>.json   a record, replaced atomically
    <name>.lock   held while the record is renewed
    <name>.new    a record that is being written, or that a killed process has left
    swap.lock     held for the moment of a compare-and-swap

<name> is a digest of the key. Lock files are never removed: a process that waits for one would then
hold a file that no other process sees.
"""

import asyncio
import errno
import hashlib
import os
import stat
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Final, Literal

from genmcp._core.auth.record import Record
from genmcp.client.auth.sealing import DEFAULT_MAX_BYTES, RecordCodec, Secret
from genmcp.client.auth.tokens import (
    DEFAULT_LOCK_TIMEOUT,
    TokenStorage,
    TokensUnavailable,
    busy_text,
)
from genmcp.errors import ConfigurationError

if sys.platform == "win32":
    import msvcrt

    def _lock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)

    def _unlock(descriptor: int) -> None:
        msvcrt.locking(descriptor, msvcrt.LK_UNLCK, 1)
else:
    import fcntl

    def _lock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def _unlock(descriptor: int) -> None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)


_WINDOWS: Final = sys.platform == "win32"
# A FIFO must not block, nor a symbolic link lead elsewhere. Windows has neither flag.
_SAFELY: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_FIRST_DELAY: Final = 0.005
_MAX_DELAY: Final = 0.1  # seconds between two attempts to lock
_BUSY: Final = {errno.EAGAIN, errno.EACCES, errno.EDEADLK}


def user_folder(kind: Literal["data", "state"]) -> Path:
    """Return the folder of this user for genmcp's data or state, by the platform's convention.

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
        given = Path(os.environ.get(f"XDG_{kind.upper()}_HOME", ""))
        default = home / ".local" / ("share" if kind == "data" else "state")
        base = given if given.is_absolute() else default
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
        lock_timeout: seconds to wait for a process that renews the same token. Default 60.
        max_bytes: the maximum size of a record, before it is sealed. Default 64 KiB.

    Raises:
        ConfigurationError: the secret is shorter than 16 bytes.
    """

    def __init__(
        self,
        path: str | Path | None = None,
        *,
        secret: Secret | None = None,
        lock_timeout: float = DEFAULT_LOCK_TIMEOUT,
        max_bytes: int = DEFAULT_MAX_BYTES,
    ) -> None:
        self._folder = user_folder("data") / "tokens" if path is None else Path(path).expanduser()
        self._lock_timeout = lock_timeout
        self._max_bytes = max_bytes
        self._codec = RecordCodec(secret, max_bytes)

    async def get(self, key: str) -> Record | None:
        """Return the record under *key*, or None."""
        return await asyncio.to_thread(self._get, key)

    async def swap(self, key: str, old: Record | None, new: Record | None) -> bool:
        """Replace *old* by *new*, and return whether *old* was the present record.

        The new record is on the disk when this returns.
        """
        return await asyncio.to_thread(self._swap, key, old, new)

    @asynccontextmanager
    async def lock(self, key: str) -> AsyncIterator[None]:
        """Lock *key* in all processes. The operating system frees the lock of a process that dies.

        Waiting polls: a thread that blocks in `flock` could not be cancelled.
        """
        delay, deadline = _FIRST_DELAY, time.monotonic() + self._lock_timeout
        with self._lock_file(_name_of(key)) as descriptor:
            while not _try_lock(descriptor):
                if time.monotonic() > deadline:
                    raise TokensUnavailable(busy_text(self._lock_timeout))
                await asyncio.sleep(delay)
                delay = min(2 * delay, _MAX_DELAY)
            try:
                yield
            finally:
                _unlock(descriptor)  # explicit: a child that was forked meanwhile has it open, too

    def _codec_of_records(self) -> RecordCodec:
        """Return the codec. Called in a thread, since it may block."""
        return self._codec

    def _get(self, key: str) -> Record | None:
        # Windows cannot replace a file that another process has open.
        is_locked = _WINDOWS and self._folder.exists()
        lock = self._exclusive("swap") if is_locked else nullcontext()
        with _errors_of(self._folder), lock:
            return self._read(key)

    def _swap(self, key: str, old: Record | None, new: Record | None) -> bool:
        with _errors_of(self._folder):
            data = None if new is None else self._codec_of_records().encode(key, new)
            with self._exclusive("swap"):
                if self._read(key) != old:
                    return False
                self._write(self._folder / f"{_name_of(key)}.json", data)
            return True

    def _read(self, key: str) -> Record | None:
        path = self._folder / f"{_name_of(key)}.json"
        try:
            _check_private(self._folder, os.lstat(self._folder))
            descriptor = _open_private(path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        limit = RecordCodec.max_encoded(self._max_bytes)
        with os.fdopen(descriptor, "rb") as file:
            data = file.read(limit + 1)
        if len(data) > limit:
            raise TokensUnavailable(
                f"{path} is larger than max_bytes={self._max_bytes} allows: remove it to log in "
                f"again, or raise max_bytes"
            )
        return self._codec_of_records().decode(key, data, str(path))

    def _write(self, path: Path, data: bytes | None) -> None:
        """Replace the file at *path*, so that a crash at any moment leaves the old or new record.

        The temporary file has a fixed name: the caller holds the lock of the folder, and the file
        of a killed process is overwritten.
        """
        temporary = path.with_suffix(".new")
        with suppress(FileNotFoundError):
            temporary.unlink()
        if data is None:
            with suppress(FileNotFoundError):
                path.unlink()
        else:
            descriptor = _open_private(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(descriptor)
            temporary.replace(path)
        if not _WINDOWS:  # where a folder cannot be opened
            descriptor = os.open(self._folder, os.O_RDONLY)
            try:
                os.fsync(descriptor)  # otherwise a power cut may undo the rotation of a token
            finally:
                os.close(descriptor)

    @contextmanager
    def _exclusive(self, name: str) -> Iterator[None]:
        """Lock the lock file *name* of the folder, for a moment. Called in a thread."""
        deadline = time.monotonic() + self._lock_timeout
        with self._lock_file(name) as descriptor:
            while not _try_lock(descriptor):
                if time.monotonic() > deadline:
                    raise TokensUnavailable(
                        f"{self._folder} has been locked by another process for more than "
                        f"{self._lock_timeout:g} s (lock_timeout)"
                    )
                time.sleep(_FIRST_DELAY)
            try:
                yield
            finally:
                _unlock(descriptor)

    @contextmanager
    def _lock_file(self, name: str) -> Iterator[int]:
        """Open a lock file, and create it and the folder if needed."""
        with _errors_of(self._folder):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            _check_private(self._folder, os.lstat(self._folder))
            descriptor = _open_private(self._folder / f"{name}.lock", os.O_RDWR | os.O_CREAT)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def _name_of(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:40]


def _try_lock(descriptor: int) -> bool:
    try:
        _lock(descriptor)
    except OSError as error:
        if error.errno not in _BUSY:
            raise TokensUnavailable(f"the tokens cannot be locked: {error.strerror}") from None
        return False
    return True


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
def _errors_of(folder: Path) -> Iterator[None]:
    """Raise TokensUnavailable in place of an error of the file system."""
    try:
        yield
    except OSError as error:
        raise TokensUnavailable(
            f"tokens cannot be stored in {folder}: {error.strerror or error}"
        ) from error
