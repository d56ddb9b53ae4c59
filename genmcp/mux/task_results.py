"""Tasks as their clients see them: handles, states and results."""

from datetime import UTC, datetime
from math import ceil
from typing import Any, cast

import msgspec

from genmcp.core.failures import tool_error
from genmcp.core.task import Task, promised
from genmcp.core.waiting import Finished
from genmcp.errors import McpError
from genmcp.protocol.revisions.chain import LATEST
from genmcp.protocol.tasks import CreateTaskResult
from genmcp.protocol.tools import CallToolResult
from genmcp.protocol.value import Result
from genmcp.tasks.attempt import error_end
from genmcp.wire.jsonrpc import ErrorBody

__all__ = ["finished", "handle_of", "held_over", "result_of", "shown", "state_of"]


def finished(result: Result | McpError, *, raised: bool = False) -> Finished:
    """Return the stored form of the *result* of a call; *raised*: its hook has raised that."""
    if isinstance(result, McpError):
        return error_end(result)
    return Finished(result=msgspec.json.encode(result), raised=raised)


def result_of(task: Task, method: str) -> Result:
    """Return the result of a *task* that is over; *method* is what was called.

    Raises:
        McpError: it has none but an error, or was cancelled.
    """
    if task.error is not None:
        error = msgspec.json.decode(task.error, type=ErrorBody)
        raise McpError(error.message, error.data, code=error.code)
    if task.result is None:
        raise McpError("The call was cancelled")
    result: Any = msgspec.json.decode(task.result, type=LATEST.methods[method].result)
    return cast(Result, result)


def handle_of(task: Task, now: float) -> CreateTaskResult:
    """Return the response to a call that is a task: the handle, as of *now* (`Store.now`)."""
    return CreateTaskResult(**shown(task, now))


def held_over(task: Task, *, tool: str | None) -> CallToolResult:
    """Return what a client that does not gets, once it has waited as long as it may.

    *tool* is the name of the one that gives the result, if there is one.
    """
    goes_on = f"This takes longer than a call is held. It goes on, as call {task.id}"
    return tool_error(goes_on + (f"; the tool {tool} gets its result." if tool else "."))


def shown(task: Task, now: float) -> dict[str, Any]:
    """Return the members that a client sees of a *task* in every status, as of *now*."""
    kept = promised(task, now)
    return {
        "task_id": task.id,
        "status": task.status,
        "created_at": _at(task.created),
        "last_updated_at": _at(task.updated),
        "ttl_ms": None if kept is None else ceil(kept * 1000),
        "poll_interval_ms": ceil(task.poll * 1000),
        # What the work said last is neither what is asked nor what came of it.
        "status_message": task.message if task.status == "working" else None,
    }


def state_of(task: Task) -> str:
    """Return the state of a *task* that is not over, in words."""
    if task.status == "input_required":
        return "it waits for answers"
    if task.progress is None:
        done = "it is being worked on"
    else:
        total = "" if task.total is None else f" of {task.total:g}"
        done = f"{task.progress:g}{total} done"
    return done if task.message is None else f"{done} ({task.message})"


def _at(seconds: float) -> str:
    """Return Unix time as ISO 8601."""
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return text.replace("+00:00", "Z")
