"""`genmcp jobs`: lists the tasks in the store of a deployment; retries, cancels and drops them."""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import click
import msgspec

from genmcp.cli.deployment import (
    Deployment,
    DeploymentOptions,
    deployment_options,
    run_on_deployment,
)
from genmcp.cli.output import OutputWriter, duration, one_line
from genmcp.cli.parsing import COUNT, ID, argument, command, group, option
from genmcp.tasks.inspection import OPEN, STATES, TaskSummary

_HEADINGS: Final = ("ID", "STATE", "TOOL", "QUEUE", "OWNER", "AGE", "DETAILS")
_MESSAGES: Final = 20  # shown by `genmcp jobs show`

jobs: Final = group("jobs", "list, show, retry, cancel and drop tasks in a store")
"""The commands for operators of a store."""

_ids: Final = argument("ids", "the ids of tasks", nargs=-1, required=True, type=ID, metavar="ID...")


@command("list", "list tasks, by default open ones")
@deployment_options
@option(
    "--state",
    "given_states",
    multiple=True,
    type=click.Choice(STATES),
    help="a state to list; repeatable",
)
@option("--queue", metavar="NAME", help="list the open tasks of a queue")
@option("--owner", metavar="NAME", help="list the tasks of a principal")
@option("--limit", type=COUNT, default=100, metavar="N", help="the maximum number of tasks (100)")
def list_jobs(
    options: DeploymentOptions,
    given_states: Sequence[str],
    queue: str | None,
    owner: str | None,
    limit: int,
) -> int:
    """List tasks, sorted by their age; by default those that have not ended.

    If there are more than the limit, they are not the oldest ones: the store has no such index, and
    ended tasks may be many.
    """
    states = given_states or (STATES if owner else OPEN)

    async def run(deployment: Deployment, output: OutputWriter) -> None:
        found: list[TaskSummary] = []
        for service in deployment.services:
            async for task in service.tasks(states, queue=queue, owner=owner):
                if len(found) > limit:
                    break
                found.append(TaskSummary.of(task, service.name))
        more, found = len(found) > limit, found[:limit]
        found.sort(key=lambda task: task.created)
        if options.json:
            output.write_json(found)
            return
        if not found:
            names = ", ".join(service.name for service in deployment.services) or "none"
            sys.stderr.write(f"no tasks found; services: {names}\n")
        now = deployment.store.now()
        output.write_table(_HEADINGS, [_row(task, now) for task in found])
        if more:
            output.write_line(f"(more than {limit} tasks; --limit N shows more)")

    return run_on_deployment(options, run)


@command("show", "show a task and its messages")
@deployment_options
@argument("id", "the id of the task", type=ID)
def show_job(options: DeploymentOptions, id: str) -> int:
    """Show everything that is known of a task, and its last messages."""

    async def run(deployment: Deployment, output: OutputWriter) -> None:
        service, task = await deployment.find(id)
        messages = await service.messages(task.id, _MESSAGES)
        job = task.job if task.failed is None else task.failed.job
        fields: dict[str, Any] = {
            **msgspec.to_builtins(TaskSummary.of(task, service.name)),
            **({} if job is None else {"arguments": job.arguments}),
            **({} if task.result is None else {"result": msgspec.Raw(task.result)}),
            **({} if task.error is None else {"error": msgspec.Raw(task.error)}),
        }
        if options.json:
            output.write_json({**fields, "messages": [msgspec.Raw(each) for each in messages]})
            return
        width = max(map(len, fields))
        for name, value in fields.items():
            output.write_line(f"{name:{width}}  {_text(name, value)}")
        for message in messages:
            output.write_line(f"{'message':{width}}  {one_line(message.decode(errors='replace'))}")

    return run_on_deployment(options, run)


@command("cancel", "cancel tasks that have not ended")
@deployment_options
@_ids
def cancel_jobs(options: DeploymentOptions, ids: Sequence[str]) -> int:
    """Cancel tasks. The exit status is 1 if one of them had ended before."""

    async def run(deployment: Deployment, output: OutputWriter) -> int:
        status = 0
        for id in ids:
            service, before = await deployment.find(id)
            after = await service.cancel(id)
            ended = before.ended or after.end != "cancelled"
            output.write_line(f"{id}: {after.status}" + (" before" if ended else ""))
            status = status or int(ended)
        return status

    return run_on_deployment(options, run)


@command("retry", "repeat the jobs of failed tasks, as new tasks")
@deployment_options
@_ids
def retry_jobs(options: DeploymentOptions, ids: Sequence[str]) -> int:
    """Repeat the jobs of failed tasks, as new tasks."""

    async def run(deployment: Deployment, output: OutputWriter) -> None:
        for id in ids:
            service, _ = await deployment.find(id)
            output.write_line(f"{id}: retried as {(await service.retry(id)).id}")

    return run_on_deployment(options, run)


@command("drop", "delete the records of tasks that have ended")
@deployment_options
@_ids
def drop_jobs(options: DeploymentOptions, ids: Sequence[str]) -> int:
    """Delete the records of tasks that have ended."""

    async def run(deployment: Deployment, output: OutputWriter) -> None:
        for id in ids:
            service, _ = await deployment.find(id)
            await service.drop(id)
            output.write_line(f"{id}: dropped")

    return run_on_deployment(options, run)


for _each in (list_jobs, show_job, retry_jobs, cancel_jobs, drop_jobs):
    jobs.add_command(_each)


def _row(task: TaskSummary, now: float) -> list[str]:
    age = duration(now - task.created)
    return [
        task.id,
        task.state,
        task.tool,
        task.queue or "",
        task.owner or "",
        age,
        _details(task, now),
    ]


def _details(task: TaskSummary, now: float) -> str:
    if task.reason is not None:
        return task.reason
    parts = []
    if task.due is not None and task.due > now:
        parts.append(f"due in {duration(task.due - now)}")
    if task.attempt > 1:
        parts.append(f"attempt {task.attempt}")
    if task.crashes:
        parts.append(f"{task.crashes} crashes")
    if task.progress is not None:
        total = "" if task.total is None else f"/{task.total:g}"
        parts.append(f"{task.progress:g}{total}")
    if task.message:
        parts.append(task.message)
    return ", ".join(parts)


def _text(name: str, value: Any) -> str:
    if name in ("created", "updated", "due"):
        return datetime.fromtimestamp(value, UTC).isoformat(timespec="milliseconds")
    if isinstance(value, str):
        return one_line(value)
    return one_line(msgspec.json.encode(value).decode())
