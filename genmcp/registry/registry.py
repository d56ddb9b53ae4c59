"""A registry: named servers of this process, as a value."""

import asyncio
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from genmcp.errors import ConfigurationError, McpError, ToolNotFound
from genmcp.mux.mux import Mux
from genmcp.protocol.params import CLIENT_CAPABILITIES, PROTOCOL_VERSION
from genmcp.protocol.revisions.chain import LATEST
from genmcp.protocol.tools import CallToolResult, ToolDefinition
from genmcp.registry.errors import ServerDisabled, ServerNotFound
from genmcp.registry.in_process import TIMEOUT, answer_of, end_all, tools_of
from genmcp.registry.together import Together
from genmcp.server import Server

__all__ = ["TIMEOUT", "Entry", "Registry", "Status"]

logger = logging.getLogger("genmcp.registry")

_NAME: Final = re.compile(r"(?!\.+$)[A-Za-z0-9_.-]+", re.ASCII)
"""2026-07-28, server/tools, "Tool Names"; dots alone would mean something else in a URL."""


class Status(msgspec.Struct, frozen=True):
    """How a registered server stands.

    tools: how many it lists. error: why it does not work: what `Registry.failed` was told, or else
    what its list fails with.
    """

    name: str
    version: str
    tools: int
    enabled: bool
    error: str | None = None


class Entry(msgspec.Struct, frozen=True, eq=False):
    """A server in a registry, by its mux.

    error: why it does not work, if somebody said so. made: whether the mux was made there.
    """

    mux: Mux
    enabled: bool = True
    error: str | None = None
    made: bool = False

    def serves(self, server: Server | Mux) -> bool:
        """Whether *server* is that of this entry."""
        return self.mux is server or self.mux.server is server


class Registry:
    """Servers of this process by their names, in the order in which they came.

    A registry never changes: what changes something returns another one, so that any number of
    threads may read it. `LiveRegistry` keeps the one that counts now.

    servers: what is registered first. serve: makes the mux of a server that has none.
    """

    def __init__(
        self, servers: Iterable[Server | Mux] = (), *, serve: Callable[[Server], Mux] = Mux
    ) -> None:
        self.entries: Mapping[str, Entry] = {}
        self._serve = serve
        for server in servers:
            self.entries = self.register(server).entries

    def __repr__(self) -> str:
        return f"<Registry of {', '.join(self.entries) or 'nothing'}>"

    def __contains__(self, name: str) -> bool:
        return name in self.entries

    def __len__(self) -> int:
        return len(self.entries)

    # What is in it.

    @property
    def names(self) -> list[str]:
        """The names of all servers, those that are disabled among them."""
        return list(self.entries)

    @property
    def enabled(self) -> dict[str, Mux]:
        """The servers that are listed and called, by their muxes."""
        return {name: entry.mux for name, entry in self.entries.items() if entry.enabled}

    def find(self, name: str) -> Mux:
        """Return the mux of the server *name*.

        Raises:
            ServerNotFound: there is none.
            ServerDisabled: it is switched off.
        """
        entry = self._entry(name)
        if not entry.enabled:
            raise ServerDisabled(name)
        return entry.mux

    async def status(self) -> dict[str, Status]:
        """Return how each server stands, also one that is disabled, or cannot list its tools.

        All are asked at once, and each has 5 seconds.
        """
        listed = await asyncio.gather(*(_tools_if_any(each.mux) for each in self.entries.values()))
        found: dict[str, Status] = {}
        for (name, entry), (tools, error) in zip(self.entries.items(), listed, strict=True):
            version = entry.mux.server.info.version
            found[name] = Status(name, version, len(tools), entry.enabled, entry.error or error)
        return found

    async def tools(self) -> list[ToolDefinition]:
        """Return the tools of all servers that are enabled, and can list them within 5 seconds.

        Of one that cannot the log tells, and `status`.
        """
        enabled = self.enabled
        listed = await asyncio.gather(*(_tools_if_any(mux) for mux in enabled.values()))
        found: list[ToolDefinition] = []
        for name, (tools, error) in zip(enabled, listed, strict=True):
            if error is not None:
                logger.warning("server %s lists no tools: %s", name, error)
            found += tools
        return found

    def server(
        self, *, name: str = "registry", version: str = "1.0.0", separator: str = "/"
    ) -> Together:
        """Return one server that has what all enabled ones have, for whatever serves a server.

        Its tools and prompts are called by the name of their server, *separator* and their own:
        `server/tool`. *name* and *version* are what it says of itself.

        Raises:
            ConfigurationError: no tool may be called so.
        """
        return Together(lambda: self.enabled, name=name, version=version, separator=separator)

    def servers_for_cli(self) -> dict[str, Any]:
        """Return the servers as a configuration of command line agents names those in process."""
        return {"mcpServers": {name: {"type": "sdk", "name": name} for name in self.entries}}

    def servers_for_init(self) -> list[str]:
        """Return the names with which an agent's handshake announces them."""
        return self.names

    # Others that follow from it.

    def register(self, server: Server | Mux, *, name: str | None = None) -> "Registry":
        """Return a registry with *server* as well, by its own name if no other is given.

        One that has this name is replaced. A server that is there already keeps its mux, and so
        its sessions and tasks.

        Raises:
            ConfigurationError: it is no server, or its tools could not be called by this name.
        """
        key, entry = self._entry_of(server, name)
        return self._with({**self.entries, key: entry})

    def unregister(self, name: str) -> "Registry":
        """Return a registry without the server *name*, if there is one."""
        return self._with({key: each for key, each in self.entries.items() if key != name})

    def set_servers(self, servers: Iterable[Server | Mux]) -> "Registry":
        """Return a registry of just these servers; those it knows by name stay disabled.

        One that is there already stays as it is, with the name it was given.

        Raises:
            ConfigurationError: one is no server, or its tools could not be called by its name.
        """
        entries: dict[str, Entry] = {}
        for server in servers:
            known = {name: each for name, each in self.entries.items() if each.serves(server)}
            if not known:
                name, entry = self._entry_of(server)
                before = self.entries.get(name)
                known = {name: replace(entry, enabled=before.enabled) if before else entry}
            entries |= known
        return self._with(entries)

    def toggle(self, name: str, enabled: bool) -> "Registry":
        """Return a registry in which the server *name* is enabled, or not.

        One that is not is neither listed nor called.

        Raises:
            ServerNotFound: there is none.
        """
        return self._with({**self.entries, name: replace(self._entry(name), enabled=enabled)})

    def failed(self, name: str, error: str) -> "Registry":
        """Return a registry whose status tells that the server *name* does not work.

        Raises:
            ServerNotFound: there is none.
        """
        return self._with({**self.entries, name: replace(self._entry(name), error=error)})

    def reconnect(self, name: str) -> "Registry":
        """Return a registry in which the server *name* is enabled, and has no error.

        Raises:
            ServerNotFound: there is none.
        """
        fresh = replace(self._entry(name), enabled=True, error=None)
        return self._with({**self.entries, name: fresh})

    # Calls.

    async def call_tool_by_name(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, timeout: float = TIMEOUT
    ) -> CallToolResult:
        """Call the tool *name* of the first enabled server that has it.

        A tool that fails, or does not end within *timeout* seconds, gives an `isError` result.

        Raises:
            ToolNotFound: none has it.
            McpError: the server answers with another error.
        """
        unknown = ToolNotFound(name)
        for mux in self.enabled.values():
            route = mux.find("tools/call", name)
            if route is None:
                continue
            meta = {PROTOCOL_VERSION: LATEST.version, CLIENT_CAPABILITIES: {}}
            params = {"name": name, "arguments": dict(arguments or {}), "_meta": meta}
            message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
            answer = await answer_of(mux, message, timeout=timeout)
            if (error := answer.get("error")) is None:
                return msgspec.convert(answer["result"], CallToolResult)
            if not (route.pending and error["message"] == unknown.message):
                raise McpError(error["message"], error.get("data"), code=error["code"])
        raise unknown

    async def handle_message(
        self, server: str, message: Mapping[str, Any] | str | bytes, *, timeout: float = TIMEOUT
    ) -> Any:
        """Return what the server *server* answers to one JSON-RPC *message*, as JSON values.

        Messages of every revision are understood, and each stands for itself: there need be no
        `initialize` before. None: it is a notification, which gets no answer. What answers it runs
        in an asyncio.Task of its own; whatever becomes of that is told in the answer. So is that a
        text, or bytes, are not JSON.

        Raises:
            ContractError: the mapping has what JSON has not.
            ServerNotFound: there is no such server.
            ServerDisabled: it is switched off.
        """
        return await answer_of(self.find(server), message, timeout=timeout)

    async def aclose(self) -> None:
        """End tasks that were begun without a transport, and close the muxes that were made here.

        One that was given is closed by whoever made it.
        """
        for entry in self.entries.values():
            await end_all(entry.mux)
        for mux in self.made:
            await mux.aclose()

    @property
    def made(self) -> "set[Mux]":
        """The muxes that were made for servers that had none."""
        return {entry.mux for entry in self.entries.values() if entry.made}

    def _entry_of(self, server: Server | Mux, name: str | None = None) -> tuple[str, Entry]:
        """Return how *server* is registered: with the mux that it has, if it is known."""
        known = (each for each in self.entries.values() if each.serves(server))
        if (entry := next(known, None)) is not None:
            entry = Entry(entry.mux, made=entry.made)
        elif isinstance(server, Mux):
            entry = Entry(server)
        else:
            entry = Entry(self._serve(server), made=True)
        name = entry.mux.server.info.name if name is None else name
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ConfigurationError(
                f"a server cannot be registered as {name!r}, which is part of the names of its "
                "tools: they have letters, digits, '_', '-' and '.'; register(server, name=...) "
                "gives another one"
            )
        return name, entry

    def _entry(self, name: str) -> Entry:
        entry = self.entries.get(name)
        if entry is None:
            raise ServerNotFound(name)
        return entry

    def _with(self, entries: Mapping[str, Entry]) -> "Registry":
        registry = Registry(serve=self._serve)
        registry.entries = entries
        return registry


async def _tools_if_any(mux: Mux) -> tuple[Sequence[ToolDefinition], str | None]:
    """Return the tools of a server, or why it cannot list them."""
    try:
        return await tools_of(mux), None
    except (McpError, msgspec.MsgspecError) as error:
        return [], str(error)
