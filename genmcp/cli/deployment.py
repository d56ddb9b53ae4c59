"""The store of a deployment, and the services in it, as the commands for operators open them."""

import asyncio
import os
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

import click
import msgspec

from genmcp.cli.output import CommandError, OutputWriter, private_output
from genmcp.cli.parsing import options_as
from genmcp.cli.target import load_mux
from genmcp.core.outcome import Outcome
from genmcp.core.task import Task
from genmcp.core.waiting import Finished
from genmcp.errors import ConfigurationError, ContractError, StoreError, TaskNotFound
from genmcp.stores import open_store
from genmcp.stores.store import Store
from genmcp.tasks.inspection import TaskInspector, services_of
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
        node=f"operator-{secrets.token_hex(4)}",
        resume=_resume,
        namespace=name,
    )
    return TaskInspector(service)


async def _resume(task: Task, call: bytes, outcome: Outcome) -> Finished:
    raise NotImplementedError("a command runs no steps")
