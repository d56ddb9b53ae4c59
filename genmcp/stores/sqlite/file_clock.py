"""A clock that the processes of one machine share, independent of the system time.

The clock of a file is the machine's steady clock plus an offset, which makes it Unix time when the
file is first opened after a boot. Setting the system time therefore moves no deadline, lease or
delay while the machine runs. Where there is no such clock (macOS, Windows) a file has Unix time.
"""

import time
from collections.abc import Callable
from sqlite3 import Connection
from typing import Final

from genmcp.stores.clocks import boot, steady

__all__ = ["file_clock"]

# `opened` is the time of the file when that boot was registered.
_TABLE: Final = """
CREATE TABLE IF NOT EXISTS clocks (
    boot TEXT NOT NULL PRIMARY KEY, ahead REAL NOT NULL, opened REAL NOT NULL
)
"""


def file_clock(connection: Connection) -> Callable[[], float]:
    """Return the clock of the file; register this boot if it is new. Call within a transaction."""
    name = boot()
    if name is None:
        return time.time
    connection.execute(_TABLE)
    row = connection.execute("SELECT ahead FROM clocks WHERE boot = ?", (name,)).fetchone()
    ahead: float = row[0] if row else _entered(connection, name)
    return lambda: steady() + ahead


def _entered(connection: Connection, name: str) -> float:
    now = time.time()
    (opened,) = connection.execute("SELECT max(opened) FROM clocks").fetchone()
    if opened is not None and now < opened:
        # The machine booted with a clock that is behind: waiting deliveries become due
        # nevertheless.
        due = "SELECT max(due) FROM deliveries WHERE node IS NULL"
        (latest,) = connection.execute(due).fetchone()
        now = max(opened, latest or opened)
    connection.execute("DELETE FROM clocks")
    ahead = now - steady()
    connection.execute("INSERT INTO clocks VALUES (?, ?, ?)", (name, ahead, now))
    return ahead
