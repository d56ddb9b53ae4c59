"""The behaviour below everything: what a mux asks of a server.

`Suite` is the ready-made one. Write your own to serve tools from somewhere else, or wrap one to
see every call go by: a wrapper is a server that forwards what it does not change.

    class Timed(Server):
        def __init__(self, inner: Server) -> None:
            self.inner = inner
            self.info = inner.info

        ...

        async def handle(self, request: Request, channel: Channel) -> Result:
            began = time.perf_counter()
            try:
                return await self.inner.handle(request, channel)
            finally:
                log(request.method, time.perf_counter() - began)
"""

from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import Literal

import msgspec

from genmcp.channel import Channel
from genmcp.core.request import Request
from genmcp.protocol.capabilities import ServerCapabilities
from genmcp.protocol.implementation import Implementation
from genmcp.protocol.result import PaginatedResult, Result
from genmcp.wire.mirror import HeaderRule

__all__ = ["Route", "Server"]


class Route(msgspec.Struct, frozen=True, kw_only=True):
    """What one look-up tells of a tool, resource or prompt, before anything of it runs.

    headers: which arguments HTTP headers mirror (2026-07-28, `x-mcp-header`).
    on_disconnect: what becomes of a call of an earlier revision whose client has left:
        `"finish"` (its answer waits for the client to resume) or `"cancel"`. From 2026-07-28 on
        a disconnect always cancels.
    """

    headers: tuple[HeaderRule, ...] = ()
    on_disconnect: Literal["finish", "cancel"] = "finish"


class Server(ABC):
    """What a mux needs to serve a set of tools (and resources, and prompts).

    `find` and `methods` are asked for every request before it is accepted: they do not wait,
    and cost the same whatever the server holds.
    """

    @property
    @abstractmethod
    def info(self) -> Implementation:
        """The server's name and version."""

    @property
    def instructions(self) -> str | None:
        """What a model should know in order to use this server, or None."""
        return None

    @property
    @abstractmethod
    def capabilities(self) -> ServerCapabilities:
        """What the server offers. A method whose capability is missing is not found."""

    @property
    @abstractmethod
    def methods(self) -> Collection[str]:
        """The methods of `handle` and `listed` that this server answers."""

    @abstractmethod
    def find(self, method: str, key: str) -> Route | None:
        """Return the route of the tool or prompt named, or the resource at, *key*.

        *method* is `"tools/call"`, `"prompts/get"` or `"resources/read"`. None: there is none.
        """

    @abstractmethod
    async def handle(self, request: Request, channel: Channel) -> Result:
        """Answer *request*, whose `route` is what `find` returned.

        Raises:
            ToolError: the call failed in a way the model should read.
            McpError: the request is answered with this error.
            Exception: anything else is logged, and shown as a reference to the log only.
        """

    @abstractmethod
    async def listed(self, method: str, cursor: str | None, channel: Channel) -> PaginatedResult:
        """Return the page of the list *method* (`"tools/list"`, ...) that *cursor* points to.

        An unchanged list should be the same object every time: it is then encoded once.

        Raises:
            InvalidParams: the cursor is not one this server gave out.
        """
