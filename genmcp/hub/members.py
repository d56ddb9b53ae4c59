"""The servers of a hub: registered, unregistered, and evicted."""

import asyncio
import logging
from collections.abc import Collection, Iterator
from typing import Any, Final

from genmcp.cancellation import cancel_requested
from genmcp.channel import ChangeNotifier
from genmcp.client.errors import ConnectError
from genmcp.client.handler import ClientHandler
from genmcp.client.options import ClientOptions
from genmcp.composite.errors import AlreadyRegistered, ReconnectError, UnknownServer
from genmcp.hub.asked import Asked
from genmcp.hub.catalog import KINDS
from genmcp.hub.config import ServerConfig
from genmcp.hub.limits import HubLimits
from genmcp.hub.member import Member, Observer
from genmcp.hub.pace import Pace
from genmcp.hub.relay import RelayingHandler

__all__ = ["Members"]

logger = logging.getLogger("genmcp.hub")

_GONE: Final = 100
"""Of how many evicted servers it is kept why."""


class Members(Observer):
    """The members of a hub, by their names, in the order in which they were registered.

    handler, options: those of each client. relays: whether questions of a server are forwarded to
    the hub's clients if there is no handler; it applies to servers that are registered from then
    on. changes: notifies of changes. asked: the unanswered questions of the hub's clients.
    """

    def __init__(
        self,
        handler: ClientHandler[Any] | None,
        options: ClientOptions,
        pace: Pace,
        limits: HubLimits,
    ) -> None:
        self.asked = Asked(limits)
        self.changes = ChangeNotifier()
        self.relays = False
        self._handler = handler
        self._options = options
        self._pace = pace
        self._members: dict[str, Member] = {}
        self._gone: dict[str, str] = {}  # why those were evicted that were last
        self._coming: dict[str, asyncio.Task[None]] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._clearing: asyncio.Task[None] | None = None

    def __iter__(self) -> Iterator[Member]:
        return iter([*self._members.values()])

    def __getitem__(self, name: str) -> Member:
        member = self._members.get(name)
        if member is None:
            raise UnknownServer(name, self._gone.get(name))
        return member

    def having(self, name: str) -> tuple[Member, str]:
        """Return of which member a tool called *name* is, and what that one calls it.

        Raises:
            UnknownServer: it is of none.
        """
        servers = [name[:at] for at, each in enumerate(name) if each == "/"] or [name]
        for server in servers:
            if (member := self._members.get(server)) is not None:
                return member, name[len(server) + 1 :]
        gone = next((each for each in servers if each in self._gone), servers[0])
        raise UnknownServer(gone, self._gone.get(gone))

    async def add(self, config: ServerConfig) -> None:
        """Connect to a server, and find out what it has.

        Raises:
            AlreadyRegistered: a server of its name is here, or on its way.
            ConnectError: it cannot be connected to, or the hub stops; nothing of it is left.
        """
        name = config.name
        if self._clearing is not None:
            raise ConnectError(name, "the hub was stopped")
        for other in (*self._members, *self._coming):
            if f"{other}/".startswith(f"{name}/") or f"{name}/".startswith(f"{other}/"):
                raise AlreadyRegistered(name, other)
        handler = self._handler
        if handler is None and self.relays:
            handler = RelayingHandler(
                self.asked,
                lambda: member.work,
                lambda: member.renew(),
                in_turn=config.asks_in_turn,
            )
        member = Member(config, handler, self._options, self._pace, self)
        coming = asyncio.get_running_loop().create_task(self._open(member))
        self._coming[name] = coming
        try:
            await coming
        except asyncio.CancelledError:
            if cancel_requested():
                if self._members.get(name) is member:  # it has just come
                    await self.remove(name)
                raise
            raise ConnectError(name, "the hub was stopped") from None  # `clear`
        finally:
            del self._coming[name]

    async def remove(self, name: str) -> None:
        """End the connection to a server, and forget it; leaving this early leaves it to go on.

        Raises:
            UnknownServer: there is none of that name.
        """
        member = self[name]
        del self._members[name]
        self.changed(KINDS)
        await asyncio.shield(self._let_go(member))

    async def clear(self) -> None:
        """End all connections, those that come about and those that are being ended among them.

        Leaving this early leaves it to go on. No server is added meanwhile.
        """
        if self._clearing is None:
            self._clearing = asyncio.get_running_loop().create_task(self._clear())
        await asyncio.shield(self._clearing)

    async def _clear(self) -> None:
        try:
            coming = [*self._coming.values()]
            for each in coming:
                each.cancel()
            if coming:
                await asyncio.wait(coming)
            members = [*self]
            self._members.clear()
            for member in members:
                self._let_go(member)
            if members:
                self.changed(KINDS)
            if self._leaving:
                await asyncio.wait(self._leaving)
        finally:
            self._clearing = None

    def _let_go(self, member: Member) -> "asyncio.Task[None]":
        """Begin to close *member*, and return what does it."""
        leaving = asyncio.get_running_loop().create_task(member.close())
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
        return leaving

    async def _open(self, member: Member) -> None:
        await member.open()
        self._members[member.name] = member
        self._gone.pop(member.name, None)
        self.changed(KINDS)

    def changed(self, kinds: Collection[str]) -> None:
        """Tell who is served that lists of these *kinds* are others now."""
        for kind in kinds:
            getattr(self.changes, f"{kind}_list_changed")()

    def updated(self, uri: str) -> None:
        """Tell who listens for it that the resource *uri* was updated."""
        self.changes.resource_updated(uri)

    def lost(self, member: Member, error: ReconnectError) -> None:
        """Evict *member*."""
        if self._members.get(member.name) is member:
            del self._members[member.name]
            self._gone[member.name] = f"it was evicted: {error.reason}"
            if len(self._gone) > _GONE:
                del self._gone[next(iter(self._gone))]
            logger.warning("server %s is evicted: %s", member.name, error.reason)
            self.changed(KINDS)
