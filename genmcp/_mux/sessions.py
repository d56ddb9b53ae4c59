"""Legacy sessions: opens them, checks them at each request, and ends them in all processes.

The id of a session contains the session, sealed, so that a mux does not store sessions. It stores
only the ids of sessions that clients have ended, up to a limit, and the log levels that sessions
have set.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from functools import lru_cache, partial
from heapq import heappop, heappush
from typing import Final, Protocol

import msgspec

from genmcp._mux.bus import EVERYBODY, LogFollower, MessageBus
from genmcp._mux.limits import ConcurrencyLimit, Limits, Slots
from genmcp._mux.multimap import Multimap
from genmcp.core.call import CallEvent, Cancel
from genmcp.core.client_key import ClientKey
from genmcp.core.request import Request
from genmcp.core.seal import Purpose, Seal
from genmcp.core.session import Session, new_session
from genmcp.errors import ForeignSeal, InvalidParams, SealError, SealExpired, SessionNotFound
from genmcp.protocol.params import SEVERITY, LoggingLevel, RequestId
from genmcp.protocol.revisions.v2025_11_25 import InitializeRequestParams
from genmcp.stores.store import Append, Delete, LogEvent, Put, Store

logger = logging.getLogger("genmcp")

DEFAULT_LEVEL: Final[LoggingLevel] = "info"

_MAX_BYTES: Final = 4096
"""The maximum size of a session: sealed and in a header, it must still pass through proxies."""

_MAX_ENDED: Final = 10_000
"""The number of remembered sessions that were ended before they expired. If so many are remembered,
no client can end its session."""

_COME_BACK_AFTER: Final = 3600
"""Seconds after which a client that has ended too many sessions may try again."""

_READ_TIMEOUT: Final = 1.0
"""Maximum seconds for which the end of a session waits until this process has read it."""

_CACHED_SESSIONS: Final = 256
_CACHE_SECONDS: Final = 60.0
"""The size of the cache of opened sessions, and the maximum age of an entry."""


class Cancellable(Protocol):
    """A running call."""

    request: Request

    def report_threadsafe(self, event: CallEvent) -> None:
        """Report the cancellation *event* to the call, from any thread.

        Does nothing if the call has ended.
        """


class CallRegistry(Multimap[str, Cancellable]):
    """The running calls of sessions, so that their clients can cancel them. Owned by the mux."""

    def cancel(self, session: str, id: RequestId | None = None) -> None:
        """Cancel the call *id* of *session* in this process, or all calls of the session.

        A call that is cancelled gets no response, even if its hook returns a result. An unknown id
        is ignored (2025-11-25, cancellation, "Behavior Requirements"). If two calls have the same
        id, which the specification forbids, both are cancelled.
        """
        for call in self.of(session):
            if id is None or id == call.request.id:
                call.report_threadsafe(Cancel())


class CancelInSession(msgspec.Struct, frozen=True, array_like=True, tag="cancel"):
    """Cancels a call of a session.

    id_json: the id of the call as JSON, because msgpack has no integers of more than 64 bits.
    """

    session: str
    id_json: bytes


_decode_id: Final = msgspec.json.Decoder(RequestId).decode


class EndSession(msgspec.Struct, frozen=True, array_like=True, tag="ended"):
    """The end of a session of *principal* or *address*; *issued*: when it was opened."""

    session: str
    issued: float
    principal: str | None = None
    address: str | None = None


_decode_end: Final = msgspec.msgpack.Decoder(EndSession).decode


class Sessions:
    """The sessions of one mux: opens, checks and ends them. Owned by the mux.

    Remembers the sessions that were ended before they expired, up to a number in total and per
    client.

    Args:
        seal: seals their content into their ids.
        store: has their log levels, and the log of ended sessions, which are retained for the
            lifetime of a session.
        limits: the lifetime of sessions, and the share of a client in the ended ones.
        audience: the name of the log.
        now: the clock by which sessions expire.
        calls: the calls of this process.
        bus: carries the cancellations of calls.

    Attributes:
        places: counts the ended sessions that are remembered.
    """

    def __init__(
        self,
        seal: Seal,
        store: Store,
        limits: Limits,
        audience: str,
        now: Callable[[], float],
        calls: CallRegistry,
        bus: MessageBus,
    ) -> None:
        self._seal = seal
        self._store = store
        self._ttl = limits.session_ttl
        self._now = now
        self._calls = calls
        self._bus = bus
        # Unsealing takes half of the time of a call, and a client sends many requests per session.
        self._unsealed = lru_cache(_CACHED_SESSIONS)(self._unseal)
        self._warned = False
        # An ended session is remembered until it expires. If the oldest were dropped instead, a
        # client could end sessions of its own until a revoked session became valid again. At most
        # `_MAX_ENDED` are remembered at a time. The log keeps twice as many entries, so
        # that the entries that it drops have usually expired. (A dropped entry has not expired if
        # its session would live for long, and those in all later entries expire soon.)
        log = f"inbox:ended:{audience}"
        self._append = partial(Append, log, ttl=self._ttl, keep=2 * _MAX_ENDED)
        self._follower = LogFollower(store, log, self._on_event)
        self.places = ConcurrencyLimit(
            "ended sessions", _MAX_ENDED, limits, retry_after=_COME_BACK_AFTER
        )
        self._unread: dict[str, asyncio.Event] = {}  # sessions that are being ended
        self._slots: dict[str, Slots] = {}
        self._until: list[tuple[float, str]] = []  # a heap
        bus.subscribe(CancelInSession, self._on_cancel)

    def open_new(
        self, params: InitializeRequestParams, principal: str | None
    ) -> tuple[Session, str]:
        """Return a new session and its id.

        Raises:
            InvalidParams: the client's information is too large for a header.
        """
        session = new_session(params, key=secrets.token_urlsafe(12), now=self._now())
        packed = session.pack()
        if len(packed) > _MAX_BYTES:
            raise InvalidParams(
                f"clientInfo and capabilities take {len(packed)} bytes, the maximum is "
                f"{_MAX_BYTES}: every request carries them, in Mcp-Session-Id"
            )
        return session, self._seal.seal(Purpose.SESSION, packed, principal, ttl=self._ttl)

    def open(self, id: str, principal: str | None) -> Session:
        """Return the session with this *id*.

        Raises:
            SessionNotFound: the id is not one of this principal, or the session has ended or
                expired.
        """
        now = self._now()
        session = self._unsealed(id, principal, now // _CACHE_SECONDS)
        if session.issued + self._ttl <= now:
            raise SessionNotFound("Session expired")
        if session.key in self._slots:
            raise SessionNotFound("Session has ended")
        return session

    def _unseal(self, id: str, principal: str | None, while_trusted: float) -> Session:
        try:
            packed = self._seal.open(Purpose.SESSION, id, principal)
        except SealExpired:
            raise SessionNotFound("Session expired") from None
        except SealError as error:
            if isinstance(error, ForeignSeal) and not self._warned:
                self._warned = True  # log once: any client can send any number of such ids
                logger.warning(
                    "a session id was sealed with another secret: several processes behind one "
                    "URL, and a restarted one, need the same secret (secret= or GENMCP_SECRET)"
                )
            raise SessionNotFound("Session not found") from None
        return Session.unpack(packed)

    async def set_level(self, key: str, level: LoggingLevel, client: str = "") -> None:
        """Store the minimum log level of the session *key*; the record counts towards *client*.

        Raises:
            StoreError: it cannot be stored.
        """
        record = f"session:{key}"
        if level == await self.level(key):
            return
        change: Put | Delete = Delete(record)
        if level != DEFAULT_LEVEL:
            change = Put(record, level.encode(), ttl=self._ttl, client=client, new=True)
        await self._store.apply(change)

    async def level_of(self, request: Request) -> LoggingLevel | None:
        """Return the minimum log level that *request* sets, or else that of its session."""
        if request.session is None:
            return request.log_level
        return await self.level(request.session)

    async def level(self, key: str) -> LoggingLevel:
        """Return the minimum level of log messages for the session *key*."""
        entry = await self._store.get(f"session:{key}")
        found = DEFAULT_LEVEL if entry is None else entry.value.decode()
        return next(level for level in SEVERITY if level == found)

    def __contains__(self, session: str | None) -> bool:
        """Return whether the session with this key was ended before it expired."""
        return session in self._slots

    @property
    def current(self) -> bool:
        """Whether this has read all sessions that were ended before the first call of `start`."""
        return self._follower.current or not self._store.shared

    def start(self) -> None:
        """Start to receive the cancellations and ends that other processes send."""
        self._bus.open()
        if self._store.shared:
            self._follower.open()

    async def catch_up(self) -> None:
        """Wait until the sessions that were ended before this process started are read (`current`).

        Raises:
            StoreError: they cannot be read. Any session might then have been ended.
        """
        self.start()
        if not self.current:
            await self._follower.catch_up()

    async def cancel_call(self, session: str, id: RequestId) -> None:
        """Cancel the call *id* of *session*, wherever it runs.

        Raises:
            StoreError: other processes cannot be notified; the call is cancelled if it runs here.
        """
        # It counts towards no client: one that has used up its share must be able to cancel.
        await self._bus.send(EVERYBODY, CancelInSession(session, msgspec.json.encode(id)))

    def _on_cancel(self, message: "CancelInSession") -> None:
        self._calls.cancel(message.session, _decode_id(message.id_json))

    async def end(self, session: Session, client: ClientKey) -> None:
        """End *session* of *client*: cancel its calls in every process, and revoke its id.

        Raises:
            Overloaded: too many ended sessions of the client, or of all clients, are remembered.
                This session stays open.
            StoreError: the end cannot be stored. This session stays open.
        """
        self._forget_expired()
        self.places.check(client)
        ended = EndSession(session.key, session.issued, client.principal, client.address)
        # If it ended here first and the write failed, the client could not repeat its request here.
        if self._store.shared:
            # The other processes read it when this one does: the client may turn to one of them.
            read = self._unread.setdefault(session.key, asyncio.Event())
            try:
                await self._store.apply(self._append(msgspec.msgpack.encode(ended)))
                await asyncio.wait_for(read.wait(), _READ_TIMEOUT)
                await asyncio.sleep(self._store.lag)
            except TimeoutError:
                logger.debug("the end of a session is read late")
            finally:
                self._unread.pop(session.key, None)
        self._on_end(ended)

    async def aclose(self) -> None:
        """Stop receiving ended sessions. The mux closes the bus for cancellations itself."""
        await self._follower.aclose()

    def _on_event(self, event: LogEvent) -> None:
        try:
            ended = _decode_end(event.data)
            self._on_end(ended)
            if (read := self._unread.get(ended.session)) is not None:
                read.set()
        except msgspec.MsgspecError as error:
            logger.warning("the end of a session, by another release, cannot be read: %s", error)

    def _on_end(self, message: EndSession) -> None:
        # The session is remembered before its calls are cancelled. Otherwise a request between the
        # two steps could start a call that would not be cancelled.
        self._forget_expired()
        if message.session not in self._slots:  # delivery is at least once
            client = ClientKey(message.principal, None, message.address)
            self._slots[message.session] = self.places.acquire(client)
            heappush(self._until, (message.issued + self._ttl, message.session))
        self._calls.cancel(message.session)

    def _forget_expired(self) -> None:
        now = self._now()
        while self._until and self._until[0][0] <= now:
            self.places.release(self._slots.pop(heappop(self._until)[1]))
