"""The records of tasks in a store, and the events logged on them.

What is stored of the task *id*, each under the namespace of its service:

- `task:{id}`: the task itself;
- `task:{id}#call`: the raw request, as long as the task is open;
- the log `task:{id}`: one event a change that followers see, and the messages of the call.

The calls with one idempotency key, `{slot}-{random}`, share a record, so that a key has one:
`task:{slot}` is the last of them, and `task:{slot}#{random}` its log, its request (`#call`), and
the record itself once a later call has the key.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from secrets import token_hex
from typing import Final, NamedTuple, TypeAlias

from genmcp.core.task import Task, record_ttl, slot_of
from genmcp.errors import (
    Conflict,
    IllegalTransition,
    OverShare,
    StoreError,
    StoreFull,
    TaskNotFound,
)
from genmcp.stores.accounts import Account, Owner
from genmcp.stores.store import Append, Delete, Op, Put, Store
from genmcp.tasks.options import JobOptions

__all__ = ["DISCARDED", "NOTE", "Followed", "HeldTask", "Stored", "TaskRecords", "Transition"]

logger = logging.getLogger("genmcp")

# The first byte of an event. A change is followed by `Task.changes`.
_CHANGED: Final = b"c%d"
NOTE: Final = b"n"
DISCARDED: Final = b"d"

_FOREVER: Final = 10 * 365 * 86400.0  # a log needs a ttl


Transition: TypeAlias = Callable[[Task, float], Task | None]
"""Returns a task after a step at a time: the same task if nothing changes, None to delete it.

It may be called repeatedly.
"""


class Stored(NamedTuple):
    """A task as it was read or written, and the version of its record."""

    task: Task
    version: int


class HeldTask:
    """The task *id*, for the process that holds its fencing *token*.

    A write is compared with the version that this process has read or written last, so that the
    steps of one worker do not read the record again. After a conflict (progress is written
    meanwhile, say) or a failure it is read, and the token decides: a process that was frozen or
    taken for gone finds a higher one, and is refused.

    A write that failed, or was cancelled, may be carried out later. So the read after it follows an
    ordered write (`TaskRecords.mark`), behind which an earlier one either has been carried out or
    never is.
    """

    __slots__ = ("_claim", "_records", "_stored", "_unsure", "id", "token")

    def __init__(
        self, records: "TaskRecords", id: str, token: int, stored: Stored | None = None
    ) -> None:
        self._records = records
        self._stored = stored
        self._claim: str | None = None
        self._unsure = False  # whether an earlier write may be carried out later
        self.id = id
        self.token = token

    def claim(self, crashes: int) -> Callable[[], Awaitable[Task]]:
        """Return a function that claims the task, as `step` does, and holds its new token.

        If its write failed or was cancelled, the next step finds out whether this process has the
        claim, and takes its token then.
        """
        self._claim = claim = token_hex(8)
        write = self.step(partial(Task.claim, max_crashes=crashes, claim_id=claim))

        async def claimed() -> Task:
            task = await write()
            self.token, self._claim = task.fencing_token, None
            return task

        return claimed

    async def check(self) -> None:
        """Read the record, and check the token.

        Raises:
            IllegalTransition: as for `change`.
        """
        self._stored = None
        await self.change(lambda task, now: task)

    async def change(self, transition: Callable[[Task, float], Task]) -> Task:
        """Write the task after *transition*, and return it.

        Raises:
            IllegalTransition: it is over, no longer stored, or another process has taken it over.
        """
        return await self.step(transition)()

    def step(
        self, transition: Callable[[Task, float], Task], call: bytes | None = None
    ) -> Callable[[], Awaitable[Task]]:
        """Return a function that does as `change`, and may be called again if the store failed.

        The step is taken once: a write that was carried out although the store failed is recognised
        by the record that it left. *call* is as for `TaskRecords.write`.
        """
        written: Task | None = None  # as this has written it, or may have

        async def write() -> Task:
            nonlocal written
            while True:
                stored, self._stored = self._stored, None
                task, version = stored or await self._read()
                if written is None or task != written:
                    wanted = transition(self._own(task), self._records.now())
                    if wanted is not task:
                        try:
                            version = await self._records.write(wanted, version, task, call)
                        except Conflict:  # an equal record is the work of another
                            written = None
                            continue
                        except (OverShare, StoreFull):  # nothing was written
                            raise
                        except (StoreError, asyncio.CancelledError):
                            written, self._unsure = wanted, True
                            raise
                    task = written = wanted
                self._stored = Stored(task, version)
                return task

        return write

    async def _read(self) -> Stored:
        if self._unsure:
            await self._records.mark(self.id)  # raises: the next read does this again
            self._unsure = False
        stored = await self._records.find(self.id)
        if stored is None:
            raise IllegalTransition(f"token {self.token} of task {self.id}", "gone")
        return stored

    def _own(self, task: Task) -> Task:
        """Return *task* if this process holds it, also by a claim of unknown outcome."""
        claimed = self._claim is not None and task.claim_id == self._claim
        if claimed and task.fencing_token == self.token + 1:
            self.token, self._claim = task.fencing_token, None
        return task.check_token(self.token)


class Followed:
    """The latest state of a task that this process follows and has written itself."""

    __slots__ = ("count", "task")

    def __init__(self) -> None:
        self.count = 0
        self.task: Task | None = None


class TaskRecords:
    """The records of the tasks in *store* whose keys begin with *prefix*.

    followed: the tasks with followers in this process (`tasks.follower`).
    """

    def __init__(self, store: Store, options: JobOptions, prefix: str = "") -> None:
        self.store = store
        self._options = options
        self._prefix = f"{prefix}task:"
        self.followed: dict[str, Followed] = {}
        self.now = store.now

    async def find(self, id: str) -> Stored | None:
        """Return the task, None if it does not exist or has expired."""
        slot = slot_of(id)
        stored = await self.in_slot(slot)
        if stored is None or stored.task.id == id:
            return stored
        entry = await self.store.get(self.key(id))  # a later call uses its slot
        return None if entry is None else Stored(Task.unpack(entry.value), entry.version)

    async def in_slot(self, slot: str) -> Stored | None:
        """Return the last task that used *slot*, None if there is none."""
        entry = await self.store.get(self._prefix + slot)
        return None if entry is None else Stored(Task.unpack(entry.value), entry.version)

    async def call(self, id: str) -> bytes | None:
        """Return the raw request of a task, None if it has ended, unless by a cancellation."""
        entry = await self.store.get(self._call(id))
        return None if entry is None else entry.value

    async def create(
        self, task: Task, call: bytes | None, *, replaces: Stored | None = None
    ) -> bool:
        """Write a new task with its raw request. Return False if its slot is taken.

        *replaces* is a task that was read from the slot, whose key is free again. It stays
        readable under its id, unless no client was given that.

        Raises:
            OverShare: its client has too many open tasks, or has used its share of the store.
            StoreFull: only the reserve for steps of other tasks is left.
        """
        ttl, owner = terms = self._terms(task)
        slot, key = self._prefix + slot_of(task.id), self.key(task.id)
        version = 0 if replaces is None else replaces.version
        ops: list[Op] = [Put(slot, task.pack(), ttl=ttl, expect=version, owner=owner, new=True)]
        if replaces is not None and not replaces.task.private:
            ttl, owner = self._terms(replaces.task)
            packed = replaces.task.pack()
            ops.append(Put(self.key(replaces.task.id), packed, ttl=ttl, owner=owner))
        if call is not None:
            ops.append(self._put_call(key, call, *terms))
        if not task.private:  # others need no event: they look again by themselves
            ops.append(self._event(key, _CHANGED % task.changes, *terms))
        try:
            await self.store.apply(*ops)
        except Conflict:
            return False
        return True

    async def write(self, task: Task, version: int, was: Task, call: bytes | None = None) -> int:
        """Replace the record *was*, with its *version*, by *task*; return the new version.

        *call* is the raw request of a task that was private.

        Raises:
            Conflict: the record has another version.
        """
        ttl, owner = self._terms(task)
        slot, key = self._prefix + slot_of(task.id), self.key(task.id)
        ops: list[Op] = [Put(slot, task.pack(), ttl=ttl, expect=version, owner=owner)]
        if call is not None:
            ops.append(self._put_call(key, call, ttl, owner))
        elif task.end in ("completed", "failed") and not task.private:
            ops.append(Delete(f"{key}#call"))
        if task.changes != was.changes:
            ops.append(self._event(key, _CHANGED % task.changes, ttl, owner))
        await self.store.apply(*ops)
        followed = self.followed.get(task.id)
        if followed is not None:
            followed.task = task
        if task.end == "cancelled":  # `on_cancel` of its tool still needs the request
            await self._close(task)
        return version + 1

    async def change(self, id: str, transition: Transition) -> Task:
        """Write the task after *transition*, whatever others write meanwhile; return it.

        Raises:
            IllegalTransition: the task does not allow it. Other errors of *transition* pass as
                well.
            TaskNotFound: there is no such task, or it was deleted.
        """
        while True:
            stored = await self.find(id)
            if stored is None:
                raise TaskNotFound(id)
            was, version = stored
            task = transition(was, self.now())
            if task is was:
                return task
            try:
                if task is None:
                    await self._delete(was, version)
                    return was
                await self.write(task, version, was)
            except Conflict:
                continue
            return task

    async def note(self, id: str, data: bytes) -> None:
        """Log a message on the task.

        Raises:
            TaskNotFound: there is no such task.
        """
        stored = await self.find(id)
        if stored is None:
            raise TaskNotFound(id)
        terms = self._terms(stored.task)
        await self.store.apply(self._event(self.key(id), NOTE + data, *terms))

    async def touch(self, task: Task) -> None:
        """Retain a task that waits, and its request, for its whole time from now."""
        ttl = record_ttl(task, self._options.retention)
        if ttl is not None:
            await self.store.touch(self._prefix + slot_of(task.id), ttl)
            await self.store.touch(self._call(task.id), ttl)

    async def discard(self, id: str) -> None:
        """Delete the task. Its followers get TaskNotFound."""
        await self.store.apply(
            Delete(self._prefix + slot_of(id)),
            Delete(self._call(id)),
            Append(self.key(id), DISCARDED, ttl=60.0),
        )

    async def mark(self, id: str) -> None:
        """Write to the subject of the task without changing anything.

        Every write to the same subject that was begun before has been carried out then, or never
        is: a read that follows is certain about a write that failed with StoreUnavailable. A
        deletion needs no room in a store that is full.
        """
        await self.store.apply(Delete(f"{self.key(id)}#mark"))

    async def _delete(self, task: Task, version: int) -> None:
        record = Delete(self._prefix + slot_of(task.id), expect=version)
        try:
            await self.store.apply(record, Append(self.key(task.id), DISCARDED, ttl=60.0))
        except StoreFull:  # copies of the call look again without an event
            await self.store.apply(record)

    async def _close(self, task: Task) -> None:
        """Retain the request of a cancelled task as long as the task, and not as an open one."""
        try:
            entry = await self.store.get(self._call(task.id))
            if entry is not None:
                ttl, owner = self._terms(task)
                call, version = entry.value, entry.version
                put = Put(self._call(task.id), call, ttl=ttl, expect=version, owner=owner)
                await self.store.apply(put)
        except StoreError as error:
            logger.debug("the request of task %s is kept for longer: %s", task.id, error)

    async def there(self, id: str) -> Task:
        """Return the task.

        Raises:
            TaskNotFound: it does not exist, or has expired.
        """
        stored = await self.find(id)
        if stored is None:
            raise TaskNotFound(id)
        return stored.task

    def _terms(self, task: Task) -> tuple[float | None, Owner]:
        """Return the ttl of what is stored of *task*, and the accounts that it counts towards."""
        return record_ttl(task, self._options.retention), self._options.accounts(task)

    def _put_call(self, key: str, call: bytes, ttl: float | None, owner: Owner) -> Put:
        """Return the write of a raw request, which counts towards the open tasks of its client."""
        if owner:
            most, setting = self._options.tasks_of_client, "JobOptions.tasks_of_client"
            owner = (*owner, Account(f"{owner[-1].name} tasks", most=most, setting=setting))
        return Put(f"{key}#call", call, ttl=ttl, owner=owner, new=True)

    def _event(self, key: str, data: bytes, ttl: float | None, owner: Owner) -> Append:
        ttl = _FOREVER if ttl is None else ttl
        return Append(key, data, ttl=ttl, keep=self._options.max_events, owner=owner)

    def owner_of(self, task: Task) -> str:
        """Return the owner for whom the steps of *task* are delivered, "" if it has none."""
        owner: Owner = self._options.accounts(task)
        return owner[-1].name if owner else ""

    def key(self, id: str) -> str:
        """Return the key of a task, which is also the name of its log."""
        slot = slot_of(id)
        return self._prefix + (id if slot == id else f"{slot}#{id[len(slot) + 1 :]}")

    def _call(self, id: str) -> str:
        return f"{self.key(id)}#call"
