"""Calls of user code: hooks of a handler, in the order of the messages, and progress callbacks."""

import asyncio
import inspect
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextvars import Context, ContextVar, copy_context
from typing import Any, Final, TypeAlias

import msgspec

from genmcp._mux.threads import ThreadPool
from genmcp.cancellation import cancel_and_wait, cancel_requested
from genmcp.client.handler import ClientHandler
from genmcp.errors import ConfigurationError
from genmcp.protocol.tasks import TaskStatus, TaskStatusNotificationParams
from genmcp.protocol.value import Value

logger = logging.getLogger("genmcp.client")

ORIGIN_CONTEXT: ContextVar[Context] = ContextVar("genmcp_client_origin_context")
"""In a hook for a notification: the context variables of the code that received the notification.

Over HTTP, these are the context variables of the call whose response contained the notification.
"""

ProgressCallback: TypeAlias = Callable[
    [float, float | None, str | None], Awaitable[object] | object
]
"""Called with the progress, the total if it is known, and a message if there is one."""

_HOOKS: Final = {
    "notifications/tasks": "handle_task_status",
    "notifications/tasks/status": "handle_task_status",
    "notifications/progress": "handle_progress",
    "notifications/message": "handle_log",
}
_OTHER: Final = "handle_notification"
_MAX_NOTIFICATIONS = 1024  # that wait for hooks
_MAX_REPORTS = 256  # that wait for the progress callback of one call
#: Seconds that a cancelled progress callback has to end.
_CALLBACK_GRACE: Final = 1.0


class HookRunner:
    """Calls the hooks of *handler*. Owned by a `HandlerRunner`.

    An `async def` runs in the event loop, a `def` in a thread.

    Args:
        handler: the handler.
        max_threads: maximum number of hooks that run in threads at once.
        max_queued: maximum number of hooks that wait for a thread.

    Raises:
        ConfigurationError: *handler* is not a handler, or one of its hooks is a generator.
    """

    def __init__(self, handler: ClientHandler, *, max_threads: int, max_queued: int) -> None:
        if not isinstance(handler, ClientHandler):
            raise ConfigurationError(
                f"handler must be an instance of a ClientHandler, not {handler!r}"
            )
        self._handler = handler
        self._threads = ThreadPool(max_threads, max_queued)
        for name in vars(ClientHandler):
            hook = getattr(handler, name)
            if inspect.isgeneratorfunction(hook) or inspect.isasyncgenfunction(hook):
                raise ConfigurationError(
                    f"{type(handler).__name__}.{name} yields; a hook returns one answer"
                )

    def __repr__(self) -> str:
        return f"<HookRunner of {type(self._handler).__name__}>"

    def has(self, name: str) -> bool:
        """Return whether the handler overrides the hook *name*."""
        hook = getattr(self._handler, name, None)
        return callable(hook) and getattr(hook, "__func__", None) is not vars(ClientHandler)[name]

    def close(self) -> None:
        """Close the thread pool."""
        self._threads.close()

    async def call(self, name: str, *arguments: Any) -> Any:
        """Call the hook *name*, and return what it returns.

        Raises:
            Exception: As raised by the hook.
        """
        try:
            hook = getattr(self._handler, name)
            if inspect.iscoroutinefunction(hook):
                return await hook(*arguments)
            if not self.has(name):
                return hook(*arguments)  # the default of ClientHandler does not block
            returned = await self._threads.run(hook, *arguments)
            return await returned if inspect.isawaitable(returned) else returned
        except asyncio.CancelledError as error:
            if cancel_requested():
                raise
            raise RuntimeError(f"{name} waited for something that was cancelled") from error


class _LegacyTaskStatus(Value):
    """A task of 2025-11-25. Only the notifications of its tasks are supported here."""

    task_id: str
    status: TaskStatus
    created_at: str
    last_updated_at: str = ""
    ttl: int | None = None
    poll_interval: int | None = None
    status_message: str | None = None

    def to_current(self) -> TaskStatusNotificationParams:
        """Return the status of the task in the form of the tasks extension."""
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
    """Passes notifications to hooks one at a time, in order. Owned by a `HandlerRunner`.

    Too many are dropped with a warning. An exception of a hook is logged.
    """

    def __init__(self, hooks: HookRunner) -> None:
        self._hooks = hooks
        self._queue: deque[tuple[Context, str, str, Any]] = deque()
        self._worker: asyncio.Task[None] | None = None
        self._dropped = 0
        self._names = {method: name for method, name in _HOOKS.items() if hooks.has(name)}
        self._other = _OTHER if hooks.has(_OTHER) else None

    def put(self, method: str, params: Any) -> None:
        """Queue a notification for its hook, if the handler has one."""
        name = self._names.get(method) or (None if method in _HOOKS else self._other)
        if name is None:
            return
        if len(self._queue) >= _MAX_NOTIFICATIONS:
            if not self._dropped:
                logger.warning(
                    "notifications are dropped: %d wait for hooks already", _MAX_NOTIFICATIONS
                )
            self._dropped += 1
            return
        self._queue.append((copy_context(), name, method, params))
        if self._worker is None:
            self._worker = asyncio.get_running_loop().create_task(self._run())

    def runs_in(self, task: "asyncio.Task[Any]") -> bool:
        """Return whether *task* is the one that calls the hooks."""
        return task is self._worker

    async def close(self, grace: float) -> None:
        """Wait *grace* seconds at most until the queue is empty; then drop what remains."""
        if self._worker is not None:
            worker = self._worker
            await asyncio.wait({worker}, timeout=grace)
            await cancel_and_wait(worker, timeout=grace)

    async def _run(self) -> None:
        try:
            while self._queue:
                context, name, method, params = self._queue.popleft()
                ORIGIN_CONTEXT.set(context)
                await self._call(name, method, params)
        finally:
            self._worker = None
            self._queue.clear()
            if self._dropped:
                logger.warning("notifications that were dropped: %d", self._dropped)
                self._dropped = 0

    async def _call(self, name: str, method: str, params: Any) -> None:
        try:
            if name == _OTHER:
                await self._hooks.call(name, method, params)
            else:
                await self._hooks.call(name, _current_params(method, params))
        except Exception:
            logger.exception("%r failed in %s, with %s", self._hooks, name, method)


def _current_params(method: str, params: Any) -> Any:
    """Return *params*; convert the status of a legacy task to the form of the tasks extension."""
    if method != "notifications/tasks/status" or isinstance(params, Value):
        return params
    return msgspec.json.decode(msgspec.json.encode(params), type=_LegacyTaskStatus).to_current()


class ProgressReporter:
    """Calls the progress callback of one call, one report at a time. Owned by the call.

    If too many wait for a slow callback, a further report displaces the oldest. Errors of the
    callback are logged, and the call continues.
    """

    def __init__(self, callback: ProgressCallback) -> None:
        self._callback = callback
        self._queue: deque[tuple[float, float | None, str | None]] = deque(maxlen=_MAX_REPORTS)
        self._worker: asyncio.Task[None] | None = None

    def __call__(self, progress: float, total: float | None, message: str | None) -> None:
        """Queue a report, and return at once."""
        self._queue.append((progress, total, message))
        if self._worker is None or self._worker.done():
            self._worker = asyncio.get_running_loop().create_task(self._run())

    async def end(self) -> None:
        """Wait until every report was delivered."""
        if self._worker is not None:
            await asyncio.wait((self._worker,))

    async def cancel(self) -> None:
        """Drop the waiting reports and cancel the callback; do not wait long for its end."""
        self._queue.clear()
        if self._worker is not None:
            await cancel_and_wait(self._worker, timeout=_CALLBACK_GRACE)

    async def _run(self) -> None:
        while self._queue:
            try:
                returned = self._callback(*self._queue.popleft())
                if inspect.isawaitable(returned):
                    await returned
            except (Exception, asyncio.CancelledError) as error:
                if isinstance(error, asyncio.CancelledError) and cancel_requested():
                    raise
                logger.exception("a progress callback failed")
