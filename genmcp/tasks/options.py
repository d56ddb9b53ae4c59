"""The options of `TaskService`, with their defaults."""

import asyncio
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any, Final

import msgspec

from genmcp.core.task import Task
from genmcp.errors import ConfigurationError
from genmcp.stores.accounts import Owner

__all__ = ["JobOptions"]


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
)


def _nothing(task: Task) -> Mapping[str, Any]:
    return {}


def _nobody(task: Task) -> Owner:
    return ()


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a process works on jobs. Times in seconds.

    Args:
        queues: the queues whose jobs this process works on. Default: `("default",)`.
        concurrency: the maximum number of jobs at once. Default 10.
        continuation_concurrency: the maximum number of steps at once that are not jobs, whatever
            queue the jobs are in. Default 1000.
        refs: the maximum number of jobs of other queues that are followed at once. Default 1000.
        watch: after how long a followed job makes room for another one, while all places are taken;
            about 25 % more or less. Default 60.
        shutdown_grace: how long running jobs have to end when this process stops, before another
            process takes them. There is no grace if the store ends with the process. Default 5.
        linger: how long a retry of a `def` job waits for the thread of the attempt before it, which
            cannot be stopped; after that the job has failed. Default 60.
        lease: how long a job stays with a process without a sign of life, before another takes it.
            Default 30.
        max_crashes: how many worker crashes one wait survives; one more, and it fails with
            WorkerLost. Default 3.
        retention: how long a task is retained that makes no progress, as when no process serves its
            queue. It must be longer than any backlog; questions and results are retained for the
            tool's ttl. Default: 7 days.
        unknown_timeout: for how long a step that this process has no code for (an unknown job, tool
            or question, as during a rolling deploy) is passed on to other processes, before it
            fails. Default 600.
        max_events: how many events of a task are retained for its followers. Default 1000.
        tasks_of_client: the maximum number of open tasks of one principal, or of one peer address
            without a principal. Default 1000.
        share_of_client: the fraction of `concurrency`, from 0 to 1, that the jobs of one client may
            take, so that long jobs leave room for those of other clients. At least one job. Default
            0.8.
        max_saved_bytes: the maximum size of the state that a job saves with `run.save`, as JSON. It
            is written with each change of the task. Default 65536.
        accounts: returns the accounts that a task counts towards in its store. Default: none.
        assigns: returns the `Run.assigns` of a job. Default: empty.
        in_thread: runs a blocking function. Default: `asyncio.to_thread`.
    """

    queues: Collection[str] = ("default",)
    concurrency: int = 10
    continuation_concurrency: int = 1000
    refs: int = 1000
    watch: float = 60.0
    shutdown_grace: float = 5.0
    linger: float = 60.0
    lease: float = 30.0
    max_crashes: int = 3
    retention: float = 7 * 86400.0
    unknown_timeout: float = 600.0
    max_events: int = 1000
    tasks_of_client: int = 1000
    share_of_client: float = 0.8
    max_saved_bytes: int = 65536
    accounts: Callable[[Task], Owner] = _nobody
    assigns: Callable[[Task], Mapping[str, Any]] = _nothing
    in_thread: Callable[..., Coroutine[Any, Any, Any]] = asyncio.to_thread

    def __post_init__(self) -> None:
        """Validate the options.

        Raises:
            ConfigurationError: one of them is out of range.
        """
        for name in _POSITIVE:
            if getattr(self, name) <= 0:
                raise ConfigurationError(
                    f"JobOptions.{name} must be positive, not {getattr(self, name)!r}"
                )
        if self.share_of_client > 1:
            raise ConfigurationError(
                f"JobOptions.share_of_client is at most 1, not {self.share_of_client!r}"
            )
        for name in ("shutdown_grace", "linger", "unknown_timeout"):
            if not getattr(self, name) >= 0:
                raise ConfigurationError(
                    f"JobOptions.{name} must not be negative: {getattr(self, name)!r}"
                )
        if not self.queues or isinstance(self.queues, str):
            raise ConfigurationError(
                f"JobOptions.queues takes the names of queues, not {self.queues!r}"
            )
