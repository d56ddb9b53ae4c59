"""The record of a call that outlives its request, and every transition of that record.

A call whose continuation is kept in a store is a *task*, whether its client knows the tasks
extension (SEP-2663) or not. The record names its owner, what it waits for and how it ended. Any
process that shares the store can run the next step of the task. Only the functions here change a
record. Each of them returns a new record, and `genmcp/tasks` writes it.

A call with an idempotency key is a task from its beginning. The id of the task is derived from the
key. Repetitions of the call find the task by that id, and wait for its result.

Two processes may both work on a task: one of them was paused, and the other has taken over. Three
numbers decide which of them may write:

- `fencing_token` is incremented by each claim. A write with an earlier token comes from a process
  that was paused or considered dead, and is rejected: IllegalTransition.
- `delivery_id` is incremented by each submission to a queue, which gets the id
  `{id}:{delivery_id}`: a queue ignores an id that it still has.
- `crashes` counts the workers that have claimed the task and have not released it. Work that kills
  its process is not repeated for ever.
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec
from msgspec.structs import replace

from genmcp.core.outcome import Failed, pack, unpack
from genmcp.core.waiting import (
    Asking,
    Awaiting,
    End,
    Finished,
    Following,
    Gathering,
    Job,
    OnLost,
    PartOf,
    Running,
    Status,
    Suspended,
    Work,
    Working,
    scheduled,
)
from genmcp.errors import IllegalTransition, UnknownFormat, WorkerLost, WorkRaised

LOST: Final = msgspec.json.encode(
    {"code": -32603, "message": "The call was lost: the process that worked on it is gone"}
)
"""The error of a task whose process has died and whose call cannot be continued."""


# The first byte of a packed task; incremented with each change that older releases cannot read.
_FORMAT: Final = 2

_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")

# Records keep the names that fields had when the format was fixed: during a rolling deploy,
# processes of both releases read and write the same records.
_STORED_NAMES: Final = {
    "held_delivery": "held",
    "delivery_id": "delivery",
    "claim_id": "claim",
    "deferred_seconds": "passed",
    "arguments_digest": "arguments",
    "engine_node": "holder",
}


def is_task_id(text: str) -> bool:
    """Return whether *text* is 1 to 64 characters of URL-safe base64, as the id of a task is."""
    return _ID.fullmatch(text) is not None


# Fencing. A process that is paused (by the kernel, a debugger, its virtual machine) cannot
# know that its lease has run out, so it must not decide by its own clock whether it still holds the
# task. Every write presents the token under which the task was claimed, and compare-and-set in the
# store makes check and write one step.


class FailedStep(msgspec.Struct, frozen=True):
    """The step in which a call has failed after its job, so that an operator can repeat it.

    reason: why the job has failed; empty if it succeeded, and the call failed afterwards.
    """

    step: int
    continuation: bytes
    job: Job
    reason: str = ""


class Task(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename=_STORED_NAMES.get):
    """The stored record of a call. Owned by the process that holds its fencing token.

    owner: the principal that may see it; address: the peer address of an anonymous client, None
    for a local one. tool: the name that was called. node: the process that created it. created,
    updated, due: Unix time; *due* is when it was to be delivered. ttl: seconds for which it
    waits for its client, and is retained after its end; None: never expires. poll: seconds
    between two polls of a client. on_lost: what happens when the worker of its job dies. end:
    how it ended, None while it is open. message, progress, total: the latest progress of the
    work. step: the number of the step that the call waits in; continuation: that step, packed,
    empty while `call` itself runs. work: what it waits for, None once it has ended.
    held_delivery: the delivery that a worker has claimed and not released. claim_id: a random
    value, so that no two claims are equal. engine_node: the process that has claimed it, if that
    is one of an engine; its heartbeat shows whether it is alive. submissions: how often it was
    submitted to an engine again. changes: incremented by each change that clients see: of its
    questions, its progress and its end. outcome: how the wait ended, packed; once it is set,
    `continue_` is due, or runs. result, error: as JSON. deferred_seconds: for how long its step
    was deferred by processes that lack its code. arguments_digest: of a call with an
    idempotency key, else None. private: whether no client can have the id; such a task has no
    stored request. raised, frees_key: see `Finished`. trace: the members `traceparent`,
    `tracestate` and `baggage` of the call (W3C Trace Context), so that the spans of its steps
    join its trace. parent: the wait for several jobs that this is a part of (`core/gathering.py`).
    schedule: the name and the time of a periodic job (`tasks/schedules.py`). Neither of these
    two has a call. failed: the step in which it has failed. retries: the id of the failed task
    that this one repeats. stopped: the id of the job that the call continued after (empty: none),
    if a worker ran that step when the task was cancelled, and its tool is not notified yet.
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
    on_lost: OnLost = "rerun"  # `new_task` always passes `Policy.on_worker_lost`
    end: End | None = None
    message: str | None = None
    progress: float | None = None
    total: float | None = None
    step: int = 0
    continuation: bytes = b""
    work: Work | None = None
    fencing_token: int = 0
    delivery_id: int = 0
    held_delivery: int | None = None
    claim_id: str | None = None
    engine_node: str | None = None
    submissions: int = 0
    crashes: int = 0
    outcome: bytes | None = None
    result: bytes | None = None
    error: bytes | None = None
    changes: int = 0
    deferred_seconds: float = 0.0
    arguments_digest: bytes | None = None
    private: bool = False
    raised: bool = False
    frees_key: bool = False
    trace: Mapping[str, str] | None = None
    parent: PartOf | None = None
    schedule: str | None = None
    failed: FailedStep | None = None
    retries: str | None = None
    stopped: str | None = None

    @classmethod
    def unpack(cls, packed: bytes) -> "Task":
        """Return the task that `pack` has packed.

        Raises:
            UnknownFormat: another release packed it, in another format.
        """
        if packed[:1] != _HEAD:
            raise UnknownFormat(_UNKNOWN.format(packed[:1].hex() or "none"))
        try:
            return _decoder.decode(memoryview(packed)[1:])
        except msgspec.MsgspecError as error:
            raise UnknownFormat(f"a task in the store cannot be read: {error}") from error

    def pack(self) -> bytes:
        """Return the bytes to store."""
        return _HEAD + _encoder.encode(self)

    @property
    def ended(self) -> bool:
        """Whether it is completed, failed or cancelled: no transition is possible."""
        return self.end is not None

    @property
    def status(self) -> Status:
        """The status that clients see (SEP-2663, "Tasks")."""
        if self.end is not None:
            return self.end
        asks = isinstance(self.work, Asking) and self.outcome is None
        return "input_required" if asks else "working"

    @property
    def settled(self) -> bool:
        """Whether the wait of the task has ended, and `continue_` has not ended yet."""
        return self.outcome is not None

    @property
    def needs_delivery(self) -> bool:
        """Whether the next step runs in whichever process claims it."""
        if self.outcome is not None or isinstance(self.work, Working | Following):
            return True
        return isinstance(self.work, Gathering) and self.work.due

    @property
    def bound_node(self) -> str | None:
        """The process that the current step depends on; None if any process can run it."""
        if isinstance(self.work, Running | Awaiting) and self.outcome is None:
            return self.work.node
        return None

    @property
    def resumes(self) -> bool:
        """Whether a worker has claimed it, and runs the step that continues its call."""
        return self.outcome is not None and self.held_delivery is not None and not self.private

    @property
    def runs_hook(self) -> bool:
        """Whether a hook of its call runs in a process, or the call waits there.

        If it is cancelled, that process calls `on_cancel`, once the hook has ended.
        """
        return self.resumes or self.bound_node is not None

    @property
    def queued_id(self) -> str:
        """The id of its next step in a queue."""
        return f"{self.id}:{self.delivery_id}"

    @property
    def job(self) -> Job | None:
        """The job to run; None if it waits for something else, or the job has ended."""
        return self.work.job if isinstance(self.work, Working) and self.outcome is None else None

    def check_token(self, fencing_token: int) -> "Task":
        """Return the task itself, if *fencing_token* is current and the task is open.

        Raises:
            IllegalTransition: it has ended, or another process has taken it over since.
        """
        if self.end is not None or fencing_token != self.fencing_token:
            raise IllegalTransition(
                f"token {fencing_token} of task {self.id}",
                f"{self.status} with token {self.fencing_token}",
            )
        return self

    def claim(
        self,
        now: float,
        *,
        max_crashes: int,
        claim_id: str | None = None,
        engine_node: str | None = None,
    ) -> "Task":
        """Return the task as claimed, with a new fencing token (leases: `Deliveries.claim`).

        If an earlier worker has not released its claim, it is dead or frozen, which is a crash.

        Args:
            now: Unix time.
            max_crashes: the number of crashes after which the wait, or a settled task that is no
                part of another, is lost. A job that must not run again is lost at the first one.
            claim_id: a random text, by which a worker finds its own claim if the write timed out.
            engine_node: the name of this process, if it is one of an engine.
        """
        # Both ids may be equal: the delivery whose worker has died is repeated.
        crashed = self.held_delivery is not None
        crashes = self.crashes + crashed
        task = self._next(
            "claim",
            now,
            crashes=crashes,
            fencing_token=self.fencing_token + 1,
            held_delivery=self.delivery_id,
            claim_id=claim_id,
            engine_node=engine_node,
        )
        if self.outcome is not None:
            # The step of a settled part runs no code of the server. It is repeated until the task
            # that waits for the part has counted it: a part that was lost would never be counted.
            return task._lose(now) if crashes > max_crashes and self.parent is None else task
        if not isinstance(self.work, Working):  # following an external job again has no effect
            return task
        if crashes > max_crashes or (crashed and self.on_lost == "fail"):
            return task.settle(_LOST_OUTCOME, now)
        return replace(task, work=replace(self.work, attempt=self.work.attempt + 1))

    def release(self, now: float) -> "Task":
        """Return the task as released by a worker that shuts down, which is not a crash."""
        if self.engine_node is not None:  # an engine does not deliver an id again
            return self.resubmit(now, 0.0)
        return self._next("release", now, held_delivery=None, due=now)

    def resubmit(self, now: float, delay: float) -> "Task":
        """Return the task waiting for another delivery, *delay* seconds from now."""
        following = self.delivery_id + 1
        return self._next(
            "resubmit",
            now,
            due=now + delay,
            held_delivery=None,
            engine_node=None,
            submissions=0,
            delivery_id=following,
        )

    def settle(self, outcome: bytes, now: float) -> "Task":
        """Return the task with the packed *outcome* of its wait.

        If an engine ran its job, the task waits for another delivery: its call continues in a
        process of the server. A second call with the same outcome changes nothing: a writer repeats
        a write that has timed out, since the store may have accepted it.

        Raises:
            IllegalTransition: the task has another outcome already, or has ended.
        """
        if self.outcome == outcome:
            return self
        if self.outcome is not None:
            raise IllegalTransition("settle", "settled")
        settled = self._next("settle", now, outcome=outcome, crashes=0, deferred_seconds=0.0)
        return settled if self.engine_node is None else settled.resubmit(now, 0.0)

    def take_over(self, now: float) -> "Task":
        """Return the task for another delivery. Later writes of its present worker are rejected."""
        return replace(self.resubmit(now, 0.0), fencing_token=self.fencing_token + 1)

    def suspend(self, suspended: Suspended, now: float) -> "Task":
        """Return the task waiting for the work that its hook has returned.

        Raises:
            IllegalTransition: it has ended, or has reached that step already.
        """
        # Two deliveries of a step may both reach its end: the second must not repeat the next job.
        if self.continuation and suspended.step <= self.step:
            raise IllegalTransition(f"step {suspended.step}", f"step {self.step}")
        # An awaitable that `continue_` returned runs in the worker that has claimed this delivery.
        # Any other work begins with the next delivery, whose new id no worker has claimed.
        runs_here = isinstance(suspended.work, Awaiting)
        work, due = scheduled(suspended.work, now)
        return self._next(
            "suspend",
            now,
            changes=self.changes + 1,
            due=due,
            step=suspended.step,
            continuation=suspended.continuation,
            work=work,
            delivery_id=self.delivery_id + 1,
            held_delivery=self.held_delivery if runs_here else None,
            crashes=0,
            deferred_seconds=0.0,
            outcome=None,
        )

    def finish(self, finished: Finished, now: float) -> "Task":
        """Return the task with its result or error."""
        return self._end("failed" if finished.error else "completed", now, finished)

    def cancel(self, now: float) -> "Task":
        """Return the task cancelled. Later output of its work is rejected."""
        cancelled = self._end("cancelled", now, Finished(frees_key=True))
        if not self.resumes:
            return cancelled
        # What `on_cancel` is given, in case that the worker dies before it calls that.
        return replace(cancelled, continuation=self.continuation, stopped=run_id(self) or "")

    def notified(self, fencing_token: int) -> "Task":
        """Return the cancelled task after the call of `on_cancel`.

        It is unchanged if it has another token, because its idempotency key is in use again.
        """
        if self.stopped is None or self.fencing_token != fencing_token:
            return self
        return replace(self, continuation=b"", stopped=None)

    def _lose(self, now: float) -> "Task":
        lost = Finished(error=LOST, raised=True, frees_key=self.on_lost == "rerun")
        return self._end("failed", now, lost)

    def _end(self, end: End, now: float, finished: Finished) -> "Task":
        return self._next(
            "end",
            now,
            changes=self.changes + 1,
            end=end,
            result=finished.result,
            error=finished.error,
            raised=finished.raised,
            frees_key=finished.frees_key,
            failed=_failed_step(self) if finished.error or finished.raised else None,
            # Dropped, since an ended task is retained for its ttl: these may hold much more.
            continuation=b"",
            work=None,
            held_delivery=None,
            engine_node=None,
            outcome=None,
        )

    def _next(self, transition: str, now: float, /, **fields: object) -> "Task":
        if self.end is not None:
            raise IllegalTransition(transition, self.status)
        return replace(self, updated=now, **fields)


def _failed_step(task: Task) -> FailedStep | None:
    # Without a continuation it has no call: it is a part of a group, or a periodic job.
    if not isinstance(task.work, Working) or task.private or not task.continuation:
        return None
    outcome, reason = None if task.outcome is None else unpack(task.outcome), ""
    if isinstance(outcome, Failed):
        error = outcome.error
        name = error.type_name if isinstance(error, WorkRaised) else type(error).__name__
        reason = f"{name}: {error}"
    return FailedStep(task.step, task.continuation, task.work.job, reason)


def lose_process(task: Task, now: float) -> Task:
    """Return *task* after the death of the process that it was bound to.

    If `call` was running, the task fails: it is unknown how far the hook got. A wait fails with
    WorkerLost instead, and `continue_` decides.

    Raises:
        IllegalTransition: it is not bound to a process.
    """
    if task.bound_node is None:
        raise IllegalTransition("lose", task.status)
    return task._lose(now) if isinstance(task.work, Running) else fail_wait(task, now)


def lose_engine_node(task: Task, now: float, max_crashes: int) -> Task:
    """Return *task* after the death of the process of an engine that ran its job.

    That is a crash, after which the job is submitted again, or its wait fails: see `Task.claim`.

    Raises:
        IllegalTransition: no process of an engine runs it.
    """
    if task.engine_node is None:
        raise IllegalTransition("lose", task.status)
    crashes = task.crashes + 1
    if crashes > max_crashes or task.on_lost == "fail":
        return fail_wait(task, now)
    return replace(task.take_over(now), crashes=crashes)


def fail_wait(task: Task, now: float) -> Task:
    """Return *task*, its wait failed with WorkerLost, for any process to continue."""
    return task.settle(_LOST_OUTCOME, now).take_over(now)


def add_answers(task: Task, answers: Mapping[str, bytes], now: float) -> Task:
    """Return *task* with more *answers*; the last one settles it.

    Answers to questions that are not open are ignored (SEP-2663, "Task Update Requests"). If all
    of them are, the result is *task* itself.
    """
    if not isinstance(task.work, Asking) or task.settled:
        return task
    missing = task.work.missing
    new = {key: answer for key, answer in answers.items() if key in missing}
    if not new:
        return task
    asking = replace(task.work, answers={**task.work.answers, **new})
    task = task._next("answer", now, changes=task.changes + 1, work=asking)
    return task if asking.missing else task.settle(asking.outcome, now).take_over(now)


def add_progress(
    task: Task, now: float, progress: float | None, total: float | None, message: str | None
) -> Task:
    """Return *task* with the progress of its work; None leaves the earlier value.

    Raises:
        IllegalTransition: it has ended.
    """
    reported = {"progress": progress, "total": total, "message": message}
    new = {key: each for key, each in reported.items() if each is not None}
    return task._next("progress", now, changes=task.changes + 1, **new)


def replace_task(task: Task, ended: Task) -> Task:
    """Return *task*, a call whose idempotency key *ended* has freed, as its successor.

    Both have the same id: an engine rejects an id of a step that it has seen, followers wait for
    the next number of a change, and ids of jobs contain that of the step.
    """
    changes, delivery = ended.changes + 1, ended.delivery_id + 1
    return replace(task, changes=changes, delivery_id=delivery, step=ended.step)


def run_id(task: Task) -> str | None:
    """Return the id of the job of *task*, also after its end; None if it waits for no job.

    It contains the step, since one call may have several jobs, one after another.
    """
    if task.stopped:
        return task.stopped
    return f"{task.id}.{task.step}" if isinstance(task.work, Working) else None


def record_ttl(task: Task, retention: float, failed_retention: float = 0.0) -> float | None:
    """Return the seconds from its last change after which a store drops *task*; None: never.

    That is its `ttl` while it waits for its client, and after its end; at least *failed_retention*
    if an operator can repeat its job. While it waits for anything else, the record must not expire
    before the work reports to it, however late that is: then it is at least *retention* seconds,
    counted from when the task is due. A part of a wait for several jobs is retained as long after
    its end: the others may take that long, and the outcome of the part is read after them.
    """
    asks = isinstance(task.work, Asking) and task.outcome is None
    if task.failed is not None and task.ttl is not None:
        return max(task.ttl, failed_retention)
    is_over = task.end is not None and task.parent is None
    if task.ttl is None or is_over or asks:
        return task.ttl
    return max(task.ttl, retention) + max(0.0, task.due - task.updated)


_LOST_OUTCOME: Final = pack(Failed(WorkerLost()))
_UNKNOWN: Final = (
    "a task in the store has the format {}, and this release of genmcp reads "
    f"{_FORMAT:02x}: another release wrote it; use that release, or a new store"
)
_HEAD: Final = bytes([_FORMAT])
_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Task)
