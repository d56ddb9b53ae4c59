"""One HTTP request to an endpoint, admitted, and what it takes to answer it."""

import asyncio
import threading
from collections.abc import Awaitable, Collection, Mapping
from typing import Any

import msgspec

from genmcp.errors import McpError
from genmcp.mux.mux import Mux
from genmcp.mux.telemetry import Rejection
from genmcp.protocol.meta import RequestId
from genmcp.transports.asgi import Headers, Receive, Send, reply
from genmcp.transports.shutdown import Shutdown

__all__ = ["Visit"]


class Visit(msgspec.Struct, eq=False):
    """One HTTP request.

    table: its headers. headers: what every answer to it carries besides. streams: whether the
    client takes event streams. principal: who it was authenticated as. copied: the assigns
    copied from the host's request; keep: the keys of those that a store may keep. id, method:
    those of the JSON-RPC request it carries, once they are known. answered: whether the response
    has begun. loop, thread: where it is served.
    """

    mux: Mux
    shutdown: Shutdown
    heartbeat: float
    receive: Receive
    send: Send
    table: dict[bytes, bytes] = msgspec.field(default_factory=dict)
    headers: Headers = ()
    streams: bool = True
    principal: str | None = None
    copied: Mapping[str, Any] | None = None
    keep: Collection[str] = ()
    id: RequestId | None = None
    method: str | None = None
    answered: bool = False
    loop: asyncio.AbstractEventLoop = msgspec.field(default_factory=asyncio.get_running_loop)
    thread: int = msgspec.field(default_factory=threading.get_ident)

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
