"""The methods that a mux answers itself, whatever server is below it."""

from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Final

from genmcp.channel import Channel
from genmcp.core.request import Request
from genmcp.core.server import is_offered
from genmcp.core.server_dispatch import discovered
from genmcp.errors import InvalidParams, ResourceNotFound
from genmcp.mux.limits import Owners
from genmcp.mux.listeners import Listeners
from genmcp.mux.sessions import Sessions
from genmcp.mux.task_methods import TaskMethods
from genmcp.protocol.result import Result
from genmcp.server import Server

__all__ = ["LISTEN", "SUBSCRIBING", "OwnMethods"]

LISTEN: Final = "subscriptions/listen"
"""The method whose answer is a stream: a transport serves it, for as long as both sides want."""

SUBSCRIBING: Final = ("resources/subscribe", "resources/unsubscribe")

_TASKS: Final = ("tasks/get", "tasks/update", "tasks/cancel")


class OwnMethods:
    """What a mux of *server* answers itself."""

    def __init__(
        self,
        server: Server,
        sessions: Sessions,
        listeners: Listeners,
        tasks: TaskMethods,
        owners: Owners,
    ) -> None:
        self._server = server
        self._sessions = sessions
        self._listeners = listeners
        self._tasks = tasks
        self._owners = owners
        self.offers = partial(is_offered, server, _METHODS)

    def __contains__(self, method: str) -> bool:
        return method in _METHODS

    async def answer(self, request: Request, channel: Channel) -> Result:
        """Answer *request*, which is for one of them."""
        return await _METHODS[request.method](self, request, channel)

    async def discover(self, request: Request, channel: Channel) -> Result:
        """Say what the server is."""
        return discovered(self._server.capabilities, self._server.instructions)

    async def ping(self, request: Request, channel: Channel) -> Result:
        """Say that it is there."""
        return Result()

    async def set_level(self, request: Request, channel: Channel) -> Result:
        """Keep the least severe log message that a session wants to see."""
        params: Any = request.params
        if request.session is not None:
            owner = self._owners.of(channel.client_key)
            await self._sessions.set_level(request.session, params.level, owner)
        return Result()

    async def subscribe(self, request: Request, channel: Channel) -> Result:
        """Keep whether a session wants to hear of a resource."""
        params: Any = request.params
        uri, session = params.uri, request.session
        owner = self._owners.of(channel.client_key)
        if request.method != "resources/subscribe":
            if session is not None:
                await self._listeners.subscribe(session, uri, wanted=False, owner=owner)
            return Result()
        if not self.has(channel.principal, uri):
            raise ResourceNotFound(uri)
        async with self._server.hearing((uri,)) as told:
            if uri not in told:
                raise InvalidParams(f"No updates are told of: {uri}")
            if session is not None:
                await self._listeners.subscribe(session, uri, wanted=True, owner=owner)
        return Result()

    async def task(self, request: Request, channel: Channel) -> Result:
        """Tell of a task, or change it."""
        return await self._tasks.answer(request, channel)

    def has(self, principal: str | None, uri: str) -> bool:
        """Whether there is a resource at *uri* for *principal*."""
        route = self._server.find("resources/read", uri)
        return route is not None and route.is_visible(principal)


_METHODS: Final[
    Mapping[str, Callable[[OwnMethods, Request, Channel], Coroutine[Any, Any, Result]]]
] = {
    "server/discover": OwnMethods.discover,
    "ping": OwnMethods.ping,
    "logging/setLevel": OwnMethods.set_level,
    "resources/subscribe": OwnMethods.subscribe,
    "resources/unsubscribe": OwnMethods.subscribe,
    **dict.fromkeys(_TASKS, OwnMethods.task),
}
