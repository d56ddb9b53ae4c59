"""A client of many servers."""

import asyncio
from collections.abc import Iterable, Mapping
from types import TracebackType
from typing import Any

import msgspec
from msgspec import UNSET

from genmcp.client.errors import ConnectError
from genmcp.client.handler import ClientHandler
from genmcp.client.hooks import ProgressCallback
from genmcp.client.options import ClientOptions
from genmcp.client.requests import Wait
from genmcp.composite.errors import CompositeError, UnknownServer, UnknownTool
from genmcp.errors import ConfigurationError, ContractError, GenmcpError
from genmcp.hub.catalog import HubPrompt, HubResource, HubTool
from genmcp.hub.config import ServerConfig
from genmcp.hub.limits import HubLimits
from genmcp.hub.members import Members
from genmcp.hub.pace import Deadline, Pace
from genmcp.hub.server import HubServer
from genmcp.protocol.capabilities import Implementation
from genmcp.protocol.prompts import GetPromptResult
from genmcp.protocol.resources import ReadResourceResult
from genmcp.protocol.tools import CallToolResult

__all__ = ["Hub"]


class Hub:
    """Many servers, whose tools have the names `server/tool`.

        async with Hub() as hub:
            await hub.register(ServerConfig("files", "npx", ["server-files"], retry=Retry(3)))
            await hub.call("files/read_file", {"path": "/tmp/a"})

    handler: answers the questions of all servers, with a state for each. options: those of each
    client. pace: the backoff between attempts to connect. limits: bounds on what is forwarded to
    the clients of `server`.

    A server whose connection breaks is connected to again as its `Retry` says, and evicted when
    that fails. The call that was under way then fails with OutcomeUnknown; later ones wait for
    the connection. None of this concerns the other servers. All of it runs in one event loop.
    """

    def __init__(
        self,
        *,
        handler: ClientHandler[Any] | None = None,
        options: ClientOptions | None = None,
        pace: Pace | None = None,
        limits: HubLimits | None = None,
    ) -> None:
        self._members = Members(
            handler, options or ClientOptions(), pace or Pace(), limits or HubLimits()
        )

    def __repr__(self) -> str:
        return f"<Hub of {', '.join(self.servers()) or 'no servers'}>"

    async def __aenter__(self) -> "Hub":
        """Return itself: servers are connected to as they are registered."""
        return self

    async def __aexit__(
        self,
        type_: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stop."""
        await self.stop()

    async def register(self, config: ServerConfig) -> None:
        """Connect to a server, and find out what it has.

        Raises:
            AlreadyRegistered: a server of its name is here, or on its way.
            ConnectError: it cannot be connected to, or the hub stops; nothing of it is left.
            ConfigurationError: it is no ServerConfig.
        """
        await self._members.add(_checked(config))

    async def register_all(
        self, configs: Iterable[ServerConfig], *, at_once: int = 8
    ) -> Mapping[str, GenmcpError]:
        """Register many, a few at a time; return what went wrong, by the names of the servers.

        Raises:
            ConfigurationError: *at_once* is less than one, or one is no ServerConfig.
        """
        if at_once < 1:
            raise ConfigurationError(f"at_once must be 1 or more, not {at_once!r}")
        given = [*map(_checked, configs)]
        turns = asyncio.Semaphore(at_once)
        failed: dict[str, GenmcpError] = {}

        async def one(config: ServerConfig) -> None:
            async with turns:
                try:
                    await self.register(config)
                except (CompositeError, ConnectError) as error:
                    failed[config.name] = error

        async with asyncio.TaskGroup() as tasks:
            for config in given:
                tasks.create_task(one(config))
        return failed

    async def unregister(self, name: str) -> None:
        """End the connection to a server, and forget what it has.

        Raises:
            UnknownServer: there is none of that name.
        """
        await self._members.remove(name)

    async def stop(self) -> None:
        """End all connections, also those that come about: their `register` fails.

        The processes of all of them are over when this returns; then servers may be registered
        again. Leaving this early leaves it to go on, as it does with `unregister`.
        """
        await self._members.clear()

    def server(self, *, name: str = "hub", version: str = "1") -> HubServer:
        """Return a Server that has what all servers of this hub have, for a Mux or an Endpoint.

        Its tools and prompts are called `server/name`, its resources by their own URIs; of two
        servers with one URI the first counts. What servers ask is passed on to whoever has called,
        unless the hub has a handler: ask for the server before registering servers, since those
        that are registered already were told that nobody can be asked.
        """
        self._members.relays = True
        return HubServer(self._members, Implementation(name, version))

    def servers(self) -> list[str]:
        """Return the names of the servers, sorted."""
        return sorted(each.name for each in self._members)

    def tools(self) -> list[HubTool]:
        """Return the tools of all servers."""
        return [tool for each in self._members for tool in each.catalog.hub_tools(each.name)]

    def resources(self) -> list[HubResource]:
        """Return the resources of all servers."""
        return [found for each in self._members for found in each.catalog.hub_resources(each.name)]

    def prompts(self) -> list[HubPrompt]:
        """Return the prompts of all servers."""
        return [found for each in self._members for found in each.catalog.hub_prompts(each.name)]

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | str | None = None,
        *,
        progress: ProgressCallback | None = None,
        timeout: Wait = UNSET,
    ) -> CallToolResult:
        """Call the tool *name*, `server/tool`; *arguments*: a mapping, or the JSON of one.

        timeout: for how many seconds at most, the wait for a connection that broke among them.

        Raises:
            UnknownTool: there is none of that name.
            ContractError: the arguments are JSON, but no object.
            ConnectError: the server is gone.
            ClientError: as `Client.call`.
        """
        try:
            member, tool = self._members.having(name)
        except UnknownServer as error:
            raise UnknownTool(name, str(error)) from None
        if not member.catalog.has_tool(tool):
            raise UnknownTool(name)
        given = _arguments(arguments)
        deadline = Deadline(timeout)
        return await member.ask(
            lambda client: client.call(tool, given, progress=progress, timeout=deadline.left),
            deadline,
        )

    async def read(self, server: str, uri: str, *, timeout: Wait = UNSET) -> ReadResourceResult:
        """Read a resource of a server, in *timeout* seconds at most.

        Raises:
            UnknownServer: there is none of that name.
            ClientError: as for `call`.
        """
        deadline = Deadline(timeout)
        return await self._members[server].ask(
            lambda client: client.read(uri, timeout=deadline.left), deadline
        )

    async def prompt(
        self,
        server: str,
        name: str,
        arguments: Mapping[str, str] | None = None,
        *,
        timeout: Wait = UNSET,
    ) -> GetPromptResult:
        """Get a prompt of a server, in *timeout* seconds at most.

        Raises:
            UnknownServer: there is none of that name.
            ClientError: as for `call`.
        """
        deadline = Deadline(timeout)
        return await self._members[server].ask(
            lambda client: client.prompt(name, arguments, timeout=deadline.left), deadline
        )


def _checked(config: ServerConfig) -> ServerConfig:
    if not isinstance(config, ServerConfig):
        raise ConfigurationError(
            f"a ServerConfig is needed, not a {type(config).__name__}; load_servers makes them of "
            "what has mcpServers"
        )
    return config


def _arguments(given: Mapping[str, Any] | str | None) -> Mapping[str, Any] | None:
    if not isinstance(given, str):
        return given
    try:
        return msgspec.json.decode(given, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise ContractError(f"arguments: the JSON of an object is needed: {error}") from error
