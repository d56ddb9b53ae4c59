"""Messages between the processes that share a store.

All follow one log. Most of what is in it is for one of them, which finds it by its name.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import aclosing
from threading import Lock
from typing import Any, TypeVar
from weakref import WeakKeyDictionary, WeakSet

import msgspec

from genmcp.core.client_key import ClientKey
from genmcp.core.session import Session
from genmcp.errors import Gap, StoreError
from genmcp.mux.calls import CallRegistry
from genmcp.mux.limits import Limits
from genmcp.mux.sessions import Sessions
from genmcp.protocol.meta import RequestId
from genmcp.stores.store import Append, Store

__all__ = ["EVERYBODY", "Inbox", "Peers"]

logger = logging.getLogger("genmcp")

M = TypeVar("M", bound=msgspec.Struct)

EVERYBODY = ""
"""The name under which all processes are told, the one that tells it among them."""

_READ_AT_ONCE = 1000

_AGAIN = 1.0
"""How many seconds a store that could not be followed is left alone."""


class _Letter(msgspec.Struct, frozen=True, array_like=True):
    node: str
    kind: str
    packed: bytes


class Inbox:
    """Messages between the processes that serve the same *audience* from one store.

    node: the name of this process. Messages are structs; `take` registers their handlers. ttl,
    keep: for how many seconds, and how many of them, messages are retained for a slow process.

    A store of this process alone needs no log: other inboxes over it are notified at once.

    current: whether all messages have been read that were there when it was opened.
    """

    def __init__(self, store: Store, audience: str, *, ttl: float, keep: int) -> None:
        self.node = secrets.token_urlsafe(9)
        self._store = store
        self._log = f"inbox:{audience}"
        self._ttl = ttl
        self._keep = keep
        self._takers: dict[str, tuple[msgspec.msgpack.Decoder[Any], Callable[[Any], None]]] = {}
        self._follower: asyncio.Task[None] | None = None
        self._hears = False  # over a store of this process alone
        self.current = False
        self._reading: Future[None] = Future()  # awaited from any event loop

    def take(self, kind: type[M], taker: Callable[[M], None]) -> None:
        """Let *taker* be told of each message of this *kind*, on any thread."""
        self._takers[kind.__name__] = (msgspec.msgpack.Decoder(kind), taker)

    def open(self) -> None:
        """Start to receive messages on the running loop; cheap if that has been done."""
        if self._hears:
            return
        if not self._store.shared:
            with _opening:
                _open.setdefault(self._store, WeakSet()).add(self)
            self._hears = self.current = True
        elif not _runs(self._follower):
            self.current, self._reading = False, Future()
            self._follower = asyncio.get_running_loop().create_task(self._follow())

    async def catch_up(self) -> None:
        """Wait until the inbox, once opened, is `current`.

        Raises:
            StoreError: the store could not be read just now.
        """
        if not self.current:
            await asyncio.shield(asyncio.wrap_future(self._reading))

    async def send(self, node: str, message: msgspec.Struct) -> None:
        """Tell *node*, or EVERYBODY; this one at once, and perhaps twice.

        Raises:
            StoreError: it cannot be told.
        """
        kind = type(message).__name__
        if node in (self.node, EVERYBODY):
            self._takers[kind][1](message)
        if node == self.node:
            return
        if not self._store.shared:
            for other in self._others():
                if node in (other.node, EVERYBODY):
                    other._takers[kind][1](message)
            return
        letter = msgspec.msgpack.encode(_Letter(node, kind, msgspec.msgpack.encode(message)))
        await self._store.apply(Append(self._log, letter, ttl=self._ttl, keep=self._keep))

    async def aclose(self) -> None:
        """Hear no more."""
        with _opening:
            _open.get(self._store, WeakSet()).discard(self)
        self._hears = False
        follower, self._follower = self._follower, None
        if follower is not None and not follower.get_loop().is_closed():
            follower.cancel()
            await asyncio.wait([follower])

    def _others(self) -> "list[Inbox]":
        """Return those of the same messages that are open, over a store of this process alone."""
        with _opening:
            return [
                each
                for each in _open.get(self._store, ())
                if each is not self and each._log == self._log
            ]

    async def _follow(self) -> None:
        after: str | None = None
        while True:
            try:
                if not self.current:
                    after = await self._read_all()
                    self.current = True
                    self._reading.set_result(None)
                async with aclosing(self._store.follow(self._log, after)) as letters:
                    async for event in letters:
                        after = event.id
                        self._open_letter(event.data)
            except Gap:
                # The retained messages are read again: each may be handled twice.
                logger.warning("messages of other processes were dropped before they were read")
                after = None
            except StoreError as error:
                logger.warning("other processes cannot be heard: %s", error)
                if not self.current:
                    reading, self._reading = self._reading, Future()
                    reading.set_exception(error)
                await asyncio.sleep(_AGAIN)

    async def _read_all(self) -> str | None:
        """Handle all messages in the log; return the id of the last one, None if there is none."""
        after: str | None = None
        while events := await self._store.read(self._log, after, _READ_AT_ONCE):
            for event in events:
                after = event.id
                self._open_letter(event.data)
        return after

    def _open_letter(self, packed: bytes) -> None:
        try:
            letter = _decoder.decode(packed)
            if letter.node in (self.node, EVERYBODY) and letter.kind in self._takers:
                decoder, taker = self._takers[letter.kind]
                taker(decoder.decode(letter.packed))
        except msgspec.MsgspecError as error:
            logger.warning("a message of another release cannot be read: %s", error)


_open: "WeakKeyDictionary[Store, WeakSet[Inbox]]" = WeakKeyDictionary()
"""Who hears what is told over a store that no other process has."""
_opening = Lock()

_decoder = msgspec.msgpack.Decoder(_Letter)


def _runs(task: "asyncio.Task[None] | None") -> bool:
    return task is not None and not task.done() and not task.get_loop().is_closed()


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag="cancel"):
    """A call of a session is not wanted any more; id None: none of its calls is."""

    session: str
    id: RequestId | None


class Ended(msgspec.Struct, frozen=True, array_like=True, tag="ended"):
    """A session that began at *issued* (Unix time), of *principal* or *address*, has ended."""

    session: str
    issued: float
    principal: str | None = None
    address: str | None = None


class Peers:
    """The processes that serve the same *audience* from one store, this one among them.

    What they tell of a call is kept for as long as a stream is; that a session has ended, for as
    long as it would have lived.
    """

    def __init__(
        self, store: Store, audience: str, limits: Limits, sessions: Sessions, calls: CallRegistry
    ) -> None:
        self._sessions = sessions
        self._calls = calls
        self._now = Inbox(store, f"calls:{audience}", ttl=limits.replay, keep=limits.replay_events)
        # At most `revoked` sessions are remembered at a time. The log keeps twice as many, so that
        # what it drops has expired as a rule. (Not always: a session that lives long can be
        # followed by as many that expire soon.)
        keep = 2 * limits.revoked
        self._for_long = Inbox(store, f"ended:{audience}", ttl=limits.session, keep=keep)
        self._now.take(Cancel, self._cancelled)
        self._for_long.take(Ended, self._ended)

    def open(self) -> None:
        """Start to receive the messages of other muxes and processes."""
        self._now.open()
        self._for_long.open()

    @property
    def current(self) -> bool:
        """Whether all sessions are known that were ended before the first call of `open`."""
        return self._for_long.current

    async def catch_up(self) -> None:
        """Read which sessions were ended before this process was started: see `current`.

        Raises:
            StoreError: they cannot be read, so that no session can be trusted.
        """
        self.open()
        await self._for_long.catch_up()

    async def cancel(self, session: str, id: RequestId) -> None:
        """Cancel the call *id* of *session*, wherever it runs."""
        await self._tell(self._now, Cancel(session, id))

    async def end(self, session: Session, client: ClientKey) -> None:
        """End *session* of *client* in every process: cancel its calls, revoke its id."""
        ended = Ended(session.key, session.issued, client.principal, client.address)
        await self._tell(self._for_long, ended)

    async def aclose(self) -> None:
        """Hear no more."""
        await self._now.aclose()
        await self._for_long.aclose()

    async def _tell(self, inbox: Inbox, message: Cancel | Ended) -> None:
        try:
            await inbox.send(EVERYBODY, message)
        except StoreError as error:
            logger.warning("the other processes are not told of a session: %s", error)

    def _cancelled(self, message: Cancel) -> None:
        self._calls.cancel(message.session, message.id)

    def _ended(self, message: Ended) -> None:
        client = ClientKey(message.principal, None, message.address)
        self._sessions.end(message.session, message.issued, client)
        self._calls.cancel(message.session)
