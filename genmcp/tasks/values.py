"""Outcomes of jobs whose calls have made too large results of them."""

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
    """Stores the outcome of a job if the result that `continue_` made of it exceeds the limit.

    Otherwise the work of hours would be lost with that result. The host can read the value. Keys
    begin with *prefix*.
    """

    def __init__(self, store: Store, accounts: Callable[[Task], Owner], prefix: str) -> None:
        self._store = store
        self._accounts = accounts
        self._prefix = f"{prefix}value:"

    async def keep(self, task: Task) -> bool:
        """Store the outcome of *task* for its ttl; return False if there is none, or no room."""
        if task.outcome is None:
            return False
        owner, key = self._accounts(task), self._prefix + task.id
        try:
            await self._store.apply(Put(key, task.outcome, ttl=task.ttl, owner=owner, new=True))
        except StoreError as error:
            logger.warning("the value of the job of task %s is not kept: %s", task.id, error)
            return False
        return True

    async def find(self, id: str) -> Outcome | None:
        """Return the outcome that was stored for the task *id*, None if there is none."""
        entry = await self._store.get(self._prefix + id)
        return None if entry is None else unpack(entry.value)
