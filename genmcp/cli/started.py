"""The tasks that the user has started with `genmcp call --detach`: a file of the user.

Each line is the JSON of a task. Lines are appended by one write each, so that commands that run at
the same time need no lock. The id of a task gives access to it: the file has mode 0600.
"""

import os
from pathlib import Path
from typing import Final

import msgspec

_MAX_BYTES: Final = 64 * 1024
_KEPT: Final = 100  # tasks, if the file is larger


class StartedTask(msgspec.Struct, frozen=True):
    """A task, and the URL of the server that has it.

    started: seconds since 1970.
    """

    id: str
    url: str
    tool: str
    started: float


def state_file() -> Path:
    """Return the path of the file, by the convention of the platform.

    Raises:
        ConfigurationError: this user has no home folder.
    """
    from genmcp.client.auth.files import user_folder  # a call without a task needs no storage

    return user_folder("state") / "tasks.jsonl"


def remember(task: StartedTask) -> None:
    """Append *task* to the file.

    Raises:
        OSError: the file cannot be written.
    """
    path = state_file()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > _MAX_BYTES:
        shorter = path.with_suffix(f".{os.getpid()}")
        _write(shorter, b"".join(map(_line, started_tasks()[-_KEPT:])), os.O_EXCL)
        shorter.replace(path)
    _write(path, _line(task), os.O_APPEND)


def started_tasks(url: str | None = None) -> list[StartedTask]:
    """Return the tasks of the server at *url*, by default of all servers; the newest is last."""
    try:
        lines = state_file().read_bytes().splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        try:
            task = msgspec.json.decode(line, type=StartedTask)
        except msgspec.DecodeError:  # the line of a process that was killed
            continue
        if url is None or task.url == url:
            found.append(task)
    return found


def _line(task: StartedTask) -> bytes:
    return msgspec.json.encode(task) + b"\n"


def _write(path: Path, data: bytes, flags: int) -> None:
    flags |= os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
    descriptor = os.open(path, flags, 0o600)
    try:
        if hasattr(os, "fchmod"):
            os.fchmod(descriptor, 0o600)
        os.write(descriptor, data)
    finally:
        os.close(descriptor)
