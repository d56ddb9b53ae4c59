"""`genmcp jobs`: lists the tasks in the store of a deployment; retries, cancels and drops them."""

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, Final

import click
import msgspec

from genmcp.cli.deployment import (
    STORE_HELP,
    Deployment,
    DeploymentOptions,
    deployment_options,
    run_on_deployment,
)
from genmcp.cli.output import OutputWriter, duration, one_line
from genmcp.cli.parsing import COUNT, TASK_ID, Group, TaskCommand, example
from genmcp.tasks.inspection import OPEN, STATES, TaskSummary

_HEADINGS: Final = ("ID", "STATE", "TOOL", "QUEUE", "OWNER", "AGE", "DETAILS")
_MESSAGES: Final = 20  # shown by `genmcp jobs show`

_ids: Final = click.argument("ids", nargs=-1, required=True, type=TASK_ID, metavar="IDS...")


@click.group("jobs", cls=Group)
def jobs() -> None:
    """List, show, retry, cancel and drop tasks in the store of a deployment."""


@jobs.command(
    "list", epilog=example("jobs list --state failed --store sqlite:///jobs.db", about=STORE_HELP)
)
@deployment_options
@click.option(
    "--state",
    "given_states",
    multiple=True,
    type=click.Choice(STATES),
    help="a state to list; repeatable",
)
@click.option("--queue", metavar="NAME", help="list the open tasks of a queue")
@click.option("--owner", metavar="NAME", help="list the tasks of a principal")
@click.option("--limit", type=COUNT, default=100, help="the most tasks to list (100)")
def list_jobs(
    options: DeploymentOptions,
    given_states: Sequence[str],
    queue: str | None,
    owner: str | None,
    limit: int,
) -> int:
    """List tasks, sorted by their age; by default those that have not ended.

    If there are more than the limit, they are not the oldest ones.
    """
    # The store has no index by age, and ended tasks may be many.
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


@jobs.command("show", cls=TaskCommand, epilog=example("jobs show 3fTq0cL8", about=STORE_HELP))
@deployment_options
@click.argument("id", type=TASK_ID)
def show_job(options: DeploymentOptions, id: str) -> int:
    """Show what is known of the task ID, and its last messages."""

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


@jobs.command(
    "cancel",
    cls=TaskCommand,
    epilog=example("jobs cancel 3fTq0cL8 Wb21xPzA", about=STORE_HELP),
)
@deployment_options
@_ids
def cancel_jobs(options: DeploymentOptions, ids: Sequence[str]) -> int:
    """Cancel the tasks IDS that have not ended. The status is 1 if one of them had ended before."""

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


@jobs.command("retry", cls=TaskCommand, epilog=example("jobs retry 3fTq0cL8", about=STORE_HELP))
@deployment_options
@_ids
def retry_jobs(options: DeploymentOptions, ids: Sequence[str]) -> int:
    """Repeat the jobs of the failed tasks IDS, as new tasks."""

    async def run(deployment: Deployment, output: OutputWriter) -> None:
        for id in ids:
            service, _ = await deployment.find(id)
            output.write_line(f"{id}: retried as {(await service.retry(id)).id}")

    return run_on_deployment(options, run)


@jobs.command("drop", cls=TaskCommand, epilog=example("jobs drop 3fTq0cL8", about=STORE_HELP))
@deployment_options
@_ids
def drop_jobs(options: DeploymentOptions, ids: Sequence[str]) -> int:
    """Delete the records of the tasks IDS, which have ended."""

    async def run(deployment: Deployment, output: OutputWriter) -> None:
        for id in ids:
            service, _ = await deployment.find(id)
            await service.drop(id)
            output.write_line(f"{id}: dropped")

    return run_on_deployment(options, run)


def _row(task: TaskSummary, now: float) -> list[str]:
    place = [task.tool, task.queue or "", task.owner or ""]
    return [task.id, task.state, *place, duration(now - task.created), _details(task, now)]


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
