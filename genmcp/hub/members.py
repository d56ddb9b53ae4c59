"""The servers of a hub: registered, unregistered, and evicted."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator
from typing import Any, TypeVar

from genmcp.client.client import Client
from genmcp.client.errors import Closed
from genmcp.client.handler import ClientHandler
from genmcp.client.options import ClientOptions
from genmcp.hub.catalog import KINDS
from genmcp.hub.config import ServerConfig
from genmcp.hub.errors import AlreadyRegistered, ConnectFailed, ServerNotFound
from genmcp.hub.member import Member, Observer, Pace
from genmcp.hub.relay import RelayingHandler
from genmcp.subscription import Announcer

__all__ = ["Members"]

logger = logging.getLogger("genmcp.hub")

R = TypeVar("R")


class Members(Observer):
    """The members of a hub, by their names, in the order in which they were registered.

    handler, options: those of each client. relays: whether what a server asks is passed on to who
    is served, where there is no handler; it counts for servers that are registered from then on.
    announcer: says what has changed.
    """

    def __init__(
        self, handler: ClientHandler[Any] | None, options: ClientOptions, pace: Pace
    ) -> None:
        self.announcer = Announcer()
        self.relays = False
        self._handler = handler
        self._options = options
        self._pace = pace
        self._members: dict[str, Member] = {}
        self._coming: dict[str, asyncio.Task[None]] = {}
        self._leaving: set[Member] = set()

    def __iter__(self) -> Iterator[Member]:
        return iter([*self._members.values()])

    def __getitem__(self, name: str) -> Member:
        member = self._members.get(name)
        if member is None:
            raise ServerNotFound(name)
        return member

    async def add(self, config: ServerConfig) -> None:
        """Connect to a server, and find out what it has.

        Raises:
            AlreadyRegistered: a server of its name is here, or on its way.
            ConnectFailed: it cannot be connected to, or the hub stops; nothing of it is left.
        """
        name = config.name
        if name in self._members or name in self._coming:
            raise AlreadyRegistered(name)
        handler = self._handler
        if handler is None and self.relays:
            handler = RelayingHandler(lambda: member.calls)
        member = Member(config, handler, self._options, self._pace, self)
        coming = asyncio.get_running_loop().create_task(self._open(member))
        self._coming[name] = coming
        try:
            await coming
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise ConnectFailed(name, Closed(name)) from None  # `clear`
        finally:
            del self._coming[name]

    async def remove(self, name: str) -> None:
        """End the connection to a server, and forget it.

        Raises:
            ServerNotFound: there is none of that name.
        """
        member = self[name]
        del self._members[name]
        self.changed(KINDS)
        self._leaving.add(member)
        try:
            await member.close()
        finally:
            self._leaving.discard(member)

    async def clear(self) -> None:
        """End all connections, those that come about and those that are being ended among them."""
        coming = [*self._coming.values()]
        for each in coming:
            each.cancel()
        if coming:
            await asyncio.wait(coming)
        closing = [asyncio.ensure_future(each.close()) for each in {*self, *self._leaving}]
        self._members.clear()
        if closing:
            self.changed(KINDS)
            await asyncio.wait(closing)

    async def _open(self, member: Member) -> None:
        await member.open()
        self._members[member.name] = member
        self.changed(KINDS)

    async def on(self, member: Member, request: Callable[[Client], Awaitable[R]]) -> R:
        """Return what a *request* to a server gives.

        One of which nothing was sent, because the connection had broken, is made again on the next
        one, and where none came about while others are being answered, after a while: once, or as
        often as the server's `Retry` has attempts. One that may have been carried out never is.

        Raises:
            ConnectFailed, ServerNotFound: there is no next connection.
            ClientError: what the request fails with.
        """
        return await member.ask(request)

    def changed(self, kinds: Collection[str]) -> None:
        """Tell who is served that lists of these *kinds* are others now."""
        for kind in kinds:
            getattr(self.announcer, f"{kind}_list_changed")()

    def lost(self, member: Member, error: Exception) -> None:
        """Evict *member*."""
        if self._members.get(member.name) is member:
            del self._members[member.name]
            logger.warning("server %s is evicted: %s", member.name, error)
            self.changed(KINDS)
