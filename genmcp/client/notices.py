"""What a server tells, taken in by hooks one after another, in the order of the messages."""

import asyncio
import logging
from collections import deque
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final

import msgspec

from genmcp.cancellation import cancel_and_wait
from genmcp.client.hooks import Hooks
from genmcp.protocol.tasks import TaskStatus, TaskStatusNotificationParams
from genmcp.protocol.value import Value

__all__ = ["HEARD_IN", "Notices"]

HEARD_IN: ContextVar[Context] = ContextVar("genmcp_client_heard_in")
"""For a hook: the context in which what it takes in was heard.

That of the request on whose own response it came, where there is such a thing.
"""

logger = logging.getLogger("genmcp.client")

_HOOKS: Final = {
    "notifications/tasks": "handle_task_status",
    "notifications/tasks/status": "handle_task_status",
    "notifications/progress": "handle_progress",
    "notifications/message": "handle_log",
}
_OTHER: Final = "handle_notification"


class _Task(Value):
    """A task of 2025-11-25, whose notifications are all of its tasks that is known here."""

    task_id: str
    status: TaskStatus
    created_at: str
    last_updated_at: str = ""
    ttl: int | None = None
    poll_interval: int | None = None
    status_message: str | None = None

    def up(self) -> TaskStatusNotificationParams:
        """Return it as the tasks extension says it."""
        return TaskStatusNotificationParams(
            task_id=self.task_id,
            status=self.status,
            created_at=self.created_at,
            last_updated_at=self.last_updated_at or self.created_at,
            ttl_ms=self.ttl,
            poll_interval_ms=self.poll_interval,
            status_message=self.status_message,
        )


class Notices:
    """Notifications on their way to *hooks*; at most *most* wait, and what comes then is dropped.

    A hook that fails is logged, and the next one runs.
    """

    def __init__(self, hooks: Hooks[Any], most: int) -> None:
        self._hooks = hooks
        self._most = most
        self._waiting: deque[tuple[Context, str, str, Any]] = deque()
        self._work: asyncio.Task[None] | None = None
        self._dropped = 0
        self._names = {method: name for method, name in _HOOKS.items() if hooks.has(name)}
        self._other = _OTHER if hooks.has(_OTHER) else None

    def tell(self, method: str, params: Any) -> None:
        """Let the hook for *method*, if there is one, take *params* in when its turn comes."""
        name = self._names.get(method) or (None if method in _HOOKS else self._other)
        if name is None:
            return
        if len(self._waiting) >= self._most:
            if not self._dropped:
                logger.warning("notifications are dropped: %d wait for hooks already", self._most)
            self._dropped += 1
            return
        self._waiting.append((copy_context(), name, method, params))
        if self._work is None:
            self._work = asyncio.get_running_loop().create_task(self._run())

    def runs_in(self, task: "asyncio.Task[Any]") -> bool:
        """Whether *task* is the one in which hooks run here."""
        return task is self._work

    async def close(self, grace: float) -> None:
        """End, once all has been taken in, or after *grace* seconds."""
        if self._work is not None:
            work = self._work
            await asyncio.wait({work}, timeout=grace)
            await cancel_and_wait(work, timeout=grace)

    async def _run(self) -> None:
        try:
            while self._waiting:
                context, *notice = self._waiting.popleft()
                HEARD_IN.set(context)
                await self._take_in(*notice)
        finally:
            self._work = None
            self._waiting.clear()
            if self._dropped:
                logger.warning("notifications that were dropped: %d", self._dropped)
                self._dropped = 0

    async def _take_in(self, name: str, method: str, params: Any) -> None:
        try:
            if name == _OTHER:
                await self._hooks.told(name, method, params)
            else:
                await self._hooks.told(name, _value(method, params))
        except Exception:
            logger.exception("%r failed in %s, with %s", self._hooks, name, method)


def _value(method: str, params: Any) -> Any:
    """Return *params*; those of a notification this package has no value for, as its newer kin."""
    if method != "notifications/tasks/status" or isinstance(params, Value):
        return params
    return msgspec.json.decode(msgspec.json.encode(params), type=_Task).up()
