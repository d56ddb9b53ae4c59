"""The streams that legacy sessions listen on, and their resource subscriptions.

Such a stream has a log in the store, read by one connection at a time. 2025-11-25, transports,
"Multiple Connections": each message is sent on one stream only. A new listener therefore appends an
announcement to the log. The previous listener sends every message before the announcement, and ends
when it reads that. The new listener sends every later message.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing, suppress
from typing import Final

import msgspec

from genmcp._core.session import Session
from genmcp._core.subscription import ServerChange, changes_of, session_filter
from genmcp._mux.changes import Subscription, Subscriptions
from genmcp._mux.limits import Limits, replay_append
from genmcp._wire import sse
from genmcp._wire.encoder import Encoder
from genmcp.cancellation import cancel_and_wait
from genmcp.errors import (
    Conflict,
    LogTruncated,
    McpError,
    Overloaded,
    OverShare,
    StoreError,
    StoreFull,
)
from genmcp.server import Server
from genmcp.stores.following import RETRY_DELAY, follow
from genmcp.stores.store import Append, Delete, LogEvent, Put, Store

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

_MISSED: Final = b": events were missed, and are no longer retained\n\n"


class SessionStreams(msgspec.Struct, eq=False):
    """The streams of a mux's sessions, and their resource subscriptions. Owned by the mux."""

    _store: Store
    _subscriptions: Subscriptions
    _server: Server
    _encoder: Encoder
    _limits: Limits

    async def subscribe(self, session: str, uri: str, *, wanted: bool, client: str = "") -> None:
        """Subscribe *session* to the resource *uri*, or unsubscribe it, if not *wanted*.

        The list, and the event that announces it, count towards *client*.

        Raises:
            Overloaded: the session is subscribed to the maximum number or size of URIs.
            StoreError: the list cannot be stored.
        """
        key, event = (
            _resources(session),
            replay_append(self._limits, _log(session), _SUBSCRIBED, client),
        )
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
                    client=client if wanted else "",  # otherwise that of the record
                    new=wanted,
                )
            with suppress(Conflict):  # another request of the session came first
                await (self._store.apply if wanted else self._give_back)(record, event)
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
        self, session: Session, after: str | None = None, *, opening: bytes = b"", client: str = ""
    ) -> AsyncGenerator[LogEvent | bytes, None]:
        """Return the events for *session*, until another listener begins; see `to_wire`.

        If *after*, the store's id of an event, is given, the retained events after it come first.
        If events were dropped, a comment in the wire format states that. *opening*, in the wire
        format, is sent as soon as no later message can be missed.

        Events of the session's log count towards *client*.

        Raises:
            StoreError: the store has no room, or cannot be written to.
        """
        mine = _TAKEN + secrets.token_bytes(12)
        await self.append(session.key, mine, client)
        return self._messages(session, after, mine, opening, client)

    async def _messages(
        self, session: Session, after: str | None, mine: bytes, opening: bytes, client: str
    ) -> AsyncGenerator[LogEvent | bytes, None]:
        sends, missed = after is not None, False
        if after is not None:
            try:
                await self._store.read(_log(session.key), after, limit=1)
            except LogTruncated:
                after, missed = None, True
                yield _MISSED
        begun = False
        unsent: set[bytes] = set()
        wanted = await self._wanted(session)
        async with self._subscriptions.listening(wanted) as subscription:
            if missed:  # any of its subjects may have changed
                subscription.notify(wanted)
            following = asyncio.create_task(self._follow_resources(wanted))
            relay = asyncio.create_task(self._relay(session, subscription, unsent, client))
            try:
                async with aclosing(follow(self._store, _log(session.key), after)) as events:
                    async for event in events:
                        if isinstance(event, LogTruncated):
                            # This reader was so slow that the events at its position were dropped,
                            # and perhaps the announcement of another listener with them. Therefore
                            # this listener ends. The client reconnects, and gets the retained
                            # events.
                            yield _MISSED
                            return
                        if not isinstance(event, LogEvent):
                            continue
                        if event.data == mine:
                            begun = sends = True
                            if opening:
                                yield opening
                        elif event.data == _SUBSCRIBED:
                            wanted = await self._wanted(session)
                            self._subscriptions.change(subscription, wanted)
                            # The new subscriptions begin before the old ones end: a resource in
                            # both stays subscribed.
                            before, following = (
                                following,
                                asyncio.create_task(self._follow_resources(wanted)),
                            )
                            await cancel_and_wait(before)
                        elif event.data == _ENDED or event.data.startswith(_TAKEN):
                            if begun:
                                return
                        elif sends:
                            unsent.discard(event.data)
                            yield event
            finally:
                await cancel_and_wait(relay, following)

    async def _relay(
        self, session: Session, subscription: Subscription, unsent: set[bytes], client: str
    ) -> None:
        """Append the changes to the log of the session, except those in *unsent*.

        *unsent* has the changes that are in the log and were not sent yet. A client that does not
        read would otherwise fill its log with repetitions of one change.
        """
        while True:
            changes, _ = await subscription.receive()
            for change in changes:
                message = self._encoder.notification(
                    session.revision, change.method, change.params()
                )
                if message in unsent:
                    continue
                try:
                    await self.append(session.key, message, client)
                except (OverShare, StoreFull) as error:
                    logger.warning("a change does not reach its session: %s", error)
                except StoreError as error:
                    logger.warning("a change does not reach its session yet: %s", error)
                    subscription.notify([change])
                    await asyncio.sleep(RETRY_DELAY)
                else:
                    unsent.add(message)

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
        event = replay_append(self._limits, _log(session), message, client, new=new)
        await self._store.apply(event)

    async def end(self, session: str, client: str = "") -> None:
        """End the stream that *session* listens on, and delete the session's subscriptions.

        The event that ends the stream counts towards *client*.

        Raises:
            StoreError: the store has no room, or cannot be written to.
        """
        event = replay_append(self._limits, _log(session), _ENDED, client)
        await self._give_back(Delete(_resources(session)), event)

    async def _give_back(self, record: Put | Delete, event: Append) -> None:
        """Apply *record*, which frees room, and append *event*."""
        try:
            await self._store.apply(record, event)
        except OverShare:
            # A client that has used up its share must still be able to free room. Without a client
            # the event is not checked against the client's share of the store.
            await self._store.apply(record, msgspec.structs.replace(event, client=""))


async def to_wire(messages: AsyncGenerator[LogEvent | bytes, None]) -> AsyncGenerator[bytes, None]:
    """Yield the events of `SessionStreams.listen` in the wire format, with their ids."""
    async with aclosing(messages):
        async for each in messages:
            if isinstance(each, LogEvent):
                each = sse.event(each.data, f"{LISTENER}/{each.id}".encode())
            yield each


def _log(session: str) -> str:
    return f"session:{session}#{LISTENER}"


def _resources(session: str) -> str:
    return f"session:{session}#resources"
