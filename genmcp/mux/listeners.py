"""The stream a legacy session listens on: one log a session, read by one connection at a time.

2025-11-25, transports, "Multiple Connections": each message goes out on one stream only. A new
listener says so in the log; the one before it reads that in its turn and ends, so that every
message before that place is sent by the old one, and every later one by the new.
"""

import asyncio
import logging
import secrets
from collections.abc import AsyncGenerator, Collection
from contextlib import aclosing, suppress
from enum import Enum
from typing import Final

import msgspec

from genmcp.core.session import Session
from genmcp.core.subscription import Change, changes_of, everything
from genmcp.errors import Conflict, Gap, McpError, Overloaded, OverShare, StoreError
from genmcp.mux.limits import Limits
from genmcp.mux.subscriptions import Subscription, Subscriptions
from genmcp.server import Server
from genmcp.stores.accounts import Owner
from genmcp.stores.store import Append, Delete, Event, Put, Store
from genmcp.wire import sse
from genmcp.wire.encoder import Encoder

__all__ = ["LISTENER", "Listeners", "Mark"]

logger = logging.getLogger("genmcp")

LISTENER: Final = "listener"
"""What the ids of a listener's events begin with."""

_TAKEN: Final = b"taken by "
_ENDED: Final = b"ended"
_SUBSCRIBED: Final = b"subscribed to others"

_MISSED: Final = b": events were missed that are not kept any more\n\n"

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(list[str]).decode


class Mark(Enum):
    """What a listener has to know besides the messages."""

    BEGUN = "begun"
    """Nothing that is said from now on can be missed."""
    MISSED = "missed"
    """Something is not kept any more."""


class Listeners:
    """The listening streams of a mux's sessions, and what they are subscribed to."""

    def __init__(
        self,
        store: Store,
        subscriptions: Subscriptions,
        server: Server,
        encoder: Encoder,
        limits: Limits,
    ) -> None:
        self._store = store
        self._subscriptions = subscriptions
        self._server = server
        self._encoder = encoder
        self._limits = limits

    async def subscribe(self, session: str, uri: str, *, wanted: bool, owner: Owner = ()) -> None:
        """Notify *session* of updates of the resource *uri*, or no longer, if not *wanted*.

        The list, and the event that announces it, count towards the accounts of *owner*.

        Raises:
            Overloaded: the session is subscribed to the maximum number or size of URIs.
            StoreError: the list cannot be stored.
        """
        most = self._limits.subscriptions
        key = _resources(session)
        while True:
            entry = await self._store.get(key)
            uris = [] if entry is None else _decode(entry.value)
            if (uri in uris) is wanted:
                return
            if wanted and len(uris) >= most:
                raise Overloaded(
                    f"Too many resources are subscribed to: {most} (limit: subscriptions)",
                    status=429,
                )
            # Each change writes the whole list: its size bounds the work per change.
            size = self._limits.subscribed_of_session
            if wanted and sum(map(len, uris)) + len(uri) > size:
                raise Overloaded(
                    f"The URIs that are subscribed to have more than {size} bytes "
                    f"(limit: subscribed_of_session)",
                    status=429,
                )
            uris = [*uris, uri] if wanted else [each for each in uris if each != uri]
            version = 0 if entry is None else entry.version
            record: Put | Delete = Delete(key, expect=version)
            if uris:
                record = Put(
                    key,
                    _encode(uris),
                    ttl=self._limits.session,
                    expect=version,
                    owner=owner if wanted else (),  # else that of the record
                    new=wanted,
                )
            with suppress(Conflict):  # another request of the session came first
                if wanted:
                    await self._store.apply(record, self._appended(session, _SUBSCRIBED, owner))
                else:
                    await self._end(record, session, _SUBSCRIBED, owner)
                return

    async def listen(
        self,
        session: Session,
        after: str | None = None,
        *,
        opening: bytes = b"",
        owner: Owner = (),
    ) -> AsyncGenerator[bytes, None]:
        """Return the events for *session* in the wire format, until another listener comes.

        With *after*, the store's id of an event, first those that came behind it; where they are
        not all kept, a comment says so, and then come those that are. *opening* is sent as soon as
        nothing that is said from then on can be missed.

        What is appended to the log of the session counts towards the accounts of *owner*.

        Raises:
            StoreError: the store has no room, or cannot be written to.
        """
        return self._events(await self.heard(session, after, owner=owner), opening)

    async def _events(
        self, messages: AsyncGenerator["Event | Mark", None], opening: bytes
    ) -> AsyncGenerator[bytes, None]:
        async with aclosing(messages):
            async for event in messages:
                if isinstance(event, Event):
                    yield sse.event(event.data, f"{LISTENER}/{event.id}".encode())
                elif event is Mark.MISSED:
                    yield _MISSED
                elif opening:
                    yield opening

    async def heard(
        self, session: Session, after: str | None = None, *, owner: Owner = ()
    ) -> AsyncGenerator["Event | Mark", None]:
        """Return the messages for *session*, each in the data of an event, as `listen` does.

        Raises:
            StoreError: the store has no room, or cannot be written to.
        """
        mine = _TAKEN + secrets.token_bytes(12)
        await self._append(session.key, mine, owner)
        return self._messages(session, after, mine, owner)

    async def _messages(
        self, session: Session, after: str | None, mine: bytes, owner: Owner
    ) -> AsyncGenerator["Event | Mark", None]:
        speaks = after is not None
        if after is not None and not await self._has(session.key, after):
            after = None
            yield Mark.MISSED
        begun = False
        unsent: set[bytes] = set()
        wanted = await self._wanted(session)
        async with self._subscriptions.listening(wanted) as subscription:
            hearing = asyncio.create_task(self._hear(wanted))
            relay = asyncio.create_task(self._relay(session, subscription, unsent, owner))
            try:
                async with aclosing(self._store.follow(_log(session.key), after)) as events:
                    async for event in events:
                        if event.data == mine:
                            begun = speaks = True
                            yield Mark.BEGUN
                        elif event.data == _SUBSCRIBED:
                            wanted = await self._wanted(session)
                            self._subscriptions.change(subscription, wanted)
                            before, hearing = hearing, asyncio.create_task(self._hear(wanted))
                            before.cancel()
                        elif event.data == _ENDED or event.data.startswith(_TAKEN):
                            if begun:
                                return
                        elif speaks:
                            unsent.discard(event.data)
                            yield event
            except Gap:
                # So slow a reader that its place was dropped, and perhaps word of another listener
                # with it. The client comes back, and gets what is kept.
                yield Mark.MISSED
            finally:
                relay.cancel()
                hearing.cancel()

    async def _relay(
        self, session: Session, subscription: Subscription, unsent: set[bytes], owner: Owner
    ) -> None:
        """Put what the session should hear of into its log, unless it is there and *unsent*."""
        while True:
            for change in await subscription.news():
                message = self._encoder.notification(
                    session.revision, change.method, change.params()
                )
                if message in unsent:
                    continue
                try:
                    await self._append(session.key, message, owner)
                except StoreError as error:
                    logger.warning("a session is not told of a change: %s", error)
                else:
                    unsent.add(message)

    async def _hear(self, wanted: Collection[Change]) -> None:
        """Have the server hear of the resources among *wanted*, until this is cancelled."""
        uris = [change.uri for change in wanted if change.uri is not None]
        if uris:
            try:
                async with self._server.hearing(uris):
                    await asyncio.get_running_loop().create_future()
            except McpError as error:
                logger.warning("a session is not told of its resources: %s", error)

    async def _wanted(self, session: Session) -> Collection[Change]:
        entry = await self._store.get(_resources(session.key))
        uris = [] if entry is None else _decode(entry.value)
        return [*changes_of(everything(self._server.capabilities, uris))]

    async def say(
        self, session: str, message: bytes, owner: Owner = (), *, new: bool = True
    ) -> None:
        """Send *message* to the listener of *session*; it counts towards the accounts of *owner*.

        *new* is as for Append.

        Raises:
            StoreError: the store has no room, or cannot be written to.
        """
        await self._append(session, message, owner, new=new)

    async def end(self, session: str, owner: Owner = ()) -> None:
        """End the stream *session* listens on, and delete its subscriptions.

        The event counts towards the accounts of *owner*.

        Raises:
            StoreError: the store has no room, or cannot be written to.
        """
        await self._end(Delete(_resources(session)), session, _ENDED, owner)

    async def _end(self, change: Put | Delete, session: str, data: bytes, owner: Owner) -> None:
        """Apply *change*, which needs no more room, and append *data* to the log of the session."""
        try:
            await self._store.apply(change, self._appended(session, data, owner))
        except OverShare:
            # A client without room must still be able to give some back. Past its share the event
            # counts only if the log has events that do.
            await self._store.apply(change, self._appended(session, data))

    async def _append(self, session: str, data: bytes, owner: Owner, *, new: bool = True) -> None:
        await self._store.apply(self._appended(session, data, owner, new=new))

    def _appended(
        self, session: str, data: bytes, owner: Owner = (), *, new: bool = False
    ) -> Append:
        limits = self._limits
        return Append(
            _log(session),
            data,
            ttl=limits.replay,
            keep=limits.replay_events,
            keep_bytes=limits.replay_bytes,
            owner=owner,
            new=new,
        )

    async def _has(self, session: str, after: str) -> bool:
        try:
            await self._store.read(_log(session), after, limit=1)
        except Gap:
            return False
        return True


def _log(session: str) -> str:
    return f"session:{session}#{LISTENER}"


def _resources(session: str) -> str:
    return f"session:{session}#resources"
