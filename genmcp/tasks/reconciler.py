"""Repairs tasks whose next step, or the check of whose process, was never submitted.

A record and its submission are two writes. If a process dies between the two, or an id is lost, a
queued task waits without a delivery, and a call that ran in the process stays `working`. A job may
also pass its deadline in a queue that no process serves. A reader of the task repairs that
(`TaskWriter.recover`), but a client need not read it: it may wait for a notification, or may not
have got the id. Each process therefore examines the open tasks in turn.
"""

from collections.abc import Collection
from typing import Final

from genmcp.core.task import Task
from genmcp.errors import UnknownFormat
from genmcp.tasks.writer import TaskWriter

# Of the tasks that are examined: the others wait for their clients, or have ended.
_LABELS: Final = ("expires", "state:queued", "state:working")


class TaskReconciler:
    """Examines the open tasks of a service while this process works on tasks.

    It examines at most 100 tasks of each label at each check, and continues behind the last one at
    the next. A repeated submission of a task that the queue still has does nothing, and two
    processes that repair one task compare its version.

    Args:
        writer: submits a task whose next step is overdue, and gives up one whose process died.
        engines: the queues whose jobs run on an engine, which may lose the parts of groups as well:
            these have no labels for their states.
        at_once: tasks of a label at each check, twice per lease: a long queue must not load the
            store.
    """

    def __init__(
        self, writer: TaskWriter, engines: Collection[str] = (), at_once: int = 100
    ) -> None:
        self._writer = writer
        self._records = writer.records
        self._at_once = at_once
        # By label: the key of the last task that was examined.
        queues = [f"{label}:{queue}" for queue in engines for label in ("queued", "queue")]
        self._after: dict[str, str | None] = dict.fromkeys([*_LABELS, *queues])

    async def check(self) -> None:
        """Examine the next tasks, and repair them.

        Raises:
            StoreError: the store failed.
        """
        for label, after in self._after.items():
            in_full = f"{self._records.prefix}{label}"
            page = await self._records.store.find(in_full, after, self._at_once)
            self._after[label] = page[-1].key if len(page) == self._at_once else None
            for found in page:
                try:
                    task = Task.unpack(found.value)
                except UnknownFormat:  # of another release, which examines it
                    continue
                await self._writer.recover(task)
