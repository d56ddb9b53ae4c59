"""The streams that legacy sessions listen on, and their resource subscriptions.

Such a stream has a log in the store, read by one connection at a time. 2025-11-25, transports,
"Multiple Connections": each message is sent on one stream only. A new listener therefore appends an
announcement to the log. The previous listener ends when it reads that, and the new one begins.

Changes are read from their own log (`genmcp._mux.changes`), whose positions are the ids of the
events. Over HTTP+SSE (2024-11-05), the log of the session has the other messages to its client.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Collection, Sequence
from contextlib import aclosing, suppress
from typing import Final

import msgspec

from genmcp._mux.changes import Subscription, Subscriptions
from genmcp._mux.limits import Limits, replayed
from genmcp.cancellation import cancel_and_wait
from genmcp.core.session import Session
from genmcp.core.subscription import ServerChange, changes_of, session_filter
from genmcp.errors import Conflict, LogTruncated, McpError, Overloaded
from genmcp.server import Server
from genmcp.stores.following import follow
from genmcp.stores.store import Delete, LogEvent, Put, Store
from genmcp.wire import sse
from genmcp.wire.encoder import Encoder

logger = logging.getLogger("genmcp")

_encode: Final = msgspec.msgpack.Encoder().encode
_decode_uris: Final = msgspec.msgpack.Decoder(list[str]).decode

LISTENER: Final = "listener"
"""The prefix of the ids of a listening stream's events."""

# Each change of the subscriptions writes the whole list: its size bounds the work per change.
_MAX_SUBSCRIBED_BYTES: Final = 256 * 1024
"""The total size of the URIs that one session is subscribed to."""

_TAKEN: Final = b"taken by "  # followed by the random id of a new listener
_ENDED: Final = b"ended"
_SUBSCRIBED: Final = b"subscribed to others"


class SessionStreams(msgspec.Struct, eq=False):
    """The streams of a mux's sessions, and their resource subscriptions. Owned by the mux."""

    _store: Store
    _subscriptions: Subscriptions
    _server: Server
    _encoder: Encoder
    _limits: Limits

    async def subscribe(self, session: str, uri: str, *, wanted: bool, client: str = "") -> None:
        """Subscribe *session* to the resource *uri*, or unsubscribe it, if not *wanted*.

        A longer list, and the event that announces it, count towards *client*.

        Raises:
            Overloaded: the session is subscribed to the maximum number or size of URIs.
            StoreError: the list cannot be stored.
        """
        # A client that has used up its share must still be able to free room: an event without a
        # client is not checked against the share.
        key, client = _resources(session), client if wanted else ""
        event = replayed(self._limits)(_log(session), _SUBSCRIBED, client=client)
        while True:
            entry = await self._store.get(key)
            uris = [] if entry is None else _decode_uris(entry.value)
            if (uri in uris) is wanted:
                return
            if wanted:
                self._check_room(uris, uri)
                uris.append(uri)
            else:
                uris.remove(uri)
            version = 0 if entry is None else entry.version
            record: Put | Delete = Delete(key, expect=version)
            if uris:
                record = Put(
                    key,
                    _encode(uris),
                    ttl=self._limits.session_ttl,
                    expect=version,
                    client=client,  # if empty, that of the record
                    new=wanted,
                )
            with suppress(Conflict):  # another request of the session came first
                await self._store.apply(record, event)
                return

    def _check_room(self, uris: Collection[str], uri: str) -> None:
        most = self._limits.max_subscriptions
        if len(uris) >= most:
            raise Overloaded(
                f"Too many resources are subscribed to: {most} (limit: max_subscriptions)",
                status=429,
            )
        if sum(map(len, uris)) + len(uri) > _MAX_SUBSCRIBED_BYTES:
            raise Overloaded(
                f"The URIs that are subscribed to have more than {_MAX_SUBSCRIBED_BYTES} bytes",
                status=429,
            )

    async def listen(
        self,
        session: Session,
        after: str | None = None,
        *,
        opening: bytes = b"",
        client: str = "",
        as_events: bool = True,
    ) -> AsyncGenerator[bytes, None]:
        """Return the messages to *session*, until another listener begins.

        Args:
            session: the session.
            after: the id of an event: the changes after it come first. If some are no longer
                retained, these are all that the session wants.
            opening: the first event; sent as soon as no later message can be missed.
            client: the client that the announcement of the listener counts towards.
            as_events: whether they are server-sent events with ids, and not bare messages.

        Raises:
            StoreError: the store has no room, or cannot be written to.
        """
        messages = self._messages(session, after, opening, client, as_events)
        await anext(messages)  # an error is raised before a response begins
        return messages

    async def _messages(
        self, session: Session, after: str | None, opening: bytes, client: str, as_events: bool
    ) -> AsyncGenerator[bytes, None]:
        """Yield nothing once this listener is announced, and then each message."""

        def encoded(message: LogEvent) -> bytes:
            id = f"{LISTENER}/{message.id}".encode()
            return sse.event(message.data, id) if as_events else message.data

        async with (
            self._subscriptions.listening(await self._wanted(session)) as subscription,
            aclosing(follow(self._store, _log(session.key))) as events,
        ):
            # The listener before sends the changes up to its announcement, perhaps some twice.
            mine = _TAKEN + secrets.token_bytes(12)
            await self.append(session.key, mine, client)
            yield b""
            if after is not None:
                await self._subscriptions.notify_missed(subscription, after)
            resources = asyncio.create_task(self._follow_resources(subscription.wanted))
            event = asyncio.ensure_future(anext(events))
            changes = asyncio.ensure_future(self._changes(session, subscription))
            begun = False
            try:
                while True:
                    coming = {event, changes} if begun else {event}
                    await asyncio.wait(coming, return_when=asyncio.FIRST_COMPLETED)
                    if begun and changes.done():
                        for message in changes.result():
                            yield encoded(message)
                        changes = asyncio.ensure_future(self._changes(session, subscription))
                    if not event.done():
                        continue
                    item = event.result()
                    event = asyncio.ensure_future(anext(events))
                    if isinstance(item, LogTruncated):
                        # This reader was so slow that the events at its position were dropped, and
                        # perhaps the announcement of another listener with them. Therefore this
                        # listener ends. The client reconnects.
                        return
                    if not isinstance(item, LogEvent):
                        continue
                    if item.data == mine:
                        begun = True
                        if opening:
                            yield opening
                    elif item.data == _SUBSCRIBED:
                        await self._subscribe_again(session, subscription)
                        # The new subscriptions begin before the old ones end: a resource in both
                        # stays subscribed.
                        before = resources
                        resources = asyncio.create_task(self._follow_resources(subscription.wanted))
                        await cancel_and_wait(before)
                    elif begun and (item.data == _ENDED or item.data.startswith(_TAKEN)):
                        return
                    elif begun:
                        yield encoded(item)
            finally:
                await cancel_and_wait(resources, event, changes)

    async def _subscribe_again(self, session: Session, subscription: Subscription) -> None:
        """Give *subscription* the resources that *session* is subscribed to now."""
        wanted, last = await self._wanted(session), subscription.position
        self._subscriptions.change(subscription, wanted)
        # A change may have come after the client had subscribed, and before this was noticed.
        await self._subscriptions.notify_missed(subscription, last)

    async def _changes(self, session: Session, subscription: Subscription) -> Sequence[LogEvent]:
        """Wait for changes; return their notifications, with the positions to resume from."""
        before = subscription.position or ""
        changes, _ = await subscription.receive()
        notifications = []
        # Only the last one has the new position: a client that loses others resumes before it.
        for number, change in enumerate(changes, 1):
            position = before if number < len(changes) else subscription.position or ""
            message = self._encoder.notification(session.revision, change.method, change.params())
            notifications.append(LogEvent(position, message))
        return notifications

    async def _follow_resources(self, wanted: Collection[ServerChange]) -> None:
        """Make the server follow the resources among *wanted*, until this is cancelled."""
        uris = [change.uri for change in wanted if change.uri is not None]
        if uris:
            try:
                async with self._server.watch_resources(uris):
                    await asyncio.get_running_loop().create_future()
            except McpError as error:
                logger.warning("the resources of a session cannot be followed: %s", error)

    async def _wanted(self, session: Session) -> Collection[ServerChange]:
        entry = await self._store.get(_resources(session.key))
        uris = [] if entry is None else _decode_uris(entry.value)
        return [*changes_of(session_filter(self._server.capabilities, uris))]

    async def append(
        self, session: str, message: bytes, client: str = "", *, new: bool = True
    ) -> None:
        """Append *message* to the log of *session*, whose listener sends it.

        *client* and *new* are as for `Append`.

        Raises:
            StoreError: the store has no room, or cannot be written to.
        """
        event = replayed(self._limits)(_log(session), message, client=client, new=new)
        await self._store.apply(event)

    async def end(self, session: str) -> None:
        """End the stream that *session* listens on, and delete the session's subscriptions.

        Raises:
            StoreError: the store cannot be written to.
        """
        event = replayed(self._limits)(_log(session), _ENDED)
        await self._store.apply(Delete(_resources(session)), event)


def _log(session: str) -> str:
    return f"session:{session}#{LISTENER}"


def _resources(session: str) -> str:
    return f"session:{session}#resources"
