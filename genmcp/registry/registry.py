"""A registry: named servers of this process, and a registry for each session."""

import asyncio
import logging
import re
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from threading import RLock
from typing import Any, Final
from weakref import WeakSet

import msgspec
from msgspec.structs import replace

from genmcp._mux.mux import Mux
from genmcp.composite.errors import (
    RegistrySessionNotFound,
    ServerDisabled,
    UnknownServer,
    UnknownTool,
)
from genmcp.composite.member import Member
from genmcp.composite.server import CompositeServer, Members
from genmcp.errors import ConfigurationError, McpError
from genmcp.protocol.tools import CallToolResult, ToolDefinition
from genmcp.registry.messages import TIMEOUT, call_tool, close_connections, list_tools, send
from genmcp.server import Middleware, Server
from genmcp.suite.suite import Suite

logger = logging.getLogger("genmcp.registry")

_NAME: Final = re.compile(r"(?!\.+$)[A-Za-z0-9_.-]+", re.ASCII)
"""A server name has the characters of tool names (2026-07-28, server/tools, "Tool Names"), since
it begins the names of tools. A name of dots alone would be a relative path in a URL."""


class MuxMember(Middleware, Member):
    """A mux of this process as a member of a registry. Owned by its registration.

    Calls get the static assigns of this mux. Limits, store, secret and telemetry are those of the
    mux that serves the composite server.
    """

    def __init__(self, mux: Mux) -> None:
        super().__init__(mux.server)
        self.mux = mux
        self.assigns = mux.assigns


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

    def is_of(self, server: Server | Mux) -> bool:
        """Whether *server* is the server, or the mux, of this entry."""
        return self.mux is server or self.mux.server is server


class Registry:
    """Named servers of this process, in the order in which they were added.

    It may be changed while it is served, and from any thread: clients of `server` are notified.

    Args:
        servers: the servers that are added first, under their own names.
        serve: makes the mux of a server that has none. Default `Mux`.
        list_timeout: seconds that a server may take to list its components. Default 5.

    Raises:
        ConfigurationError: an argument is invalid.
    """

    def __init__(
        self,
        servers: Iterable[Server | Mux] = (),
        *,
        serve: Callable[[Server], Mux] = Mux,
        list_timeout: float = 5.0,
    ) -> None:
        if list_timeout <= 0:
            raise ConfigurationError(f"list_timeout must be above 0, not {list_timeout!r}")
        # Replaced by another mapping at each change, never modified.
        self._entries: Mapping[str, RegisteredServer] = {}
        self._members: Members[MuxMember] = Members()  # the enabled servers
        self._lock = RLock()
        self._serve = serve
        self._list_timeout = list_timeout
        # The muxes that the registry made for servers that were removed later. `release` closes
        # each after its endpoint was closed.
        self._removed: WeakSet[Mux] = WeakSet()
        for server in servers:
            self.add(server)

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
        return {name: member.mux for name, member in self._members.current.items()}

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
        entries = self._entries  # which may be replaced meanwhile
        muxes = {name: entry.mux for name, entry in entries.items()}
        return {
            name: Status(
                name,
                entries[name].mux.server.info.version,
                len(tools),
                entries[name].enabled,
                entries[name].error or error,
            )
            for name, (tools, error) in (await _list_each(muxes, self._list_timeout)).items()
        }

    async def tools(self) -> list[ToolDefinition]:
        """Return the tools of all enabled servers, by their own names.

        A server that fails, or takes longer than `list_timeout`, is left out with a warning.
        """
        found: list[ToolDefinition] = []
        listed = await _list_each(self.enabled, self._list_timeout)
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
    ) -> CompositeServer:
        """Return one server that has the components of all enabled servers, and changes with them.

        Tools and prompts are called `server/tool`, resources keep their URIs. The arguments are
        those of `CompositeServer`.

        Raises:
            ConfigurationError: *separator* has characters that a tool's name cannot have.
        """
        with self._lock:
            return CompositeServer(
                self._members,
                name=name,
                version=version,
                separator=separator,
                list_timeout=self._list_timeout,
            )

    def servers_for_cli(self) -> dict[str, Any]:
        """Return the `mcpServers` with which command line agents name in-process servers."""
        return {"mcpServers": {name: {"type": "sdk", "name": name} for name in self.names}}

    def servers_for_init(self) -> list[str]:
        """Return the names that an agent's initialization announces."""
        return self.names

    def add(self, server: Server | Mux, *, name: str | None = None) -> None:
        """Add *server*, in place of a server of the same name.

        *name* has letters, digits, `_`, `-` and `.`; the default is the server's own name. A server
        that is in the registry already keeps its mux, and so its sessions and tasks.

        Raises:
            ConfigurationError: *server* is not a server, or the name is invalid.
        """
        with self._lock:
            key, entry = self._named_entry(server, name)
            self._change({**self._entries, key: entry})

    def remove(self, name: str) -> None:
        """Remove the server *name*. An unknown name is ignored."""
        with self._lock:
            self._change({key: each for key, each in self._entries.items() if key != name})

    def set_servers(self, servers: Iterable[Server | Mux]) -> None:
        """Replace all servers by *servers*.

        A server that is in the registry already keeps its name, mux and status. A new server with
        the name of a disabled server is disabled.

        Raises:
            ConfigurationError: one of them is not a server, or its name is invalid.
        """
        with self._lock:
            entries: dict[str, RegisteredServer] = {}
            for server in servers:
                known = {name: each for name, each in self._entries.items() if each.is_of(server)}
                if not known:
                    name, entry = self._named_entry(server, None)
                    before = self._entries.get(name)
                    known = {name: replace(entry, enabled=before.enabled) if before else entry}
                entries |= known
            self._change(entries)

    def toggle(self, name: str, enabled: bool) -> None:
        """Enable or disable the server *name*. A disabled server is neither listed nor called.

        Raises:
            UnknownServer: no server has this name.
        """
        self._change_entry(name, enabled=enabled)

    def failed(self, name: str, error: str) -> None:
        """Set the *error* of the status of the server *name*.

        Raises:
            UnknownServer: no server has this name.
        """
        self._change_entry(name, error=error)

    def reconnect(self, name: str) -> None:
        """Enable the server *name*, and remove its error.

        Raises:
            UnknownServer: no server has this name.
        """
        self._change_entry(name, enabled=True, error=None)

    def reload(self) -> None:
        """Notify all clients as if all servers had changed."""
        with self._lock:
            self._change(self._entries)

    def update(self, change: Callable[["Registry"], object]) -> None:
        """Call *change* with this registry. No other thread changes the registry meanwhile.

        If *change* raises, its changes are undone.
        """
        with self._lock:
            before = self._entries
            try:
                change(self)
            except BaseException:
                self._change(before)
                raise

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
        """End the calls made without a transport, and close the muxes that the registry made."""
        for mux in list(self._removed):
            await self.release(mux)
        for entry in self._entries.values():
            await close_connections(entry.mux)
            if entry.owned:
                await entry.mux.aclose()

    def removed(self, served: Iterable[Mux]) -> set[Mux]:
        """Return the muxes whose servers were removed: those of *served*, and the registry's own.

        `RegistryEndpoint` closes the endpoints of these, and then calls `release` for each.
        """
        with self._lock:
            return {*served, *self._removed} - {each.mux for each in self._entries.values()}

    async def release(self, mux: Mux) -> None:
        """Close *mux* if the registry made it, and its server was removed."""
        with self._lock:
            removed = mux in self._removed
            self._removed.discard(mux)
        if removed:
            await close_connections(mux)
            await mux.aclose()

    def _entry(self, name: str) -> RegisteredServer:
        entry = self._entries.get(name)
        if entry is None:
            raise UnknownServer(name)
        return entry

    def _change_entry(self, name: str, **values: Any) -> None:
        with self._lock:
            self._change({**self._entries, name: replace(self._entry(name), **values)})

    def _change(self, entries: Mapping[str, RegisteredServer]) -> None:
        """Replace the entries, and notify the clients. The caller has the lock."""
        self._removed |= {each.mux for each in self._entries.values() if each.owned}
        self._removed -= {each.mux for each in entries.values()}
        self._entries = entries
        self._members.change({name: each.member for name, each in entries.items() if each.enabled})

    def _named_entry(self, server: Server | Mux, name: str | None) -> tuple[str, RegisteredServer]:
        """Return the name and entry of *server*, with the mux that it has already, or a new one.

        Raises:
            ConfigurationError: *server* is not a server, or the name is invalid.
        """
        known = (each for each in self._entries.values() if each.is_of(server))
        if (entry := next(known, None)) is not None:
            entry = RegisteredServer(entry.member, owned=entry.owned)
        elif isinstance(server, Mux):
            entry = RegisteredServer(MuxMember(server))
        else:
            entry = RegisteredServer(MuxMember(self._serve(server)), owned=True)
        name = entry.mux.server.info.name if name is None else name
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigurationError(
                f"a server cannot be added as {name!r}, which is part of the names of its tools: "
                "they have letters, digits, '_', '-' and '.'; add(server, name=...) sets another "
                "one"
            )
        return name, entry


GLOBAL = Registry()
"""A registry for the whole process."""


class SessionRegistries:
    """A registry for each session, which is any hashable value. May be used from any thread."""

    def __init__(self) -> None:
        self._registries: dict[Hashable, Registry] = {}

    def __len__(self) -> int:
        return len(self._registries)

    def set(self, session: Hashable, registry: Registry | None) -> None:
        """Set the registry of *session*. None changes nothing.

        Raises:
            ConfigurationError: *registry* is not a registry.
        """
        if registry is not None:
            if not isinstance(registry, Registry):
                raise ConfigurationError(f"a Registry is needed, not {registry!r}")
            self._registries[session] = registry

    def remove(self, session: Hashable) -> None:
        """Remove the registry of *session*. An unknown session is ignored."""
        self._registries.pop(session, None)

    def get(self, session: Hashable) -> Registry:
        """Return the registry of *session*.

        Raises:
            RegistrySessionNotFound: the session has no registry.
        """
        registry = self._registries.get(session)
        if registry is None:
            raise RegistrySessionNotFound(session)
        return registry

    def add_server(self, session: Hashable, server: Server | Mux | Mapping[str, Any]) -> None:
        """Add *server* to the registry of *session*. A session without one gets an empty one.

        Args:
            session: the session.
            server: a server, a mux, or the arguments of a `Suite`: `name`, `tools` and so on.

        Raises:
            ConfigurationError: *server* is not a server.
        """
        if isinstance(server, Mapping):
            server = Suite(**{"name": "unnamed", "version": "1.0.0", **server})
        elif not isinstance(server, Server | Mux):
            raise ConfigurationError(f"add_server takes a server, or a mapping, not {server!r}")
        self._registries.setdefault(session, Registry()).add(server)

    async def status(self, session: Hashable) -> dict[str, Status]:
        """Return the status of each server of *session*; empty if it does not have a registry."""
        registry = self._registries.get(session)
        return {} if registry is None else await registry.status()


async def _list_each(
    muxes: Mapping[str, Mux], timeout: float
) -> Mapping[str, tuple[Sequence[ToolDefinition], str | None]]:
    """Return, for each server, its tools, and the error text if they cannot be listed."""

    async def one(mux: Mux) -> tuple[Sequence[ToolDefinition], str | None]:
        try:
            return await list_tools(mux, timeout=timeout), None
        except (McpError, msgspec.MsgspecError) as error:
            return [], str(error)

    listed = await asyncio.gather(*map(one, muxes.values()))
    return dict(zip(muxes, listed, strict=True))
