"""Tasks and their results as their clients see them (SEP-2663)."""

from datetime import UTC, datetime
from math import ceil
from typing import Any, cast

import msgspec

from genmcp.core.failures import tool_error
from genmcp.core.task import Task
from genmcp.core.waiting import Asking, Finished
from genmcp.errors import InsufficientScope, McpError, Overloaded, ToolError
from genmcp.protocol.params import SUBSCRIPTION_ID, RequestId
from genmcp.protocol.revisions.chain import LATEST
from genmcp.protocol.tasks import (
    PROGRESS,
    CreateTaskResult,
    DetailedTask,
    TaskStatusNotificationParams,
)
from genmcp.protocol.tools import CallToolResult
from genmcp.protocol.value import Result
from genmcp.tasks.outcomes import finished_with_error
from genmcp.wire.encoder import EncodedResult, Encoder
from genmcp.wire.jsonrpc import ErrorBody


def to_finished(result: Result | McpError, raised: BaseException | None = None) -> Finished:
    """Return the stored form of the *result* of a call.

    *raised*: the exception of the hook that has led to *result*, if any.
    """
    # An error that asks its client to send the call again must not be the response to that.
    frees_key = isinstance(result, Overloaded) or isinstance(raised, InsufficientScope)
    frees_key = frees_key or (isinstance(raised, ToolError) and raised.retry)
    if isinstance(result, McpError):
        return msgspec.structs.replace(finished_with_error(result), frees_key=frees_key)
    encoded = result.body if isinstance(result, EncodedResult) else msgspec.json.encode(result)
    return Finished(result=encoded, raised=raised is not None, frees_key=frees_key)


def task_result(task: Task, method: str) -> EncodedResult:
    """Return the result of a *task* that has ended; *method* is that of its request.

    Raises:
        McpError: it ended with an error, or was cancelled.
    """
    if task.error is not None:
        error = msgspec.json.decode(task.error, type=ErrorBody)
        raise McpError(error.message, error.data, code=error.code)
    if task.result is None:
        raise McpError("The call was cancelled")
    kind = cast(type[Result], LATEST.methods[method].result)
    return EncodedResult(kind=kind, body=task.result)


def create_task_result(task: Task, now: float) -> CreateTaskResult:
    """Return the handle of a task as of *now* (`Store.now`), the response to its call."""
    return CreateTaskResult(**task_fields(task, now))


def still_running_result(reason: str, id: str, *, tool: str | None) -> CallToolResult:
    """Return the response to a client without tasks, whose call continues as the task *id*.

    *tool* is the name of the tool that returns the result, if the server offers one.
    """
    text = f"{reason}. It continues as call {id}"
    return tool_error(text + (f"; the tool {tool} returns its result." if tool else "."))


def task_fields(task: Task, now: float) -> dict[str, Any]:
    """Return the members of a *task* that clients see in every status, as of *now*."""
    kept = advertised_ttl(task, now)
    return {
        "task_id": task.id,
        "status": task.status,
        "created_at": _at(task.created),
        "last_updated_at": _at(task.updated),
        "ttl_ms": None if kept is None else ceil(kept * 1000),
        "poll_interval_ms": ceil(task.poll * 1000),
        # The latest message of the work describes neither a question nor a result.
        "status_message": task.message if task.status == "working" else None,
    }


def detailed_task(task: Task, encoder: Encoder, now: float) -> DetailedTask:
    """Return the state of *task* as of *now* (`Store.now`), for its client."""
    return DetailedTask(**_members(task, encoder, now))


def task_status_notification(
    task: Task, encoder: Encoder, subscription: RequestId, now: float
) -> TaskStatusNotificationParams:
    """Return the state of *task* as a notification on the stream of *subscription*."""
    members = _members(task, encoder, now)
    members["meta"] = {**(members.get("meta") or {}), SUBSCRIPTION_ID: subscription}
    return TaskStatusNotificationParams(**members)


def _members(task: Task, encoder: Encoder, now: float) -> dict[str, Any]:
    members = task_fields(task, now)
    if task.progress is not None:
        # With its message, which `status_message` of a task that has ended does not contain.
        latest = {"progress": task.progress, "total": task.total, "message": task.message}
        members["meta"] = {PROGRESS: {k: v for k, v in latest.items() if v is not None}}
    if task.error is not None:
        # "Task Execution Errors": the error replaces the latest message of the work.
        members["status_message"] = msgspec.json.decode(task.error, type=ErrorBody).message
        members["error"] = msgspec.Raw(task.error)
    elif task.result is not None:
        result = task_result(task, "tools/call")
        members["result"] = msgspec.Raw(encoder.result(LATEST, result))
    elif isinstance(task.work, Asking) and task.status == "input_required":
        asked = task.work.missing.items()
        members["input_requests"] = {name: msgspec.Raw(each) for name, each in asked}
    return members


def advertised_ttl(task: Task, now: float) -> float | None:
    """Return the `ttl` that clients see: seconds from the creation of *task*; None: never expires.

    A task that waits for its client, or has ended, expires `Task.ttl` after its last change. A task
    that works may end at any moment, and expires `Task.ttl` after that. For such a task the value
    is counted from *now*, in whole seconds, so that two polls in one second give the same value.
    """
    if task.ttl is None:
        return None
    passed = task.updated - task.created
    if task.status == "working":
        passed = float(int(max(passed, now - task.created)))
    return task.ttl + passed


def progress_text(task: Task) -> str:
    """Return the state of a *task* that has not ended, in words."""
    if task.status == "input_required":
        return "it waits for answers"
    if task.progress is None:
        done = "it is running"
    else:
        total = "" if task.total is None else f" of {task.total:g}"
        done = f"{task.progress:g}{total} done"
    return done if task.message is None else f"{done} ({task.message})"


def _at(seconds: float) -> str:
    """Return Unix time as ISO 8601."""
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
