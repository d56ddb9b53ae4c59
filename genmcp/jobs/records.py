"""Tasks in a store: the records, what is logged on them, and those who follow that."""

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import Final, TypeAlias

import msgspec

from genmcp.core.task import Task
from genmcp.core.task_time import kept
from genmcp.errors import Conflict, Gap, OutOfTurn, StoreError, TaskNotFound
from genmcp.jobs.options import JobOptions
from genmcp.stores.accounts import Account, Owner
from genmcp.stores.store import Append, Delete, Event, Op, Put, Store

__all__ = ["Change", "Note", "Records", "Transition", "records_of"]

logger = logging.getLogger("genmcp")

# What an event of a task's log begins with; a change goes on with `Task.changes`.
_CHANGED: Final = b"c"
_NOTE: Final = b"n"
_DISCARDED: Final = b"d"

_WEEK: Final = 7 * 86400.0
_FOR_EVER: Final = 10 * 365 * 86400.0  # a log has to have a time
_READ_AT_ONCE: Final = 100


def _nobody(task: Task) -> Owner:
    return ()


Transition: TypeAlias = Callable[[Task, float], Task]
"""What becomes of a task at a time; the same task if nothing does. It may be asked again."""


class Note(msgspec.Struct, frozen=True):
    """A message that was logged on a task; *id* is its place among all that is told of it."""

    id: str
    data: bytes


class Change(msgspec.Struct, frozen=True):
    """How a task stands, and the place of that; None if nothing that was told before is kept."""

    id: str | None
    task: Task


class Records:
    """The records of the tasks in *store*.

    keep: how many events of each task are retained. life: for how many seconds a task is retained
    that waits for something other than its client. accounts: returns the accounts that a task
    counts towards. most: the maximum number of open tasks of one client.
    """

    def __init__(
        self,
        store: Store,
        *,
        keep: int,
        life: float = _WEEK,
        accounts: Callable[[Task], Owner] = _nobody,
        most: int = 1000,
    ) -> None:
        self._store = store
        self._accounts = accounts
        self._most = most
        self._keep = keep
        self._life = life

    async def create(self, task: Task, call: bytes) -> bool:
        """Write a new task, and its raw request. Return False if there is a task with its id.

        Raises:
            OverShare: its client has too many open tasks, or has used its share of the store.
            StoreFull: only the reserve for steps of other tasks is left.
        """
        ttl, owner = kept(task, self._life), self._accounts(task)
        try:
            await self._store.apply(
                Put(_key(task.id), task.pack(), ttl=ttl, expect=0, owner=owner, new=True),
                # The request is stored as long as the task is open, and counts the open tasks of a
                # client.
                Put(_call(task.id), call, ttl=ttl, owner=self._open(owner), new=True),
                self._changed(task),
            )
        except Conflict:
            return False
        return True

    async def find(self, id: str) -> Task | None:
        """Return the task, None if there is none, or its time has run out."""
        found = await self._read(id)
        return found[0] if found else None

    async def call(self, id: str) -> bytes | None:
        """Return the raw request of the task, None if it has ended, but for one cancelled."""
        entry = await self._store.get(_call(id))
        return entry.value if entry else None

    async def change(self, id: str, transition: Transition) -> Task:
        """Let the task take a step, whatever others do to it meanwhile; return what it is then.

        Raises:
            OutOfTurn: it cannot take that step; what *transition* raises is passed on.
            TaskNotFound: there is no such task.
        """
        while True:
            found = await self._read(id)
            if found is None:
                raise TaskNotFound(id)
            was, version = found
            task = transition(was, self._store.now())
            if task is was:
                return task
            ops: list[Op] = [
                Put(
                    _key(id),
                    task.pack(),
                    ttl=kept(task, self._life),
                    expect=version,
                    owner=self._accounts(task),
                ),
            ]
            if task.changes != was.changes:
                ops.append(self._changed(task))
            if task.end in ("completed", "failed"):
                ops.append(Delete(_call(id)))
            try:
                await self._store.apply(*ops)
            except Conflict:
                continue
            if task.end == "cancelled":  # its tool may still be told
                await self._close(task)
            return task

    async def change_at(self, id: str, turn: int, transition: Transition) -> Task:
        """Let the task take a step, for whoever took it over in *turn*.

        Raises:
            OutOfTurn: it is over, or not kept any more, or somebody else's.
        """
        return await self.step(id, turn, transition)()

    def step(self, id: str, turn: int, transition: Transition) -> Callable[[], Awaitable[Task]]:
        """Return what does as `change_at`, and may be called again where the store failed.

        It takes the step once: what was written though the store failed is found then.
        """
        wanted: Task | None = None

        def once(task: Task, now: float) -> Task:
            nonlocal wanted
            if task == wanted:
                return task
            wanted = transition(task.at(turn), now)
            return wanted

        async def take() -> Task:
            try:
                return await self.change(id, once)
            except TaskNotFound:
                raise OutOfTurn(f"turn {turn} of task {id}", "gone") from None

        return take

    async def note(self, id: str, data: bytes) -> None:
        """Log a message on the task.

        Raises:
            TaskNotFound: there is no such task.
        """
        task = await self.find(id)
        if task is None:
            raise TaskNotFound(id)
        await self._store.apply(self._event(task, _NOTE + data))

    async def touch(self, task: Task) -> None:
        """Keep a task that waits for something, and its request, for its whole time from now."""
        ttl = kept(task, self._life)
        if ttl is not None:
            await self._store.touch(_key(task.id), ttl)
            await self._store.touch(_call(task.id), ttl)

    async def discard(self, id: str) -> None:
        """Forget the task. Who follows it learns that there is none."""
        await self._store.apply(
            Delete(_key(id)), Delete(_call(id)), Append(_key(id), _DISCARDED, ttl=60.0)
        )

    async def follow(
        self, id: str, after: str | None = None
    ) -> AsyncGenerator[Change | Note, None]:
        """Yield the changes of the task and the messages on it, to its end, in their order.

        Those behind *after*, the place of what was told last; with None, from the first that is
        kept. Several changes are told as one, at the place of the last of them. What was dropped
        before its turn is left out, but never how the task stands. At the end comes the task when
        it is over.

        Raises:
            TaskNotFound: there is no such task, or there is none any more.
        """
        task, told = await self._there(id), -1
        owed = task.over or after is None  # whether it is told though its place is not met
        while True:
            try:
                async with aclosing(self._log(id, after)) as events:
                    async for event in events:
                        if event is not None:
                            after = event.id
                            if event.data.startswith(_NOTE):
                                yield Note(event.id, event.data[1:])
                                continue
                            number = _number(event)
                            if number is None or number > task.changes:
                                # Its place is here or behind.
                                task, owed = await self._there(id), False
                            if number != task.changes:
                                continue
                        elif not owed:
                            continue
                        if told < task.changes:
                            told = task.changes
                            yield Change(after, task)
                        if task.over:
                            return
            except Gap:
                after, task, owed = None, await self._there(id), True

    async def _log(self, id: str, after: str | None) -> AsyncGenerator[Event | None, None]:
        """Yield the events behind *after*, None when those there were are told, then new ones."""
        while True:
            events = await self._store.read(_key(id), after, _READ_AT_ONCE)
            for event in events:
                after = event.id
                yield event
            if len(events) < _READ_AT_ONCE:
                break
        yield None
        async with aclosing(self._store.follow(_key(id), after)) as news:
            async for event in news:
                yield event

    async def _close(self, task: Task) -> None:
        """Retain the request of a cancelled task only as long as the task, and not as an open one.

        The request is still needed to call the tool's `on_cancel`.
        """
        try:
            entry = await self._store.get(_call(task.id))
            if entry is not None:
                ttl, owner = kept(task, self._life), self._accounts(task)
                await self._store.apply(
                    Put(_call(task.id), entry.value, ttl=ttl, expect=entry.version, owner=owner)
                )
        except StoreError as error:
            logger.debug("the request of task %s is kept for longer: %s", task.id, error)

    async def _there(self, id: str) -> Task:
        task = await self.find(id)
        if task is None:
            raise TaskNotFound(id)
        return task

    async def _read(self, id: str) -> tuple[Task, int] | None:
        entry = await self._store.get(_key(id))
        return (Task.unpack(entry.value), entry.version) if entry else None

    def _changed(self, task: Task) -> Append:
        return self._event(task, b"%b%d" % (_CHANGED, task.changes))

    def _event(self, task: Task, data: bytes) -> Append:
        ttl = kept(task, self._life)
        return Append(
            _key(task.id),
            data,
            ttl=_FOR_EVER if ttl is None else ttl,
            keep=self._keep,
            owner=self._accounts(task),
        )

    def owner_of(self, task: Task) -> str:
        """Return the owner for whom the steps of *task* are delivered, "" if it has none."""
        owner = self._accounts(task)
        return owner[-1].name if owner else ""

    def _open(self, owner: Owner) -> Owner:
        """Return *owner* with the account that counts its open tasks."""
        if not owner:
            return owner
        name = f"{owner[-1].name} tasks"
        setting = "JobOptions.tasks_of_client"
        return (*owner, Account(name, most=self._most, setting=setting))


def records_of(store: Store, options: JobOptions) -> Records:
    """Return the task records of *store*, with the bounds of *options*."""
    return Records(
        store,
        keep=options.keep,
        life=options.life,
        accounts=options.accounts,
        most=options.tasks_of_client,
    )


def _number(event: Event) -> int | None:
    """Return `Task.changes` as the change in *event* left it; None where there is no task then."""
    return None if event.data == _DISCARDED else int(event.data[1:])


def _key(id: str) -> str:
    return f"task:{id}"


def _call(id: str) -> str:
    return f"task:{id}#call"
