"""Repairs tasks whose next step, or the check of whose process, was never submitted.

A record and its submission are two writes. If a process dies between the two, or an id is lost, a
queued task waits without a delivery, and a call that ran in the process stays `working`. A reader
of the task repairs that (`TaskWriter.recover`), but a client need not read it: it may wait for a
notification, or may not have got the id. One process of a service therefore examines the open tasks
in turn.
"""

from typing import Final

from genmcp.core.task import Task
from genmcp.errors import Conflict, UnknownFormat
from genmcp.stores.store import Put
from genmcp.tasks.transitions import TaskWriter

_KEY: Final = "reconciler"
_STATES: Final = ("queued", "working")  # the others wait for their clients, or have ended
_AT_ONCE: Final = (
    100  # tasks of a state at each check, twice per lease: a long queue must not load the store
)


class TaskReconciler:
    """Examines the open tasks of a service while this process works on tasks.

    The processes of a service elect one by a record that expires after a lease. It examines at most
    100 tasks of each state at each check, and continues behind the last one at the next. A
    repeated submission of a task that the queue still has does nothing.

    Args:
        writer: submits a task whose next step is overdue, and gives up one whose process died.
    """

    def __init__(self, writer: TaskWriter) -> None:
        self._writer = writer
        self._records = writer.records
        self._node = writer.heartbeats.own.encode()
        # By state: the key of the last task that was examined.
        self._after: dict[str, str | None] = dict.fromkeys(_STATES)

    async def check(self) -> None:
        """Examine the next tasks, if this process is elected.

        The tasks in a store that is neither shared nor durable end with this process.

        Raises:
            StoreError: the store failed.
        """
        store = self._records.store
        if (store.shared or store.durable) and await self.is_elected(self._writer.heartbeats.lease):
            for state in _STATES:
                await self.examine(state, _AT_ONCE)

    async def examine(self, state: str, limit: int) -> None:
        """Examine the next *limit* tasks in *state*, and repair those that a process has left.

        Raises:
            StoreUnavailable: the store cannot be reached.
        """
        records = self._records
        label = f"{records.prefix}state:{state}"
        page = await records.store.find(label, self._after[state], limit)
        self._after[state] = page[-1].key if len(page) == limit else None
        for found in page:
            try:
                task = Task.unpack(found.value)
            except UnknownFormat:  # of another release, which examines it
                continue
            await self._writer.recover(task)

    async def is_elected(self, lease: float) -> bool:
        """Renew or acquire the record of the election; return whether this process has it."""
        store, key = self._records.store, f"{self._records.prefix}{_KEY}"
        entry = await store.get(key)
        if entry is not None and entry.value != self._node:
            return False
        try:
            version = 0 if entry is None else entry.version
            await store.apply(Put(key, self._node, ttl=lease, expect=version))
        except Conflict:
            return False
        return True
