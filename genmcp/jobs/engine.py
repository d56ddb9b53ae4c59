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
        """Have *id* delivered once, *delay* seconds from now or a little later.

        Where it already carries *id*, nothing changes. *owner* is the client it is for: an engine
        that can lets the owners in a queue take turns.

        Raises:
            Unavailable: the engine could not be reached, or is full.
        """

    @abstractmethod
    async def cancel(self, id: str) -> None:
        """Do not deliver *id*, or cancel the step that it was delivered to, as well as possible.

        The step is cancelled as an asyncio.Task is; in another process a little later.

        Raises:
            Unavailable: the engine could not be reached.
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
        doubts: Callable[[], bool] = lambda: False,
    ) -> AbstractAsyncContextManager[None]:
        """Deliver the ids of *queues* to *step*, at most *concurrency* at once, while entered.

        No more than *share* of them are of one owner, where the engine knows owners.

        An id whose process gives no sign of life for *lease* seconds is delivered again, as is one
        whose step raised. When this is left nothing more is delivered here; steps that run have
        *grace* seconds to end. Then they are cancelled, and their ids delivered to somebody else
        at once. While this process *doubts* that others are gone, because it was away itself, no id
        is delivered here that another holds.
        """
