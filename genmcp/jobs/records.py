"""Tasks in a store: the records, what is logged on them, and those who follow that."""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Final, TypeAlias

import msgspec

from genmcp.core.task import Task
from genmcp.errors import Conflict, Gap, OutOfTurn, TaskNotFound
from genmcp.stores.store import Append, Delete, Event, Put, Store

__all__ = ["Note", "Records", "Transition"]

# What an event of a task's log begins with.
_CHANGED: Final = b"c"
_ENDED: Final = b"e"
_NOTE: Final = b"n"

_FOR_EVER: Final = 10 * 365 * 86400.0  # a log has to have a time
_READ_AT_ONCE: Final = 100

Transition: TypeAlias = Callable[[Task, float], Task]
"""What becomes of a task at a time; the same task if nothing does. It may be asked again."""


class Note(msgspec.Struct, frozen=True):
    """A message that was logged on a task; *id* is its place among them."""

    id: str
    data: bytes


class Records:
    """The tasks of *store*. *keep* is how many events of each are kept."""

    def __init__(self, store: Store, *, keep: int, clock: Callable[[], float]) -> None:
        self._store = store
        self._keep = keep
        self._clock = clock

    async def create(self, task: Task, call: bytes) -> bool:
        """Write a new task, and the raw request it is about. False: there is one with its id."""
        try:
            await self._store.apply(
                Put(_key(task.id), task.pack(), ttl=task.ttl, expect=0),
                Put(_call(task.id), call, ttl=task.ttl),
                self._event(task, _CHANGED),
            )
        except Conflict:
            return False
        return True

    async def find(self, id: str) -> Task | None:
        """Return the task, None if there is none, or its time has run out."""
        found = await self._read(id)
        return found[0] if found else None

    async def call(self, id: str) -> bytes | None:
        """Return the raw request of the task, None if it is not kept any more."""
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
            task = transition(was, self._clock())
            if task is was:
                return task
            try:
                await self._store.apply(
                    Put(_key(id), task.pack(), ttl=task.ttl, expect=version),
                    self._event(task, _ENDED if task.over else _CHANGED),
                )
            except Conflict:
                continue
            return task

    async def change_at(self, id: str, turn: int, transition: Transition) -> Task:
        """Let the task take a step, for whoever took it over in *turn*.

        Raises:
            OutOfTurn: it is over, or not kept any more, or somebody else's.
        """
        try:
            return await self.change(id, lambda task, now: transition(task.at(turn), now))
        except TaskNotFound:
            raise OutOfTurn(f"turn {turn} of task {id}", "gone") from None

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
        if task.ttl is not None:
            await self._store.touch(_key(task.id), task.ttl)
            await self._store.touch(_call(task.id), task.ttl)

    async def discard(self, id: str) -> None:
        """Forget the task. Who follows it learns that there is none."""
        await self._store.apply(
            Delete(_key(id)), Delete(_call(id)), Append(_key(id), _ENDED, ttl=60.0)
        )

    async def follow(self, id: str, after: str | None = None) -> AsyncGenerator[Task | Note, None]:
        """Yield the task now and as it changes, to its end, and the messages behind *after*.

        Several changes may be told as one. Where messages were dropped before their turn, it goes
        on with the rest.

        Raises:
            TaskNotFound: there is no such task, or there is none any more.
        """
        task, version = await self._there(id)
        if not task.over:
            yield task
        while not task.over:
            try:
                async with aclosing(self._store.follow(_key(id), after)) as events:
                    async for event in events:
                        after = event.id
                        if event.data.startswith(_NOTE):
                            yield _note(event)
                            continue
                        task, changed = await self._there(id)
                        if task.over:
                            # It is told when its own event comes, behind all that was said before.
                            if event.data == _ENDED:
                                break
                        elif changed != version:
                            version = changed
                            yield task
            except Gap:
                after = None
                task, _ = await self._there(id)
        async for note in self._notes(id, after):
            yield note
        yield task

    async def _notes(self, id: str, after: str | None) -> AsyncGenerator[Note, None]:
        """Yield the messages there are behind *after*."""
        while True:
            try:
                events = await self._store.read(_key(id), after, _READ_AT_ONCE)
            except Gap:
                after = None
                continue
            for event in events:
                if event.data.startswith(_NOTE):
                    yield _note(event)
            if len(events) < _READ_AT_ONCE:
                return
            after = events[-1].id

    async def _there(self, id: str) -> tuple[Task, int]:
        found = await self._read(id)
        if found is None:
            raise TaskNotFound(id)
        return found

    async def _read(self, id: str) -> tuple[Task, int] | None:
        entry = await self._store.get(_key(id))
        return (Task.unpack(entry.value), entry.version) if entry else None

    def _event(self, task: Task, data: bytes) -> Append:
        ttl = _FOR_EVER if task.ttl is None else task.ttl
        return Append(_key(task.id), data, ttl=ttl, keep=self._keep)


def _note(event: Event) -> Note:
    return Note(event.id, event.data[1:])


def _key(id: str) -> str:
    return f"task:{id}"


def _call(id: str) -> str:
    return f"task:{id}:call"
