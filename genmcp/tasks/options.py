"""The options of background jobs."""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

import msgspec

from genmcp._core.task import Task
from genmcp.errors import ConfigurationError
from genmcp.tasks.cron import Schedule

_POSITIVE: Final = (
    "concurrency",
    "continuation_concurrency",
    "refs",
    "watch",
    "lease",
    "max_crashes",
    "retention",
    "max_events",
    "tasks_of_client",
    "share_of_client",
    "max_saved_bytes",
    "recovery_limit",
)
_NOT_NEGATIVE: Final = (
    "shutdown_grace",
    "cancel_grace",
    "linger",
    "unknown_timeout",
    "failed_retention",
    "progress_interval",
)


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


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a process works on jobs. Times are in seconds.

    Args:
        queues: the queues from which this process takes jobs. Default: `("default",)`. A mapping
            gives each queue a concurrency of its own: `{"urgent": 2, "default": 10}`.
        concurrency: the maximum number of jobs at once, of all queues together; not used if
            *queues* is a mapping. Default 10.
        continuation_concurrency: the maximum number of other steps at once, such as methods that
            continue a call. They do not depend on *queues*. Default 1000.
        refs: the maximum number of jobs of external queues that are followed at once. Default 1000.
        watch: while `refs` external jobs are followed, the time after which one of them is
            interrupted, so that a waiting job can be followed. Varied by 25 %. Default 60.
        shutdown_grace: how long running jobs may take to end when this process stops. After that
            they are cancelled, and another process takes them over. Without effect if the store
            ends with the process. Default 5.
        cancel_grace: how long a cancelled or timed-out job function has for its cleanup. Default 5.
        linger: how long a retry of a `def` job waits for the thread of the attempt before, which
            cannot be stopped; after that the job fails. Default 60.
        lease: the time without a heartbeat of a process, or without a renewal of a job's lease,
            after which other processes take over its work. Default 30.
        max_crashes: the number of worker crashes that a wait survives; at the next one it fails
            with WorkerLost. Default 3.
        retention: how long a task that makes no progress is retained, for example when no process
            serves its queue. It must be longer than any backlog. Questions and results are retained
            for `Tool.result_ttl`. Default: 7 days.
        unknown_timeout: how long a step is deferred to other processes because this one has no code
            for it (an unknown job, tool or question during a rolling deploy); after that it fails.
            Default 600.
        max_events: the maximum number of events of a task that are retained for its followers.
            Default 1000.
        tasks_of_client: the maximum number of open tasks of one principal, or of one peer address
            without a principal. Tasks that are created at the same moment may exceed it. Default
            1000.
        share_of_client: the fraction of `concurrency`, from 0 to 1, that the jobs of one client may
            take, so that long jobs leave room for other clients. At least one job. Default 0.8.
        max_saved_bytes: the maximum size of the state that a job saves with `run.save`, as JSON. It
            is written with each change of the task. Default 65536.
        queue_limits: the maximum number of jobs of a queue that run at once in all processes that
            share the store, by queue. It must be the same in all of them. Default: unlimited.
        failed_retention: how long a task is retained that has failed after a job, with its job and
            its request, so that an operator can retry it; at least for `Tool.result_ttl`. Default:
            7 days.
        schedules: jobs that run periodically, once in all processes that share the store. Default:
            none.
        recovery_limit: how many queued and how many working tasks one process of a service examines
            per half lease, to repair those that a dead process has left. Default 100.
        progress_interval: the minimum time between two writes of the progress of a job. Default
            0.1.
        write_retry_delays: the pauses between attempts at a write that must not be lost, while the
            store fails; the last one is repeated. Default: `(0.1, 0.5, 2.0)`.
        assigns: returns the `Run.assigns` of a job. Default: empty.
        in_thread: runs a blocking function. Default: `asyncio.to_thread`.
        observer: is notified of attempts at jobs, lost leases and failures of the store. Default:
            nothing is observed.

    Raises:
        ConfigurationError: an option is out of range; the message names it.
    """

    queues: Collection[str] | Mapping[str, int] = ("default",)
    concurrency: int = 10
    continuation_concurrency: int = 1000
    refs: int = 1000
    watch: float = 60.0
    shutdown_grace: float = 5.0
    cancel_grace: float = 5.0
    linger: float = 60.0
    lease: float = 30.0
    max_crashes: int = 3
    retention: float = 7 * 86400.0
    unknown_timeout: float = 600.0
    max_events: int = 1000
    tasks_of_client: int = 1000
    share_of_client: float = 0.8
    max_saved_bytes: int = 65536
    failed_retention: float = 7 * 86400.0
    queue_limits: Mapping[str, int] = {}
    schedules: Sequence[Schedule] = ()
    recovery_limit: int = 100
    progress_interval: float = 0.1
    write_retry_delays: Sequence[float] = (0.1, 0.5, 2.0)
    assigns: Callable[[Task], Mapping[str, Any]] = lambda task: {}
    in_thread: Callable[..., Coroutine[Any, Any, Any]] = asyncio.to_thread
    observer: StepObserver = StepObserver()

    def __post_init__(self) -> None:
        for name in _POSITIVE:
            if getattr(self, name) <= 0:
                raise ConfigurationError(
                    f"JobOptions.{name} must be positive, not {getattr(self, name)!r}"
                )
        if self.share_of_client > 1:
            raise ConfigurationError(
                f"JobOptions.share_of_client must be at most 1, not {self.share_of_client!r}"
            )
        for name in _NOT_NEGATIVE:
            if not getattr(self, name) >= 0:
                raise ConfigurationError(
                    f"JobOptions.{name} must not be negative, not {getattr(self, name)!r}"
                )
        if not self.write_retry_delays or min(self.write_retry_delays) < 0:
            raise ConfigurationError(
                f"JobOptions.write_retry_delays must be one or more pauses in seconds, not "
                f"{self.write_retry_delays!r}"
            )
        for queue, most in self.queue_limits.items():
            if most < 1:
                raise ConfigurationError(
                    f"JobOptions.queue_limits[{queue!r}] must be at least 1, not {most!r}"
                )
        numbers = self.queues.values() if isinstance(self.queues, Mapping) else ()
        if not self.queues or isinstance(self.queues, str) or any(each < 1 for each in numbers):
            raise ConfigurationError(
                f"JobOptions.queues must be names of queues, or a dict of their concurrency, which "
                f"is at least 1, not {self.queues!r}"
            )

    def job_slots(self) -> Sequence[tuple[Collection[str], int, int]]:
        """Return sets of queues, how many of their jobs may run at once, and how many per client.

        The client's number is at least 1.
        """
        together = {tuple(self.queues): self.concurrency}
        if isinstance(self.queues, Mapping):
            together = {(queue,): number for queue, number in self.queues.items()}
        return [
            (queues, number, max(1, round(number * self.share_of_client)))
            for queues, number in together.items()
        ]
