"""What carries a task's next step to a process that takes it: the one interface."""

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Collection
from contextlib import AbstractAsyncContextManager
from typing import TypeAlias

__all__ = ["Engine", "Step"]

Step: TypeAlias = Callable[[str], Awaitable[None]]
"""What an id is delivered to. It raises only where the store fails: then it is to come again."""


class Engine(ABC):
    """Delivers ids, each at least once, to a process that serves its queue.

    An engine knows nothing of tasks: all that counts is in the store. It may deliver twice, late,
    and in any order.
    """

    @abstractmethod
    async def submit(
        self, id: str, *, queue: str = "default", delay: float = 0.0, owner: str = ""
    ) -> None:
        """Deliver *id* once, *delay* seconds from now (default: at once) or slightly later.

        Does nothing if *id* is already queued. *owner* is the client that the id belongs to: an
        engine may schedule the owners of a queue in turn.

        Raises:
            StoreUnavailable: the engine could not be reached, or is full.
        """

    @abstractmethod
    async def cancel(self, id: str) -> None:
        """Do not deliver *id*, or cancel the step that it was delivered to, as well as possible.

        The step is cancelled as an asyncio.Task is; in another process a little later.

        Raises:
            StoreUnavailable: the engine could not be reached.
        """

    @abstractmethod
    def serve(
        self,
        step: Step,
        *,
        queues: Collection[str],
        concurrency: int,
        lease: float,
        share: int | None = None,
        grace: float = 0.0,
        doubts: Callable[[], float] = lambda: 0.0,
    ) -> AbstractAsyncContextManager[None]:
        """Deliver the ids of *queues* to *step*, at most *concurrency* at once, while entered.

        At most *share* of them belong to one owner, if the engine knows owners (None: no bound).

        An id is delivered again if its process gives no sign of life for *lease* seconds, or if its
        step raised. On exit delivery stops here; running steps have *grace* seconds to end. Then
        they are cancelled, and their ids are delivered to another process at once. While *doubts*
        returns more than 0, ids held by others are not delivered here: this process has just
        started, or was suspended itself, and cannot tell for so many seconds whether others are
        gone.
        """
