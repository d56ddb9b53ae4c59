"""What a server tells of one task, as far as it does: SEP-2663, "Task Status Notifications"."""

import asyncio
from typing import Any, Final

from genmcp.cancellation import cancel_and_wait
from genmcp.client.listening import Listening

__all__ = ["TaskNews"]

_PATIENCE: Final = 1.0  # seconds that are waited until it is heard of, before the task is looked at


class TaskNews:
    """Listens with *listening* for the task *id*, from when this is entered until it is left.

    A server that does not say whether it tells of the task holds nobody up: the task is looked at
    meanwhile.
    """

    def __init__(self, listening: Listening, id: str) -> None:
        self._listening = listening
        self._id = id
        self._entering: asyncio.Task[Listening]
        self._heard = False

    async def __aenter__(self) -> "TaskNews":
        entering = self._listening.__aenter__()
        self._entering = asyncio.get_running_loop().create_task(entering)
        try:
            await asyncio.wait({self._entering}, timeout=_PATIENCE)
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        await cancel_and_wait(self._entering)
        if self._entered:
            await self._listening.__aexit__()

    def looks(self) -> None:
        """Take note that the task is looked at now: what was told before is known then."""
        self._heard = self._entered and self._id in (self._listening.honored.task_ids or ())

    @property
    def suffices(self) -> bool:
        """Whether all is told that happens since the task was looked at last.

        If not, it has to be looked at again.
        """
        return self._heard and not self._listening.is_over

    async def next(self) -> Any:
        """Return what is told next.

        Raises:
            StopAsyncIteration, ClientError: nothing more is told.
        """
        return (await anext(self._listening)).params

    @property
    def _entered(self) -> bool:
        entering = self._entering
        return entering.done() and not entering.cancelled() and entering.exception() is None
