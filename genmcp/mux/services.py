"""What the parts of one mux share, and what the sinks of its calls have in common."""

from abc import abstractmethod
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from genmcp.core.client_key import ClientKey
from genmcp.core.request import Request
from genmcp.core.seal import Seal
from genmcp.mux.bus import MessageBus
from genmcp.mux.limits import Limits, Owners
from genmcp.mux.sessions import Sessions
from genmcp.mux.telemetry import Observers
from genmcp.mux.threads import Threads
from genmcp.protocol.params import LoggingLevel
from genmcp.protocol.tools import CallToolResult
from genmcp.server import Server
from genmcp.stores.store import Store
from genmcp.subscription import ChangeNotifier

__all__ = ["MuxSink", "Services"]


class Services(msgspec.Struct, frozen=True, kw_only=True, eq=False):
    """The parts of a mux that its calls and tasks need. Made by the mux, before those.

    outcome_of: returns the result of a call of a principal by its id.
    """

    server: Server
    store: Store
    seal: Seal
    limits: Limits
    owners: Owners
    assigns: dict[str, Any]
    bus: MessageBus
    sessions: Sessions
    threads: Threads
    changes: ChangeNotifier
    observers: Observers
    outcome_of: Callable[[str, str | None], Awaitable[CallToolResult]]


class MuxSink:
    """The part of a channel's sink that is the same wherever its messages go.

    By default there is no client that waits: nothing is watched, and no stream is opened.
    """

    __slots__ = ()

    @property
    @abstractmethod
    def services(self) -> Services:
        """The parts of the mux."""

    @property
    @abstractmethod
    def client_key(self) -> ClientKey:
        """The client that the request counts towards."""

    @property
    def changes(self) -> ChangeNotifier:
        """Notifies clients of changes of the server."""
        return self.services.changes

    async def level(self, request: Request) -> LoggingLevel | None:
        """Return the request's own log level, or its session's."""
        return await self.services.sessions.level_of(request)

    async def outcome_of(self, id: str, principal: str | None) -> CallToolResult:
        """Return the result of the call *id*."""
        return await self.services.outcome_of(id, principal)

    async def in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a blocking *function* in the thread pool of the mux."""
        client = self.client_key.owner
        return await self.services.threads.run(function, *arguments, client=client)

    def open(self) -> None:
        """Start the event stream."""

    def release(self, retry: int) -> None:
        """End the connection, if the client can resume the stream."""

    def watch_client(self) -> None:
        """Detect a disconnect of the client at once from now on."""

    def route_resolved(self) -> None:
        """Apply the policy of a route that was not known when the hook began."""

    async def promote(self) -> None:
        """Make the call a task, while it runs on."""

    async def settle(self) -> None:
        """Wait until a promotion that was started has succeeded or failed."""

    async def following(self, task: str) -> None:
        """Record that the call waits for the end of *task*."""

    async def flush(self) -> None:
        """Write notifications that are still pending."""
