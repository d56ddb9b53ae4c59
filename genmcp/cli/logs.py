"""What the commands log, all in one format: genmcp's records, uvicorn's and those of a server."""

import logging

from genmcp.cli.bare import plain

__all__ = ["log_to_stderr"]


class _Plain(logging.Formatter):
    """Leaves out what a terminal would obey, and indents all lines of a record but the first.

    Log records quote what peers send: without this a line end in it forges a record.
    """

    def format(self, record: logging.LogRecord) -> str:
        return plain(super().format(record)).replace("\n", "\n  ")


def log_to_stderr(*, serves: bool) -> None:
    """Log to standard error, unless the application has configured logging already.

    Args:
        serves: whether this process serves, so that it logs what happens; a command that prints an
            answer logs only warnings.
    """
    handler = logging.StreamHandler()
    if serves:
        handler.setFormatter(_Plain("%(asctime)s %(levelname)s %(message)s"))
    else:
        handler.setFormatter(_Plain("%(levelname)s: %(message)s"))
    level = logging.INFO if serves else logging.WARNING
    logging.basicConfig(level=level, handlers=[handler])
    for chatty in ("httpx", "watchfiles.main"):  # each request, each look at the files
        logging.getLogger(chatty).setLevel(logging.WARNING)
