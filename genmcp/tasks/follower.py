"""Following tasks: their changes and messages, in order, until they end.

An event in the log contains only the number of the change (`Task.changes`). The task itself is read
from the store, unless this process has written it and has it in memory. A follower that is slow
reads the latest record, and reports several changes as one. Messages that were dropped from the log
before they were read are left out.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial

import msgspec

from genmcp.core.task import Task
from genmcp.errors import LogTruncated, StoreUnavailable
from genmcp.stores.following import follow, retry_read
from genmcp.tasks.records import DISCARDED, MESSAGE, FollowedTask, TaskRecords


class TaskMessage(msgspec.Struct, frozen=True):
    """A message that was logged on a task; *id* is its position in the log."""

    id: str
    data: bytes


class TaskChange(msgspec.Struct, frozen=True):
    """A task after a change, and the position of the change in the log.

    The position is None if no event up to the change is stored.
    """

    id: str | None
    task: Task


async def follow_task(
    records: TaskRecords, id: str, after: str | None, first: Task | Callable[[], Awaitable[Task]]
) -> AsyncGenerator[TaskChange | TaskMessage, None]:
    """Yield the changes of a task and the messages on it, in order, until it has ended.

    The present state is always reported. The last item is the task after its end.

    Args:
        records: have the task *id*.
        after: the position of the last item that the caller has seen; None: from the first event
            that is stored.
        first: the task as the caller has just written it, or what reads it first.

    Raises:
        TaskNotFound: the task does not exist, or was deleted.
    """
    followed = records.followed.setdefault(id, FollowedTask())
    read = partial(_read, records, followed, id)
    followed.count += 1
    try:
        task = first if isinstance(first, Task) else await read(first)
        # The present state is reported at the position of its event. `owed`: if that is not
        # stored any more, after the stored events. A new task has none.
        reported, owed = -1, task.end is not None or after is None
        if task is first and task.changes == 0:
            reported, owed = 0, False
            yield TaskChange(None, task)
        async with aclosing(follow(records.store, records.key(id), after, catch_up=owed)) as events:
            async for event in events:
                if isinstance(event, LogTruncated | StoreUnavailable):
                    if isinstance(event, LogTruncated) or after is None:
                        # Events may have been dropped before they were read. The state is read
                        # before the stored events, which have its position.
                        after, task, owed = None, await read(), True
                    continue
                if event is not None:
                    after = event.id
                    if event.data.startswith(MESSAGE):
                        yield TaskMessage(event.id, event.data[1:])
                        continue
                    number = None if event.data == DISCARDED else int(event.data[1:])
                    if number is None or number > task.changes:
                        # A deletion, or the latest state has this event or a later one.
                        latest, owed = followed.task, False
                        if number is None or latest is None or latest.changes < number:
                            latest = await read()
                        task = latest
                    if number != task.changes:
                        continue
                elif not owed:
                    continue
                if reported < task.changes:
                    reported = task.changes
                    yield TaskChange(after, task)
                if task.end is not None:
                    return
    finally:
        followed.count -= 1
        if not followed.count:
            records.followed.pop(id, None)


async def _read(
    records: TaskRecords,
    followed: FollowedTask,
    id: str,
    get: Callable[[], Awaitable[Task]] | None = None,
) -> Task:
    """Return the task *id*, by *get* if that is given."""
    task = await retry_read(records.store, get or partial(records.get, id))
    return followed.share(task)
