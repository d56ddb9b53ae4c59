"""Logging of the commands, in one format for records of genmcp, uvicorn and the server."""

import logging

from genmcp.cli.bare import plain

__all__ = ["log_to_stderr"]


class _Plain(logging.Formatter):
    """A formatter that removes terminal sequences, and indents all lines after the first.

    Log records quote text of peers, in which a line end could forge a record.
    """

    def format(self, record: logging.LogRecord) -> str:
        return plain(super().format(record)).replace("\n", "\n  ")


def log_to_stderr(*, serves: bool) -> None:
    """Log to standard error, unless the application has configured logging already.

    Args:
        serves: whether this process is a server or worker, which logs at INFO; other commands print
            a result and log warnings only.
    """
    handler = logging.StreamHandler()
    if serves:
        handler.setFormatter(_Plain("%(asctime)s %(levelname)s %(message)s"))
    else:
        handler.setFormatter(_Plain("%(levelname)s: %(message)s"))
    level = logging.INFO if serves else logging.WARNING
    logging.basicConfig(level=level, handlers=[handler])
    for chatty in ("httpx", "watchfiles.main"):  # they log every request and file scan at INFO
        logging.getLogger(chatty).setLevel(logging.WARNING)
