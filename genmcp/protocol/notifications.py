"""What is told without being asked, apart from what has a module of its own."""

from typing import Any

from genmcp.protocol.meta import ProgressToken, RequestId
from genmcp.protocol.params import NotificationParams
from genmcp.protocol.severity import LoggingLevel

__all__ = [
    "CancelledNotificationParams",
    "LoggingMessageNotificationParams",
    "ProgressNotificationParams",
]


class ProgressNotificationParams(NotificationParams):
    """How far a request has come: 2026-07-28, basic/patterns, "Progress".

    *progress* grows with every notification, even where *total* is not known.
    """

    progress_token: ProgressToken
    progress: int | float
    total: int | float | None = None
    message: str | None = None


class CancelledNotificationParams(NotificationParams):
    """A request is not wanted any more: 2026-07-28, basic/patterns, "Cancellation"."""

    request_id: RequestId
    reason: str | None = None


class LoggingMessageNotificationParams(NotificationParams):
    """A log message: 2026-07-28, server/utilities, "Logging". *data* is any JSON value."""

    level: LoggingLevel
    data: Any
    logger: str | None = None
