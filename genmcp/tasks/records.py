"""The records of tasks in a store, and the events for the followers of tasks.

The data of the task *id*, under the namespace of its service:

- `task:{id}`: the task itself, with the labels of `labels_of`;
- `task:{id}#call`: the raw request, as long as the task is open, with the label `open:` and the
  client that created the task;
- the log `task:{id}`: one event per change that followers see, and the messages of the call.

A call whose idempotency key is free again has the id, and replaces the record, of the earlier call.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from secrets import token_hex
from typing import Final, NamedTuple, TypeAlias

from msgspec.structs import replace

from genmcp.core.client_key import client_of
from genmcp.core.task import Task, record_ttl
from genmcp.core.waiting import ExternalJob, Following, Working
from genmcp.errors import (
    Conflict,
    IllegalTransition,
    OverShare,
    StoreError,
    StoreFull,
    TaskNotFound,
    UnknownFormat,
)
from genmcp.stores.deliveries import Backlog
from genmcp.stores.store import Append, Delete, Op, Put, Store
from genmcp.tasks.options import JobOptions
from genmcp.tasks.progress import JobProgress, with_progress

logger = logging.getLogger("genmcp")

# The first byte of an event. A change is followed by `Task.changes`.
_CHANGED: Final = b"c%d"
MESSAGE: Final = b"n"
DISCARDED: Final = b"d"

_NO_EXPIRY: Final = 10 * 365 * 86400.0  # ten years: a log needs a ttl
# The events of a task that are retained: a follower that is further behind gets the present state.
_MAX_EVENTS: Final = 1000
_OLDEST_OF: Final = 200  # records that are read for the age of a queue
_DISCARDED_TTL: Final = 60.0  # seconds: followers read the event at once


Transition: TypeAlias = Callable[[Task, float], Task]
"""Returns the next state of a task at a time: the same object for no change.

It may be called repeatedly, because the write is repeated after a conflict.
"""


def state_of(task: Task) -> str:
    """Return the state of *task* for an operator: its status, except in two cases.

    A task is queued while its next step waits for a process that takes it. It has failed also if
    its hook raised an error that its client gets as the result of a completed call.
    """
    if task.end is not None:
        return "failed" if task.raised and task.end == "completed" else task.end
    if task.held_delivery is None and task.needs_delivery:
        return "queued"
    return task.status


def labels_of(task: Task, namespace: str) -> Sequence[str]:
    """Return the labels under which `Store.find` finds the record of *task*.

    They are `state:` and the state, `owner:` and the principal, each after *namespace*; the queue
    of the job that it waits for, after `queued:` while no worker has taken that, and `queue:` while
    it runs; that of the external job that it waits for; and `expires` if its job has a deadline. A
    part of a group has neither of the first two.
    """
    labels, state = [], state_of(task)
    if isinstance(task.work, Following):
        labels.append(external_label(namespace, task.work.ref))
    if isinstance(task.work, Working | Following) and task.work.deadline is not None:
        labels.append(f"{namespace}expires")
    if isinstance(task.work, Working) and task.outcome is None:
        waits = "queued" if state == "queued" else "queue"
        labels.append(f"{namespace}{waits}:{task.work.job.queue}")
    if task.private and task.schedule is None:
        return labels
    labels.append(f"{namespace}state:{state}")
    if task.owner is not None:
        labels.append(f"{namespace}owner:{task.owner}")
    return labels


def external_label(namespace: str, ref: ExternalJob) -> str:
    """Return the label of the tasks that wait for the external job *ref*."""
    return f"{namespace}external:{ref.scheme}:{ref.ref}"


class Stored(NamedTuple):
    """A task as it was last read or written, and the version of its record."""

    task: Task
    version: int


class HeldTask:
    """A task that this process works on, because it holds the fencing *token*.

    Each write is conditional on the version that this process has read or written last. The writes
    of one step therefore do not read the record again. After a conflict (progress was written
    meanwhile, for example) or a failure the record is read, and the token decides: a process that
    was suspended and taken over finds a higher token, and its write is rejected.

    A write that failed with StoreUnavailable, or was cancelled, may still take effect, even after a
    later read. Before the read, this therefore makes another write to the same subject
    (`TaskRecords.barrier`), because a store orders such writes. After that the earlier write has
    either taken effect, and the read finds it, or never will.

    Args:
        records: have the task.
        id: the task.
        token: the fencing token.
        stored: the task, if it was just read.
        unsure: whether a write of this process may still take effect.
    """

    __slots__ = ("_claim", "_claim_id", "_records", "_stored", "_unsure", "_written", "id", "token")

    def __init__(
        self,
        records: "TaskRecords",
        id: str,
        token: int,
        stored: Stored | None = None,
        *,
        unsure: bool = False,
    ) -> None:
        self._records = records
        self._stored = stored
        self._claim: Transition | None = None
        self._claim_id: str | None = None
        self._unsure = unsure
        # The last write: its transition, and the record that it has written, or may have.
        self._written: tuple[Transition, Task] | None = None
        self.id = id
        self.token = token

    async def claim(self, max_crashes: int, engine_node: str | None = None) -> Task:
        """Claim the task, and set `token`. May be called again after a failure, as `change`.

        *engine_node* is the name of this process if it is one of an engine.

        The claim has a random id. If the write of the claim failed or was cancelled, it may have
        taken effect. The next write then finds that id in the record, and sets `token`.
        """
        if self._claim is None:
            self._claim_id = token_hex(8)
            self._claim = partial(
                Task.claim,
                max_crashes=max_crashes,
                claim_id=self._claim_id,
                engine_node=engine_node,
            )
        task = await self.change(self._claim)
        self.token, self._claim = task.fencing_token, None
        return task

    async def check(self) -> None:
        """Read the record, and check that the token is current.

        Raises:
            IllegalTransition: as for `change`.
        """
        self._stored = None
        await self.change(lambda task, now: task)

    async def change(self, transition: Transition) -> Task:
        """Write the task after *transition*, and return it.

        This may be repeated, because it or what followed it has failed, and makes the transition
        once: if the store has accepted the write, whatever it reported, the record shows it. A
        repetition is recognized by the transition, which must be the same object in each attempt:
        made before the first one, as in `retry(partial(held.change, transition))`, and not by the
        function that is repeated. The record cannot decide this: another transition may follow the
        one whose write failed, such as an error in place of a result, and must be made.

        Raises:
            IllegalTransition: it has ended, was deleted, or another process has taken it over.
        """
        while True:
            stored, self._stored = self._stored, None
            task, version = stored or await self._read()
            if self._written != (transition, task):
                if task.end is not None or task.fencing_token != self.token:
                    self._adopt(task)
                wanted = transition(task, self._records.now())
                if wanted is not task:
                    # Compare-and-set on the version: with it the token that was checked above is
                    # still current when the write takes effect.
                    self._written = None
                    try:
                        version = await self._records.write(wanted, version, task)
                    except Conflict:
                        # This write was rejected. If the record equals *wanted* afterwards, another
                        # process has written it.
                        continue
                    except (OverShare, StoreFull):  # nothing was written
                        raise
                    except (StoreError, asyncio.CancelledError):
                        self._written, self._unsure = (transition, wanted), True
                        raise
                    task = wanted
            self._written, self._stored = (transition, task), Stored(task, version)
            return task

    async def write_progress(self, progress: JobProgress) -> Task:
        """Write the progress of the work, which may be written twice. Raises as `change` does."""
        return await self.change(partial(with_progress, progress))

    async def _read(self) -> Stored:
        if self._unsure:
            await self._records.barrier(self.id)  # if it raises, the next read repeats it
            self._unsure = False
        stored = await self._records.find(self.id)
        if stored is None:
            raise IllegalTransition(f"token {self.token} of task {self.id}", "deleted")
        return stored

    def _adopt(self, task: Task) -> None:
        """Adopt the token of *task*, if that has a claim of this process with an unknown outcome.

        Raises:
            IllegalTransition: as for `change`.
        """
        claimed = self._claim is not None and task.claim_id == self._claim_id
        if claimed and task.fencing_token == self.token + 1:
            self.token, self._claim = task.fencing_token, None
        task.check_token(self.token)


class FollowedTask:
    """A task that `count` callers follow in this process, as it was written or read here last.

    After a write of this process, the followers need not read the task from the store.
    """

    __slots__ = ("count", "task")

    def __init__(self) -> None:
        self.count = 0
        self.task: Task | None = None

    def share(self, task: Task) -> Task:
        """Return *task*, or the equal one of another follower: records may be large."""
        if self.task == task:
            return self.task
        if self.task is None or self.task.changes < task.changes:
            self.task = task
        return task


class TaskRecords:
    """The records of tasks in *store*, under keys that begin with *prefix*.

    Args:
        store: has the records.
        options: how long records are retained, and how many a client may have.
        prefix: begins all keys and labels of the service.

    Attributes:
        followed: the tasks with followers in this process (`tasks/follower.py`).
        now: returns the time of the store.
        prefix: with which all keys and labels of the service begin.
    """

    def __init__(
        self,
        store: Store,
        options: JobOptions,
        prefix: str = "",
    ) -> None:
        self.store = store
        self._options = options
        self._ttl = partial(
            record_ttl, retention=options.retention, failed_retention=options.failed_retention
        )
        self.prefix = prefix
        self._prefix = f"{prefix}task:"
        self.followed: dict[str, FollowedTask] = {}
        self.now = store.now

    async def find(self, id: str) -> Stored | None:
        """Return the task, None if it does not exist or has expired."""
        entry = await self.store.get(self._prefix + id)
        return None if entry is None else Stored(Task.unpack(entry.value), entry.version)

    async def call(self, id: str) -> bytes | None:
        """Return the raw request of a task; None if it has none, or has ended.

        The request of a cancelled task is kept, and that of one with a step that an operator may
        repeat (`Task.failed`).
        """
        entry = await self.store.get(f"{self._prefix}{id}#call")
        return None if entry is None else entry.value

    async def create(
        self, task: Task, call: bytes | None, *, replaces: Stored | None = None
    ) -> bool:
        """Write a new task with its raw request. Return False if its id is taken.

        Args:
            task: the new task.
            call: its raw request; None for a private task.
            replaces: an ended task of the same id, whose idempotency key is free again.

        Raises:
            OverShare: its client has too many open tasks, or has used its share of the store.
            StoreFull: only the reserve for updates of stored tasks is left.
        """
        ttl, client = self._ttl(task), client_of(task.owner, task.address)
        key, open_of_client = self._prefix + task.id, f"{self.prefix}open:{client}"
        version, most = 0 if replaces is None else replaces.version, self._options.tasks_of_client
        if call is not None and client and await self.store.count(open_of_client) >= most:
            if version == 0 and await self.store.get(key) is not None:
                return False
            raise OverShare(
                f"This client already has {most} entries, which is the maximum "
                f"(limit: JobOptions.tasks_of_client)"
            )
        labels = labels_of(task, self.prefix)
        record = Put(
            key, task.pack(), ttl=ttl, expect=version, client=client, new=True, labels=labels
        )
        ops: list[Op] = [record]
        if call is not None:  # it counts towards the open tasks of its client
            labels = (open_of_client,) if client else ()
            put = Put(f"{key}#call", call, ttl=ttl, client=client, new=True, labels=labels)
            ops.append(put)
        if replaces is not None:  # its followers do not get the messages of the earlier one
            event = _CHANGED % task.changes
            ops.append(Append(key, event, ttl=ttl or _NO_EXPIRY, keep=1, client=client))
        try:
            await self.store.apply(*ops)
        except Conflict:
            return False
        return True

    async def write(self, task: Task, version: int, was: Task) -> int:
        """Replace the record *was*, if it still has *version*; return the new version.

        Record and event are written together: a follower that sees the event reads the new record.

        Raises:
            Conflict: the record has another version.
        """
        ttl, client = self._ttl(task), client_of(task.owner, task.address)
        key = self._prefix + task.id
        labels = labels_of(task, self.prefix)
        record = Put(key, task.pack(), ttl=ttl, expect=version, client=client, labels=labels)
        ops: list[Op] = [record]
        if task.end in ("completed", "failed") and not task.private and task.failed is None:
            # No hook runs for it any more, and requests may be large.
            ops.append(Delete(f"{key}#call"))
        # A task without a call has no followers but the process of an engine that runs its job.
        is_followed = (task.parent is None and task.schedule is None) or was.engine_node is not None
        if task.changes != was.changes and is_followed:
            data, ttl = _CHANGED % task.changes, ttl or _NO_EXPIRY
            event = Append(key, data, ttl=ttl, keep=_MAX_EVENTS, client=client)
            try:
                await self.store.apply(*ops, event)
            except (OverShare, StoreFull):
                # The log has no earlier events whose room this one could take. As the only one it
                # has room in any case: a client at its share can still end its tasks.
                await self.store.apply(*ops, replace(event, keep=1))
        else:
            await self.store.apply(*ops)
        # Followers in this process get the event, and read the task from here.
        followed = self.followed.get(task.id)
        if followed is not None:
            followed.task = task
        # `Tool.on_cancel` still needs the request, and so does an operator who retries the task.
        if task.end == "cancelled" or task.failed is not None:
            await self._shorten_request(task)
        return version + 1

    async def change(self, id: str, transition: Transition) -> Task:
        """Write the task after *transition*, and return it; repeat that after a conflict.

        Raises:
            IllegalTransition: the task does not allow the transition. Other errors of *transition*
                are raised as well.
            TaskNotFound: the task does not exist.
        """
        # No token is checked, because the writers do not work on the task: for example, a client
        # cancels it. After a conflict the transition is made again from the present state.
        while True:
            stored = await self.find(id)
            if stored is None:
                raise TaskNotFound(id)
            was, version = stored
            task = transition(was, self.now())
            if task is was:
                return task
            try:
                await self.write(task, version, was)
            except Conflict:
                continue
            return task

    async def notified(self, task: Task) -> None:
        """Write that `on_cancel` was called for the cancelled *task*, best effort.

        If this fails, another process calls it again.
        """
        with suppress(StoreError, TaskNotFound):
            await self.change(task.id, lambda found, now: found.notified(task.fencing_token))

    async def log_message(self, id: str, data: bytes) -> None:
        """Append a message to the log of the task.

        Raises:
            TaskNotFound: the task does not exist.
        """
        task = await self.get(id)
        event = Append(
            self.key(id),
            MESSAGE + data,
            ttl=self._ttl(task) or _NO_EXPIRY,
            keep=_MAX_EVENTS,
            client=client_of(task.owner, task.address),
            optional=True,
        )
        await self.store.apply(event)

    async def backlog(self, queue: str) -> Backlog:
        """Return how many jobs of *queue* wait and run, by their records.

        The age is that of the oldest of at most 200 waiting jobs. For a queue of an engine: what
        was submitted to that is no delivery of the store any more.
        """
        count, waiting = self.store.count, f"{self.prefix}queued:{queue}"
        now, due = self.now(), []
        for found in await self.store.find(waiting, None, _OLDEST_OF):
            with suppress(UnknownFormat):  # of another release
                due.append(Task.unpack(found.value).due)
        running = await count(f"{self.prefix}queue:{queue}")
        return Backlog(await count(waiting), running, max(0.0, now - min(due, default=now)))

    async def touch(self, task: Task) -> None:
        """Extend the expiry of a task and its request to a full retention from now."""
        ttl = record_ttl(task, self._options.retention)
        if ttl is not None:
            await self.store.touch(self.key(task.id), ttl)
            await self.store.touch(f"{self.key(task.id)}#call", ttl)

    async def discard(self, id: str, version: int | None = None) -> None:
        """Delete the task and its request. Its followers get TaskNotFound.

        Raises:
            Conflict: it has another *version*.
        """
        await self.store.apply(
            Delete(self.key(id), expect=version),
            Delete(f"{self.key(id)}#call"),
            Append(self.key(id), DISCARDED, ttl=_DISCARDED_TTL),
        )

    async def delete(self, id: str) -> None:
        """Delete a task that has no followers and no request: a part of a wait for several jobs."""
        await self.store.apply(Delete(self.key(id)))

    async def barrier(self, id: str) -> None:
        """Write to the subject of the task without changing anything.

        A store applies the writes to one subject in order (`Store.apply`). When this returns, every
        earlier write has therefore taken effect or never will: a read then shows the outcome of a
        write that failed with StoreUnavailable. The new write is a deletion: a full store accepts
        that.
        """
        await self.store.apply(Delete(f"{self.key(id)}#mark"))

    async def _shorten_request(self, task: Task) -> None:
        """Make the request of a cancelled or failed task expire with the task.

        It does not count towards the open tasks of its client any more.
        """
        try:
            entry = await self.store.get(f"{self.key(task.id)}#call")
            if entry is not None:
                key, client = f"{self.key(task.id)}#call", client_of(task.owner, task.address)
                ttl, version = self._ttl(task), entry.version
                await self.store.apply(
                    Put(key, entry.value, ttl=ttl, expect=version, client=client)
                )
        except StoreError as error:
            logger.debug("the request of task %s expires later: %s", task.id, error)

    async def get(self, id: str) -> Task:
        """Return the task.

        Raises:
            TaskNotFound: it does not exist, or has expired.
        """
        stored = await self.find(id)
        if stored is None:
            raise TaskNotFound(id)
        return stored.task

    def key(self, id: str) -> str:
        """Return the key of a task, also the name of its log."""
        return self._prefix + id
