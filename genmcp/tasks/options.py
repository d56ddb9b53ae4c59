"""The options of background jobs, and what their service gets from the mux."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from genmcp._options import Count, Pause, Seconds, check_bounds
from genmcp.binding import Owner, no_owner
from genmcp.core.task import Task
from genmcp.errors import ConfigurationError
from genmcp.tasks.cron import Schedule
from genmcp.tasks.queues import EngineQueue

# The jobs of one client take at most this part of the slots of a process, and at least one, so that
# long jobs leave room for other clients.
_SHARE_OF_CLIENT: Final = 0.8


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a process works on jobs. Times are in seconds.

    Args:
        queues: the queues from which this process takes jobs. Default: `("default",)`. A mapping
            gives each queue a concurrency of its own: `{"urgent": 2, "default": 10}`; or an engine
            on whose workers its jobs run: `{"default": 10, "heavy": CeleryQueue(app)}`.
        concurrency: the maximum number of jobs at once, of all queues together; not used if
            *queues* is a mapping. The jobs of one client take at most four fifths of it. Default
            10.
        shutdown_grace: how long running jobs may take to end when this process stops. After that
            they are cancelled, and another process takes them over. Without effect if the store
            ends with the process. Default 5.
        lease: the time without a heartbeat of a process, or without a renewal of a job's lease,
            after which other processes take over its work. Default 30.
        max_crashes: the number of worker crashes that a wait survives; at the next one it fails
            with WorkerLost. Default 3.
        retention: how long a task that makes no progress is retained, for example when no process
            serves its queue. It must be longer than any backlog. Questions and results are retained
            for `Tool.result_ttl`. Default: 7 days.
        failed_retention: how long a task is retained that has failed after a job, with its job and
            its request, so that an operator can retry it; at least for `Tool.result_ttl`. Default:
            7 days.
        unknown_timeout: how long a step is deferred to other processes because this one has no code
            for it (an unknown job, tool or question during a rolling deploy); after that it fails.
            Without effect if no other process can use the store. Default 600.
        tasks_of_client: the maximum number of open tasks of one principal, or of one peer address
            without a principal. Tasks that are created at the same moment may exceed it. Default
            1000.
        queue_limits: the maximum number of jobs of a queue that run at once in all processes that
            share the store, by queue. It must be the same in all of them. Default: unlimited.
        schedules: jobs that run periodically, once in all processes that share the store. Default:
            none.
        max_saved_bytes: the maximum size of the state that a job saves with `run.save`, as JSON. It
            is written with each change of the task. Default 65536.

    Raises:
        ConfigurationError: an option is out of range; the message names it.
    """

    queues: Collection[str] | Mapping[str, Count | EngineQueue] = ("default",)
    concurrency: Count = 10
    shutdown_grace: Pause = 5.0
    lease: Seconds = 30.0
    max_crashes: Count = 3
    retention: Seconds = 7 * 86400.0
    failed_retention: Pause = 7 * 86400.0
    unknown_timeout: Pause = 600.0
    tasks_of_client: Count = 1000
    queue_limits: Mapping[str, Count] = {}
    schedules: Sequence[Schedule] = ()
    max_saved_bytes: Count = 65536

    def __post_init__(self) -> None:
        check_bounds(self)
        if not self.queues or isinstance(self.queues, str):
            raise ConfigurationError(
                f"JobOptions.queues must be names of queues, or a dict of their concurrency or "
                f"engines, not {self.queues!r}"
            )

    @property
    def engines(self) -> Mapping[str, EngineQueue]:
        """The queues whose jobs run on an engine."""
        queues = self.queues.items() if isinstance(self.queues, Mapping) else ()
        return {name: each for name, each in queues if isinstance(each, EngineQueue)}

    def job_slots(self) -> Sequence[tuple[Collection[str], int, int]]:
        """Return sets of queues, how many of their jobs may run at once, and how many per client.

        The client's number is at least 1.
        """
        together = {tuple(self.queues): self.concurrency}
        if isinstance(self.queues, Mapping):
            together = {
                (queue,): each for queue, each in self.queues.items() if isinstance(each, int)
            }
        return [
            (queues, number, max(1, round(number * _SHARE_OF_CLIENT)))
            for queues, number in together.items()
        ]


class StepObserver:
    """Observes the steps of a worker. Each method does nothing; the mux overrides them."""

    @contextmanager
    def job_attempt(self, task: Task) -> Iterator[Callable[[bytes], None]]:
        """Enter before an attempt at the job of *task*, and leave after it.

        The context manager returns a function to call with the packed outcome of the attempt. It is
        not called if the attempt was cancelled, or if this process cannot run the job.
        """
        yield lambda outcome: None

    def lease_lost(self, task: Task) -> None:
        """Handle the takeover of *task*: its previous worker has died, or was suspended."""


async def _no_tool(task: Task) -> None:
    """Notify no tool: there is none."""


class JobEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a mux that the jobs of its service use.

    assigns: returns the `Run.assigns` of a job. in_thread: runs a blocking function. observer: is
    notified of attempts at jobs and of lost leases. owner: returns the client of a job. cancelled:
    calls `on_cancel` for a cancelled call.
    """

    assigns: Callable[[Task], Mapping[str, Any]] = lambda task: {}
    in_thread: Callable[..., Coroutine[Any, Any, Any]] = asyncio.to_thread
    observer: StepObserver = StepObserver()
    owner: Callable[[Task], Owner] = no_owner
    cancelled: Callable[[Task], Awaitable[None]] = _no_tool
