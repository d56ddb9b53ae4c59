"""The outcomes of jobs whose calls came to a result that is too large to be kept."""

import logging
from collections.abc import Callable

from genmcp.core.outcome import Outcome, unpack
from genmcp.core.task import Task
from genmcp.errors import StoreError
from genmcp.stores.accounts import Owner
from genmcp.stores.store import Put, Store

__all__ = ["JobValues"]

logger = logging.getLogger("genmcp")


class JobValues:
    """Keeps what a job returned where `continue_` made too large a result of it.

    The work of hours would be lost with that result otherwise. The host can read it.
    """

    def __init__(self, store: Store, accounts: Callable[[Task], Owner]) -> None:
        self._store = store
        self._accounts = accounts

    async def keep(self, task: Task) -> bool:
        """Keep the outcome of *task* for its ttl, and return whether there was one, and room."""
        if task.outcome is None:
            return False
        owner = self._accounts(task)
        try:
            put = Put(_key(task.id), task.outcome, ttl=task.ttl, owner=owner, new=True)
            await self._store.apply(put)
        except StoreError as error:
            logger.warning("the value of the job of task %s is not kept: %s", task.id, error)
            return False
        return True

    async def find(self, id: str) -> Outcome | None:
        """Return the outcome that was kept for the task *id*, None if there is none."""
        entry = await self._store.get(_key(id))
        return None if entry is None else unpack(entry.value)


def _key(id: str) -> str:
    return f"value:{id}"
