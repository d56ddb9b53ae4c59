"""Telemetry that writes one log record per request, and log records in unconfigured processes."""

import logging
import time
from typing import Any, Final

from genmcp._mux.telemetry import Rejection, RequestFailure, Resumed, Telemetry
from genmcp.channel import Channel
from genmcp.core.request import Request
from genmcp.fallback_log import FALLBACK, is_handled
from genmcp.protocol.value import Result
from genmcp.wire.jsonrpc import printable

__all__ = ["LoggingTelemetry"]

_LEVELS: Final = {
    "ended": logging.INFO,
    "resumed": logging.INFO,
    "rejected": logging.INFO,
    "cancelled": logging.INFO,
    "tool_error": logging.WARNING,
    "error": logging.WARNING,
}


class LoggingTelemetry(Telemetry):
    """Writes one log record per request to a logger.

    A call that is resumed without a request has one record per resumption. If the process has not
    configured logging by the first record, as under plain uvicorn, records are written to standard
    error.

    Each record has these attributes, for formatters that write JSON: `mcp_method`; `mcp_name`, the
    requested tool, prompt or URI; `mcp_session`, the key of the legacy session; `mcp_revision`;
    `mcp_duration`, in seconds; `mcp_outcome`, which is "ended", "resumed", "error", "tool_error",
    "cancelled" or "rejected"; `mcp_code`, the code of an error; and `mcp_principal`, which is True
    if there is a principal, but does not contain its identity. Absent values are `None`.

    Arguments, results and error messages are not logged.

    Args:
        logger: the logger to write to. Default: `genmcp.requests`.
    """

    def __init__(self, logger: logging.Logger | None = None) -> None:
        self._logger = logger or logging.getLogger("genmcp.requests")
        self._is_first = True

    def request_began(self, request: Request, channel: Channel) -> tuple[float, bool]:
        """Return the start time, and whether there is a principal."""
        return time.perf_counter(), channel.access is not None

    def request_ended(self, request: Request, result: Result, mark: tuple[float, bool]) -> None:
        """Log the end of *request*."""
        self._write_request(request, "ended", None, *mark)

    def request_failed(
        self, request: Request, failure: RequestFailure, mark: tuple[float, bool]
    ) -> None:
        """Log the failure of *request*."""
        self._write_request(request, failure.kind, failure.code, *mark)

    def request_resumed(self, resumed: Resumed) -> None:
        """Log one step of a call that was resumed."""
        failure = resumed.failure
        outcome, code = ("resumed", None) if failure is None else (failure.kind, failure.code)
        began = time.perf_counter() - resumed.seconds
        self._write_request(resumed.request, outcome, code, began, resumed.principal is not None)

    def request_rejected(self, rejection: Rejection) -> None:
        """Log a message that was rejected before it became a request."""
        self._write(
            "rejected",
            mcp_method=rejection.method,
            mcp_name=None,
            mcp_session=rejection.session,
            mcp_revision=None,
            mcp_duration=None,
            mcp_code=rejection.error.code,
            mcp_principal=rejection.principal is not None,
        )

    def _write_request(
        self, request: Request, outcome: str, code: int | None, began: float, has_principal: bool
    ) -> None:
        params = request.params
        self._write(
            outcome,
            mcp_method=request.method,
            mcp_name=getattr(params, "name", None) or getattr(params, "uri", None),
            mcp_session=request.session,
            mcp_revision=request.revision.version,
            mcp_duration=time.perf_counter() - began,
            mcp_code=code,
            mcp_principal=has_principal,
        )

    def _write(self, outcome: str, **attributes: Any) -> None:
        # Done at the first record, not in the constructor: an application may configure logging
        # after it has built the mux.
        if self._is_first:
            self._is_first = False
            _make_visible(self._logger)
        level = _LEVELS[outcome]
        if not self._logger.isEnabledFor(level):
            return
        method, name = attributes["mcp_method"], attributes["mcp_name"]
        duration, code = attributes["mcp_duration"], attributes["mcp_code"]
        # Names come from the client: unprintable characters could forge a record.
        parts = [printable(method or "a message")]
        if name is not None:
            parts.append(printable(name))
        parts.append(outcome if code is None else f"{outcome} {code}")
        if duration is not None:
            parts.append(f"{duration * 1000:.1f} ms")
        extra = {"mcp_outcome": outcome, **attributes}
        self._logger.log(level, "%s", " ".join(parts), extra=extra)


def _make_visible(logger: logging.Logger) -> None:
    """Write the records of *logger* to standard error if they would be dropped.

    uvicorn configures its own loggers only, so that INFO records would be lost.
    """
    if not is_handled(logger):
        if not logger.hasHandlers():
            logger.addHandler(FALLBACK)
        if logger.level == logging.NOTSET:
            logger.setLevel(logging.INFO)
