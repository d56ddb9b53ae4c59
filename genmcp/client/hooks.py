"""The hooks of one ClientHandler, and the state that goes from one to the next."""

import asyncio
import inspect
from typing import Any, Generic

from typing_extensions import TypeVar

from genmcp.cancellation import cancel_requested
from genmcp.client.handler import ClientHandler
from genmcp.errors import ConfigurationError
from genmcp.hook import check_call, overrides
from genmcp.mux.threads import Threads

__all__ = ["Hooks"]

S = TypeVar("S", default=Any)


class Hooks(Generic[S]):
    """Calls the hooks of *handler*: an `async def` in the loop, a `def` in one of its threads.

    most: how many run at once; waiting: how many more may wait for a thread.

    Raises:
        ConfigurationError: *handler* is not a handler, or one of its hooks yields.
    """

    def __init__(self, handler: ClientHandler[S], *, most: int, waiting: int) -> None:
        if not isinstance(handler, ClientHandler):
            raise ConfigurationError(
                f"handler must be an instance of a ClientHandler, not {handler!r}"
            )
        self._handler = handler
        self._state: Any = None
        self._threads = Threads(most, waiting)
        for name in vars(ClientHandler):
            if self.has(name):
                check_call(f"{type(handler).__name__}.{name}", getattr(handler, name))

    def __repr__(self) -> str:
        return f"<Hooks of {type(self._handler).__name__}>"

    def has(self, name: str) -> bool:
        """Whether the handler has a hook *name* of its own."""
        hook = getattr(self._handler, name, None)
        return callable(hook) and overrides(self._handler, name, ClientHandler)

    async def open(self) -> None:
        """Begin with the state that `init` returns.

        Raises:
            Exception: what `init` raises.
        """
        self._state = await self._returned("init")

    async def asked(self, name: str, *arguments: Any) -> Any:
        """Return what the hook *name* answers, and keep the state it may have returned with it."""
        returned = await self._returned(name, *arguments, self._state)
        if isinstance(returned, tuple) and len(returned) == 2:
            returned, self._state = returned
        return returned

    async def told(self, name: str, *arguments: Any) -> None:
        """Let the hook *name* take something in, and keep the state if it returns one."""
        returned = await self._returned(name, *arguments, self._state)
        if returned is not None:
            self._state = returned

    def close(self) -> None:
        """Let go of the threads."""
        self._threads.close()

    async def _returned(self, name: str, *arguments: Any) -> Any:
        try:
            return await self._call(name, *arguments)
        except asyncio.CancelledError as error:
            if cancel_requested():
                raise
            raise RuntimeError(f"{name} waited for something that was cancelled") from error

    async def _call(self, name: str, *arguments: Any) -> Any:
        hook = getattr(self._handler, name)
        if inspect.iscoroutinefunction(hook):
            return await hook(*arguments)
        if not self.has(name):
            return hook(*arguments)  # what ClientHandler itself answers takes no time
        returned = await self._threads.run(hook, *arguments)
        return await returned if inspect.isawaitable(returned) else returned
