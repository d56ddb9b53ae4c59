"""The lifespan of an ASGI application, entered by something that serves no requests."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final

from genmcp.errors import ConfigurationError

__all__ = ["entered"]

logger = logging.getLogger("genmcp")

_ASGI: Final = {"version": "3.0", "spec_version": "2.0"}


@asynccontextmanager
async def entered(app: Any) -> AsyncIterator[None]:
    """Let *app* start, as a host does before the first request, and shut down at the end.

    ASGI, "Lifespan Protocol".

    Raises:
        ConfigurationError: it does not start.
    """
    lifespan = _Lifespan(app)
    if (failure := await lifespan.ask("startup")) is not None:
        raise ConfigurationError(f"the application did not start: {failure}")
    try:
        yield
    finally:
        if (failure := await lifespan.ask("shutdown")) is not None:
            logger.error("the application did not shut down in good order: %s", failure)
        await lifespan.over()


class _Lifespan:
    """An application that is told of its life, in an asyncio.Task of its own."""

    def __init__(self, app: Any) -> None:
        self._asked: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._life = asyncio.create_task(self._live(app))

    async def ask(self, event: str) -> str | None:
        """Tell it of *event*, and return why it could not be done, None if it was."""
        if self._life.done():
            return None if event == "shutdown" else "it is over"
        self._answer = asyncio.get_running_loop().create_future()
        self._asked.put_nowait({"type": f"lifespan.{event}"})
        return await self._answer

    async def over(self) -> None:
        """Wait until it has returned."""
        await asyncio.wait([self._life])

    async def _live(self, app: Any) -> None:
        scope: dict[str, Any] = {"type": "lifespan", "asgi": _ASGI, "state": {}}
        failure = "it returned without a word: it may have no lifespan"
        try:
            await app(scope, self._asked.get, self._told)
        except Exception as error:
            logger.error("the application's lifespan failed", exc_info=error)
            failure = f"it raised {error!r}"
        self._settle(failure)

    async def _told(self, message: Mapping[str, Any]) -> None:
        failed = message["type"].endswith(".failed")
        self._settle(message.get("message", "") or "it does not say why" if failed else None)

    def _settle(self, answer: str | None) -> None:
        if not self._answer.done():
            self._answer.set_result(answer)
