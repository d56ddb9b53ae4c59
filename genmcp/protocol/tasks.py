"""Tasks: SEP-2663, the extension `io.modelcontextprotocol/tasks`."""

from collections.abc import Mapping
from typing import ClassVar, Final, Literal

import msgspec

from genmcp.protocol.params import RequestParams
from genmcp.protocol.value import Result

__all__ = [
    "PROGRESS",
    "CreateTaskResult",
    "DetailedTask",
    "TaskParams",
    "TaskStatus",
    "TaskStatusNotificationParams",
    "UpdateTaskParams",
]

TaskStatus = Literal["working", "input_required", "completed", "failed", "cancelled"]

PROGRESS: Final = "io.genmcp/progress"
"""In the `_meta` of a task: its last progress, as `progress`, and `total` if it is known.

The extension has no place for numbers ("Task Status Notifications": no progress on tasks).
"""

NO_JSON: Final = msgspec.Raw()


class TaskParams(RequestParams):
    """Which task to get, or to cancel."""

    task_id: str


class UpdateTaskParams(RequestParams):
    """Answers to what a task has asked."""

    task_id: str
    input_responses: Mapping[str, msgspec.Raw]


class _Standing(Result):
    """How a task stands, as far as every message about one tells.

    created_at, last_updated_at: ISO 8601. ttl_ms: from the creation on, None for ever.
    """

    task_id: str
    status: TaskStatus
    created_at: str
    last_updated_at: str
    ttl_ms: int | None
    poll_interval_ms: int | None = None
    status_message: str | None = None


class CreateTaskResult(_Standing):
    """The handle of a task in place of its result: "Task Creation"."""

    result_type: ClassVar[str] = "task"


class DetailedTask(_Standing):
    """How a task stands: "Task Polling".

    result, error, input_requests: JSON; each is there in one status, and empty in all others.
    """

    result: msgspec.Raw = NO_JSON
    error: msgspec.Raw = NO_JSON
    input_requests: Mapping[str, msgspec.Raw] | None = None


class TaskStatusNotificationParams(DetailedTask):
    """The same as a notification, of whose stream `_meta` tells: "Task Status Notifications"."""
