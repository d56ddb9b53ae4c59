"""The end of a connection, which comes once, whoever wants it, how often, and whenever."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from genmcp.client.errors import ClientClosed

__all__ = ["Closing"]


class Closing:
    """Ends what is being opened, and lets everybody wait for the end of one closing.

    is_own: whether a task is one that the closing waits for, so that it must not wait for that.
    """

    def __init__(self, where: str, is_own: Callable[[asyncio.Task[Any]], bool]) -> None:
        self._where = where
        self._is_own = is_own
        self._attempt: asyncio.Timeout | None = None
        self._opener: asyncio.Task[Any] | None = None
        self._opened = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def has_begun(self) -> bool:
        """Whether somebody has wanted it."""
        return self._task is not None

    async def opening(self, work: Coroutine[Any, Any, None]) -> None:
        """Do *work*, which opens the connection, until it is done or the closing begins.

        Raises:
            ClientClosed: the closing began.
        """
        self._opener = asyncio.current_task()
        try:
            async with asyncio.timeout(None) as self._attempt:
                await work
        except TimeoutError:
            if self._task is None:
                raise
        finally:
            self._attempt = self._opener = None
            self._opened.set()
        if self._task is not None:
            raise ClientClosed(self._where)

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Do *work*, which closes the connection, beside the caller, once it is not opened."""
        self._task = asyncio.get_running_loop().create_task(self._run(work))
        if self._attempt is not None and not self._attempt.expired():
            self._attempt.reschedule(0)

    async def over(self) -> None:
        """Wait until all is closed; leaving this early leaves the closing to go on."""
        caller = asyncio.current_task()
        if self._task is None or caller is None:
            return
        if caller not in (self._task, self._opener) and not self._is_own(caller):
            await asyncio.shield(self._task)

    async def _run(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await self._opened.wait()
        finally:
            await work  # also at the end of the loop, which cancels this
