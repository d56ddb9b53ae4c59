"""A bound on a wait that nearly never has to be kept."""

import asyncio

__all__ = ["Deadline"]


class Deadline:
    """Cancels the running asyncio.Task after so many seconds, like `asyncio.timeout`.

    That one takes a tenth of the time of a whole call, for what is nearly always there already:
    here there is no timer before the loop has had a turn.
    """

    __slots__ = ("_handle", "_over", "_seconds", "_task")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._over = False
        self._task = asyncio.current_task()
        self._handle: asyncio.Handle = asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._handle = asyncio.get_running_loop().call_later(self._seconds, self._end)

    def _end(self) -> None:
        assert self._task is not None
        self._over = True
        self._task.cancel()

    def hasten(self, seconds: float) -> None:
        """Give no more than *seconds* from now on."""
        self._handle.cancel()
        self._handle = asyncio.get_running_loop().call_later(seconds, self._end)

    def lift(self) -> None:
        """Let the task go on for as long as it likes."""
        self._handle.cancel()

    def was_the_only_reason(self) -> bool:
        """Whether the CancelledError that was caught is this one's alone; it counts no more."""
        return self._over and self._task is not None and self._task.uncancel() == 0
