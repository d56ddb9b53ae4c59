"""Change streams: 2026-07-28, basic/patterns, "Subscriptions".

Servers of earlier revisions have no streams. They notify every client of changes of their lists,
and notify a session of changes of the resources that the session has subscribed to. `ChangeStream`
hides the difference.
"""

import asyncio
from collections import OrderedDict
from contextlib import suppress
from typing import Any, Final

import msgspec

from genmcp.cancellation import cancel_and_wait
from genmcp.client.connection import Connection, ConnectionEvent
from genmcp.client.errors import ClientError, ProtocolError, RequestTimeout
from genmcp.core.client.events import NotificationReceived, NotificationsMissed, SessionReset
from genmcp.core.client.lifecycle import Timeouts
from genmcp.core.subscription import ACKNOWLEDGED, is_at_or_below
from genmcp.protocol.params import NotificationParams
from genmcp.protocol.resources import ResourceUpdatedNotificationParams, SubscriptionFilter
from genmcp.wire.jsonrpc import RequestId

_LISTEN: Final = "subscriptions/listen"
_UPDATED: Final = "notifications/resources/updated"
_KINDS: Final = ("tools", "prompts", "resources")
_MAX_UNREAD = 10_000  # different changes that wait in a stream
_NO_TIMEOUTS: Final = Timeouts(idle=None, total=None)


class Notification(msgspec.Struct, frozen=True):
    """A notification of a server; *params* is a value of `genmcp.protocol`."""

    method: str
    params: Any


class ChangeStream:
    """The change notifications of a server, as an async context manager and iterator.

        async with client.listen(tools=True) as changes:
            async for change in changes:
                ...

    `honored` is the part of the request that the server supports. Several unread changes of the
    same list or resource become one. The iteration ends when the server ends the stream, and raises
    a ClientError if the connection breaks. If notifications may have been lost (over HTTP before
    2026-07-28), the stream reports every list and resource of `honored` as changed.
    """

    def __init__(self, connection: Connection, wanted: SubscriptionFilter) -> None:
        self.honored = SubscriptionFilter()
        self._connection = connection
        self._wanted = wanted
        self._open_timeout = connection.options.open_timeout
        self._id: RequestId | None = None
        self._request: asyncio.Task[None] | None = None
        self._subscribed: list[str] = []
        self._unread: OrderedDict[tuple[str, str], Notification] = OrderedDict()
        self._changed = asyncio.Event()
        self._acknowledged = asyncio.Event()
        self._error: ClientError | None = None
        self._ended = False

    async def __aenter__(self) -> "ChangeStream":
        """Open the stream.

        Raises:
            RequestTimeout: the server does not acknowledge it.
            ClientError: the server rejects it.
        """
        self._connection.listeners.append(self._handle)
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
        """Close the stream."""
        await self._close()

    def __aiter__(self) -> "ChangeStream":
        """Return the stream itself. All iterators of a stream share its unread changes."""
        return self

    async def __anext__(self) -> Notification:
        """Wait for the next change."""
        while not self._unread:
            if self._ended:
                if self._error is not None:
                    raise self._error
                raise StopAsyncIteration
            self._changed.clear()
            await self._changed.wait()
        return self._unread.popitem(last=False)[1]

    @property
    def is_over(self) -> bool:
        """Whether the stream has ended and every change was read."""
        return self._ended and not self._unread

    def _handle(self, event: ConnectionEvent) -> None:
        match event:
            case NotificationReceived():
                self._publish(event)
            case NotificationsMissed():
                self._publish_gap()
            case SessionReset() if not self._subscribed:
                self._publish_gap()
            case _:  # the session is lost, and its subscriptions, or the connection has ended
                self._end(self._connection.error(event.error))

    def _publish(self, event: NotificationReceived) -> None:
        """Add a notification, if it belongs to this stream."""
        if self._request is None:
            if self._concerns(event):
                self._put(event)
        elif self._id is not None and self._id in (event.subscription, event.about):
            if event.method == ACKNOWLEDGED:
                self.honored = event.params.notifications
                self._acknowledged.set()
            else:
                self._put(event)

    def _publish_gap(self) -> None:
        """Report everything as changed, since notifications may have been lost."""
        # A stream of 2026-07-28 is one request: if it breaks, it ends with an error. It never
        # continues after a loss.
        if self._request is not None:
            return
        for kind in _KINDS:
            if getattr(self.honored, f"{kind}_list_changed"):
                method = f"notifications/{kind}/list_changed"
                self._put(NotificationReceived(method, NotificationParams()))
        for uri in self._subscribed:
            params = ResourceUpdatedNotificationParams(uri=uri)
            self._put(NotificationReceived(_UPDATED, params))

    def _end(self, error: ClientError | None) -> None:
        if not self._ended:
            self._ended = True
            self._error = error
            self._changed.set()
            self._acknowledged.set()

    def _put(self, event: NotificationReceived) -> None:
        if self._ended:
            return
        params = event.params
        target: str = getattr(params, "uri", "") or getattr(params, "task_id", "")
        # The newest of several changes of one target counts, and is read last.
        self._unread.pop((event.method, target), None)
        self._unread[event.method, target] = Notification(event.method, params)
        self._changed.set()
        if len(self._unread) > _MAX_UNREAD:
            text = f"more than {_MAX_UNREAD} unread changes"
            self._end(ProtocolError(text, self._connection.server_name))

    def _concerns(self, event: NotificationReceived) -> bool:
        """Return whether the notification of a legacy session belongs to this stream."""
        if event.method == _UPDATED:
            return any(is_at_or_below(event.params.uri, uri) for uri in self._subscribed)
        kind = event.method.removeprefix("notifications/").removesuffix("/list_changed")
        return event.method.endswith("/list_changed") and bool(
            getattr(self._wanted, f"{kind}_list_changed", None)
        )

    async def _open_stream(self) -> None:
        self._request = asyncio.get_running_loop().create_task(self._run_request())
        try:
            async with asyncio.timeout(self._open_timeout):
                await self._acknowledged.wait()
        except TimeoutError:
            name = self._connection.server_name
            raise RequestTimeout(_LISTEN, name, self._open_timeout) from None
        if self._error is not None:
            raise self._error

    async def _run_request(self) -> None:
        """Send the request whose response is the stream, and wait for its end."""
        error = None
        try:
            await self._connection.request(
                _LISTEN,
                {"notifications": self._wanted},
                timeouts=_NO_TIMEOUTS,
                on_id=self._set_id,
            )
        except Exception as failure:
            error = self._connection.error(failure)
        self._end(error)

    def _set_id(self, id: RequestId) -> None:
        self._id = id

    async def _subscribe(self) -> None:
        # The server may never open its notification stream, and yet send notifications.
        with suppress(TimeoutError):
            async with asyncio.timeout(self._open_timeout):
                await self._connection.transport.notifications_ready()
        for uri in self._wanted.resource_subscriptions or ():
            await self._subscribe_to(uri)
        capabilities = self._connection.server.capabilities
        lists = {
            f"{kind}_list_changed": wanted
            for kind in _KINDS
            if (wanted := getattr(self._wanted, f"{kind}_list_changed"))
            and getattr(getattr(capabilities, kind), "list_changed", None)
        }
        self.honored = SubscriptionFilter(
            **lists, resource_subscriptions=[*self._subscribed] or None
        )

    async def _subscribe_to(self, uri: str) -> None:
        """Subscribe the session to *uri*, unless another stream has done so.

        Before 2026-07-28, a session has at most one subscription to a resource, which all streams
        share.
        """
        connection = self._connection
        async with connection.subscribing:
            if connection.subscribers[uri] == 0:
                await connection.request("resources/subscribe", {"uri": uri})
            connection.subscribers[uri] += 1
        self._subscribed.append(uri)

    async def _unsubscribe_from(self, uri: str) -> None:
        """Unsubscribe the session from *uri*, if no other stream needs it."""
        connection = self._connection
        async with connection.subscribing:
            if connection.subscribers[uri] == 0:
                return  # the subscription was lost with its session
            connection.subscribers[uri] -= 1
            if connection.subscribers[uri] == 0:
                with suppress(ClientError):  # the connection may have ended
                    await connection.request("resources/unsubscribe", {"uri": uri})

    async def _close(self) -> None:
        with suppress(ValueError):  # it may not have been opened
            self._connection.listeners.remove(self._handle)
        if self._request is not None:
            await cancel_and_wait(self._request)
        while self._subscribed:
            await self._unsubscribe_from(self._subscribed.pop())
        self._end(None)
