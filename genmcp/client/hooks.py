"""The hooks of one ClientHandler, and the state that goes from one to the next."""

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import Context, ContextVar, copy_context
from inspect import isawaitable
from typing import Any, Final, Generic, TypeAlias

import msgspec
from typing_extensions import TypeVar

from genmcp.cancellation import cancel_and_wait, cancel_requested
from genmcp.client.handler import ClientHandler
from genmcp.errors import ConfigurationError
from genmcp.hook import check_call, overrides
from genmcp.mux.threads import ThreadPool
from genmcp.protocol.tasks import TaskStatus, TaskStatusNotificationParams
from genmcp.protocol.value import Value

__all__ = [
    "ORIGIN_CONTEXT",
    "HookRunner",
    "NotificationQueue",
    "ProgressCallback",
    "ProgressReporter",
]

S = TypeVar("S", default=Any)


class HookRunner(Generic[S]):
    """Calls the hooks of *handler*: an `async def` in the loop, a `def` in one of its threads.

    most: how many run at once; waiting: how many more may wait for a thread.

    Raises:
        ConfigurationError: *handler* is not a handler, or one of its hooks yields.
    """

    def __init__(self, handler: ClientHandler[S], *, most: int, waiting: int) -> None:
        if not isinstance(handler, ClientHandler):
            raise ConfigurationError(
                f"handler must be an instance of a ClientHandler, not {handler!r}"
            )
        self._handler = handler
        self._state: Any = None
        self._threads = ThreadPool(most, waiting)
        for name in vars(ClientHandler):
            if self.has(name):
                check_call(f"{type(handler).__name__}.{name}", getattr(handler, name))

    def __repr__(self) -> str:
        return f"<Hooks of {type(self._handler).__name__}>"

    def has(self, name: str) -> bool:
        """Whether the handler has a hook *name* of its own."""
        hook = getattr(self._handler, name, None)
        return callable(hook) and overrides(self._handler, name, ClientHandler)

    async def open(self) -> None:
        """Begin with the state that `init` returns.

        Raises:
            Exception: what `init` raises.
        """
        self._state = await self._returned("init")

    async def asked(self, name: str, *arguments: Any) -> Any:
        """Return what the hook *name* answers, and keep the state it may have returned with it."""
        returned = await self._returned(name, *arguments, self._state)
        if isinstance(returned, tuple) and len(returned) == 2:
            returned, self._state = returned
        return returned

    async def told(self, name: str, *arguments: Any) -> None:
        """Let the hook *name* take something in, and keep the state if it returns one."""
        returned = await self._returned(name, *arguments, self._state)
        if returned is not None:
            self._state = returned

    def close(self) -> None:
        """Let go of the threads."""
        self._threads.close()

    async def _returned(self, name: str, *arguments: Any) -> Any:
        try:
            return await self._call(name, *arguments)
        except asyncio.CancelledError as error:
            if cancel_requested():
                raise
            raise RuntimeError(f"{name} waited for something that was cancelled") from error

    async def _call(self, name: str, *arguments: Any) -> Any:
        hook = getattr(self._handler, name)
        if inspect.iscoroutinefunction(hook):
            return await hook(*arguments)
        if not self.has(name):
            return hook(*arguments)  # what ClientHandler itself answers takes no time
        returned = await self._threads.run(hook, *arguments)
        return await returned if inspect.isawaitable(returned) else returned


ORIGIN_CONTEXT: ContextVar[Context] = ContextVar("genmcp_client_heard_in")
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


class _LegacyTaskStatus(Value):
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


class NotificationQueue:
    """Notifications on their way to *hooks*; at most *most* wait, and what comes then is dropped.

    A hook that fails is logged, and the next one runs.
    """

    def __init__(self, hooks: HookRunner[Any], most: int) -> None:
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
                ORIGIN_CONTEXT.set(context)
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
    return msgspec.json.decode(msgspec.json.encode(params), type=_LegacyTaskStatus).up()


ProgressCallback: TypeAlias = Callable[
    [float, float | None, str | None], Awaitable[object] | object
]
"""Is given the progress, the total if it is known, and a message if there is one."""


_GRACE: Final = 1.0  # seconds that a callback has to end when it is cancelled


class ProgressReporter:
    """Calls a callback of progress in turn, beside the request, and waits for it at the end.

    At most *most* reports wait for a callback that is slow; of more, the oldest go: the newest says
    more than they do. What the callback raises is logged, and does not concern the request.
    """

    def __init__(self, callback: ProgressCallback, most: int = 256) -> None:
        self._callback = callback
        self._waiting: deque[tuple[float, float | None, str | None]] = deque(maxlen=most)
        self._task: asyncio.Task[None] | None = None

    def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        """Report, and return at once."""
        self._waiting.append((progress, total, message))
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    async def end(self) -> None:
        """Wait until everything is reported."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    async def cancel(self) -> None:
        """Report nothing more; a callback that does not end when it is cancelled is left."""
        self._waiting.clear()
        if self._task is not None:
            await cancel_and_wait(self._task, timeout=_GRACE)

    async def _run(self) -> None:
        while self._waiting:
            try:
                outcome = self._callback(*self._waiting.popleft())
                if isawaitable(outcome):
                    await outcome
            except (Exception, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError) and cancel_requested():
                    raise
                logger.exception("a callback of progress failed")
