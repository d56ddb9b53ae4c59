"""The record of a call that outlives its request, and every step it may take.

A call whose continuation is kept in a store is a *task*, whether its client knows the tasks
extension (SEP-2663) or not. Its record says who owns it, what it waits for and how it ended; any
process that has the store can take its next step. Only the functions here change a record.

Three numbers keep processes apart that both think it is theirs:

- `turn` grows whenever somebody takes the task over. What was begun in an earlier turn, by a
  process that was frozen meanwhile or was thought gone, is refused: OutOfTurn.
- `delivery` grows with each submission to the engine, whose ids are `{id}:{delivery}`: an engine
  may refuse an id that it is still carrying.
- `crashes` counts the holders that went away without a word, so that work which kills its process
  does not go round for ever.
"""

import re
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec
from msgspec.structs import replace
from typing_extensions import TypeVar

from genmcp.core.outcome import Done, Failed, pack
from genmcp.core.waiting import Wait
from genmcp.errors import Lost, OutOfTurn

__all__ = [
    "LOST",
    "Asking",
    "Awaiting",
    "End",
    "Ended",
    "Following",
    "Job",
    "OnLost",
    "Parked",
    "Ref",
    "Running",
    "Status",
    "Task",
    "Work",
    "Working",
    "is_id",
    "passed_on",
    "run_id",
    "with_saved",
]

T_co = TypeVar("T_co", default=Any, covariant=True)

End: TypeAlias = Literal["completed", "failed", "cancelled"]
Status: TypeAlias = Literal["working", "input_required"] | End
OnLost: TypeAlias = Literal["rerun", "fail"]

LOST: Final = msgspec.json.encode(
    {"code": -32603, "message": "The call was lost: the process that worked on it is gone"}
)
"""The error of a task that nobody is left to end."""


_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")


def is_id(text: str) -> bool:
    """Return whether *text* has the form of a task id: 1 to 64 characters of URL-safe base64."""
    return _ID.fullmatch(text) is not None


class Job(Wait[T_co], msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Work for an engine: the name of a function under `@job`, and its arguments as JSON.

    timeout: seconds that one attempt may take (default: unlimited). retries: how often a failed job
    is tried again (default 0); backoff: seconds before the first retry (default 1), doubled for
    each further one up to max_backoff (default 3600). jitter: the fraction of such a pause, from 0
    to 1, that is random (default 0.25), so that jobs which failed together are not retried
    together.
    """

    name: str
    arguments: Mapping[str, Any]
    queue: str = "default"
    timeout: float | None = None
    retries: int = 0
    backoff: float = 1.0
    max_backoff: float = 3600.0
    jitter: float = 0.25

    def pause(self, failures: int, chance: float) -> float:
        """Return the seconds to wait before the attempt after *failures* failures.

        *chance* is a random number from 0 to 1: 0 gives the whole pause, 1 a pause shorter by
        `jitter`.
        """
        whole = min(self.backoff * 2.0 ** min(failures, 64), self.max_backoff)
        return whole * (1.0 - self.jitter * chance)


class Ref(Wait[Any], msgspec.Struct, frozen=True):
    """A job that somebody else owns: the *scheme* of a `Foreign`, and what it is called there."""

    scheme: str
    ref: str


class Running(msgspec.Struct, frozen=True, tag="running"):
    """The hook `call` itself runs in the process *node*."""

    node: str


class Awaiting(msgspec.Struct, frozen=True, tag="awaiting"):
    """What the call waits for runs in the process *node*; any other can continue it."""

    node: str


class Working(msgspec.Struct, frozen=True, tag="working", omit_defaults=True):
    """A job is in the engine's hands; it was begun *attempt* times and failed *failures* times.

    saved: the state with which its next attempt continues, as JSON; None if it saved none. It is
    part of the job's work, so that the next job of the call starts without one.
    """

    job: Job
    attempt: int = 0
    failures: int = 0
    saved: bytes | None = None


class Following(msgspec.Struct, frozen=True, tag="following"):
    """Somebody else works on it."""

    ref: Ref


class Asking(msgspec.Struct, frozen=True, tag="asking", omit_defaults=True):
    """The client is asked; questions and answers are JSON under the same keys."""

    questions: Mapping[str, bytes]
    answers: Mapping[str, bytes] = {}

    @property
    def missing(self) -> Mapping[str, bytes]:
        """The questions that have no answer yet."""
        return {key: each for key, each in self.questions.items() if key not in self.answers}

    @property
    def outcome(self) -> bytes:
        """What the call goes on with when all are answered: its answers, packed."""
        return pack(Done({key: msgspec.Raw(self.answers[key]) for key in self.questions}))


Work: TypeAlias = Running | Awaiting | Working | Following | Asking


class Parked(msgspec.Struct, frozen=True):
    """What a hook came to: the call waits again, for *work*."""

    step: int
    continuation: bytes
    work: Work


class Ended(msgspec.Struct, frozen=True):
    """What a hook came to: the call is over, with one of *result* and *error*, as JSON.

    An error is an object of `code`, `message` and perhaps `data`.
    """

    result: bytes | None = None
    error: bytes | None = None


class Task(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A stored task.

    owner: the principal it belongs to; address: the peer address of an anonymous client, None for a
    local one. tool: the name that was called. node: the process that created the task. created,
    updated, due: Unix time; *due* is when an engine was to deliver it. ttl: seconds for which it
    waits for its client's answer, and is retained after its end; None for ever. poll: seconds
    between two polls of a client. on_lost: what happens when the worker of its job dies. end: how
    it ended, None while it is open. message, progress, total: the latest progress of the work.
    step, continuation: of the call as it waits; no continuation while `call` itself runs. work:
    what it waits for, None once it has ended. held: the delivery that a worker has claimed and not
    released. changes: incremented by each change that followers see. outcome: how the wait ended,
    packed; once it is set, `continue_` is to run, or runs. result, error: as JSON. passed: for how
    many seconds its step was passed on by processes that lack the code for it.
    """

    id: str
    owner: str | None = None
    address: str | None = None
    tool: str
    node: str
    created: float
    updated: float
    due: float = 0.0
    ttl: float | None = None
    poll: float = 1.0
    on_lost: OnLost = "rerun"
    end: End | None = None
    message: str | None = None
    progress: float | None = None
    total: float | None = None
    step: int = 0
    continuation: bytes = b""
    work: Work | None = None
    turn: int = 0
    delivery: int = 0
    held: int | None = None
    crashes: int = 0
    outcome: bytes | None = None
    result: bytes | None = None
    error: bytes | None = None
    changes: int = 0
    passed: float = 0.0

    @classmethod
    def unpack(cls, packed: bytes) -> "Task":
        """Return what `pack` packed.

        Raises:
            msgspec.MsgspecError: it was packed by a release that speaks of it differently.
        """
        return _decoder.decode(packed)

    def pack(self) -> bytes:
        """Return the bytes that a store keeps."""
        return _encoder.encode(self)

    @property
    def over(self) -> bool:
        """Whether nothing can happen to it any more."""
        return self.end is not None

    @property
    def status(self) -> Status:
        """What a client is told of it (SEP-2663, "Tasks")."""
        if self.end is not None:
            return self.end
        asks = isinstance(self.work, Asking) and not self.settled
        return "input_required" if asks else "working"

    @property
    def settled(self) -> bool:
        """Whether what it waited for has ended, and `continue_` has not."""
        return self.outcome is not None

    @property
    def delivered(self) -> bool:
        """Whether its next step is taken by whoever an engine delivers it to."""
        return self.settled or isinstance(self.work, Working | Following)

    @property
    def lives_in(self) -> str | None:
        """The process it ends with, None if another can go on with it."""
        if isinstance(self.work, Running | Awaiting) and not self.settled:
            return self.work.node
        return None

    @property
    def engine_id(self) -> str:
        """What an engine knows the next step by."""
        return f"{self.id}:{self.delivery}"

    @property
    def job(self) -> Job | None:
        """The job that is to be worked on."""
        return self.work.job if isinstance(self.work, Working) and not self.settled else None

    def at(self, turn: int) -> "Task":
        """Return the same task, for whoever took it over in *turn*.

        Raises:
            OutOfTurn: it is over, or somebody else took it over since.
        """
        if self.over or turn != self.turn:
            raise OutOfTurn(f"turn {turn} of task {self.id}", f"{self.status} in turn {self.turn}")
        return self

    def claimed(self, now: float, *, crashes: int) -> "Task":
        """Return the task as claimed by the worker that received its delivery.

        An earlier holder that did not release it has died, or is frozen. After more than *crashes*
        such holders, or one if the job must not run again, the wait is settled as Lost; a task that
        was settled already ends as failed.
        """
        left = self.held is not None
        crashed = self.crashes + left
        task = self._next("claim", now, turn=self.turn + 1, held=self.delivery, crashes=crashed)
        if self.settled:
            return task._lost(now) if crashed > crashes else task
        if not isinstance(self.work, Working):  # to follow another's job once more harms nobody
            return task
        if crashed > crashes or (left and self.on_lost == "fail"):
            return task.settled_with(_LOST, now)
        return replace(task, work=replace(self.work, attempt=self.work.attempt + 1))

    def released(self, now: float) -> "Task":
        """Return it given back by its worker, which shuts down: that is no crash."""
        return self._next("release", now, held=None, due=now)

    def retried(self, now: float, chance: float = 0.0) -> "Task":
        """Return the task waiting for the next attempt at its job; *chance* is as for `Job.pause`.

        Raises:
            OutOfTurn: there is no job, or no attempt left.
        """
        work = self.work
        if not isinstance(work, Working) or self.settled or work.failures >= work.job.retries:
            raise OutOfTurn("retry", self.status)
        delay = work.job.pause(work.failures, chance)
        return replace(self.resubmitted(now, delay), work=replace(work, failures=work.failures + 1))

    def resubmitted(self, now: float, delay: float) -> "Task":
        """Return it waiting for another delivery, *delay* seconds from now."""
        return self._next("resubmit", now, due=now + delay, held=None, delivery=self.delivery + 1)

    def progressed(
        self, now: float, progress: float | None, total: float | None, message: str | None
    ) -> "Task":
        """Return it with what its work says of itself; None leaves what it said before."""
        told = {"progress": progress, "total": total, "message": message}
        new = {key: each for key, each in told.items() if each is not None}
        return self._next("progress", now, **new)

    def settled_with(self, outcome: bytes, now: float) -> "Task":
        """Return it with the packed *outcome* of what it waited for.

        The same outcome once more changes nothing: whoever wrote it may not know that it was kept.

        Raises:
            OutOfTurn: it has another one already, or is over.
        """
        if self.outcome == outcome:
            return self
        if self.settled:
            raise OutOfTurn("settle", "settled")
        return self._next("settle", now, outcome=outcome, crashes=0, passed=0.0)

    def taken_over(self, now: float) -> "Task":
        """Return it as the next delivery finds it; whoever worked on it is refused from now on."""
        return replace(self.resubmitted(now, 0.0), turn=self.turn + 1)

    def parked(self, parked: Parked, now: float) -> "Task":
        """Return it waiting for what its hook gave.

        Raises:
            OutOfTurn: it is over, or has come to that step already.
        """
        if self.continuation and parked.step <= self.step:
            raise OutOfTurn(f"step {parked.step}", f"step {self.step}")
        return self._next(
            "park",
            now,
            due=now,
            step=parked.step,
            continuation=parked.continuation,
            work=parked.work,
            delivery=self.delivery + 1,
            # What `continue_` itself awaits is still in the hands of the worker that runs it.
            held=self.held if isinstance(parked.work, Awaiting) else None,
            crashes=0,
            passed=0.0,
            outcome=None,
        )

    def answered(self, answers: Mapping[str, bytes], now: float) -> "Task":
        """Return it with more *answers*; with the last one it is settled.

        Answers to what is not asked, or is answered, are ignored, as are all when nothing is asked
        (SEP-2663, "Task Update Requests"). Then it is the same task that is returned.
        """
        if not isinstance(self.work, Asking) or self.settled:
            return self
        missing = self.work.missing
        new = {key: answer for key, answer in answers.items() if key in missing}
        if not new:
            return self
        asking = replace(self.work, answers={**self.work.answers, **new})
        task = self._next("answer", now, work=asking)
        return task if asking.missing else task.settled_with(asking.outcome, now).taken_over(now)

    def ended(self, ended: Ended, now: float) -> "Task":
        """Return it with its result or error."""
        return self._ended("failed" if ended.error else "completed", now, ended)

    def cancelled(self, now: float) -> "Task":
        """Return it cancelled; whatever comes of its work later is refused."""
        return self._ended("cancelled", now, Ended())

    def left(self, now: float) -> "Task":
        """Return it without the process it lived in.

        While `call` ran it is over. What a continuation waited for is Lost, and is continued.

        Raises:
            OutOfTurn: it does not live in a process.
        """
        if self.lives_in is None:
            raise OutOfTurn("leave", self.status)
        if isinstance(self.work, Running):
            return self._lost(now)
        return self.abandoned(now)

    def abandoned(self, now: float) -> "Task":
        """Return the task with its wait settled as Lost, to be continued by any process."""
        return self.settled_with(_LOST, now).taken_over(now)

    def _lost(self, now: float) -> "Task":
        return self._ended("failed", now, Ended(error=LOST))

    def _ended(self, end: End, now: float, ended: Ended) -> "Task":
        return self._next(
            "end", now, end=end, result=ended.result, error=ended.error, **_NOTHING_LEFT
        )

    def _next(self, step: str, now: float, /, **fields: Any) -> "Task":
        if self.over:
            raise OutOfTurn(step, self.status)
        return replace(self, updated=now, changes=self.changes + 1, **fields)


_NOTHING_LEFT: Final[Mapping[str, Any]] = {
    "continuation": b"",
    "work": None,
    "held": None,
    "outcome": None,
}


def run_id(task: Task) -> str | None:
    """Return the id of the job of *task*, also once that has ended; None if it waits for no job.

    With the step, since one call may have several jobs, one after another.
    """
    return f"{task.id}.{task.step}" if isinstance(task.work, Working) else None


def passed_on(task: Task, now: float, delay: float) -> Task:
    """Return *task* waiting for a process that has the code for its step.

    It does not count as an attempt.
    """
    passed = replace(task.resubmitted(now, delay), passed=task.passed + delay)
    if isinstance(task.work, Working) and not task.settled:
        return replace(passed, work=replace(task.work, attempt=task.work.attempt - 1))
    return passed


def with_saved(task: Task, state: bytes, now: float) -> Task:
    """Return *task* with the *state*, as JSON, that an attempt at its job has saved.

    `changes` stays as it is: followers see nothing of the state, and one that is saved often would
    push their messages out of the log.

    Raises:
        OutOfTurn: its job is not being worked on.
    """
    if task.job is None or not isinstance(task.work, Working):
        raise OutOfTurn("save", "settled" if task.settled else task.status)
    return replace(task, updated=now, work=replace(task.work, saved=state))


_LOST: Final = pack(Failed(Lost()))
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Task)
