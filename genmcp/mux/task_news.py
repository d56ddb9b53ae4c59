"""How tasks go on, for whoever listens: SEP-2663, "Task Status Notifications"."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, asynccontextmanager, suppress

from genmcp.core.task import Asking, Task
from genmcp.errors import StoreError, TaskNotFound
from genmcp.jobs.jobs import Change, Jobs

__all__ = ["TaskNews"]

logger = logging.getLogger("genmcp")


class TaskNews:
    """What is new of the tasks that one client listens to: of each, how it stands now."""

    def __init__(self) -> None:
        self._news: dict[str, Task] = {}
        self._event = asyncio.Event()

    @classmethod
    @asynccontextmanager
    async def of(
        cls, jobs: Jobs, ids: Sequence[str], principal: str | None
    ) -> AsyncGenerator["TaskNews", None]:
        """Follow the tasks *ids* while this is entered."""
        news = cls()
        followers = [asyncio.create_task(news._follow(jobs, id, principal)) for id in ids]
        try:
            yield news
        finally:
            for follower in followers:
                follower.cancel()
            await asyncio.gather(*followers, return_exceptions=True)

    async def take(self) -> list[Task]:
        """Wait until there is something new, and return it; of one task only the newest."""
        await self._event.wait()
        self._event.clear()
        news, self._news = self._news, {}
        return list(news.values())

    async def _follow(self, jobs: Jobs, id: str, principal: str | None) -> None:
        told: tuple[object, ...] = ()
        with suppress(TaskNotFound):  # its time has run out
            try:
                async with aclosing(jobs.follow(id, principal)) as changes:
                    async for change in changes:
                        if isinstance(change, Change) and _seen(change.task) != told:
                            told = _seen(change.task)
                            self._news[id] = change.task
                            self._event.set()
            except StoreError as error:
                logger.warning("a listener hears no more of task %s: %s", id, error)


def _seen(task: Task) -> tuple[object, ...]:
    """Return what a client sees of a *task*, but for when it was changed last."""
    asked = task.work.missing if isinstance(task.work, Asking) else ()
    return task.status, task.message, task.progress, task.total, (*asked,)
