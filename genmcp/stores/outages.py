"""The outages of a store, as one process notices them: for its log and its metrics."""

import logging
from collections.abc import Callable
from typing import Final

from genmcp.errors import ConfigurationError, OverShare, StoreFull, StoreUnavailable
from genmcp.stores.clocks import steady

logger = logging.getLogger("genmcp")

_QUIET: Final = 10.0  # seconds between two log records of a beginning

StoreFailure = StoreUnavailable | ConfigurationError


class Outages:
    """Knows whether a store fails in this process, and reports each failed operation.

    Owned by a `Store`, which records the outcome of each operation at the place where it becomes
    known, so that operations of workers, followers and heartbeats count, too. One log record is
    written when the store begins to fail, and one when it responds again.

    Args:
        store: it is named in log records.

    Attributes:
        failing: whether the store fails. Only then has the success of an operation to be recorded.
        listeners: called with each error, in any thread.
        closed: whether the store was closed: errors are expected, and no longer recorded.
    """

    def __init__(self, store: object) -> None:
        self._store = store
        self.failing = False
        self.listeners: set[Callable[[StoreFailure], object]] = set()
        self.closed = False
        self._writes_fail = False
        self._began = 0.0
        self._is_logged = False
        self._next_record = 0.0

    def record(self, error: Exception | None, *, write: bool = True) -> None:
        """Record the outcome of an operation.

        Args:
            error: a failure, if it is StoreUnavailable or ConfigurationError. Any other error, such
                as Conflict, is a response of the store, as is None.
            write: whether the operation writes. A locked database, or one whose disk is full, can
                be read: after a write has failed, the success of a read means nothing. Default
                True.
        """
        if self.closed:
            return
        if isinstance(error, StoreFailure):
            for listener in tuple(self.listeners):
                try:
                    listener(error)
                except Exception:
                    logger.exception("%r failed", listener)
            if not isinstance(error, StoreFull | OverShare):  # those are responses
                self._fail(error, write=write)
        elif self.failing and (write or not self._writes_fail):
            self.failing = self._writes_fail = False
            if self._is_logged:
                self._is_logged = False
                seconds = steady() - self._began
                logger.warning("%r is available again, after %.1f seconds", self._store, seconds)

    def _fail(self, error: StoreFailure, *, write: bool) -> None:
        now = steady()
        if not self.failing:
            self._began = now
        self.failing, self._writes_fail = True, self._writes_fail or write
        # A store that fails for some operations only would write two records for each of them.
        if not self._is_logged and now >= self._next_record:
            self._is_logged, self._next_record = True, now + _QUIET
            logger.warning("%r is unavailable: %s", self._store, error)


def redacted(url: str) -> str:
    """Return *url* without the user, password and query, which may contain secrets."""
    shown, _, query = url.partition("?")
    scheme, separator, rest = shown.partition("://")
    if not separator:  # a URL with a typing error may have a password nevertheless
        scheme, rest = "", shown
    user, _, host = rest.rpartition("@")
    if "@" in query and not user:  # the "?" may belong to a password
        host = "***"
    return f"{scheme}{separator}{'***@' if user else ''}{host}"
