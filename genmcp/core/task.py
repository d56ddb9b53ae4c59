"""The record of a call that outlives its request, and every step it may take.

A call whose continuation is kept in a store is a *task*, whether its client knows the tasks
extension (SEP-2663) or not. Its record says who owns it, what it waits for and how it ended; any
process that has the store can take its next step. Only the functions here change a record.

A call with an idempotency key has a record of the same form from its beginning: a *private* one,
whose id no client has been given. It becomes an ordinary task when the call is promoted or waits
for a job. Copies of the call find it by the key.

Three numbers keep processes apart that both think it is theirs:

- `fencing_token` grows whenever a process takes the task over. A write with an earlier token, of a
  process that was frozen meanwhile or was considered gone, is rejected: IllegalTransition.
- `delivery` grows with each submission to the engine, whose ids are `{id}:{delivery}`: an engine
  may refuse an id that it is still carrying.
- `crashes` counts the holders that went away without a word, so that work which kills its process
  does not go round for ever.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import msgspec
from msgspec.structs import replace

from genmcp.core.outcome import Failed, pack
from genmcp.core.waiting import (
    Asking,
    Awaiting,
    End,
    Finished,
    Following,
    InputRequired,
    Job,
    OnLost,
    Running,
    Status,
    Suspended,
    Work,
    Working,
)
from genmcp.errors import IllegalTransition, UnknownFormat, WorkerLost

__all__ = [
    "LOST",
    "Task",
    "answered",
    "asked",
    "is_id",
    "kept",
    "passed_on",
    "progressed",
    "promised",
    "published",
    "resumed",
    "run_id",
    "slot_of",
    "with_saved",
]

LOST: Final = msgspec.json.encode(
    {"code": -32603, "message": "The call was lost: the process that worked on it is gone"}
)
"""The error of a task that nobody is left to end."""


_FORMAT: Final = 2
"""The first byte of a packed task; incremented with each change that older releases cannot read."""

_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_REMEMBERED: Final = 1024  # ids: one step of a task asks for its slot several times
_KEYED_ID: Final = re.compile(r"(k[0-9a-f]{40})-[0-9a-f]{16}")


def is_id(text: str) -> bool:
    """Return whether *text* has the form of a task id: 1 to 64 characters of URL-safe base64."""
    return _ID.fullmatch(text) is not None


@lru_cache(_REMEMBERED)
def slot_of(id: str) -> str:
    """Return what the record of the task *id* is stored under.

    All calls with one idempotency key use one slot, one after another: their ids are
    `{slot}-{random}`. Any other task has a slot of its own, its id.
    """
    keyed = _KEYED_ID.fullmatch(id)
    return keyed[1] if keyed else id


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
    released. claim: a random value, so that no two claims are equal. changes: incremented by each
    change that followers see. outcome: how the wait ended, packed; once it is set, `continue_` is
    to run, or runs. result, error: as JSON. passed: for how many seconds its step was passed on by
    processes that lack the code for it. arguments: the digest of the arguments of a call with an
    idempotency key. private: whether no client was given the id; such a task has no stored request.
    raised: whether the call failed, see Finished.
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
    fencing_token: int = 0
    delivery: int = 0
    held: int | None = None
    claim: str | None = None
    crashes: int = 0
    outcome: bytes | None = None
    result: bytes | None = None
    error: bytes | None = None
    changes: int = 0
    passed: float = 0.0
    arguments: bytes | None = None
    private: bool = False
    raised: bool = False

    @classmethod
    def unpack(cls, packed: bytes) -> "Task":
        """Return what `pack` packed.

        Raises:
            UnknownFormat: it was packed by a release with another format.
        """
        if packed[:1] != _HEAD:
            raise UnknownFormat(_UNKNOWN.format(packed[:1].hex() or "none"))
        try:
            return _decoder.decode(memoryview(packed)[1:])
        except msgspec.MsgspecError as error:
            raise UnknownFormat(f"a task in the store cannot be read: {error}") from error

    def pack(self) -> bytes:
        """Return the bytes that a store keeps."""
        return _HEAD + _encoder.encode(self)

    @property
    def over(self) -> bool:
        """Whether nothing can happen to it any more."""
        return self.end is not None

    @property
    def frees_key(self) -> bool:
        """Whether a call with the same idempotency key may run."""
        return self.raised or self.end == "cancelled"

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
        return self.outcome is not None or isinstance(self.work, Working | Following)

    @property
    def lives_in(self) -> str | None:
        """The process it ends with, None if another can go on with it."""
        if isinstance(self.work, Running | Awaiting) and self.outcome is None:
            return self.work.node
        return None

    @property
    def engine_id(self) -> str:
        """What an engine knows the next step by."""
        return f"{self.id}:{self.delivery}"

    @property
    def job(self) -> Job | None:
        """The job that is to be worked on."""
        return self.work.job if isinstance(self.work, Working) and self.outcome is None else None

    def at(self, fencing_token: int) -> "Task":
        """Return the same task, for the process that holds *fencing_token*.

        Raises:
            IllegalTransition: it is over, or another process has taken it over since.
        """
        if self.end is not None or fencing_token != self.fencing_token:
            raise IllegalTransition(
                f"token {fencing_token} of task {self.id}",
                f"{self.status} with token {self.fencing_token}",
            )
        return self

    def claimed(self, now: float, *, crashes: int, claim: str | None = None) -> "Task":
        """Return the task as claimed, by its delivery, by the worker that has the random *claim*.

        An earlier holder that did not release it has died, or is frozen. After more than *crashes*
        such holders, or one if the job must not run again, the wait, or a settled task, is lost.
        """
        left = self.held is not None
        crashed = self.crashes + left
        claimed = {"fencing_token": self.fencing_token + 1, "held": self.delivery, "claim": claim}
        task = self._next("claim", now, crashes=crashed, **claimed)
        if self.outcome is not None:
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
            IllegalTransition: there is no job, or no attempt left.
        """
        work = self.work
        if not isinstance(work, Working) or self.settled or work.failures >= work.job.retries:
            raise IllegalTransition("retry", self.status)
        delay = work.job.pause(work.failures, chance)
        return replace(self.resubmitted(now, delay), work=replace(work, failures=work.failures + 1))

    def resubmitted(self, now: float, delay: float) -> "Task":
        """Return it waiting for another delivery, *delay* seconds from now."""
        return self._next("resubmit", now, due=now + delay, held=None, delivery=self.delivery + 1)

    def settled_with(self, outcome: bytes, now: float) -> "Task":
        """Return it with the packed *outcome* of what it waited for.

        The same outcome once more changes nothing: whoever wrote it may not know that it was kept.

        Raises:
            IllegalTransition: it has another one already, or is over.
        """
        if self.outcome == outcome:
            return self
        if self.outcome is not None:
            raise IllegalTransition("settle", "settled")
        return self._next("settle", now, outcome=outcome, crashes=0, passed=0.0)

    def taken_over(self, now: float) -> "Task":
        """Return it as the next delivery finds it; whoever worked on it is refused from now on."""
        return replace(self.resubmitted(now, 0.0), fencing_token=self.fencing_token + 1)

    def parked(self, parked: Suspended, now: float) -> "Task":
        """Return it waiting for what its hook gave.

        Raises:
            IllegalTransition: it is over, or has come to that step already.
        """
        if self.continuation and parked.step <= self.step:
            raise IllegalTransition(f"step {parked.step}", f"step {self.step}")
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

    def ended(self, ended: Finished, now: float) -> "Task":
        """Return it with its result or error."""
        return self._ended("failed" if ended.error else "completed", now, ended)

    def cancelled(self, now: float) -> "Task":
        """Return it cancelled; whatever comes of its work later is refused."""
        return self._ended("cancelled", now, Finished())

    def left(self, now: float) -> "Task":
        """Return it without the process it lived in.

        While `call` ran it is over. What a continuation waited for fails with WorkerLost, and it is
        continued.

        Raises:
            IllegalTransition: it does not live in a process.
        """
        if self.lives_in is None:
            raise IllegalTransition("leave", self.status)
        if isinstance(self.work, Running):
            return self._lost(now)
        return self.abandoned(now)

    def abandoned(self, now: float) -> "Task":
        """Return the task, its wait failed with WorkerLost, to be continued by any process."""
        return self.settled_with(_LOST, now).taken_over(now)

    def _lost(self, now: float) -> "Task":
        return self._ended("failed", now, Finished(error=LOST, raised=True))

    def _ended(self, end: End, now: float, ended: Finished) -> "Task":
        left = {"continuation": b"", "work": None, "held": None, "outcome": None}
        came_to = {"result": ended.result, "error": ended.error, "raised": ended.raised}
        return self._next("end", now, end=end, **came_to, **left)

    def _next(self, step: str, now: float, /, **fields: object) -> "Task":
        if self.end is not None:
            raise IllegalTransition(step, self.status)
        return replace(self, updated=now, changes=self.changes + 1, **fields)


def answered(task: Task, answers: Mapping[str, bytes], now: float) -> Task:
    """Return *task* with more *answers*; with the last one it is settled.

    Answers to questions that are not open are ignored, as are all when none is (SEP-2663, "Task
    Update Requests"). Then it is the same task that is returned.
    """
    if not isinstance(task.work, Asking) or task.settled:
        return task
    missing = task.work.missing
    new = {key: answer for key, answer in answers.items() if key in missing}
    if not new:
        return task
    asking = replace(task.work, answers={**task.work.answers, **new})
    task = task._next("answer", now, work=asking)
    return task if asking.missing else task.settled_with(asking.outcome, now).taken_over(now)


def progressed(
    task: Task, now: float, progress: float | None, total: float | None, message: str | None
) -> Task:
    """Return *task* with the progress of its work; None leaves what was reported before.

    Raises:
        IllegalTransition: it is over.
    """
    reported = {"progress": progress, "total": total, "message": message}
    new = {key: each for key, each in reported.items() if each is not None}
    return task._next("progress", now, **new)


def published(task: Task, parked: Suspended, now: float, ttl: float) -> Task:
    """Return a private *task* as one whose id clients are given; it waits as *parked* says.

    It is retained for *ttl* seconds, if that is longer than its key is.
    """
    kept = ttl if task.ttl is None else max(task.ttl, ttl)
    return replace(task.parked(parked, now), private=False, ttl=kept)


def asked(task: Task, question: InputRequired, now: float) -> Task:
    """Return a private *task* waiting for a request of its client."""
    return replace(task, updated=now, changes=task.changes + 1, work=question)


def resumed(task: Task, node: str, token: int, now: float) -> Task:
    """Return a private *task*, whose client has answered, running in the process *node*.

    *token* is its new fencing token, which no other copy of the answer may have chosen.
    """
    changes = task.changes + 1
    return replace(task, updated=now, changes=changes, work=Running(node), fencing_token=token)


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
        IllegalTransition: its job is not being worked on.
    """
    if task.job is None or not isinstance(task.work, Working):
        raise IllegalTransition("save", "settled" if task.settled else task.status)
    return replace(task, updated=now, work=replace(task.work, saved=state))


def kept(task: Task, life: float) -> float | None:
    """Return for how many seconds from its last change a store is to have *task*; None for ever.

    That is its `ttl` where the next step is its client's. What it waits for otherwise must not find
    it gone, however late it comes: then it is *life* at least, from when the task is due.
    """
    if isinstance(task.work, InputRequired):
        return task.work.ttl
    asks = isinstance(task.work, Asking) and task.outcome is None
    if task.ttl is None or task.end is not None or asks:
        return task.ttl
    return max(task.ttl, life) + max(0.0, task.due - task.updated)


def promised(task: Task, now: float) -> float | None:
    """Return for how many seconds from its creation its client is sure to find *task*; None: ever.

    What is asked, or has ended, is there for the task's `ttl`. What is worked on may end at any
    moment: it is there for that time from *now*, less the part of a second.
    """
    if task.ttl is None:
        return None
    passed = task.updated - task.created
    if task.status == "working":
        passed = float(int(max(passed, now - task.created)))
    return task.ttl + passed


_LOST: Final = pack(Failed(WorkerLost()))
_UNKNOWN: Final = (
    "a task in the store has the format {}, and this release of genmcp reads "
    f"{_FORMAT:02x}: another release wrote it; use that release, or a new store"
)
_HEAD: Final = bytes([_FORMAT])
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Task)
