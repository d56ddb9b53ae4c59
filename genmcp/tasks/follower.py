"""The followers of tasks: their changes and messages, in order, to their end."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

import msgspec

from genmcp.core.task import Task
from genmcp.errors import LogTruncated
from genmcp.stores.store import LogEvent
from genmcp.tasks.records import DISCARDED, NOTE, Followed, TaskRecords

__all__ = ["TaskChange", "TaskFollower", "TaskMessage"]

_READ_AT_ONCE: Final = 100


class TaskMessage(msgspec.Struct, frozen=True):
    """A message that was logged on a task; *id* is its position in the log."""

    id: str
    data: bytes


class TaskChange(msgspec.Struct, frozen=True):
    """A task after a change, and the position of that; None if no earlier event is retained."""

    id: str | None
    task: Task


class TaskFollower:
    """Follows the tasks of *records*."""

    def __init__(self, records: TaskRecords) -> None:
        self._records = records

    async def follow(
        self, id: str, after: str | None = None, known: Task | None = None
    ) -> AsyncGenerator[TaskChange | TaskMessage, None]:
        """Yield the changes of the task and the messages on it, in order, until it is over.

        Those behind the position *after*; None: from the first that is retained. Several changes
        may be reported as one, at the position of the last. Events that were dropped before their
        turn are left out, but never the current state. The last is the task when it is over.
        *known* is the task as the caller has just written it.

        The log tells when the task has changed. What it has changed to is read, unless this process
        wrote it: then it is handed over in memory.

        Raises:
            TaskNotFound: the task does not exist, or was deleted.
        """
        followed = self._records.followed.setdefault(id, Followed())
        followed.count += 1
        try:
            task, reported = known or await self._records.there(id), -1
            # A new task is reported at its event; any other one also if its event is not met.
            new = known is not None and known.changes == 0
            owed = not new and (task.ended or after is None)
            while True:
                try:
                    async with aclosing(self._log(id, after, owed)) as events:
                        async for event in events:
                            if event is not None:
                                after = event.id
                                if event.data.startswith(NOTE):
                                    yield TaskMessage(event.id, event.data[1:])
                                    continue
                                number = _number(event)
                                if number is None or number > task.changes:
                                    # Its event is this one or a later one.
                                    task = await self._latest(id, number, followed)
                                    owed = False
                                if number != task.changes:
                                    continue
                            elif not owed:
                                continue
                            if reported < task.changes:
                                reported = task.changes
                                yield TaskChange(after, task)
                            if task.ended:
                                return
                except LogTruncated:
                    after, task, owed = None, await self._records.there(id), True
        finally:
            followed.count -= 1
            if not followed.count:
                self._records.followed.pop(id, None)

    async def _latest(self, id: str, number: int | None, followed: Followed) -> Task:
        task = followed.task
        if number is not None and task is not None and task.changes >= number:
            return task
        return await self._records.there(id)

    async def changed(self, id: str, after: str | None) -> str | None:
        """Wait for the next event of the task behind *after*; return its position.

        None: events were dropped; what is stored now counts.
        """
        try:
            async with aclosing(self._records.store.follow(self._records.key(id), after)) as events:
                return (await anext(events)).id
        except LogTruncated:
            return None

    async def _log(
        self, id: str, after: str | None, owed: bool
    ) -> AsyncGenerator[LogEvent | None, None]:
        """Yield the events behind *after*, and new ones; if *owed*, None before the new ones."""
        log, store = self._records.key(id), self._records.store
        while owed:
            events = await store.read(log, after, _READ_AT_ONCE)
            for event in events:
                after = event.id
                yield event
            if len(events) < _READ_AT_ONCE:
                yield None
                break
        async with aclosing(store.follow(log, after)) as news:
            async for event in news:
                yield event


def _number(event: LogEvent) -> int | None:
    """Return `Task.changes` after the change of *event*; None if the task was deleted."""
    return None if event.data == DISCARDED else int(event.data[1:])
