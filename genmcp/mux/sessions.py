"""Legacy sessions in use: begun, opened again with each request, ended.

A session is sealed into its id, so that none is kept here. What is kept is bounded: the ids
that were ended by their clients, and in the store what a session has changed (its log level).
"""

import logging
import secrets
from collections.abc import Callable
from functools import lru_cache
from heapq import heappop, heappush
from typing import Final

from genmcp.core.client_key import ClientKey
from genmcp.core.request import Request
from genmcp.core.seal import Purpose, Seal
from genmcp.core.session import Session, begin
from genmcp.errors import Expired, ForeignSeal, Forged, InvalidParams, SessionGone
from genmcp.mux.concurrency_limit import ConcurrencyLimit, Slots
from genmcp.mux.limits import Limits
from genmcp.mux.seals import Seals
from genmcp.protocol.revisions.v2025_11_25 import InitializeRequestParams
from genmcp.protocol.severity import SEVERITY, LoggingLevel
from genmcp.stores.accounts import Owner
from genmcp.stores.store import Delete, Put, Store

__all__ = ["Sessions"]

DEFAULT_LEVEL: Final[LoggingLevel] = "info"

_MOST: Final = 4096
"""The largest session in bytes: sealed and in a header, proxies must still let it through."""

_COME_BACK_AFTER: Final = 3600
"""Seconds after which a client that has ended too many sessions may try again."""
_REMEMBERED: Final = 256
_TRUSTED: Final = 60.0
"""How many sessions are not unsealed anew with each request, and for how many seconds at most."""

logger = logging.getLogger("genmcp")


class Sessions:
    """The sessions of one mux, within its *limits*; they expire by the clock *now*."""

    def __init__(self, seal: Seal, store: Store, limits: Limits, now: Callable[[], float]) -> None:
        self._seals = Seals(seal, Purpose.SESSION, now, ttl=limits.session)
        self._now = now
        self._store = store
        self._lifetime = limits.session
        self._revoked = _Revoked(limits, now)
        self._warned = False
        # Half the price of a call, and nearly always the same as the last time.
        self._unsealed = lru_cache(_REMEMBERED)(self._unseal)

    def begin(self, params: InitializeRequestParams, principal: str | None) -> tuple[Session, str]:
        """Return a new session and its id.

        Raises:
            InvalidParams: the client says too much of itself to be repeated in a header.
        """
        session = begin(params, key=secrets.token_urlsafe(12), now=self._now())
        packed = session.pack()
        if len(packed) > _MOST:
            raise InvalidParams(
                f"clientInfo and capabilities take {len(packed)} bytes, the most is {_MOST}: "
                f"they come back with every request, in Mcp-Session-Id"
            )
        return session, self._seals.seal(packed, principal)

    def open(self, id: str, principal: str | None) -> Session:
        """Return the session *id* stands for.

        Raises:
            SessionGone: it was never begun here by this principal, has ended, or is too old.
        """
        now = self._now()
        session = self._unsealed(id, principal, now // _TRUSTED)
        if session.issued + self._lifetime <= now:
            raise SessionGone("Session expired")
        if session.key in self._revoked:
            raise SessionGone("Session has ended")
        return session

    def _unseal(self, id: str, principal: str | None, while_trusted: float) -> Session:
        try:
            packed = self._seals.open(id, principal)
        except ForeignSeal:
            self._warn_of_foreign_seals()
            raise SessionGone("Session not found") from None
        except Forged:
            raise SessionGone("Session not found") from None
        except Expired:
            raise SessionGone("Session expired") from None
        return Session.unpack(packed)

    def _warn_of_foreign_seals(self) -> None:
        if not self._warned:  # anybody can send any number of them
            self._warned = True
            logger.warning(
                "a session id was sealed with another secret: several processes behind one URL, "
                "and one that is started again, need one secret (secret= or GENMCP_SECRET)"
            )

    def has_ended(self, key: str) -> bool:
        """Return whether the session *key* was ended before its time."""
        return key in self._revoked

    def check_end(self, client: ClientKey) -> None:
        """Check that *client* may end another session before it expires.

        Raises:
            Overloaded: too many are remembered for the client, or for all clients.
        """
        self._revoked.forget()
        self._revoked.places.check(client)

    def end(self, key: str, issued: float, client: ClientKey) -> None:
        """End the session *key* of *client*, which began at *issued*; call `check_end` first."""
        self._revoked.add(key, client, until=issued + self._lifetime)

    async def set_level(self, key: str, level: LoggingLevel, owner: Owner = ()) -> None:
        """Store the least severe level that session *key* wants, counted towards *owner*.

        Raises:
            StoreError: it cannot be stored.
        """
        record = f"session:{key}"
        if level == await self.level(key):
            return
        change: Put | Delete = Delete(record)
        if level != DEFAULT_LEVEL:
            change = Put(record, level.encode(), ttl=self._lifetime, owner=owner, new=True)
        await self._store.apply(change)

    async def level_of(self, request: Request) -> LoggingLevel | None:
        """Return the least severe level of log messages for *request*: its own or its session's."""
        if request.session is None:
            return request.log_level
        return await self.level(request.session)

    async def level(self, key: str) -> LoggingLevel:
        """Return the least severe level that session *key* wants to hear of."""
        entry = await self._store.get(f"session:{key}")
        found = DEFAULT_LEVEL if entry is None else entry.value.decode()
        return next(level for level in SEVERITY if level == found)


class _Revoked:
    """The sessions that were ended before they expired, with their clients.

    Each client has a share of the places. No place is reused early for another session: that would
    end the sessions of other clients, or revive one that has ended.
    """

    def __init__(self, limits: Limits, now: Callable[[], float]) -> None:
        self._now = now
        self.places = ConcurrencyLimit(
            "revoked", limits, noun="ended sessions", retry_after=_COME_BACK_AFTER
        )
        self._slots: dict[str, Slots] = {}
        self._until: list[tuple[float, str]] = []  # a heap

    def __contains__(self, key: str) -> bool:
        return key in self._slots

    def add(self, key: str, client: ClientKey, *, until: float) -> None:
        """Remember that the session *key* of *client*, which would expire at *until*, has ended."""
        self.forget()
        if key not in self._slots:
            self._slots[key] = self.places.acquire(client)
            heappush(self._until, (until, key))

    def forget(self) -> None:
        """Forget the sessions that have expired by now."""
        now = self._now()
        while self._until and self._until[0][0] <= now:
            _, key = heappop(self._until)
            self.places.release(self._slots.pop(key))
