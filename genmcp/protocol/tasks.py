"""Tasks: SEP-2663, the extension `io.modelcontextprotocol/tasks`."""

from collections.abc import Mapping
from typing import ClassVar, Final, Literal

import msgspec

from genmcp.protocol.params import RequestParams
from genmcp.protocol.value import Integer, Result

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
"""The key of a task's `_meta` for its latest progress: `progress`, `total` and `message`.

Values that are not known are left out. The extension has no members for these ("Task Status
Notifications": no progress on tasks).
"""

NO_JSON: Final = msgspec.Raw()


class TaskParams(RequestParams):
    """The id of the task to get or to cancel."""

    task_id: str


class UpdateTaskParams(RequestParams):
    """Responses to the input requests of a task."""

    task_id: str
    input_responses: Mapping[str, msgspec.Raw]


class _Standing(Result):
    """The members of every message about a task.

    created_at, last_updated_at: ISO 8601. ttl_ms: milliseconds from the creation; None never
        expires.
    """

    task_id: str
    status: TaskStatus
    created_at: str
    last_updated_at: str
    ttl_ms: Integer | None
    poll_interval_ms: Integer | None = None
    status_message: str | None = None


class CreateTaskResult(_Standing):
    """The handle of a task, in place of the result of a call: "Task Creation"."""

    result_type: ClassVar[str] = "task"


class DetailedTask(_Standing):
    """The state of a task: "Task Polling".

    result, error, input_requests: JSON; each is present in one status and empty in the others.
    """

    # These members stay undecoded: they are sent from the store to the client unchanged.
    result: msgspec.Raw = NO_JSON
    error: msgspec.Raw = NO_JSON
    input_requests: Mapping[str, msgspec.Raw] | None = None


class TaskStatusNotificationParams(DetailedTask):
    """The state of a task as a notification: "Task Status Notifications"."""
