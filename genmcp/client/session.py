"""A client's session: one connection, and everything that belongs to it."""

import asyncio
import logging
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

from genmcp._core.client import events
from genmcp._core.client.lifecycle import Timeouts
from genmcp.client.auth.base import Auth
from genmcp.client.cache import REVISION_CACHE, ResultCache, copied
from genmcp.client.calls import ToolCalls
from genmcp.client.connection import Connection, ConnectionEvent
from genmcp.client.errors import ClientError, RequestTimeout, ServerError
from genmcp.client.handler import ClientHandler
from genmcp.client.handler_runner import HandlerRunner
from genmcp.client.options import ClientOptions, Command
from genmcp.client.requests import Requests
from genmcp.client.subscriptions import ChangeStream, OpenChangeStreams
from genmcp.client.tool_catalog import ToolCatalog
from genmcp.client.transports.base import Transport
from genmcp.client.transports.targets import Target, transport_to
from genmcp.protocol.capabilities import DiscoverResult
from genmcp.protocol.params import LoggingLevel
from genmcp.protocol.resources import SubscriptionFilter
from genmcp.protocol.revisions.chain import REVISIONS

logger = logging.getLogger("genmcp.client")


class ClientSession:
    """One connection of a client, with its caches, tools and subscriptions. Owned by a `Client`.

    A ClientSession is opened and closed once. A client that is opened again creates another one.
    """

    def __init__(
        self,
        target: Target,
        handler: ClientHandler[Any] | None,
        options: ClientOptions,
        auth: Auth | None = None,
    ) -> None:
        transport = transport_to(
            target,
            max_message=options.max_message_bytes,
            http=options.http,
            stdio=options.stdio,
            auth=auth,
        )
        self._options = options
        self._server_key = _server_key(target, transport.server_name)
        extension = getattr(auth, "extension", None)
        runner = HandlerRunner(handler, options, [extension] if extension else ())
        self._cache = ResultCache(options.cache_size)
        remembered = REVISION_CACHE.get(self._server_key, options.era_ttl)
        self.connection = _connection(transport, runner, options, self._handle, remembered)
        self._timeouts = Timeouts(idle=options.idle_timeout, total=options.timeout)
        self._streams = OpenChangeStreams(self.connection, self._timeouts)
        self.requests = Requests(self.connection, runner, self._cache, options)
        self._tools = ToolCatalog(transport.server_name, mirrors=False, limits=options.schemas)
        self.calls = ToolCalls(self.requests, self._tools, self._cache, self._task_stream)
        self._per_message = transport.per_message
        self._opened = asyncio.Event()
        self._ended = asyncio.Event()
        self._error: ClientError | None = None

    async def open(self) -> None:
        """Connect.

        Raises:
            ClientError: The server cannot be reached, or the handshake failed.
        """
        try:
            await self._open()
        finally:
            self._opened.set()

    async def opened(self) -> None:
        """Wait until `open` has returned or failed."""
        await self._opened.wait()

    async def _open(self) -> None:
        options, connection = self._options, self.connection
        try:
            async with asyncio.timeout(options.open_timeout) as limit:
                await connection.open(limit)
                if options.log_level is not None:
                    await self._set_log_level(options.log_level)
        except TimeoutError:
            await self.close()
            name = connection.server_name
            raise RequestTimeout("connecting", name, options.open_timeout) from None
        except BaseException:
            await self.close()
            raise
        # Do not remember a revision that `ClientOptions.revision` dictates: the server may support
        # a newer one, which the next client should use.
        if self._server_key and options.revision is None:
            REVISION_CACHE.remember(self._server_key, connection.server.revision)

    async def _set_log_level(self, level: LoggingLevel) -> None:
        # 2025-11-25, server/utilities, "Logging": only servers that declare the capability have
        # `logging/setLevel`.
        if self.is_modern or self.connection.server.capabilities.logging is not None:
            try:
                await self.set_log_level(level)
            except ServerError as error:  # the server is usable without log messages
                name = self.connection.server_name
                logger.warning("%s rejects the log level: %s", name, error)

    async def close(self) -> None:
        """Disconnect."""
        self._ended.set()
        await self.connection.close()

    async def ended(self) -> ClientError | None:
        """Wait until the connection has ended.

        Return the error that ended the connection; None if the client closed it.
        """
        await self._ended.wait()
        return self._error

    @property
    def is_modern(self) -> bool:
        """Whether the negotiated revision is 2026-07-28 or later, which has no sessions."""
        return REVISIONS[self.connection.server.revision].modern

    async def set_log_level(self, level: LoggingLevel) -> None:
        """Set the log level of the server.

        Raises:
            ClientError: As for `Connection.request`.
        """
        await self.connection.log_level(level, self._timeouts)

    async def discover(self) -> DiscoverResult:
        """Return the server's description of itself; see `Client.discover`.

        Raises:
            ClientError: As for `Connection.request`.
        """
        if self.is_modern:
            result: DiscoverResult = await self.requests.cached("server/discover")
            return result
        server = self.connection.server
        return DiscoverResult(
            ttl_ms=0,
            cache_scope="private",
            supported_versions=[server.revision],
            capabilities=copied(server.capabilities),
            instructions=server.instructions,
        )

    def change_stream(self, wanted: SubscriptionFilter) -> ChangeStream:
        """Return a change stream for *wanted*, which opens when it is entered."""
        return ChangeStream(self.connection, self._streams, wanted, self._options)

    def _task_stream(self, id: str) -> ChangeStream:
        return self.change_stream(SubscriptionFilter(task_ids=[id]))

    def _handle(self, event: ConnectionEvent) -> None:
        match event:
            case events.NotificationReceived():
                self._cache.invalidate(event.method, event.params)
                self._streams.publish(event)
            case events.Connected():
                # Over HTTP since 2026-07-28, headers repeat some arguments of a tool call.
                self._tools.mirrors = self._per_message and REVISIONS[event.revision].modern
            case events.NotificationsMissed():
                self._cache.clear()
                self._streams.publish_gap()
            case events.SessionReset():
                self._cache.clear()
                self._streams.session_ended(self.connection.error(event.error))
            case events.Disconnected() | events.ConnectionFailed():
                error = self.connection.error(event.error)
                self._streams.end(error)
                if not self._ended.is_set():
                    self._error = error
                    self._ended.set()


def _server_key(target: Target, server_name: str) -> str:
    """Return the key for `REVISION_CACHE`: the URL without query, or a hash of the command."""
    if isinstance(target, Command):
        # Hashed: a command may contain secrets, and the cache lives as long as the process.
        known = (target.command, [*target.args], sorted((target.env or {}).items()), target.cwd)
        return sha256(repr(known).encode()).hexdigest()
    parts = urlsplit(server_name)
    if parts.scheme not in ("http", "https"):
        return ""
    return f"{parts.scheme}://{parts.netloc}{parts.path}"


def _connection(
    transport: Transport, runner: Any, options: ClientOptions, *rest: Any
) -> Connection:
    if options.telemetry is None:
        return Connection(transport, runner, options, *rest)
    # Imported here, since most clients have no telemetry.
    from genmcp.client.observed import ObservedConnection

    return ObservedConnection(options.telemetry, transport, runner, options, *rest)
