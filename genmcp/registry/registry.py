"""A registry: named servers of this process, as an immutable value."""

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from genmcp._mux.mux import Mux
from genmcp.composite.errors import ServerDisabled, UnknownServer, UnknownTool
from genmcp.composite.server import CompositeServer
from genmcp.errors import ConfigurationError, McpError
from genmcp.protocol.tools import CallToolResult, ToolDefinition
from genmcp.registry.in_process import (
    TIMEOUT,
    MuxMember,
    call_tool,
    close_connections,
    list_tools,
    send,
)
from genmcp.server import Server

logger = logging.getLogger("genmcp.registry")

_NAME: Final = re.compile(r"(?!\.+$)[A-Za-z0-9_.-]+", re.ASCII)
"""A server name has the characters of tool names (2026-07-28, server/tools, "Tool Names"), since
it begins the names of tools. A name of dots alone would be a relative path in a URL."""


class Status(msgspec.Struct, frozen=True):
    """The status of a registered server.

    Args:
        name: the name under which it is registered.
        version: the version of the server.
        tools: the number of tools that it lists.
        enabled: whether the server is listed and can be called.
        error: the text given to `Registry.failed`, or the error of listing the tools; None if the
            server works.
    """

    name: str
    version: str
    tools: int
    enabled: bool
    error: str | None = None


class RegisteredServer(msgspec.Struct, frozen=True, eq=False):
    """A server in a registry.

    error: the text given to `Registry.failed`. owned: whether the registry made the mux, and
    therefore closes it.
    """

    member: MuxMember
    enabled: bool = True
    error: str | None = None
    owned: bool = False

    @property
    def mux(self) -> Mux:
        """The mux of the server."""
        return self.member.mux

    def status(self, name: str, tools: int, error: str | None) -> Status:
        """Return the status of the server *name*; *error* is the one of listing its tools."""
        version = self.mux.server.info.version
        return Status(name, version, tools, self.enabled, self.error or error)

    def is_of(self, server: Server | Mux) -> bool:
        """Whether *server* is the server, or the mux, of this entry."""
        return self.mux is server or self.mux.server is server


class Registry:
    """Named servers of this process, in the order in which they were registered.

    A registry is immutable: a method that changes something returns another registry. Therefore any
    number of threads may read a registry. `LiveRegistry` replaces its registry at each change.

    Args:
        servers: the servers that are registered first, under their own names.
        serve: makes the mux of a server that has none. Default `Mux`.
        list_timeout: seconds that a server may take to list its components. Default 5.
        max_pages: the number of pages that the list of a server may have. Default 1000.

    Raises:
        ConfigurationError: an argument is invalid.
    """

    def __init__(
        self,
        servers: Iterable[Server | Mux] = (),
        *,
        serve: Callable[[Server], Mux] = Mux,
        list_timeout: float = 5.0,
        max_pages: int = 1000,
    ) -> None:
        if list_timeout <= 0:
            raise ConfigurationError(f"list_timeout must be above 0, not {list_timeout!r}")
        if max_pages < 1:
            raise ConfigurationError(f"max_pages must be 1 or more, not {max_pages!r}")
        self._entries: Mapping[str, RegisteredServer] = {}
        self._serve = serve
        self._list_timeout = list_timeout
        self._max_pages = max_pages
        for server in servers:
            self._entries = self.register(server)._entries

    def __repr__(self) -> str:
        return f"<Registry of {', '.join(self._entries) or 'no servers'}>"

    def __contains__(self, name: str) -> bool:
        return name in self._entries

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def names(self) -> list[str]:
        """The names of all servers, disabled ones included."""
        return list(self._entries)

    @property
    def enabled(self) -> dict[str, Mux]:
        """The muxes of the servers that are enabled, by name."""
        return {name: member.mux for name, member in self._members.items()}

    @cached_property
    def _members(self) -> Mapping[str, MuxMember]:
        return {name: each.member for name, each in self._entries.items() if each.enabled}

    def find(self, name: str) -> Mux:
        """Return the mux of the server *name*.

        Raises:
            UnknownServer: no server has this name.
            ServerDisabled: the server is disabled.
        """
        entry = self._entry(name)
        if not entry.enabled:
            raise ServerDisabled(name)
        return entry.mux

    async def status(self) -> dict[str, Status]:
        """Return the status of each server, disabled ones included.

        All servers are asked for their tools at the same time; each has `list_timeout` seconds.
        """
        muxes = {name: entry.mux for name, entry in self._entries.items()}
        listed = await _list_each(muxes, self._list_timeout, self._max_pages)
        return {
            name: self._entries[name].status(name, len(tools), error)
            for name, (tools, error) in listed.items()
        }

    async def tools(self) -> list[ToolDefinition]:
        """Return the tools of all enabled servers, by their own names.

        A server that fails, or takes longer than `list_timeout`, is left out with a warning.
        """
        found: list[ToolDefinition] = []
        listed = await _list_each(self.enabled, self._list_timeout, self._max_pages)
        for name, (tools, error) in listed.items():
            if error is not None:
                logger.warning("server %s left out of tools/list: %s", name, error)
            found += tools
        return found

    def server(
        self,
        *,
        name: str = "registry",
        version: str = "1.0.0",
        separator: str = "/",
        page_size: int = 1000,
    ) -> CompositeServer:
        """Return one server that has the components of all enabled servers.

        Tools and prompts are called `server/tool`, resources keep their URIs. The arguments are
        those of `CompositeServer`.

        Raises:
            ConfigurationError: *separator* or *page_size* is invalid.
        """
        return CompositeServer(
            lambda: self._members,
            name=name,
            version=version,
            separator=separator,
            page_size=page_size,
            list_timeout=self._list_timeout,
        )

    def servers_for_cli(self) -> dict[str, Any]:
        """Return the `mcpServers` with which command line agents name in-process servers."""
        return {"mcpServers": {name: {"type": "sdk", "name": name} for name in self.names}}

    def servers_for_init(self) -> list[str]:
        """Return the names that an agent's initialization announces."""
        return self.names

    def register(self, server: Server | Mux, *, name: str | None = None) -> "Registry":
        """Return a registry with *server* added, which replaces a server of the same name.

        *name* has letters, digits, `_`, `-` and `.`; the default is the server's own name. A server
        that is registered already keeps its mux, and so its sessions and tasks.

        Raises:
            ConfigurationError: *server* is not a server, or the name is invalid.
        """
        key, entry = _named_entry(self._entries, server, name, self._serve)
        return self._with({**self._entries, key: entry})

    def unregister(self, name: str) -> "Registry":
        """Return a registry without the server *name*. An unknown name is ignored."""
        return self._with({key: each for key, each in self._entries.items() if key != name})

    def set_servers(self, servers: Iterable[Server | Mux]) -> "Registry":
        """Return a registry of exactly these servers.

        A server that is registered already keeps its name, mux and status. A new server with the
        name of a disabled server is disabled.

        Raises:
            ConfigurationError: one of them is not a server, or its name is invalid.
        """
        entries: dict[str, RegisteredServer] = {}
        for server in servers:
            known = {name: each for name, each in self._entries.items() if each.is_of(server)}
            if not known:
                name, entry = _named_entry(self._entries, server, None, self._serve)
                before = self._entries.get(name)
                known = {name: replace(entry, enabled=before.enabled) if before else entry}
            entries |= known
        return self._with(entries)

    def toggle(self, name: str, enabled: bool) -> "Registry":
        """Return a registry in which the server *name* is enabled or disabled.

        A disabled server is neither listed nor called.

        Raises:
            UnknownServer: no server has this name.
        """
        return self._with_entry(name, enabled=enabled)

    def failed(self, name: str, error: str) -> "Registry":
        """Return a registry in which the status of the server *name* has *error*.

        Raises:
            UnknownServer: no server has this name.
        """
        return self._with_entry(name, error=error)

    def reconnect(self, name: str) -> "Registry":
        """Return a registry in which the server *name* is enabled, and has no error.

        Raises:
            UnknownServer: no server has this name.
        """
        return self._with_entry(name, enabled=True, error=None)

    async def call_tool_by_name(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, timeout: float = TIMEOUT
    ) -> CallToolResult:
        """Call the tool *name* of the first enabled server that has it.

        *name* is the tool's own, without that of a server. A tool that fails, or takes longer than
        *timeout* seconds (default 30), returns an `isError` result.

        Raises:
            UnknownTool: no enabled server has this tool.
            McpError: the server responds with another error.
        """
        for mux in self.enabled.values():
            result = await call_tool(mux, name, arguments or {}, timeout=timeout)
            if result is not None:
                return result
        raise UnknownTool(name)

    async def handle_message(
        self, server: str, message: Mapping[str, Any] | str | bytes, *, timeout: float = TIMEOUT
    ) -> Any:
        """Send one JSON-RPC *message* to *server*, and return the response as JSON values.

        Messages of every revision are accepted, without an `initialize` before them. The response
        to a notification is None. A request runs in an asyncio.Task of its own, and is cancelled
        after *timeout* seconds (default 30). If the request fails, or a text is not JSON, the
        response is a JSON-RPC error.

        Raises:
            ContractError: *message* is a mapping that cannot be encoded as JSON.
            UnknownServer: no server has this name.
            ServerDisabled: the server is disabled.
        """
        return await send(self.find(server), message, timeout=timeout)

    async def aclose(self) -> None:
        """End the calls made without a transport, and close the muxes that this registry made."""
        for entry in self._entries.values():
            await close_connections(entry.mux)
        for mux in self._owned:
            await mux.aclose()

    @property
    def _owned(self) -> "set[Mux]":
        return {entry.mux for entry in self._entries.values() if entry.owned}

    def _entry(self, name: str) -> RegisteredServer:
        entry = self._entries.get(name)
        if entry is None:
            raise UnknownServer(name)
        return entry

    def _with_entry(self, name: str, **values: Any) -> "Registry":
        return self._with({**self._entries, name: replace(self._entry(name), **values)})

    def _with(self, entries: Mapping[str, RegisteredServer]) -> "Registry":
        registry = Registry(
            serve=self._serve, list_timeout=self._list_timeout, max_pages=self._max_pages
        )
        registry._entries = entries
        return registry


def _named_entry(
    entries: Mapping[str, RegisteredServer],
    server: Server | Mux,
    name: str | None,
    serve: Callable[[Server], Mux],
) -> tuple[str, RegisteredServer]:
    """Return the name and entry under which *server* is registered.

    A server that is in *entries* already keeps its mux. A new server gets its mux from *serve*.

    Raises:
        ConfigurationError: *server* is not a server, or the name is invalid.
    """
    known = (each for each in entries.values() if each.is_of(server))
    if (entry := next(known, None)) is not None:
        entry = RegisteredServer(entry.member, owned=entry.owned)
    elif isinstance(server, Mux):
        entry = RegisteredServer(MuxMember(server))
    else:
        entry = RegisteredServer(MuxMember(serve(server)), owned=True)
    name = entry.mux.server.info.name if name is None else name
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"a server cannot be registered as {name!r}, which is part of the names of its "
            "tools: they have letters, digits, '_', '-' and '.'; register(server, name=...) "
            "sets another one"
        )
    return name, entry


async def _list_each(
    muxes: Mapping[str, Mux], timeout: float, max_pages: int
) -> Mapping[str, tuple[Sequence[ToolDefinition], str | None]]:
    """Return, for each server, its tools, and the error text if they cannot be listed."""

    async def one(mux: Mux) -> tuple[Sequence[ToolDefinition], str | None]:
        try:
            return await list_tools(mux, timeout=timeout, max_pages=max_pages), None
        except (McpError, msgspec.MsgspecError) as error:
            return [], str(error)

    listed = await asyncio.gather(*map(one, muxes.values()))
    return dict(zip(muxes, listed, strict=True))
