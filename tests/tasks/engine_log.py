"""The log of the jobs of a test, which the processes of an engine write."""

from pathlib import Path


def record(folder: str, *words: object) -> None:
    """Append a line to the log in *folder*."""
    line = " ".join(map(str, words)) + "\n"
    with (Path(folder) / "log").open("ab", buffering=0) as log:
        log.write(line.encode())
