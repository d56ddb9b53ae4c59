"""`genmcp store`: statistics of a store, and checks whether it is fit for use."""

import secrets
import time
from collections.abc import Iterator
from statistics import median
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
from genmcp.cli.output import OutputWriter, duration
from genmcp.cli.parsing import Group, example
from genmcp.stores.accounts import EVERYTHING, room_for
from genmcp.stores.store import Delete, Put, Store, StoreTotals
from genmcp.tasks.inspection import QueueSummary, TaskInspector

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
    backlog, served = queue.backlog, "yes" if queue.served else "no"
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
