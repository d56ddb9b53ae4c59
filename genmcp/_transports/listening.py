"""`subscriptions/listen` (2026-07-28, basic/patterns, "Subscriptions"), and streams without a call.

No call writes these streams: those of `subscriptions/listen`, the stream of a legacy session, and a
stream that its client resumes. Their response is an event stream in any case, without an exchange.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager, nullcontext
from contextvars import Context
from typing import Final

from msgspec.structs import replace

from genmcp._mux.builtin_methods import TASKS_CHANGED, watching
from genmcp._mux.changes import Subscription
from genmcp._mux.mux import Mux
from genmcp._mux.task_results import task_status_notification
from genmcp._transports.request import ClientLeft, HttpRequest, wait_for_disconnect
from genmcp._transports.running_call import LiveCaller
from genmcp._transports.writing import OpenConnection
from genmcp.core.exchange import ExchangeAction, StreamChunk, StreamEnd, StreamHead
from genmcp.core.request import Request
from genmcp.core.subscription import ACKNOWLEDGED, acknowledgement, changes_of, completion
from genmcp.errors import Overloaded
from genmcp.protocol.params import RequestParams
from genmcp.protocol.resources import SubscriptionFilter
from genmcp.wire import sse
from genmcp.wire.sse import COMMENT

_LEEWAY: Final = 30.0
"""Seconds after which the stream of a token that has expired ends."""

_LOOK: Final = 1.0
"""Seconds between two looks at a stream that is in use after its token has expired."""


class EventStream(OpenConnection, eq=False):
    """Sends the events of a source until it ends, the client leaves, or the server stops.

    The stream ends when the access token of its client expires: the client opens another one with a
    new token. A stream that is in use then ends later.

    closing_response: the last event, by which the client learns that the server has ended the
    stream. in_use: returns whether calls would lose their responses with the stream.
    """

    closing_response: bytes = b""
    in_use: Callable[[], bool] | None = None
    _expiry: asyncio.TimerHandle | None = None
    _ending: asyncio.Timeout | None = None

    def stop(self) -> None:
        """End the stream, from any thread; its client may resume it on another connection."""
        self.http.in_loop(self.leave)

    def hand_over(self) -> None:
        """End the stream, from any thread, because its client resumes it on another one."""
        self.http.in_loop(self.leave)

    def leave(self) -> None:
        """End the stream."""
        if self._ending is not None and not self._ending.expired():
            self._ending.reschedule(self.http.loop.time())

    def comment(self) -> list[ExchangeAction]:
        """Return the actions of a heartbeat."""
        return [StreamChunk(COMMENT)]

    async def serve(self, source: AsyncGenerator[bytes | list[bytes], None]) -> None:
        """Respond with the events of *source*: in the wire format, or a list of messages."""
        http = self.http
        # It has no deadline until `leave` sets one, the present: if it has expired, the stream was
        # stopped, a write has failed, or the client has left. Any other TimeoutError comes from the
        # source.
        scope = asyncio.timeout(None)
        try:
            try:
                async with scope, aclosing(source):
                    self._ending = scope
                    # Only now: if the server has begun to exit, this stops the stream at once, and
                    # only an entered scope can be stopped.
                    # Some servers report a disconnect to `receive` only, others raise in `send`.
                    watch = self.open(wait_for_disconnect(http.receive), idle=True)
                    watch.add_done_callback(self._left)
                    await self._send(StreamHead())
                    self._watch_expiry()
                    async for each in source:
                        if isinstance(each, list):
                            each = b"".join(map(sse.event, each))
                        await self._send(StreamChunk(each))
                        del each  # which a quiet stream would keep
            except TimeoutError:
                if not scope.expired():
                    raise
            self._ending = None
            # Registered until this is sent, so that a shutdown waits for it: 2026-07-28,
            # basic/patterns, "Subscriptions", "Graceful Closure".
            http.hasten()
            await self._send(StreamEnd(self.closing_response))
        finally:
            self._ending = None
            if self._expiry is not None:
                self._expiry.cancel()
            self.close()
            await self.stop_writing()

    def _left(self, watch: "asyncio.Task[None]") -> None:
        if not watch.cancelled():
            watch.exception()  # retrieved: a defect of the host's `receive` ends the stream as well
        self.leave()

    async def _send(self, action: ExchangeAction) -> None:
        """Write *action*, after a comment that is being written.

        Raises:
            ClientLeft: the last write has failed or was interrupted.
        """
        self.push([action])
        await self.flush()  # raises an exception of the host that a comment has met
        if self.unfinished:
            raise ClientLeft

    def _watch_expiry(self) -> None:
        """End the stream when the access token expires."""
        access = self.http.access
        if access is not None and access.expires is not None:
            left = access.expires - time.time()
            # A token that was accepted after its expiry, since clocks differ: a stream that ended
            # at once would be opened again at once.
            self._end_in(left if left > 0 else _LEEWAY)

    def _end_in(self, seconds: float) -> None:
        # The timer may outlive the request, and must not keep its context.
        loop = self.http.loop
        self._expiry = loop.call_later(seconds, self._expire_token, context=Context())

    def _expire_token(self) -> None:
        if self.in_use is not None and self.in_use():
            self._end_in(_LOOK)
        else:
            self.leave()


_MAX_SUBSCRIBED_BYTES: Final = 512 * 1024
"""The total size of the URIs and task ids that one stream is subscribed to."""

_BESIDES: Final = 256
"""Bytes counted in addition for each URI or id: it is in the tables of several listeners."""


_WATCHER: Final = 12 * 1024
"""Bytes counted in addition for each task in the total of all streams: a stream has an asyncio.Task
and a follower for each of its tasks. Traced with 1,000 open tasks: 8.7 KB for each with a store in
memory, 8.4 KB with SQLite, 9.0 KB with PostgreSQL, 11.4 KB with Redis."""


async def listen(http: HttpRequest, request: Request) -> None:
    """Respond to *request*, a `subscriptions/listen`, with an event stream.

    Raises:
        McpError: see `open_subscription`.
    """
    mux = http.mux
    http.check_scopes([request])
    async with open_subscription(http, request) as (request, messages):
        if http.body_size:  # there may be many open streams, which do not need it
            http.release_body()
        end = sse.event(closing_response(mux, request))
        await EventStream(http, closing_response=end).serve(messages)


def closing_response(mux: Mux, request: Request) -> bytes:
    """Return the response to *request*, sent when the server ends its stream."""
    return mux.encoder.response(request.revision, request.id, completion(request.id))


def without_params(request: Request) -> Request:
    """Return *request* without params and raw body, which an open stream must not keep alive."""
    return replace(request, params=RequestParams(), raw=b"")


@asynccontextmanager
async def open_subscription(
    caller: LiveCaller, request: Request
) -> AsyncGenerator[tuple[Request, AsyncGenerator[list[bytes], None]], None]:
    """Open the stream of *request* of *caller*, on any transport.

    Yields the request without its params, and the messages.

    Raises:
        Overloaded: there are too many streams, or their subscriptions are too large.
        MalformedParams: a URI is too long.
        MissingCapability: it subscribes to tasks without having declared the tasks extension.
    """
    mux, client = caller.mux, caller.client_key
    wanted = await _supported(caller, request)
    request = without_params(request)
    uris, ids = wanted.resource_subscriptions, wanted.task_ids or ()
    size = _size_of(wanted) + len(ids) * _WATCHER
    with mux.streams.acquired(client), mux.subscribed_bytes.acquired(client, size=size):
        # Most streams name no URI and no task. There may be many of them, so that contexts count.
        async with mux.server.watch_resources(uris) if uris else nullcontext(()) as uris_heard:
            honored = None if uris is None else [*uris_heard]
            wanted = replace(wanted, resource_subscriptions=honored)
            service = mux.tasks.service
            async with (
                mux.subscriptions.listening(changes_of(wanted)) as subscription,
                watching(service, ids, client.principal, subscription) if ids else nullcontext(),
                aclosing(_messages(mux, request, wanted, subscription)) as messages,
            ):
                yield request, messages


async def _supported(caller: LiveCaller, request: Request) -> SubscriptionFilter:
    """Return the part of the filter of *request* that the server honors for *caller*."""
    mux = caller.mux
    wanted = await mux.builtin.honored(request, caller.access)
    if _size_of(wanted) > _MAX_SUBSCRIBED_BYTES:
        raise Overloaded(
            f"A stream is subscribed to at most {_MAX_SUBSCRIBED_BYTES} bytes of URIs and ids, "
            f"each with {_BESIDES} more",
            status=429,
        )
    return wanted


def _size_of(wanted: SubscriptionFilter) -> int:
    """Return the approximate memory of the URIs and ids of a stream, in bytes."""
    named = [*(wanted.resource_subscriptions or ()), *(wanted.task_ids or ())]
    return sum(len(each.encode()) + _BESIDES for each in named)


async def _messages(
    mux: Mux, request: Request, wanted: SubscriptionFilter, subscription: Subscription
) -> AsyncGenerator[list[bytes], None]:
    encoder, revision, id = mux.encoder, request.revision, request.id
    messages = [encoder.notification(revision, ACKNOWLEDGED, acknowledgement(wanted, id))]
    del wanted
    while True:
        yield messages
        del messages  # the first would keep a copy of all subscriptions for the life of the stream
        changes, tasks = await subscription.receive()
        now = mux.store.now()
        messages = [
            *(encoder.notification(revision, each.method, each.params(id)) for each in changes),
            *(
                encoder.notification(
                    revision, TASKS_CHANGED, task_status_notification(each, encoder, id, now)
                )
                for each in tasks
            ),
        ]
