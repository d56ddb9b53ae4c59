"""The tools of the official suite whose calls are tasks."""

import asyncio
from typing import Any

import msgspec

from genmcp import (
    Channel,
    Continue,
    Failed,
    McpError,
    Outcome,
    Run,
    Tool,
    ToolError,
    ToolRequest,
    WorkRaised,
    elicit,
    job,
    tool,
)
from tests.conformance.questions import Name, filled, given

__all__ = ["TASKS"]


class Computation(msgspec.Struct):
    """The duration and the name of a computation."""

    seconds: float
    label: str = ""


class File(msgspec.Struct):
    """The item to delete."""

    filename: str


class Confirmation(msgspec.Struct):
    """Whether the user is sure."""

    confirm: bool


@job
async def compute(run: Run, seconds: float, label: str) -> str:
    """Takes its time."""
    await asyncio.sleep(seconds)
    return f"Computed {label} in {seconds:g} s."


@job
async def fail(run: Run) -> None:
    """Fails, a while later."""
    await asyncio.sleep(1)
    raise ToolError("The job failed.")


@job
async def greeting(run: Run, name: str) -> str:
    """Greets."""
    return f"Hello, {name}!"


@tool
async def greet(name: str) -> str:
    """Greets at once."""
    return f"Hello, {name}!"


class SlowCompute(Tool[Computation]):
    """Computes for the given time."""

    name = "slow_compute"

    async def call(self, request: ToolRequest[Computation], channel: Channel) -> Continue:
        arguments = request.arguments
        return Continue("computed", compute.job(arguments.seconds, arguments.label))

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> Any:
        return given(outcome)


class FailingJob(Tool):
    """Fails, for clients that can wait for it."""

    name = "failing_job"
    requires_tasks = True

    async def call(self, request: ToolRequest, channel: Channel) -> Continue:
        return Continue("failed", fail.job())

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> Any:
        match outcome:
            case Failed(WorkRaised(message=str(message))):
                raise ToolError(message)
            case _:
                return given(outcome)


class ProtocolErrorJob(Tool):
    """Ends with an error of the protocol."""

    name = "protocol_error_job"
    task = "always"

    async def call(self, request: ToolRequest, channel: Channel) -> Any:
        raise McpError("The call cannot be answered.")


class ConfirmDelete(Tool[File]):
    """Asks the user before it deletes (nothing)."""

    name = "confirm_delete"
    task = "always"

    async def call(self, request: ToolRequest[File], channel: Channel) -> Continue:
        return Continue("sure", elicit(f"Delete {request.arguments.filename}?", Confirmation))

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> str:
        name = channel.request.arguments.filename
        return f"Deleted {name}." if filled(given(outcome)).confirm else f"Kept {name}."


class MultiInput(Tool):
    """Asks two things at once."""

    name = "multi_input"
    task = "always"

    async def call(self, request: ToolRequest, channel: Channel) -> Continue:
        questions = {
            "name": elicit("What is your name?", Name),
            "sure": elicit("Are you sure?", Confirmation),
        }
        return Continue("asked", questions)

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> str:
        answers = given(outcome)
        return f"{filled(answers['name']).name} is sure: {filled(answers['sure']).confirm}"


class ToolWithTask(Tool):
    """Asks who the user is, and takes its time to greet them."""

    name = "test_tool_with_task"
    requires_tasks = True

    async def call(self, request: ToolRequest, channel: Channel) -> Continue:
        return Continue("user_name", elicit("What is your name?", Name))

    async def continue_(self, tag: str, outcome: Outcome, channel: Channel) -> Any:
        if tag == "user_name":
            return Continue("greeted", greeting.job(filled(given(outcome)).name))
        return given(outcome)


TASKS: list[Any] = [
    greet,
    SlowCompute,
    FailingJob,
    ProtocolErrorJob,
    ConfirmDelete,
    MultiInput,
    ToolWithTask,
]
