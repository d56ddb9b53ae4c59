"""The servers of a hub: registered, unregistered, and evicted."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Iterator
from typing import Any, TypeVar

from genmcp.client.client import Client
from genmcp.client.errors import ClientError
from genmcp.client.handler import ClientHandler
from genmcp.client.options import ClientOptions
from genmcp.hub.catalog import KINDS
from genmcp.hub.config import ServerConfig
from genmcp.hub.errors import AlreadyRegistered, ServerNotFound
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
        self._coming: set[str] = set()

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
            ConnectFailed: it cannot be connected to; nothing of it is left.
        """
        name = config.name
        if name in self._members or name in self._coming:
            raise AlreadyRegistered(name)
        handler = self._handler
        if handler is None and self.relays:
            handler = RelayingHandler()
        member = Member(config, handler, self._options, self._pace, self)
        self._coming.add(name)
        try:
            await member.open()
            self._members[name] = member
        finally:
            self._coming.discard(name)
        self.changed(KINDS)

    async def remove(self, name: str) -> None:
        """End the connection to a server, and forget it.

        Raises:
            ServerNotFound: there is none of that name.
        """
        member = self[name]
        del self._members[name]
        self.changed(KINDS)
        await member.close()

    async def clear(self) -> None:
        """End all connections."""
        closing = [asyncio.ensure_future(each.close()) for each in self]
        self._members.clear()
        if closing:
            await asyncio.wait(closing)

    async def on(self, member: Member, request: Callable[[Client], Awaitable[R]]) -> R:
        """Return what a *request* to a server gives.

        One that certainly was not sent, because the connection had broken, is made on the next
        connection.

        Raises:
            ConnectFailed, ServerNotFound: there is no next connection.
            ClientError: what the request fails with.
        """
        client = await member.client()
        try:
            return await request(client)
        except ClientError as error:
            if not member.heard(client, error) or error.sent:
                raise
        return await request(await member.client())

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
