"""A part of an engine: several muxes may share one, and none is given the steps of another."""

from collections.abc import Collection
from contextlib import AbstractAsyncContextManager
from typing import Any

from genmcp.jobs.engine import Engine, Step

__all__ = ["ScopedEngine"]


class ScopedEngine(Engine):
    """The queues of *engine* whose names begin with *scope*; here they are without it."""

    def __init__(self, engine: Engine, scope: str) -> None:
        self._engine = engine
        self._prefix = f"{scope}/"

    async def submit(
        self, id: str, *, queue: str = "default", delay: float = 0.0, owner: str = ""
    ) -> None:
        await self._engine.submit(id, queue=self._prefix + queue, delay=delay, owner=owner)

    async def cancel(self, id: str) -> None:
        await self._engine.cancel(id)

    def serve(
        self, step: Step, *, queues: Collection[str], **settings: Any
    ) -> AbstractAsyncContextManager[None]:
        return self._engine.serve(
            step, queues=[self._prefix + queue for queue in queues], **settings
        )
