"""Streams of what a server tells of changes: 2026-07-28, basic/patterns, "Subscriptions".

Before that revision there is no such stream: changes of lists are told to every client, and those
of a resource to who is subscribed to it. A `ChangeStream` is the same on all of them.
"""

import asyncio
from collections import Counter, OrderedDict
from contextlib import suppress
from typing import Any, Final

import msgspec

from genmcp.cancellation import cancel_and_wait
from genmcp.client.connection import Connection
from genmcp.client.errors import ClientError, ProtocolError, RequestTimeout
from genmcp.core.client.events import NotificationReceived
from genmcp.core.client.lifecycle import Timeouts
from genmcp.protocol.params import NotificationParams
from genmcp.protocol.resources import ResourceUpdatedNotificationParams, SubscriptionFilter
from genmcp.wire.jsonrpc import RequestId

__all__ = ["ChangeStream", "Notification", "OpenChangeStreams"]

_LISTEN: Final = "subscriptions/listen"
_ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"
_UPDATED: Final = "notifications/resources/updated"
_KINDS: Final = ("tools", "prompts", "resources")
_FOREVER: Final = Timeouts(idle=None, total=None)
#: How many different things may have changed that nobody has looked at.
_MOST: Final = 10_000


class Notification(msgspec.Struct, frozen=True):
    """What a server said: *params* are a value of `genmcp.protocol`."""

    method: str
    params: Any


class ChangeStream:
    """Context manager for the change notifications of a server.

        async with client.listen(tools=True) as changes:
            async for change in changes:
                ...

    `honored` says what the server tells of, which may be less than what was asked for. Of several
    changes of one thing that wait to be looked at, the newest counts. The iteration ends when the
    server ends the stream, and raises the ClientError by which it broke off. Where changes are told
    beside the requests (HTTP before 2026-07-28), what may have been missed counts as changed.
    """

    def __init__(
        self,
        connection: Connection,
        listeners: "OpenChangeStreams",
        wanted: SubscriptionFilter,
        wait: float,
    ) -> None:
        self.honored = SubscriptionFilter()
        self._connection = connection
        self._listeners = listeners
        self._wanted = wanted
        self._wait = wait
        self._id: RequestId | None = None
        self._stream: asyncio.Task[None] | None = None
        self._subscribed: list[str] = []
        self._changes: OrderedDict[tuple[str, str], Notification] = OrderedDict()
        self._changed = asyncio.Event()
        self._acknowledged = asyncio.Event()
        self._error: ClientError | None = None
        self._over = False

    async def __aenter__(self) -> "ChangeStream":
        """Begin to listen.

        Raises:
            RequestTimeout: the server does not say that it will tell of anything.
            ClientError: it refuses.
        """
        self._listeners.add(self)
        try:
            if self._connection.supports(_LISTEN):
                await self._open_stream()
            else:
                await self._subscribe()
        except BaseException:
            await self._close()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        """Listen no more."""
        await self._close()

    def __aiter__(self) -> "ChangeStream":
        """Return itself: what changes can be looked at once."""
        return self

    async def __anext__(self) -> Notification:
        """Wait for the next change."""
        while not self._changes:
            if self._over:
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        return self._changes.popitem(last=False)[1]

    def heard(self, event: NotificationReceived) -> None:
        """Take note of a notification, if it is one of this stream."""
        if self._stream is None:
            if self._concerns(event):
                self._put(event)
        elif self._id is not None and self._id in (event.subscription, event.about):
            if event.method == _ACKNOWLEDGED:
                self.honored = event.params.notifications
                self._acknowledged.set()
            else:
                self._put(event)

    def missed(self) -> None:
        """Take note that what this is for may have changed without a word."""
        if self._stream is not None:
            return
        for kind in _KINDS:
            if getattr(self.honored, f"{kind}_list_changed"):
                self._put(
                    NotificationReceived(f"notifications/{kind}/list_changed", NotificationParams())
                )
        for uri in self._subscribed:
            self._put(NotificationReceived(_UPDATED, ResourceUpdatedNotificationParams(uri=uri)))

    def end(self, error: ClientError | None) -> None:
        """Take note that nothing more comes."""
        if not self._over:
            self._over = True
            self._error = error
            self._changed.set()
            self._acknowledged.set()

    @property
    def is_subscribed(self) -> bool:
        """Whether the server keeps subscriptions for it in a session."""
        return bool(self._subscribed)

    @property
    def is_over(self) -> bool:
        """Whether nothing more comes than what waits to be looked at."""
        return self._over and not self._changes

    def _put(self, event: NotificationReceived) -> None:
        if self._over:
            return
        params = event.params
        thing: str = getattr(params, "uri", "") or getattr(params, "task_id", "")
        self._changes.pop((event.method, thing), None)
        self._changes[event.method, thing] = Notification(event.method, params)
        self._changed.set()
        if len(self._changes) > _MOST:
            self.end(ProtocolError(f"more than {_MOST} changes wait", self._connection.where))

    def _concerns(self, event: NotificationReceived) -> bool:
        """Whether a session's notification is one of those this stream is for."""
        if event.method == _UPDATED:
            return any(event.params.uri.startswith(uri) for uri in self._subscribed)
        kind = event.method.removeprefix("notifications/").removesuffix("/list_changed")
        return event.method.endswith("/list_changed") and bool(
            getattr(self._wanted, f"{kind}_list_changed", None)
        )

    async def _open_stream(self) -> None:
        self._stream = asyncio.get_running_loop().create_task(self._hold())
        try:
            async with asyncio.timeout(self._wait):
                await self._acknowledged.wait()
        except TimeoutError:
            raise RequestTimeout(_LISTEN, self._connection.where, self._wait) from None
        if self._error is not None:
            raise self._error

    async def _hold(self) -> None:
        """Hold the stream open until somebody ends it."""
        error = None
        try:
            await self._connection.request(
                _LISTEN, {"notifications": self._wanted}, timeouts=_FOREVER, begun=self._begin
            )
        except Exception as failure:
            error = self._connection.said(failure)
        self.end(error)

    def _begin(self, id: RequestId) -> None:
        self._id = id

    async def _subscribe(self) -> None:
        with suppress(TimeoutError):  # it may never have the stream, and yet tell of changes
            async with asyncio.timeout(self._wait):
                await self._connection.hearing()
        for uri in self._wanted.resource_subscriptions or ():
            await self._listeners.subscribe(uri)
            self._subscribed.append(uri)
        offered = self._connection.server.capabilities
        told = {
            f"{kind}_list_changed": wanted
            for kind in _KINDS
            if (wanted := getattr(self._wanted, f"{kind}_list_changed"))
            and getattr(getattr(offered, kind), "list_changed", None)
        }
        self.honored = SubscriptionFilter(
            **told, resource_subscriptions=[*self._subscribed] or None
        )

    async def _close(self) -> None:
        self._listeners.remove(self)
        if self._stream is not None:
            await cancel_and_wait(self._stream)
        while self._subscribed:
            await self._listeners.unsubscribe(self._subscribed.pop())
        self.end(None)


class OpenChangeStreams:
    """All that listen on one connection, and what its session is subscribed to for them."""

    def __init__(self, connection: Connection, timeouts: Timeouts) -> None:
        self._connection = connection
        self._timeouts = timeouts
        self._listening: list[ChangeStream] = []
        self._subscribed: Counter[str] = Counter()
        self._turn = asyncio.Lock()

    def add(self, listening: ChangeStream) -> None:
        """Tell *listening* from now on."""
        self._listening.append(listening)

    def remove(self, listening: ChangeStream) -> None:
        """Tell *listening* no more; it may be forgotten already."""
        if listening in self._listening:
            self._listening.remove(listening)

    def heard(self, event: NotificationReceived) -> None:
        """Tell everybody it concerns."""
        for listening in self._listening:
            listening.heard(event)

    def missed(self) -> None:
        """Tell everybody that something may have changed that nobody has told of."""
        for listening in self._listening:
            listening.missed()

    def session_ended(self, error: ClientError) -> None:
        """The session is over, and what it was subscribed to: its next one is not."""
        self._subscribed.clear()
        for listening in self._listening:
            if listening.is_subscribed:
                listening.end(error)
            else:
                listening.missed()

    def end(self, error: ClientError) -> None:
        """The connection is over."""
        self._subscribed.clear()
        for listening in self._listening:
            listening.end(error)

    async def subscribe(self, uri: str) -> None:
        """Subscribe the session to *uri*, unless it is.

        Raises:
            ClientError: the server refuses.
        """
        async with self._turn:
            if self._subscribed[uri] == 0:
                await self._send("resources/subscribe", uri)
            self._subscribed[uri] += 1

    async def unsubscribe(self, uri: str) -> None:
        """Unsubscribe the session from *uri*, if nobody else needs it."""
        async with self._turn:
            if self._subscribed[uri] == 0:
                return  # with the session it was of
            self._subscribed[uri] -= 1
            if self._subscribed[uri] == 0:
                with suppress(ClientError):  # what is over needs no unsubscribing
                    await self._send("resources/unsubscribe", uri)

    async def _send(self, method: str, uri: str) -> None:
        await self._connection.request(method, {"uri": uri}, timeouts=self._timeouts)
