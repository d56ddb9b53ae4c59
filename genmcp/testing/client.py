"""A client in memory that records notifications: `connect`."""

import asyncio
import secrets
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from copy import copy
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from genmcp._mux.mux import Mux
from genmcp._transports.endpoint import Endpoint
from genmcp._transports.request import IN_PROCESS
from genmcp.client.client import Client
from genmcp.client.connection import Timeout
from genmcp.client.handler import ClientHandler
from genmcp.client.hooks import ProgressCallback
from genmcp.client.options import ClientOptions
from genmcp.client.subscriptions import Notification
from genmcp.client.transports.base import TransportSink
from genmcp.client.transports.memory import MemoryTransport
from genmcp.core.access import Access
from genmcp.core.client.events import SendMessage
from genmcp.core.client.receiving import decode_notification
from genmcp.protocol.capabilities import ClientCapabilities
from genmcp.protocol.params import (
    LoggingLevel,
    LoggingMessageNotificationParams,
    ProgressNotificationParams,
)
from genmcp.protocol.revisions.chain import LATEST, REVISIONS
from genmcp.protocol.tools import CallToolResult
from genmcp.server import Server
from genmcp.stores.memory import MemoryStore
from genmcp.wire import jsonrpc
from genmcp.wire.jsonrpc import RequestId

# Results are not cached: a test that lists tools twice needs the second list from the server.
_DEFAULTS = ClientOptions(cache_size=0)


def connect(
    target: Server | Mux | Endpoint,
    *,
    handler: ClientHandler | None = None,
    capabilities: ClientCapabilities | None = None,
    revision: str | None = None,
    access: Access | None = None,
    state: Mapping[str, Any] | None = None,
    log_level: LoggingLevel | None = "debug",
    options: ClientOptions = _DEFAULTS,
) -> "RecordingClient":
    """Return a client of *target*; enter it to connect.

    A mux or endpoint stays open when the client is closed. A suite or another server gets a mux
    that is closed with the client. Its store is in memory and its secret its own, whatever
    GENMCP_STORE and GENMCP_SECRET are set to.

    Args:
        target: the suite, mux or endpoint under test.
        handler: answers the questions of the server. Default: without the capability for any.
        capabilities: the declared capabilities. Default: those that follow from *handler*.
        revision: the protocol revision to speak, such as "2025-11-25". Default: the newest.
        access: who calls, such as `Access(subject="ann", scopes=frozenset({"read"}))`; it takes the
            place of an access token. Default: an anonymous client.
        state: `request.state` as the host's middleware would have set it, for `copy_assigns`.
        log_level: the least severe log message to receive. None: no messages. Default: all.
        options: the other options of the client, such as timeouts. Default: those of `Client`,
            without its cache.

    Raises:
        ConfigurationError: *target* cannot be served, or *revision* is unknown.
    """
    if capabilities is not None:
        handler = ClientHandler() if handler is None else copy(handler)
        handler.capabilities = capabilities
    return RecordingClient(
        target,
        handler=handler,
        options=replace(options, revision=revision or options.revision, log_level=log_level),
        access=access,
        state=state,
    )


class RecordingClient(Client):
    """A `Client` in memory that records the notifications of the server. Created by `connect`.

    Every call requests progress, with or without a callback. A closed client cannot be reopened.

    Attributes:
        notifications: all notifications received so far, in order, as values of 2026-07-28.
    """

    def __init__(
        self,
        target: Server | Mux | Endpoint,
        *,
        handler: ClientHandler | None,
        options: ClientOptions,
        access: Access | None,
        state: Mapping[str, Any] | None,
    ) -> None:
        self.notifications: list[Notification] = []
        self._arrived = asyncio.Event()
        # With an address, an anonymous client has no more rights than one over HTTP.
        extensions = {IN_PROCESS: {"address": "127.0.0.1"}}
        scope: dict[str, Any] = {"state": dict(state or {}), "extensions": extensions}
        if access is not None:
            scope["user"] = access
        self._transport = _RecordingTransport(target, scope, self._record)
        super().__init__(self._transport, handler=handler, options=options)

    @property
    def progress(self) -> Sequence[ProgressNotificationParams]:
        """The progress notifications received so far."""
        return [each.params for each in self.notifications if each.method.endswith("/progress")]

    @property
    def logs(self) -> Sequence[LoggingMessageNotificationParams]:
        """The log messages received so far."""
        return [each.params for each in self.notifications if each.method.endswith("/message")]

    async def stream(self) -> AsyncIterator[Notification]:
        """Yield each notification as it arrives, beginning with the first one of the connection.

        Ends when the client is closed. To watch a call, run it in an asyncio.Task.
        """
        position = 0
        while True:
            while position < len(self.notifications):
                yield self.notifications[position]
                position += 1
            if self._transport.closed:
                return
            self._arrived.clear()
            await self._arrived.wait()

    async def disconnect(self) -> None:
        """Break every open response, as a lost network connection does.

        The server sees a disconnect. Calls in progress fail with `OutcomeUnknown`, or resume their
        stream where the revision has that (2025-11-25 and before). New requests can be sent.
        """
        await self._transport.disconnect()

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        progress: ProgressCallback | None = None,
        timeout: Timeout = UNSET,
        idle_timeout: Timeout = UNSET,
        meta: Mapping[str, Any] | None = None,
    ) -> CallToolResult:
        """Call a tool; see `Client.call`."""
        return await super().call(
            name,
            arguments,
            progress=progress or _ignore_progress,  # without a callback, no progress is requested
            timeout=timeout,
            idle_timeout=idle_timeout,
            meta=meta,
        )

    def _record(self, notification: Notification | None) -> None:
        if notification is not None:
            self.notifications.append(notification)
        self._arrived.set()


class _RecordingTransport(MemoryTransport):
    """A transport that calls *record* with each notification before the client handles it."""

    def __init__(
        self,
        target: Server | Mux | Endpoint,
        scope: Mapping[str, Any],
        record: Callable[[Notification | None], None],
    ) -> None:
        self._mux = None
        if isinstance(target, Server):
            # The environment variables name the store and the secret of a deployment: a test that
            # finds them set must neither write there nor need it.
            secret = secrets.token_bytes(32)
            self._mux = target = Mux(target, store=MemoryStore(), secret=secret)
            # A suite may change after the client is closed: the mux, which follows it, would try to
            # write that into a closed store.
            self._mux._closes_store = False
        super().__init__(target, scope=scope)
        self._owned = self._mux is not None
        self.closed = False
        self._record = record
        self._revision = LATEST

    async def open(self, sink: TransportSink) -> None:
        await super().open(_RecordingSink(sink, self._receive))

    async def send(self, message: SendMessage) -> None:
        # The client passes the negotiated revision here before any notification can arrive.
        self._revision = REVISIONS.get(message.revision or "", self._revision)
        await super().send(message)

    async def close(self) -> None:
        await super().close()
        if self._mux is not None:
            await self._mux.aclose()
        self.closed = True
        self._record(None)  # wakes `stream`

    def _receive(self, body: bytes) -> None:
        decoded = jsonrpc.decode(body)
        for message in decoded if isinstance(decoded, list) else [decoded]:
            if isinstance(message, jsonrpc.Message) and message.method and message.id is UNSET:
                event = decode_notification(message, self._revision, None)
                self._record(Notification(event.method, event.params))


class _RecordingSink:
    """A sink that calls *receive* with each message before it passes it to the client's sink.

    All other events go directly to the client's sink.
    """

    def __init__(self, sink: TransportSink, receive: Callable[[bytes], None]) -> None:
        self._receive = receive
        self._sink = sink
        self.on_oversized = sink.on_oversized
        self.on_failure = sink.on_failure
        self.on_wait = sink.on_wait
        self.on_lost_notifications = sink.on_lost_notifications
        self.on_session_ended = sink.on_session_ended

    def on_message(self, message: bytes, about: RequestId | None = None) -> bool:
        self._receive(message)
        return self._sink.on_message(message, about)


def _ignore_progress(progress: float, total: float | None, message: str | None) -> None:
    """Do nothing: a client requests progress only if it has a callback, so this one has one."""
