"""A hub: a client of many servers, with tools called `server/tool`."""

import asyncio
import logging
from collections.abc import Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any
from weakref import WeakSet

import msgspec
from msgspec import UNSET

from genmcp.cancellation import cancel_requested
from genmcp.client.connection import Timeout
from genmcp.client.errors import ConnectError
from genmcp.client.handler import ClientHandler
from genmcp.client.hooks import ProgressCallback
from genmcp.client.options import ClientOptions
from genmcp.composite.errors import (
    AlreadyRegistered,
    CompositeError,
    ReconnectError,
    UnknownServer,
    UnknownTool,
)
from genmcp.composite.server import CompositeServer
from genmcp.errors import ConfigurationError, ContractError, GenmcpError
from genmcp.hub.config import Backoff, HubLimits, ServerConfig
from genmcp.hub.connection import HubPrompt, HubResource, HubTool
from genmcp.hub.member import HubMember, HubServer, SuspendedCalls
from genmcp.hub.reconnecting import ConnectionDeadline
from genmcp.hub.relay import QuestionLimiter
from genmcp.protocol.prompts import GetPromptResult
from genmcp.protocol.resources import ReadResourceResult
from genmcp.protocol.tools import CallToolResult

logger = logging.getLogger("genmcp.hub")


class Hub:
    """A client of many servers, with tools called `server/tool`. Used in one event loop.

        async with Hub() as hub:
            await hub.register(ServerConfig("files", "npx", ["server-files"], retry=Retry(3)))
            await hub.call("files/read_file", {"path": "/tmp/a"})

    A broken connection is restored as the server's `Retry` allows. If that fails, the server is
    evicted. Calls that were running fail with `OutcomeUnknown`. Later calls wait for the new
    connection. Other servers are not affected.

    Args:
        handler: answers the questions of all servers, with a separate state for each server.
            Default None: if the hub is served (see `server`), questions are forwarded to the client
            that made the call; otherwise servers cannot ask questions.
        options: the options of each client. Default `ClientOptions()`.
        backoff: waits between attempts to connect. Default `Backoff()`.
        limits: bounds on subscriptions, and on questions and logs forwarded to clients of `server`.
            Default `HubLimits()`.
    """

    def __init__(
        self,
        *,
        handler: ClientHandler | None = None,
        options: ClientOptions | None = None,
        backoff: Backoff | None = None,
        limits: HubLimits | None = None,
    ) -> None:
        self._members = _Members(
            handler, options or ClientOptions(), backoff or Backoff(), limits or HubLimits()
        )

    def __repr__(self) -> str:
        return f"<Hub of {', '.join(self.servers()) or 'no servers'}>"

    async def __aenter__(self) -> "Hub":
        """Return the hub. Servers are connected when they are registered."""
        return self

    async def __aexit__(
        self,
        type_: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop the hub."""
        await self.stop()

    async def register(self, config: ServerConfig) -> None:
        """Connect to a server, and read its lists.

        Raises:
            AlreadyRegistered: a server of this name is registered or connecting.
            ConnectError: the server cannot be connected to, or the hub stops. Nothing of the
                connection remains. `__cause__` is the error of the client.
            ConfigurationError: *config* is not a `ServerConfig`.
        """
        await self._members.add(_checked(config))

    async def register_all(
        self, configs: Iterable[ServerConfig], *, concurrency: int = 8
    ) -> Mapping[str, GenmcpError]:
        """Register many servers, *concurrency* (default 8) at a time.

        Returns:
            The errors of the servers that could not be registered, by the name of the server.

        Raises:
            ConfigurationError: *concurrency* is below 1, or an item of *configs* is not a
                `ServerConfig`.
        """
        if concurrency < 1:
            raise ConfigurationError(f"concurrency must be 1 or more, not {concurrency!r}")
        servers = [*map(_checked, configs)]
        slots = asyncio.Semaphore(concurrency)
        failed: dict[str, GenmcpError] = {}

        async def one(config: ServerConfig) -> None:
            async with slots:
                try:
                    await self.register(config)
                except (CompositeError, ConnectError) as error:
                    failed[config.name] = error

        async with asyncio.TaskGroup() as tasks:
            for config in servers:
                tasks.create_task(one(config))
        return failed

    async def unregister(self, name: str) -> None:
        """Close the connection to a server, and remove the server.

        Raises:
            UnknownServer: no server has this name.
        """
        await self._members.remove(name)

    async def stop(self) -> None:
        """Close all connections. Registrations that are in progress fail with `ConnectError`.

        The processes of all servers have ended when this method returns. Then servers may be
        registered again. The connections are closed even if the caller is cancelled meanwhile.
        """
        await self._members.clear()

    def server(self, *, name: str = "hub", version: str = "1") -> CompositeServer:
        """Return one server that has the components of all servers, for a `Mux` or an `Endpoint`.

        Tools and prompts are called `server/name`, resources keep their URIs. Questions of a server
        are forwarded to the client that made the call, unless the hub has a handler. Call this
        method before `register`: the hub declares to each server, when it connects, whether it can
        answer questions.

        Args:
            name: the name of the composite server. Default `hub`.
            version: its version. Default `1`.
        """
        return self._members.server(name, version)

    def servers(self) -> list[str]:
        """Return the names of the servers, sorted."""
        return sorted(each.name for each in self._members)

    def tools(self) -> list[HubTool]:
        """Return the tools of all servers, as they were listed last."""
        return [tool for each in self._members for tool in each.catalog.hub_tools(each.name)]

    def resources(self) -> list[HubResource]:
        """Return the resources of all servers, as they were listed last."""
        return [found for each in self._members for found in each.catalog.hub_resources(each.name)]

    def prompts(self) -> list[HubPrompt]:
        """Return the prompts of all servers, as they were listed last."""
        return [found for each in self._members for found in each.catalog.hub_prompts(each.name)]

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | str | None = None,
        *,
        progress: ProgressCallback | None = None,
        timeout: Timeout = UNSET,
    ) -> CallToolResult:
        """Call a tool.

        Args:
            name: the qualified name, `server/tool`.
            arguments: the arguments, or the JSON of an object. Default: none.
            progress: called with each progress notification. Default None.
            timeout: seconds for the call, including the time that the hub takes to reconnect.
                Default: the timeout of the client's options.

        Raises:
            UnknownTool: no server has this tool.
            ContractError: the arguments are not the JSON of an object.
            ClientError: as for `Client.call`; `ConnectError` if the hub cannot reconnect.
        """
        try:
            member, tool = self._members.split(name)
        except UnknownServer as error:
            raise UnknownTool(name, str(error)) from None
        if member.find("tools/call", tool) is None:
            raise UnknownTool(name)
        values = _decoded(arguments)
        deadline = ConnectionDeadline(timeout)
        return await member.client.send(
            lambda client: client.call(tool, values, progress=progress, timeout=deadline.left),
            deadline,
        )

    async def read(self, server: str, uri: str, *, timeout: Timeout = UNSET) -> ReadResourceResult:
        """Read the resource *uri* of *server*. *timeout* has the meaning that it has in `call`.

        Raises:
            UnknownServer: no server has this name.
            ClientError: as for `call`.
        """
        deadline = ConnectionDeadline(timeout)
        return await self._members[server].client.send(
            lambda client: client.read(uri, timeout=deadline.left), deadline
        )

    async def prompt(
        self,
        server: str,
        name: str,
        arguments: Mapping[str, str] | None = None,
        *,
        timeout: Timeout = UNSET,
    ) -> GetPromptResult:
        """Get the prompt *name* of *server*. *timeout* has the meaning that it has in `call`.

        Raises:
            UnknownServer: no server has this name.
            ClientError: as for `call`.
        """
        deadline = ConnectionDeadline(timeout)
        return await self._members[server].client.send(
            lambda client: client.prompt(name, arguments, timeout=deadline.left), deadline
        )


def _checked(config: ServerConfig) -> ServerConfig:
    if not isinstance(config, ServerConfig):
        raise ConfigurationError(
            f"a ServerConfig is needed, not a {type(config).__name__}; load_servers makes them "
            "from a configuration with mcpServers"
        )
    return config


def _decoded(arguments: Mapping[str, Any] | str | None) -> Mapping[str, Any] | None:
    if not isinstance(arguments, str):
        return arguments
    try:
        return msgspec.json.decode(arguments, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise ContractError(f"arguments must be the JSON of an object: {error}") from error


class _Members:
    """The servers of a hub: registered, connecting, and closing. Owned by the hub."""

    def __init__(
        self,
        handler: ClientHandler | None,
        options: ClientOptions,
        backoff: Backoff,
        limits: HubLimits,
    ) -> None:
        self._handler = handler
        self._options = options
        self._backoff = backoff
        self._limits = limits
        self._questions = QuestionLimiter(limits)
        self._suspended = SuspendedCalls(limits)
        # Replaced by another mapping at each change, never modified: a composite server detects
        # changes by the identity of this mapping.
        self._members: Mapping[str, HubMember] = {}
        self._servers: WeakSet[HubServer] = WeakSet()
        self._relays = False
        self._evicted: dict[str, str] = {}  # the reason of each eviction, by server name
        self._connecting: dict[str, asyncio.Task[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._clearing: asyncio.Task[None] | None = None

    def __iter__(self) -> Iterator[HubMember]:
        return iter(self._members.values())

    def __getitem__(self, name: str) -> HubMember:
        member = self._members.get(name)
        if member is None:
            raise UnknownServer(name, self._evicted.get(name))
        return member

    def server(self, name: str, version: str) -> HubServer:
        """Return a composite server. Members that are added later forward questions to clients."""
        self._relays = True
        server = HubServer(lambda: self._members, self._limits, name=name, version=version)
        self._servers.add(server)
        return server

    def split(self, name: str) -> tuple[HubMember, str]:
        """Split the qualified *name* of a tool into its server and the tool's name there.

        Raises:
            UnknownServer: *name* does not begin with the name of a server.
        """
        prefixes = [name[:at] for at, each in enumerate(name) if each == "/"] or [name]
        for prefix in prefixes:
            if (member := self._members.get(prefix)) is not None:
                return member, name[len(prefix) + 1 :]
        evicted = next((each for each in prefixes if each in self._evicted), prefixes[0])
        raise UnknownServer(evicted, self._evicted.get(evicted))

    async def add(self, config: ServerConfig) -> None:
        """Connect to a server, and read its lists.

        Raises:
            AlreadyRegistered: a server of this name is registered or connecting.
            ConnectError: the server cannot be connected to, or the hub stops.
        """
        name = config.name
        if self._clearing is not None:
            raise ConnectError(name, "the hub was stopped")
        for other in (*self._members, *self._connecting):
            if f"{other}/".startswith(f"{name}/") or f"{name}/".startswith(f"{other}/"):
                raise AlreadyRegistered(name, other)
        member = HubMember(
            config, self._options, self._backoff, self._questions, self._suspended, self._evict
        )
        member.client.handler = self._handler
        if self._handler is None and self._relays:
            member.relay_questions()
        connecting = asyncio.get_running_loop().create_task(self._connect(member))
        self._connecting[name] = connecting
        try:
            await connecting
        except asyncio.CancelledError:
            if cancel_requested():
                # The caller was cancelled. The server may have been added in the same iteration of
                # the event loop.
                if self._members.get(name) is member:
                    await self.remove(name)
                raise
            # The caller was not cancelled: `clear` has cancelled the connecting task.
            raise ConnectError(name, "the hub was stopped") from None
        finally:
            del self._connecting[name]

    async def remove(self, name: str) -> None:
        """Remove a server, and close its connection, even if the caller is cancelled meanwhile.

        Raises:
            UnknownServer: no server has this name.
        """
        member = self[name]
        self._set({key: each for key, each in self._members.items() if key != name})
        await asyncio.shield(self._close(member))

    async def clear(self) -> None:
        """Close all connections, including those that are opening or closing.

        No server can be added meanwhile. A cancellation of the caller does not interrupt this.
        """
        if self._clearing is None:
            self._clearing = asyncio.get_running_loop().create_task(self._clear())
        await asyncio.shield(self._clearing)

    async def _clear(self) -> None:
        try:
            connecting = [*self._connecting.values()]
            for each in connecting:
                each.cancel()
            if connecting:
                await asyncio.wait(connecting)
            members = [*self]
            if members:
                self._set({})
            for member in members:
                self._close(member)
            if self._closing:
                await asyncio.wait(self._closing)
        finally:
            self._clearing = None

    def _close(self, member: HubMember) -> "asyncio.Task[None]":
        closing = asyncio.get_running_loop().create_task(member.client.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        return closing

    async def _connect(self, member: HubMember) -> None:
        await member.client.open()
        self._evicted.pop(member.name, None)
        self._set({**self._members, member.name: member})

    def _evict(self, member: HubMember, error: ReconnectError) -> None:
        """Remove *member*, which could not be reconnected; keep the reason for error messages."""
        if self._members.get(member.name) is member:
            self._evicted[member.name] = f"it was evicted: {error.reason}"
            if len(self._evicted) > self._limits.max_evicted:
                del self._evicted[next(iter(self._evicted))]
            logger.warning("server %s is evicted: %s", member.name, error.reason)
            self._set({key: each for key, each in self._members.items() if each is not member})

    def _set(self, members: Mapping[str, HubMember]) -> None:
        self._members = members
        for server in self._servers:
            server.members_changed()
