"""All that belongs to one connection of a client, from when it is opened until it is closed."""

import asyncio
import logging
from hashlib import sha256
from typing import Any
from urllib.parse import urlsplit

from genmcp.client.cache import REVISION_CACHE, ResultCache, copied
from genmcp.client.calls import Calls
from genmcp.client.connection import Connection, News
from genmcp.client.errors import ClientError, RequestTimeout, ServerError
from genmcp.client.handler import ClientHandler
from genmcp.client.handler_runner import HandlerRunner
from genmcp.client.options import ClientOptions, Command
from genmcp.client.requests import Requests
from genmcp.client.subscriptions import ChangeStream, OpenChangeStreams
from genmcp.client.tool_catalog import ToolCatalog
from genmcp.client.transports.targets import Target, transport_to
from genmcp.core.client.events import (
    Connected,
    ConnectionFailed,
    Disconnected,
    NotificationReceived,
    NotificationsMissed,
    SessionReset,
)
from genmcp.core.client.lifecycle import Timeouts
from genmcp.protocol.capabilities import DiscoverResult
from genmcp.protocol.params import LoggingLevel
from genmcp.protocol.resources import SubscriptionFilter
from genmcp.protocol.revisions.chain import REVISIONS

__all__ = ["ClientSession"]

logger = logging.getLogger("genmcp.client")


class ClientSession:
    """One connection, with what is known of the server and who listens to it."""

    def __init__(
        self,
        target: Target,
        handler: ClientHandler[Any] | None,
        options: ClientOptions,
    ) -> None:
        transport = transport_to(
            target, max_message=options.max_message_bytes, http=options.http, stdio=options.stdio
        )
        self._options = options
        self._server = _key(target, transport.server_name)
        self.answering = HandlerRunner(
            handler,
            parallel=options.input_concurrency,
            capabilities=options.capabilities,
            url_schemes=options.url_schemes,
            schemas=options.schemas,
        )
        self.cache = ResultCache(options.cache_size)
        self.connection = Connection(
            transport,
            self.answering,
            options,
            self._told,
            REVISION_CACHE.get(self._server, options.era_ttl),
        )
        self.timeouts = Timeouts(idle=options.idle_timeout, total=options.timeout)
        self.listeners = OpenChangeStreams(self.connection, self.timeouts)
        self.requests = Requests(self.connection, self.answering, self.cache, options)
        self.offers = ToolCatalog(transport.server_name, mirrors=False, limits=options.schemas)
        self.calls = Calls(self.requests, self.offers, self.cache, self.listen_to_task)
        self._mirrors = transport.per_message
        self._settled = asyncio.Event()
        self._over = asyncio.Event()
        self._error: ClientError | None = None

    async def open(self) -> None:
        """Connect.

        Raises:
            ClientError: there is no server, or none that can be talked to.
        """
        try:
            await self._open()
        finally:
            self._settled.set()

    async def settled(self) -> None:
        """Wait until `open` is over, whether it succeeds or not."""
        await self._settled.wait()

    async def _open(self) -> None:
        options = self._options
        try:
            async with asyncio.timeout(options.open_timeout):
                await self.connection.open()
                if options.log_level is not None:
                    await self._set_log_level(options.log_level)
        except TimeoutError:
            await self.close()
            where = self.connection.where
            raise RequestTimeout("connecting", where, options.open_timeout) from None
        except BaseException:
            await self.close()
            raise
        # What one client was told to speak is no matter of the server.
        if self._server and options.revision is None:
            REVISION_CACHE.remember(self._server, self.connection.server.revision)

    async def _set_log_level(self, level: LoggingLevel) -> None:
        # 2025-11-25, server/utilities, "Logging": not every server has it.
        if self.is_modern or self.connection.server.capabilities.logging is not None:
            try:
                await self.connection.log_level(level, self.timeouts)
            except ServerError as error:  # that is no reason to do without the server
                where = self.connection.where
                logger.warning("%s sets no level of log messages: %s", where, error)

    async def close(self) -> None:
        """Disconnect."""
        self._over.set()
        await self.connection.close()

    async def ended(self) -> ClientError | None:
        """Wait until the connection is over, and return what ended it; None: it was closed."""
        await self._over.wait()
        return self._error

    @property
    def is_modern(self) -> bool:
        """Whether each request stands for itself: 2026-07-28 and later."""
        return REVISIONS[self.connection.server.revision].modern

    async def discover(self) -> DiscoverResult:
        """Return what the server says of itself; before 2026-07-28, what it said at first.

        Raises:
            ClientError: as `Connection.request`.
        """
        if self.is_modern:
            result: DiscoverResult = await self.requests.kept("server/discover", "", None)
            return result
        server = self.connection.server
        return DiscoverResult(
            ttl_ms=0,
            cache_scope="private",
            supported_versions=[server.revision],
            capabilities=copied(server.capabilities),
            instructions=server.instructions,
        )

    def listen(self, wanted: SubscriptionFilter) -> ChangeStream:
        """Return what listens for what is *wanted* when it is entered."""
        return ChangeStream(self.connection, self.listeners, wanted, self._options.open_timeout)

    def listen_to_task(self, id: str) -> ChangeStream:
        """Return what listens for changes of a task."""
        return self.listen(SubscriptionFilter(task_ids=[id]))

    def _told(self, event: News) -> None:
        match event:
            case NotificationReceived():
                self.cache.heard(event.method, event.params)
                self.listeners.heard(event)
            case Connected():
                self.offers.mirrors = self._mirrors and REVISIONS[event.revision].modern
            case NotificationsMissed():
                self.cache.clear()
                self.listeners.missed()
            case SessionReset():
                self.cache.clear()
                self.listeners.session_ended(self.connection.said(event.error))
            case Disconnected() | ConnectionFailed():
                error = self.connection.said(event.error)
                self.listeners.end(error)
                if not self._over.is_set():
                    self._error = error
                    self._over.set()


def _key(target: Target, where: str) -> str:
    """Return the key for `REVISION_CACHE`: the URL without query, or a hash of the command."""
    if isinstance(target, Command):
        # Hashed, since the command may hold secrets and the table lives as long as the process.
        known = (target.command, [*target.args], sorted((target.env or {}).items()), target.cwd)
        return sha256(repr(known).encode()).hexdigest()
    parts = urlsplit(where)
    if parts.scheme not in ("http", "https"):
        return ""
    return f"{parts.scheme}://{parts.netloc}{parts.path}"
