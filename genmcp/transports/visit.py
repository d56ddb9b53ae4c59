"""One HTTP request to an endpoint, admitted, and what it takes to answer it."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from genmcp.core.client_key import ClientKey, key_of
from genmcp.errors import McpError
from genmcp.mux.limits import Slots
from genmcp.mux.mux import Mux
from genmcp.mux.telemetry import Rejection
from genmcp.protocol.meta import RequestId
from genmcp.transports.asgi import FindClientKey, Headers, Receive, Scope, Send, find_address, reply
from genmcp.transports.shutdown import Shutdown

__all__ = ["Serve", "Visit"]


class Visit(msgspec.Struct, eq=False):
    """The state of one HTTP request. Owned by the endpoint while it serves the request.

    table: the request headers. headers: added to every response. streams: whether the client
    accepts event streams. principal: the authenticated identity. copied: the assigns copied from
    the host's request; keep: the keys of those that may be stored. id, method: those of the
    JSON-RPC request, once they are known. session: the key of the legacy session. answered: whether
    the response has begun. detached: whether the client has closed the connection. body_size: the
    bytes of the body that count towards the client's share. loop, thread: those that serve it.
    """

    mux: Mux
    shutdown: Shutdown
    heartbeat: float
    receive: Receive
    send: Send
    scope: Scope
    _find_client_key: FindClientKey | None
    table: dict[bytes, bytes] = msgspec.field(default_factory=dict)
    headers: Headers = ()
    streams: bool = True
    principal: str | None = None
    copied: Mapping[str, Any] | None = None
    keep: Collection[str] = ()
    id: RequestId | None = None
    method: str | None = None
    session: str | None = None
    answered: bool = False
    body_size: int = 0
    detached: bool = False
    loop: asyncio.AbstractEventLoop = msgspec.field(default_factory=asyncio.get_running_loop)
    thread: int = msgspec.field(default_factory=threading.get_ident)
    _client_key: ClientKey | None = None
    _body_slots: Slots = ()

    @property
    def client_key(self) -> ClientKey:
        """The client that the request counts towards; determined at the first access."""
        if self._client_key is None:
            if self.principal is None:
                address = find_address(self.scope, self._find_client_key)
                self._client_key = key_of(None, self.session, address)
            else:
                self._client_key = key_of(self.principal, None, None)
        return self._client_key

    def enter(self, session: str) -> None:
        """Make the request count towards the legacy session with this key as well."""
        self.session = session
        if self._client_key is not None and self._client_key.principal is None:
            self._client_key = msgspec.structs.replace(self._client_key, session=session)

    def count_body(self, size: int) -> None:
        """Count *size* bytes of a body towards the client's share, replacing the earlier count.

        Raises:
            Overloaded: they exceed the share, or the total of all clients.
        """
        bodies, more = self.mux.bodies, size - self.body_size
        bodies.check(self.client_key, size=more)
        self._body_slots = bodies.acquire(self.client_key, size=more)
        self.body_size = size

    def release_body(self) -> None:
        """Stop counting the bytes of the body."""
        self.mux.bodies.release(self._body_slots, size=self.body_size)
        self.body_size = 0

    def in_loop(self, step: Callable[..., object], *arguments: Any) -> None:
        """Call *step* in the event loop of the request: now, or soon if this is another thread."""
        if threading.get_ident() == self.thread:
            step(*arguments)
        else:
            with suppress(RuntimeError):  # the loop was closed, and the request with it
                self.loop.call_soon_threadsafe(step, *arguments)

    def reply(self, status: int, body: bytes = b"", headers: Headers = ()) -> Awaitable[None]:
        """Send a complete answer; a *body* is JSON."""
        self.answered = True
        return reply(
            self.send, status, body, [*self.headers, *headers] if headers else self.headers
        )

    def reject(
        self,
        error: McpError,
        *,
        id: RequestId | None = None,
        method: str | None = None,
        session: str | None = None,
    ) -> None:
        """Tell telemetry of *error*, which answers what never became a request."""
        claimed = self.table.get(b"mcp-method", b"").decode("latin-1")
        rejection = Rejection(
            error=error,
            id=id,
            method=method or claimed or None,
            principal=self.principal,
            session=session,
        )
        self.mux.observers.rejected(rejection)


Serve = Callable[[Visit], Awaitable[None]]
"""Serves a request that was admitted."""
