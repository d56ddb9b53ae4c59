"""TaskService that somebody else owns: the interface that lets a call wait for one."""

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from typing import Any, ClassVar, Literal, TypeAlias

import msgspec

from genmcp.core.task import Ref

__all__ = ["Foreign", "Phase", "Ref", "Snapshot"]

Phase: TypeAlias = Literal[
    "queued", "working", "input_required", "completed", "failed", "cancelled"
]


class Snapshot(msgspec.Struct, frozen=True):
    """How a job stands.

    result: what it gave, as JSON, if it is completed. error: why it failed; it goes to the log,
    and nowhere else, since it may tell what a client must not know.
    """

    phase: Phase
    progress: float | None = None
    total: float | None = None
    message: str | None = None
    result: Any = None
    error: str | None = None

    @property
    def over(self) -> bool:
        """Whether the job has ended."""
        return self.phase in ("completed", "failed", "cancelled")


class Foreign(ABC):
    """A queue that is not ours: Celery, Arq, Temporal. Written by its user, in a few lines.

    `scheme` is what a `Ref` calls it by.
    """

    scheme: ClassVar[str]

    @abstractmethod
    async def snapshot(self, ref: str) -> Snapshot:
        """Return how the job *ref* stands."""

    @abstractmethod
    def watch(self, ref: str) -> AsyncGenerator[Snapshot, None]:
        """Yield how the job *ref* stands, now and whenever that changes, to its end.

        It ends after a snapshot that says the job is over. It may poll. What it raises is logged,
        and it is asked again later, perhaps by another process.
        """

    @abstractmethod
    async def cancel(self, ref: str) -> None:
        """Cancel the job *ref*, as well as possible; nothing happens if it is over."""
