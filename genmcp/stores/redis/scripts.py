"""The Lua scripts of a RedisStore. Each is sent to the server once for each connection."""

from hashlib import sha1
from pathlib import Path
from typing import Final

_FOLDER: Final = Path(__file__).parent


class Script:
    """A script, which consists of the files *names*.

    Attributes:
        source: its text.
        sha: its SHA-1, by which the server knows it.
        writes: whether it is a write: rejected by the server once its client has given up.
    """

    __slots__ = ("sha", "source", "writes")

    def __init__(self, *names: str, writes: bool) -> None:
        paths = (_FOLDER / f"{name}.lua" for name in ("common", *names))
        self.source = "\n".join(path.read_text(encoding="utf-8") for path in paths)
        self.sha = sha1(self.source.encode(), usedforsecurity=False).hexdigest()
        self.writes = writes


APPLY: Final = Script("tables", "apply", writes=True)
TOUCH: Final = Script("touch", writes=True)
DELIVERIES: Final = Script("deliveries", writes=True)
FENCE: Final = Script("fence", writes=True)
# Removes only what has expired, so that it does not matter how late that happens.
SWEEP: Final = Script("tables", "sweep", writes=False)
GET: Final = Script("get", writes=False)
READ: Final = Script("read", writes=False)
FIND: Final = Script("find", writes=False)

ALL: Final = (APPLY, TOUCH, DELIVERIES, FENCE, SWEEP, GET, READ, FIND)


def micros(seconds: float) -> int:
    """Return *seconds* as the scripts read them: whole microseconds."""
    return round(seconds * 1_000_000)
