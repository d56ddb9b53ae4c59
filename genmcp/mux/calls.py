"""Hooks that wait, and how they are cancelled."""

import asyncio
from contextlib import suppress
from enum import Enum
from threading import Lock
from typing import Any

from genmcp.core.request import Request
from genmcp.protocol.meta import RequestId

__all__ = ["Calls", "Hook", "Reason"]


class Reason(Enum):
    """Why a hook is cancelled."""

    ASKED = "asked"
    """Its client asked for it, and gets no answer."""
    LEFT = "left"
    """Its client has left, and nobody would read the answer."""
    STOPPING = "stopping"
    """The server is going away."""
    HELD_OVER = "held over"
    """Its client does not wait any longer for what it only follows, and which goes on."""


class Hook:
    """The hook of *request*, waiting for something in the running asyncio.Task.

    patience: what makes it a task once it has waited long enough, if anything does.
    """

    __slots__ = ("_cancels", "_counted", "_loop", "_reason", "_task", "patience", "request")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.patience: Any = None
        self._reason: Reason | None = None
        self._cancels = 0
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task(self._loop)
        self._counted = self._task.cancelling() if self._task is not None else 0

    def cancel(self, reason: Reason) -> None:
        """Cancel it, from any thread, if it has not ended by then."""
        with suppress(RuntimeError):  # its loop was closed, and it went with it
            self._loop.call_soon_threadsafe(self.cancel_now, reason)

    def cancel_now(self, reason: Reason) -> None:
        """Cancel it, from its own loop, if it has not ended."""
        if self._task is not None:
            if self._reason is not Reason.ASKED:
                self._reason = reason
            self._cancels += 1
            self._task.cancel()

    @property
    def cancelled(self) -> bool:
        """Whether it was cancelled through this object."""
        return self._reason is not None

    def end(self, cancelled: asyncio.CancelledError | None = None) -> Reason | None:
        """Take in that it has ended; return why it was cancelled, None if it was not.

        Its asyncio.Task goes on, and is not cancelled any more.

        Raises:
            asyncio.CancelledError: somebody else has cancelled the asyncio.Task.
        """
        task, self._task = self._task, None
        assert task is not None
        for _ in range(self._cancels):
            task.uncancel()
        # What else is counted may be from before, or left behind by the hook (asyncio.TaskGroup
        # does that before Python 3.13): it is the hook that tells whether it was cancelled.
        if cancelled is not None and (self._reason is None or task.cancelling() > self._counted):
            raise cancelled
        return self._reason


class Calls:
    """The waiting hooks of sessions, so that their clients can cancel them."""

    def __init__(self) -> None:
        self._hooks: dict[str, list[Hook]] = {}
        self._lock = Lock()  # a session's calls may be on several event loops

    def __len__(self) -> int:
        return len(self._hooks)

    def add(self, session: str, hook: Hook) -> None:
        """Know of a *hook* of *session* that waits."""
        with self._lock:
            self._hooks.setdefault(session, []).append(hook)

    def discard(self, session: str, hook: Hook) -> None:
        """Forget a *hook* that has ended, or cannot be cancelled any more."""
        with self._lock:
            hooks = self._hooks.get(session, [])
            if hook in hooks:
                hooks.remove(hook)
                if not hooks:
                    del self._hooks[session]

    def cancel(self, session: str, id: RequestId | None = None) -> None:
        """Cancel what is open here of a *session*: the call *id*, or all calls.

        A call that is cancelled is not answered, whatever its hook makes of it. An unknown one
        is ignored (2025-11-25, cancellation, "Behavior Requirements"). Of two with one id, which
        no client may send, both are meant.
        """
        with self._lock:
            hooks = list(self._hooks.get(session, ()))
        for hook in hooks:
            if id is None or id == hook.request.id:
                hook.cancel(Reason.ASKED)
