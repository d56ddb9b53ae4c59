"""How long a process works on jobs: from the first one on an event loop until it is closed."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import AsyncExitStack
from contextvars import Context
from typing import Any

from genmcp.errors import StoreError, Unavailable
from genmcp.jobs.agenda import CONTINUATIONS
from genmcp.jobs.engine import Engine, Step
from genmcp.jobs.nodes import Nodes
from genmcp.jobs.options import JobOptions

__all__ = ["Service"]

logger = logging.getLogger("genmcp")


class Service:
    """Serves *engine* on one event loop, and says meanwhile that this process is alive.

    When that loop was closed, the next one that asks for it serves.
    """

    def __init__(self, engine: Engine, nodes: Nodes, step: Step, options: JobOptions) -> None:
        self._engine = engine
        self._nodes = nodes
        self._step = step
        self._options = options
        self._serving: _Serving | None = None

    async def start(self) -> None:
        """Serve, unless this does already; return when the engine does.

        Raises:
            Unavailable: the store could not be reached.
        """
        serving = self._serving
        if serving is None or serving.over:
            serving = self._serving = _Serving(self._serve)
        if not serving.ready.done():
            await asyncio.shield(asyncio.wrap_future(serving.ready))
        serving.ready.result()

    async def aclose(self) -> None:
        """Stop serving; steps that run are cancelled, and taken by another process."""
        serving, self._serving = self._serving, None
        if serving is not None and not serving.over:
            await serving.end()

    async def _serve(self, serving: "_Serving") -> None:
        options = self._options
        await self._nodes.beat()
        async with AsyncExitStack() as stack:
            for queues, concurrency in (
                (options.queues, options.concurrency),
                ((CONTINUATIONS,), options.continuations),
            ):
                await stack.enter_async_context(
                    self._engine.serve(
                        self._step, queues=queues, concurrency=concurrency, lease=options.lease
                    )
                )
            serving.ready.set_result(None)
            while not await serving.ends_within(options.lease / 3):
                await self._said(self._nodes.beat())
        await self._said(self._nodes.leave())

    async def _said(self, sign: Coroutine[Any, Any, None]) -> None:
        try:
            await sign
        except StoreError as error:
            logger.warning("other processes may think that this one is gone: %s", error)


class _Serving:
    """An asyncio.Task that serves, in the loop that runs when this is made."""

    def __init__(self, serve: Callable[["_Serving"], Coroutine[Any, Any, None]]) -> None:
        self.ready: Future[None] = Future()  # any loop may wait for it
        self._loop = asyncio.get_running_loop()
        self._ending = asyncio.Event()
        # Without the context of whoever came first: its request is no business of the steps.
        self._task = self._loop.create_task(serve(self), context=Context())
        self._task.add_done_callback(self._done)

    @property
    def over(self) -> bool:
        """Whether it serves no more."""
        return self._task.done() or self._loop.is_closed()

    async def ends_within(self, seconds: float) -> bool:
        """Wait for so long, or until it is to end."""
        try:
            async with asyncio.timeout(seconds):
                await self._ending.wait()
        except TimeoutError:
            return False
        return True

    async def end(self) -> None:
        """Have it end, and wait for that, from any loop."""
        if self._loop is asyncio.get_running_loop():
            self._ending.set()
            await asyncio.wait({self._task})
        elif self._loop.is_running():
            ended = asyncio.run_coroutine_threadsafe(self.end(), self._loop)
            await asyncio.wrap_future(ended)

    def _done(self, task: "asyncio.Task[None]") -> None:
        error = None if task.cancelled() else task.exception()
        if not self.ready.done():
            self.ready.set_exception(error or Unavailable("this process stops to work on jobs"))
        elif error is not None:
            logger.error("no more jobs are worked on here", exc_info=error)
