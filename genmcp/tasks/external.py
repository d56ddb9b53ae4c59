"""Jobs of other queues: their interface, the tasks that wait for them, and their followers."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from random import uniform
from typing import Any, ClassVar, Final, Literal, NamedTuple, TypeAlias

import msgspec

from genmcp.core.outcome import Failed, pack
from genmcp.core.waiting import ExternalJob
from genmcp.errors import (
    ConfigurationError,
    Conflict,
    ContractError,
    IllegalTransition,
    WaitCancelled,
)
from genmcp.stores.store import Put, Store
from genmcp.tasks.attempt import pack_failure, pack_result
from genmcp.tasks.jobs import ProgressWriter, Write
from genmcp.tasks.options import JobOptions

__all__ = [
    "ExternalFollower",
    "ExternalJob",
    "ExternalJobs",
    "ExternalQueue",
    "ExternalStatus",
    "FollowResult",
    "Phase",
    "pack_outcome",
]

logger = logging.getLogger("genmcp")

Phase: TypeAlias = Literal[
    "queued", "working", "input_required", "completed", "failed", "cancelled"
]


class ExternalStatus(msgspec.Struct, frozen=True):
    """How a job stands.

    result: what it gave, as JSON, if it is completed. error: why it failed; it goes to the log,
    and nowhere else, since it may tell what a client must not know.
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
    """A queue that is not ours: Celery, Arq, Temporal. Written by its user, in a few lines.

    `scheme` is what an `ExternalJob` calls it by.
    """

    scheme: ClassVar[str]

    @abstractmethod
    async def snapshot(self, ref: str) -> ExternalStatus:
        """Return how the job *ref* stands."""

    @abstractmethod
    def watch(self, ref: str) -> AsyncGenerator[ExternalStatus, None]:
        """Yield how the job *ref* stands, now and whenever that changes, to its end.

        It ends after a snapshot that says the job is over. It may poll. What it raises is logged,
        and it is asked again later, perhaps by another process.
        """

    @abstractmethod
    async def cancel(self, ref: str) -> None:
        """Cancel the job *ref*, as well as possible; nothing happens if it is over."""


_KEPT: Final = 86400.0  # seconds for which an outcome is stored until a task reads it


class ExternalJobFailed(Exception):
    """What is told of a job that failed elsewhere; its text is for the log."""


class WaitingTasks(msgspec.Struct, frozen=True, array_like=True):
    """The tasks that wait for a job, and how it ended."""

    tasks: tuple[str, ...] = ()
    outcome: bytes | None = None


class ExternalJobs:
    """The jobs of others that tasks wait for, in *store*; keys begin with *prefix*."""

    def __init__(self, store: Store, prefix: str = "") -> None:
        self._store = store
        self._prefix = f"{prefix}ref:"

    async def enter(self, ref: ExternalJob, id: str) -> None:
        """Note that the task *id* is about to wait for a job."""
        while True:
            waiting, version = await self._read(ref)
            tasks = tuple(dict.fromkeys((*waiting.tasks, id)))
            if await self._write(ref, WaitingTasks(tasks, waiting.outcome), version):
                return

    async def settle(self, ref: ExternalJob, outcome: bytes) -> Sequence[str]:
        """Keep how a job ended, and return the tasks that wait for it. The first outcome counts."""
        while True:
            waiting, version = await self._read(ref)
            if waiting.outcome is not None:
                return waiting.tasks
            if await self._write(ref, WaitingTasks(waiting.tasks, outcome), version):
                return waiting.tasks

    async def outcome(self, ref: ExternalJob) -> bytes | None:
        """Return the outcome of a job, None if it has not been reported."""
        waiting, _ = await self._read(ref)
        return waiting.outcome

    async def touch(self, ref: ExternalJob) -> None:
        """Go on waiting."""
        await self._store.touch(self._key(ref), _KEPT)

    async def _read(self, ref: ExternalJob) -> tuple[WaitingTasks, int]:
        entry = await self._store.get(self._key(ref))
        return (_decode(entry.value), entry.version) if entry else (WaitingTasks(), 0)

    async def _write(self, ref: ExternalJob, waiting: WaitingTasks, version: int) -> bool:
        put = Put(self._key(ref), _encode(waiting), ttl=_KEPT, expect=version)
        try:
            await self._store.apply(put)
        except Conflict:
            return False
        return True

    def _key(self, ref: ExternalJob) -> str:
        return f"{self._prefix}{ref.scheme}:{ref.ref}"


def pack_outcome(ref: ExternalJob, snapshot: ExternalStatus) -> bytes:
    """Return what a continuation is told of a job that is over."""
    work = f"{ref.scheme} job {ref.ref!r}"
    try:
        if snapshot.phase == "completed":
            return pack_result(work, snapshot.result)
        if snapshot.phase == "cancelled":
            return pack(Failed(WaitCancelled()))
        raise ExternalJobFailed(snapshot.error)
    except (ContractError, ExternalJobFailed) as error:
        return pack_failure(work, error)


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(WaitingTasks).decode


class FollowResult(NamedTuple):
    """The result of following a job: its packed outcome, or the pause until the next turn."""

    outcome: bytes | None
    pause: float = 0.0


class ExternalFollower:
    """Follows the jobs of *foreign* queues. The engine delivers at most `JobOptions.refs` at once.

    While all of these places are taken, each is given up after about `JobOptions.watch` seconds and
    its task is delivered again, behind the waiting ones, so that every job gets its turn.
    """

    def __init__(self, foreign: Sequence[ExternalQueue], options: JobOptions) -> None:
        self._foreign = {each.scheme: each for each in foreign}
        self._options = options
        self._places = 0

    async def cancel(self, ref: ExternalJob) -> None:
        """Cancel a job of another queue; failures are only logged."""
        if foreign := self._foreign.get(ref.scheme):
            try:
                await foreign.cancel(ref.ref)
            except Exception as error:
                logger.error("%s was not cancelled: %s", ref, error, exc_info=error)

    async def follow(self, ref: ExternalJob, write: Write) -> FollowResult:
        """Follow a job to its end, or until others need the place; *write* stores its progress.

        Raises:
            IllegalTransition: its progress was rejected: the call is over, or followed by another
                process.
        """
        foreign = self._foreign.get(ref.scheme)
        if foreign is None:
            missing = ConfigurationError(f"no ExternalQueue of the scheme {ref.scheme!r} was given")
            return FollowResult(pack_failure(f"following {ref.ref!r}", missing))
        reporter = ProgressWriter(write)
        place = asyncio.timeout(None)
        try:
            async with self._place(place), place:
                return FollowResult(
                    await self._watched(foreign, ref, reporter), self._options.lease
                )
        except IllegalTransition:
            raise
        except Exception as error:
            if place.expired():
                return FollowResult(None)
            logger.error("%s is followed again later: %s", ref, error, exc_info=error)
            return FollowResult(None, self._options.lease)
        finally:
            await reporter.close()

    async def _watched(
        self, foreign: ExternalQueue, ref: ExternalJob, reporter: ProgressWriter
    ) -> bytes | None:
        clock = asyncio.get_running_loop().time
        told: ExternalStatus | None = None
        due = 0.0
        async with aclosing(foreign.watch(ref.ref)) as snapshots:
            async for snapshot in snapshots:
                if snapshot.over:
                    return pack_outcome(ref, snapshot)
                if reporter.refused:
                    raise IllegalTransition("progress", "over, or somebody else's")
                # A polled queue mostly repeats itself. Its state is still written now and then: a
                # rejected write reveals a lost cancellation.
                if snapshot != told or clock() >= due:
                    told, due = snapshot, clock() + self._options.lease / 3
                    reporter.report(snapshot.progress, snapshot.total, snapshot.message)
        return None

    @asynccontextmanager
    async def _place(self, place: asyncio.Timeout) -> AsyncIterator[None]:
        """Occupy a place, and expire *place* once others need it."""
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._turn(), lambda: look())

        def look() -> None:
            nonlocal timer
            if self._places >= self._options.refs:
                place.reschedule(loop.time())
            else:
                timer = loop.call_later(self._turn(), look)

        self._places += 1
        try:
            yield
        finally:
            timer.cancel()
            self._places -= 1

    def _turn(self) -> float:
        """Return the seconds for which a place is kept; randomised, so that not all end at once."""
        return self._options.watch * uniform(0.75, 1.25)
