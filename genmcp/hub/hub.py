"""A hub: a client of many servers, with tools called `server/tool`."""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final

import msgspec
from msgspec import UNSET

from genmcp.cancellation import cancel_requested
from genmcp.client.client import Client
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
from genmcp.composite.server import CompositeServer, Members, check_separator, first_result
from genmcp.core.request import Policy
from genmcp.errors import ConfigurationError, ContractError, GenmcpError, ResourceNotFound
from genmcp.hub.catalog import HubPrompt, HubResource, HubTool
from genmcp.hub.config import ServerConfig, Sleep
from genmcp.hub.member import HubMember, HubSettings
from genmcp.hub.subscriptions import HubServer
from genmcp.protocol.prompts import GetPromptResult
from genmcp.protocol.resources import ReadResourceResult
from genmcp.protocol.tools import CallToolResult

logger = logging.getLogger("genmcp.hub")

# The servers that `add_all` connects to at the same time.
_CONCURRENCY: Final = 8
# The evicted servers whose reason of eviction is kept for error messages.
_MAX_EVICTED: Final = 100


class Hub:
    """A client of many servers, with tools called `server/tool`. Used in one event loop.

        async with Hub() as hub:
            await hub.add(ServerConfig("files", "npx", ["server-files"], retry=Retry(3)))
            await hub.call("files/read_file", {"path": "/tmp/a"})

    A broken connection is restored as the server's `Retry` allows. If that fails, the server is
    evicted. Calls that were running fail with `OutcomeUnknown`. Later calls wait for the new
    connection. Other servers are not affected.

    Args:
        handler: answers the questions of all servers, with a separate state for each server.
            Default None: if the hub is served (see `server`), questions are forwarded to the client
            that made the call; otherwise servers cannot ask questions.
        options: the options of each client. Default `ClientOptions()`.
        separator: what separates the names of a server and of its tool or prompt, since some models
            reject a slash. Default `/`.
        promote_after: seconds that a call forwarded by `server` may take until it becomes a task of
            the hub, for clients that support tasks. Default 10.
        sleep: waits for a number of seconds before an attempt to connect again. Default
            `asyncio.sleep`; tests pass another function, and need not wait.

    Raises:
        ConfigurationError: *separator* has characters that a tool's name cannot have, or
            *promote_after* is negative.
    """

    def __init__(
        self,
        *,
        handler: ClientHandler | None = None,
        options: ClientOptions | None = None,
        separator: str = "/",
        promote_after: float = 10.0,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        check_separator(separator)
        if promote_after < 0:
            raise ConfigurationError(f"promote_after must not be negative: {promote_after!r}")
        self._separator = separator
        self._settings = HubSettings(
            handler,
            options or ClientOptions(),
            Policy(promote_after=promote_after),
            sleep,
        )
        self._members: Members[HubMember] = Members()
        self._relays = False
        self._evicted: dict[str, str] = {}  # the reason of each eviction, by server name
        self._connecting: dict[str, asyncio.Task[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._clearing: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Hub of {', '.join(self.servers()) or 'no servers'}>"

    async def __aenter__(self) -> "Hub":
        """Return the hub. Servers are connected when they are added."""
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the hub."""
        await self.aclose()

    async def add(self, config: ServerConfig) -> None:
        """Connect to a server, and read its lists.

        Raises:
            AlreadyRegistered: a server of this name is in the hub or connecting.
            ConnectError: the server cannot be connected to, or the hub is closed meanwhile. Nothing
                of the connection remains. `__cause__` is the error of the client.
            ConfigurationError: *config* is not a `ServerConfig`.
        """
        name = _checked(config).name
        if self._clearing is not None:
            raise ConnectError(name, "the hub was closed")
        prefix = name + self._separator
        for other in (*self._members.current, *self._connecting):
            taken = other + self._separator
            if taken.startswith(prefix) or prefix.startswith(taken):
                raise AlreadyRegistered(name, other)
        member = HubMember(config, self._settings, self._evict, relays=self._relays)
        connecting = asyncio.get_running_loop().create_task(self._connect(member))
        self._connecting[name] = connecting
        try:
            await connecting
        except asyncio.CancelledError:
            if cancel_requested():
                # The caller was cancelled. The server may have been added in the same iteration of
                # the event loop.
                if self._members.current.get(name) is member:
                    await self.remove(name)
                raise
            # The caller was not cancelled: `aclose` has cancelled the connecting task.
            raise ConnectError(name, "the hub was closed") from None
        finally:
            del self._connecting[name]

    async def add_all(self, configs: Iterable[ServerConfig]) -> Mapping[str, GenmcpError]:
        """Add many servers, 8 at a time.

        Returns:
            The errors of the servers that could not be added, by the name of the server.

        Raises:
            ConfigurationError: an item of *configs* is not a `ServerConfig`.
        """
        servers = [*map(_checked, configs)]
        slots = asyncio.Semaphore(_CONCURRENCY)
        failed: dict[str, GenmcpError] = {}

        async def one(config: ServerConfig) -> None:
            async with slots:
                try:
                    await self.add(config)
                except (CompositeError, ConnectError) as error:
                    failed[config.name] = error

        async with asyncio.TaskGroup() as tasks:
            for config in servers:
                tasks.create_task(one(config))
        return failed

    async def remove(self, name: str) -> None:
        """Remove a server, and close its connection, even if the caller is cancelled meanwhile.

        Raises:
            UnknownServer: no server has this name.
        """
        member = self._member(name)
        self._discard(member)
        await asyncio.shield(self._close(member))

    async def aclose(self) -> None:
        """Close all connections. Servers that are being added fail with `ConnectError`.

        The processes of all servers have ended when this method returns. Then servers may be added
        again. The connections are closed even if the caller is cancelled meanwhile.
        """
        if self._clearing is None:
            self._clearing = asyncio.get_running_loop().create_task(self._clear())
        await asyncio.shield(self._clearing)

    def server(self, *, name: str = "hub", version: str = "1") -> CompositeServer:
        """Return one server that has the components of all servers, for a `Mux` or an `Endpoint`.

        Tools and prompts are called `server/name`, resources keep their URIs. Questions of a server
        are forwarded to the client that made the call, unless the hub has a handler. Call this
        method before `add`: the hub declares to each server, when it connects, whether it can
        answer questions.

        Args:
            name: the name of the composite server. Default `hub`.
            version: its version. Default `1`.
        """
        self._relays = True
        return HubServer(self._members, name=name, version=version, separator=self._separator)

    def servers(self) -> list[str]:
        """Return the names of the servers, sorted."""
        return sorted(self._members.current)

    def tools(self) -> list[HubTool]:
        """Return the tools of all servers, as they were listed last."""
        return [
            HubTool(
                self._qualified(member, each.name), each.description, member.name, each.name, each
            )
            for member in self._members
            for each in member.catalog.tools
        ]

    def resources(self) -> list[HubResource]:
        """Return the resources of all servers, as they were listed last."""
        return [
            HubResource(each.uri, each.name or each.uri, each.description, member.name, each)
            for member in self._members
            for each in member.catalog.resources
        ]

    def prompts(self) -> list[HubPrompt]:
        """Return the prompts of all servers, as they were listed last."""
        return [
            HubPrompt(
                self._qualified(member, each.name),
                each.description,
                member.name,
                each.name,
                each.arguments or (),
                each,
            )
            for member in self._members
            for each in member.catalog.prompts
        ]

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
            member, tool = self._split(name)
        except UnknownServer as error:
            raise UnknownTool(name, str(error)) from None
        if member.find("tools/call", tool) is None:
            raise UnknownTool(name)
        values = _decoded(arguments)
        return await member.send(
            lambda client, left: client.call(tool, values, progress=progress, timeout=left), timeout
        )

    async def read(
        self, uri: str, *, server: str | None = None, timeout: Timeout = UNSET
    ) -> ReadResourceResult:
        """Read a resource.

        Args:
            uri: the URI of the resource.
            server: the name of the server that has it. Default None: the first server that lists
                it; if none lists it, each server that may have it is asked, as by `server`.
            timeout: seconds for each server that is asked, as for `call`.

        Raises:
            UnknownServer: no server is called *server*.
            ResourceNotFound: no server has the resource.
            ClientError: as for `call`.
        """
        if server is not None:
            return await self._member(server).send(partial(_read, uri), timeout)
        found = self._members.find("resources/read", uri, self._separator)
        if not found:
            raise ResourceNotFound(uri)
        return await first_result(
            found, lambda each: each.member.send(partial(_read, uri), timeout)
        )

    async def prompt(
        self, name: str, arguments: Mapping[str, str] | None = None, *, timeout: Timeout = UNSET
    ) -> GetPromptResult:
        """Get a prompt.

        Args:
            name: the qualified name, `server/prompt`.
            arguments: the arguments. Default: none.
            timeout: seconds, as for `call`.

        Raises:
            UnknownServer: *name* does not begin with the name of a server.
            ClientError: as for `call`.
        """
        member, prompt = self._split(name)
        return await member.send(
            lambda client, left: client.prompt(prompt, arguments, timeout=left), timeout
        )

    def _qualified(self, member: HubMember, name: str) -> str:
        return f"{member.name}{self._separator}{name}"

    def _split(self, name: str) -> tuple[HubMember, str]:
        """Split the qualified *name* into its server and the name that the server uses.

        Raises:
            UnknownServer: *name* does not begin with the name of a server.
        """
        found = next(self._members.split(name, self._separator), None)
        if found is None:
            known = (each for each in self._evicted if name.startswith(each + self._separator))
            raise self._unknown(next(known, name.partition(self._separator)[0]))
        return found

    def _member(self, name: str) -> HubMember:
        member = self._members.current.get(name)
        if member is None:
            raise self._unknown(name)
        return member

    def _unknown(self, name: str) -> UnknownServer:
        return UnknownServer(name, self._evicted.get(name))

    async def _connect(self, member: HubMember) -> None:
        await member.open()
        self._evicted.pop(member.name, None)
        self._members.change({**self._members.current, member.name: member})

    def _evict(self, member: HubMember, error: ReconnectError) -> None:
        """Remove *member*, which could not be reconnected; keep the reason for error messages."""
        if self._members.current.get(member.name) is member:
            self._evicted[member.name] = f"it was evicted: {error.reason}"
            if len(self._evicted) > _MAX_EVICTED:
                del self._evicted[next(iter(self._evicted))]
            logger.warning("server %s is evicted: %s", member.name, error.reason)
            self._discard(member)

    def _discard(self, member: HubMember) -> None:
        rest = {name: each for name, each in self._members.current.items() if each is not member}
        self._members.change(rest)

    def _close(self, member: HubMember) -> "asyncio.Task[None]":
        closing = asyncio.get_running_loop().create_task(member.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        return closing

    async def _clear(self) -> None:
        try:
            connecting = [*self._connecting.values()]
            for each in connecting:
                each.cancel()
            if connecting:
                await asyncio.wait(connecting)
            members = [*self._members]
            if members:
                self._members.change({})
            for member in members:
                self._close(member)
            if self._closing:
                await asyncio.wait(self._closing)
        finally:
            self._clearing = None


async def _read(uri: str, client: Client, timeout: Timeout) -> ReadResourceResult:
    return await client.read(uri, timeout=timeout)


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
