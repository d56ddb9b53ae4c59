"""What `Jobs` may be told, with its defaults."""

import asyncio
import time
from collections.abc import Callable, Collection, Coroutine, Mapping
from typing import Any, Final

import msgspec

from genmcp.core.task import Task
from genmcp.errors import ConfigurationError
from genmcp.stores.accounts import Owner

__all__ = ["JobOptions"]


_POSITIVE: Final = (
    "concurrency",
    "continuations",
    "refs",
    "watch",
    "lease",
    "crashes",
    "life",
    "keep",
    "tasks_of_client",
    "share_of_client",
)


def _nothing(task: Task) -> Mapping[str, Any]:
    return {}


def _nobody(task: Task) -> Owner:
    return ()


class JobOptions(msgspec.Struct, frozen=True, kw_only=True):
    """How a process works on jobs; times in seconds.

    queues: those whose jobs it works on. concurrency: on how many at once.
    continuations: how many steps that are no job it takes at once, of whatever queue the jobs are.
    refs: how many jobs of other queues it follows at once. watch: after how many seconds each of
    them makes room for another, while there is no more room.
    grace: how long what runs has to end when this process stops, before another takes it. There is
    none where the store ends with the process.
    linger: how long a retry of a `def` job waits for the thread of the attempt before it, which
    nothing can stop; past that the job has failed.
    lease: how long a job stays with a process that gives no sign of life, before another takes it.
    crashes: how many processes one wait may take with it; one more, and it is Lost.
    life: how long a task is kept for which nobody does anything, as when its queue is served by no
    process. It is to be longer than any backlog; questions and results are kept for the tool's ttl.
    unknown_timeout: for how many seconds a step that this process has no code for (an unknown job,
    tool or question, as during a rolling deploy) is passed on to other processes, before it fails.
    keep: how many events of a task are kept for those who follow it.
    tasks_of_client: how many open tasks one principal, or one peer address without a principal, may
    have.
    share_of_client: the part of `concurrency`, from 0 to 1, that the jobs of one client may take:
    long ones leave room for those of others. At least one job.
    accounts: gives the accounts that a task counts for in its store.
    assigns: gives what a job's `Run.assigns` holds.
    in_thread: runs a blocking function. clock: gives Unix time.
    """

    queues: Collection[str] = ("default",)
    concurrency: int = 10
    continuations: int = 1000
    refs: int = 1000
    watch: float = 60.0
    grace: float = 5.0
    linger: float = 60.0
    lease: float = 30.0
    crashes: int = 3
    life: float = 7 * 86400.0
    unknown_timeout: float = 600.0
    keep: int = 1000
    tasks_of_client: int = 1000
    share_of_client: float = 0.8
    accounts: Callable[[Task], Owner] = _nobody
    assigns: Callable[[Task], Mapping[str, Any]] = _nothing
    in_thread: Callable[..., Coroutine[Any, Any, Any]] = asyncio.to_thread
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        """Check what is no function."""
        for name in _POSITIVE:
            if getattr(self, name) <= 0:
                raise ConfigurationError(
                    f"JobOptions.{name} must be positive, not {getattr(self, name)!r}"
                )
        if self.share_of_client > 1:
            raise ConfigurationError(
                f"JobOptions.share_of_client is at most 1, not {self.share_of_client!r}"
            )
        for name in ("grace", "linger", "unknown_timeout"):
            if not getattr(self, name) >= 0:
                raise ConfigurationError(
                    f"JobOptions.{name} must not be negative: {getattr(self, name)!r}"
                )
        if not self.queues or isinstance(self.queues, str):
            raise ConfigurationError(
                f"JobOptions.queues takes the names of queues, not {self.queues!r}"
            )
