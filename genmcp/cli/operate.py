"""`genmcp jobs` and `genmcp store`: the tasks in the store of a deployment, and that store."""

import asyncio
import os
import secrets
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import click
import msgspec

from genmcp.cli.output import CommandError, OutputWriter, duration, one_line, private_output
from genmcp.cli.parsing import COUNT, TASK_ID, Group, TaskCommand, example, options_as
from genmcp.cli.target import load_mux
from genmcp.core.outcome import Outcome
from genmcp.core.task import Task
from genmcp.core.waiting import Finished
from genmcp.errors import ConfigurationError, ContractError, StoreError, TaskNotFound
from genmcp.stores import open_store
from genmcp.stores.accounts import EVERYTHING, room_for
from genmcp.stores.store import Delete, Put, Store, StoreTotals
from genmcp.tasks.heartbeats import ProcessName
from genmcp.tasks.inspection import (
    OPEN,
    STATES,
    QueueSummary,
    TaskInspector,
    TaskSummary,
    services_of,
)
from genmcp.tasks.service import TaskService

_VARIABLE: Final = "GENMCP_STORE"
STORE_HELP: Final = f"The store is that of --store, of --app, or of the variable {_VARIABLE}."
"""For the help of a command."""


class Deployment(NamedTuple):
    """A store and the services in it. Owned by the command that has opened it."""

    store: Store
    services: Sequence[TaskInspector]

    async def find(self, id: str) -> tuple[TaskInspector, Task]:
        """Return the task *id*, and the service that has it.

        Raises:
            TaskNotFound: none of the services has it.
        """
        for service in self.services:
            try:
                return service, await service.get(id)
            except TaskNotFound:
                continue
        raise TaskNotFound(id)


class DeploymentOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options that select a store and services, and the form of the output."""

    store: str | None = None
    app: str | None = None
    service: str | None = None
    json: bool = False


deployment_options: Final = options_as(
    DeploymentOptions,
    click.option("--store", metavar="URL", help=f"the URL of the store (default: {_VARIABLE})"),
    click.option("--app", help="server.py or module:attribute, whose store is used"),
    click.option("--service", metavar="NAME", help="a service in the store (default: all)"),
    click.option("--json", is_flag=True, help="write JSON"),
)
"""Adds `DeploymentOptions` to a command."""


def run_on_deployment(
    options: DeploymentOptions,
    command: Callable[[Deployment, OutputWriter], Awaitable[int | None]],
    *,
    with_services: bool = True,
    creates: bool = False,
) -> int:
    """Run *command* on the deployment that *options* select; return the exit status.

    *with_services*: whether the command needs the services, which are read from the store.
    *creates*: whether the command creates a store that does not exist.
    """

    async def run(output: OutputWriter) -> int:
        async with _open(options, with_services=with_services, creates=creates) as deployment:
            return await command(deployment, output) or 0

    with private_output() as output:
        try:
            return asyncio.run(run(output))
        except TaskNotFound as error:
            hint = "it has expired, or belongs to another store or --service"
            raise CommandError(f"{error} ({hint})") from error
        except (StoreError, ContractError) as error:
            raise CommandError(str(error)) from error


@asynccontextmanager
async def _open(
    options: DeploymentOptions, *, with_services: bool, creates: bool
) -> AsyncGenerator[Deployment, None]:
    """Open a deployment, and close it afterwards.

    Raises:
        ConfigurationError: no store is named, it does not exist, or it is not shared with other
            processes.
    """
    if options.app is not None:
        if options.store or options.service:
            raise ConfigurationError("--app cannot be combined with --store or --service")
        mux = load_mux(options.app)
        _check_shared(mux.store)
        try:
            inspector = TaskInspector(mux.tasks.service, mux.continuations.cancel)
            yield Deployment(mux.store, [inspector])
        finally:
            await mux.aclose()
        return
    url = options.store or os.environ.get(_VARIABLE)
    if not url:
        raise ConfigurationError(
            f"no store: give --store URL or --app module:attribute, or set {_VARIABLE}"
        )
    if not creates:
        _check_exists(url)
    async with AsyncExitStack() as stack:
        store = open_store(url)
        stack.push_async_callback(store.aclose)
        _check_shared(store)
        services: Sequence[TaskInspector] = ()
        if with_services:
            names = [options.service] if options.service else await services_of(store)
            services = [_inspector(store, name) for name in names]
        yield Deployment(store, services)


def _check_exists(url: str) -> None:
    """Reject the URL of a SQLite file that does not exist: opening the store would create it."""
    scheme, _, path = url.partition(":///")
    if scheme == "sqlite" and path and not Path(path).exists():
        raise ConfigurationError(
            f"there is no store {str(Path(path).absolute())!r}: check the URL; "
            f"genmcp store migrate creates one"
        )


def _check_shared(store: Store) -> None:
    if not store.shared:
        raise ConfigurationError(
            f"{store!r} is not shared, so that it has no data of other processes"
        )


def _inspector(store: Store, name: str) -> TaskInspector:
    service = TaskService(
        store,
        process_name=ProcessName("operator-"),
        resume=_resume,
        namespace=name,
    )
    return TaskInspector(service)


async def _resume(task: Task, call: bytes, outcome: Outcome) -> Finished:
    raise NotImplementedError("a command runs no steps")


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


_ROUND_TRIPS: Final = 10
_CHECK_TTL: Final = 60.0  # seconds, if the check itself is killed
_MAX_OFFSET: Final = 5.0  # seconds between two clocks that harm nothing
_TOP_OWNERS: Final = 10
_QUEUE_HEADINGS: Final = ("QUEUE", "SERVED", "WAITING", "HELD", "OLDEST")


@click.group("store", cls=Group)
def store() -> None:
    """Show statistics of a store, check it, and migrate its schema."""


class ServiceStats(msgspec.Struct, frozen=True):
    """The statistics of one service in a store."""

    service: str
    processes: int
    tasks: dict[str, int]
    queues: list[QueueSummary]
    owners: dict[str, int]


@store.command("stats", epilog=example("store stats --store sqlite:///jobs.db", about=STORE_HELP))
@deployment_options
def show_stats(options: DeploymentOptions) -> int:
    """Show how full the store is, and the queues and tasks of its services."""

    async def run(deployment: Deployment, output: OutputWriter) -> None:
        totals = await deployment.store.totals()
        services = [await _stats(service) for service in deployment.services]
        if options.json:
            output.write_json({"totals": _totals_json(totals), "services": services})
            return
        output.write_line(f"store: {deployment.store!r}")
        output.write_line(f"used: {'unknown' if totals is None else _used(totals)}")
        for service in services:
            output.write_line("")
            for line in _service_lines(service):
                output.write_line(line)
            output.write_table(_QUEUE_HEADINGS, [_queue_row(queue) for queue in service.queues])

    return run_on_deployment(options, run)


@store.command("check", epilog=example("store check --store $URL", about=STORE_HELP))
@deployment_options
def check_store(options: DeploymentOptions) -> int:
    """Write to the store, read from it, and report problems. The status is 1 if there are any."""

    async def run(deployment: Deployment, output: OutputWriter) -> int:
        store = deployment.store
        write, read = await _round_trips(store)
        offset = store.now() - time.time()
        totals = await store.totals()
        problems = [*await store.problems(), *_problems(store, offset, totals)]
        if options.json:
            times = {"write_seconds": write, "read_seconds": read, "clock_offset_seconds": offset}
            state = {"durable": store.durable, "totals": _totals_json(totals)}
            output.write_json({**state, **times, "problems": problems})
            return int(bool(problems))
        output.write_line(f"store: {store!r}")
        output.write_line(f"write: {write * 1000:.1f} ms, read: {read * 1000:.1f} ms (median)")
        output.write_line(f"clock: {offset:+.3f} seconds from this machine")
        output.write_line(f"used: {'unknown' if totals is None else _used(totals)}")
        output.write_line(f"durable: {'yes' if store.durable else 'no'}")
        for problem in problems:
            output.write_line(f"problem: {problem}")
        return int(bool(problems))

    return run_on_deployment(options, run, with_services=False)


@store.command("migrate", epilog=example("store migrate --store $URL --dry-run", about=STORE_HELP))
@deployment_options
@click.option("--dry-run", is_flag=True, help="show what would be done, and change nothing")
def migrate_store(options: DeploymentOptions, dry_run: bool) -> int:
    """Create or update the schema of a store such as PostgreSQL."""

    async def run(deployment: Deployment, output: OutputWriter) -> None:
        store = deployment.store
        statements = await store.migrate(dry_run=dry_run)
        if statements and not dry_run:
            statements = f"migrated {store!r}"
        output.write_line(statements or "there is nothing to migrate")

    return run_on_deployment(options, run, with_services=False, creates=not dry_run)


async def _stats(service: TaskInspector) -> ServiceStats:
    owners = await service.owners()
    return ServiceStats(
        service.name,
        len(await service.processes()),
        dict(await service.counts()),
        await service.queues(),
        dict(owners.most_common(_TOP_OWNERS)),
    )


def _service_lines(stats: ServiceStats) -> Iterator[str]:
    yield f"service: {stats.service} ({stats.processes} processes)"
    counts = [f"{count} {state}" for state, count in stats.tasks.items() if count]
    yield f"tasks: {', '.join(counts) or 'none'}"
    if stats.owners:
        owners = [f"{name or 'anonymous'} {count}" for name, count in stats.owners.items()]
        yield f"open tasks by owner: {', '.join(owners)}"


def _queue_row(queue: QueueSummary) -> list[str]:
    backlog, served = queue.backlog, {True: "yes", False: "no", None: ""}[queue.served]
    oldest = duration(backlog.age) if backlog.age else ""
    return [queue.name, served, str(backlog.waiting), str(backlog.held), oldest]


def _used(totals: StoreTotals) -> str:
    used, capacity = totals
    share = used.size / capacity.size
    return (
        f"{used.entries} entries of {capacity.most_entries}, "
        f"{used.size} bytes of {capacity.size} ({share:.1%})"
    )


def _totals_json(totals: StoreTotals | None) -> dict[str, Any] | None:
    if totals is None:
        return None
    used, capacity = totals
    return {
        "entries": used.entries,
        "bytes": used.size,
        "max_entries": capacity.most_entries,
        "max_bytes": capacity.size,
    }


async def _round_trips(store: Store) -> tuple[float, float]:
    """Return the median seconds of a write and of a read of a record that is deleted afterwards."""
    key, writes, reads = f"genmcp:check:{secrets.token_hex(8)}", [], []
    for _ in range(_ROUND_TRIPS):
        start = time.perf_counter()
        await store.apply(Put(key, b"check", ttl=_CHECK_TTL))
        writes.append(time.perf_counter() - start)
        start = time.perf_counter()
        await store.get(key)
        reads.append(time.perf_counter() - start)
    await store.apply(Delete(key))
    return median(writes), median(reads)


def _problems(store: Store, offset: float, totals: StoreTotals | None) -> Iterator[str]:
    """Yield the problems that any store may have."""
    if not store.durable:
        yield "the store is not durable: tasks and sessions are lost when its server restarts"
    if abs(offset) > _MAX_OFFSET:
        yield (
            f"the clock of the store is {offset:+.1f} seconds from that of this machine: times in "
            f"logs and task records differ; synchronize the clocks (NTP)"
        )
    if totals is None:
        return
    used, capacity = totals
    (limit,) = room_for(capacity, (EVERYTHING,), new=True).limits
    if used.size > limit.size or used.entries > limit.entries:
        yield (
            f"only the reserve of the store is left ({_used(totals)}): new work is rejected; "
            f"raise max_bytes or max_entries, or shorten Tool.result_ttl"
        )
