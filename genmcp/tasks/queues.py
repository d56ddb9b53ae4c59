"""Queues outside genmcp: the interfaces of their adapters, and the status of a job there."""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import Any, ClassVar, Final, Generic, Literal, TypeAlias, TypeVar
from uuid import uuid4
from weakref import WeakKeyDictionary

import msgspec

from genmcp.core.outcome import check_json
from genmcp.core.waiting import ExternalCall, ExternalJob
from genmcp.errors import ConfigurationError

__all__ = ["AttemptFailed", "EngineQueue", "ExternalQueue", "ExternalStatus", "Phase", "RunJob"]

Phase: TypeAlias = Literal[
    "queued", "working", "input_required", "completed", "failed", "cancelled"
]


class ExternalStatus(msgspec.Struct, frozen=True):
    """The status of a job in an external queue.

    Args:
        phase: one of the phases of a task.
        progress: the amount of work that is done.
        total: the total amount of work.
        message: a text for the user.
        result: the result of a completed job, a JSON value.
        error: why the job failed. It is only logged, since it may contain secrets.
    """

    phase: Phase
    progress: float | None = None
    total: float | None = None
    message: str | None = None
    result: Any = None
    error: str | None = None

    @property
    def over(self) -> bool:
        """Whether the job has ended."""
        return self.phase in ("completed", "failed", "cancelled")


class ExternalQueue(ABC):
    """Connects genmcp to a job queue of the application, such as Celery, Arq or Temporal."""

    scheme: ClassVar[str]
    """Identifies the queue: `ExternalJob.scheme` of its jobs."""

    poll_interval: float = 1.0
    """Seconds between two reads of the status of a job."""

    @abstractmethod
    async def snapshot(self, ref: str) -> ExternalStatus:
        """Return the present status of the job *ref*.

        It is called every `poll_interval` seconds until the job has ended. If it raises, the error
        is logged, and it is called again after `JobOptions.lease` seconds, perhaps by another
        process.
        """

    @abstractmethod
    async def cancel(self, ref: str) -> None:
        """Cancel the job *ref*, best effort, within 30 seconds. Do nothing if it has ended."""

    async def start(self, ref: str, call: ExternalCall) -> str:
        """Submit a job that `job` has made; return its name in the queue. Default: unsupported.

        It is called again after a failure, if it is cancelled because it takes longer than 30 s, or
        if the process died before the name was stored: if the queue recognizes *ref*, it should not
        run the job twice.

        Args:
            ref: a random name for the job, which the queue may use.
            call: the function and its arguments.

        Raises:
            Exception: the queue cannot be reached; the job is submitted later.
        """
        raise NotImplementedError(f"{type(self).__name__} submits no jobs: implement start()")

    def job(self, name: str, *args: Any, **kwargs: Any) -> ExternalJob:
        """Return a job of this queue that is submitted when a call waits for it.

            return celery.job("reports.build", month).then(self.built)

        It is submitted after the wait was stored, at least once: twice if a process dies between
        the submission and the write that records it. It is followed to its end, and cancelled with
        the call. If the call is cancelled before, it is never submitted.

        Args:
            name: the name of the function in the queue.
            *args: its arguments, which are JSON values.
            **kwargs: its arguments by name.

        Raises:
            TypeError: *name* is no text, such as the function itself, or an argument is not JSON.
        """
        if not isinstance(name, str):
            raise TypeError(f"job() takes the name of a function of the queue, not {name!r}")
        for position, value in enumerate(args):
            check_json(f"{name}: argument {position + 1}", value)
        check_json(name, kwargs)
        return ExternalJob(self.scheme, str(uuid4()), ExternalCall(name, args, kwargs))


RunJob: TypeAlias = Callable[[str], Coroutine[Any, Any, str]]
"""Runs the job with an id, unless another process has it, and returns its state for monitoring.

It raises `AttemptFailed` if the job has failed, and CancelledError if it was cancelled by the
engine.
"""


class AttemptFailed(Exception):
    """Raised to the engine that runs a job after the job has failed, and that was recorded.

    It is for the engine's monitoring only: genmcp itself retries the job.
    """


# The names that are registered with each application, and the id of the queue that registered them:
# its function keeps the queue alive.
_registered: Final[WeakKeyDictionary[object, dict[str, int]]] = WeakKeyDictionary()


class EngineQueue(ExternalQueue):
    """A queue whose `@job`s run on the workers of an engine, such as Celery.

    An adapter makes two promises: an id that was submitted is passed to the bound function at least
    once, in a process that has imported the module of the mux; and that function is awaited on an
    event loop that runs until it has ended. Nothing else of the engine is used: the record of the
    task decides whether the job is due, and the heartbeat of the process shows that it is alive.

    Attributes:
        name: of the function: `genmcp.{server}.{queue}`. Empty before a mux uses this.
        run: runs a job.
    """

    name: str = ""
    run: RunJob

    def bind(self, name: str, run: RunJob) -> None:
        """Register *run* with the engine as *name*. A mux calls this for each of its queues.

        Raises:
            ConfigurationError: it was registered with another name.
        """
        if self.name not in ("", name):
            raise ConfigurationError(f"{self!r} is {self.name}: make one more for {name}")
        self.name, self.run = name, run
        self.register(name)

    def check_unregistered(self, application: object, name: str) -> None:
        """Check that no other queue has registered *name* with an *application* of the engine.

        The application keeps the function that it got first.

        Raises:
            ConfigurationError: one has.
        """
        owner = _registered.setdefault(application, {}).setdefault(name, id(self))
        if owner != id(self):
            raise ConfigurationError(
                f"{name} is registered with its application by another {type(self).__name__}: make "
                f"one beside the application, and pass it to each Mux"
            )

    @abstractmethod
    def register(self, name: str) -> None:
        """Register a function with the engine as *name*, which passes its first argument to `run`.

        It may be called again with the same name.
        """

    @abstractmethod
    async def submit(self, id: str, job: str) -> None:
        """Have the registered function called with *id*, at least once.

        Args:
            id: a text of up to 100 characters.
            job: the name of the job, for the engine's monitoring.

        Raises:
            Exception: the engine cannot be reached; the id is submitted again later.
        """

    async def aclose(self) -> None:
        """Close the connections to the engine that this event loop has opened."""
        return


T = TypeVar("T")


class LoopLocal(Generic[T]):
    """Something of an event loop, such as a lock; *make* makes one for the next loop."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._loop: asyncio.AbstractEventLoop | None = None
        self._made: T | None = None

    def here(self) -> T:
        """Return that of the running event loop."""
        loop = asyncio.get_running_loop()
        if self._made is None or self._loop is not loop:
            self._made, self._loop = self._make(), loop
        return self._made
