"""The stream a legacy session listens on: one log a session, read by one connection at a time.

2025-11-25, transports, "Multiple Connections": each message goes out on one stream only. A new
listener says so in the log; the one before it reads that in its turn and ends, so that every
message before that place is sent by the old one, and every later one by the new.
"""

import secrets
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Final

from genmcp.errors import Gap
from genmcp.stores.store import Append, Store
from genmcp.wire import sse

__all__ = ["LISTENER", "Listeners"]

LISTENER: Final = "listener"
"""What the ids of a listener's events begin with."""

_TAKEN: Final = b"taken by "
_ENDED: Final = b"ended"

_MISSED: Final = b": events were missed that are not kept any more\n\n"


class Listeners:
    """The listening streams of a mux's sessions. *ttl* is in seconds, *keep* in events."""

    def __init__(self, store: Store, *, ttl: float, keep: int) -> None:
        self._store = store
        self._ttl = ttl
        self._keep = keep

    async def listen(self, session: str, after: str | None = None) -> AsyncGenerator[bytes, None]:
        """Yield the events for *session* as they are on the wire, until another listener comes.

        With *after*, the store's id of an event, first those that came behind it; where they are
        not all kept, a comment says so, and then come those that are.
        """
        mine = _TAKEN + secrets.token_bytes(12)
        await self._append(session, mine)
        speaks = after is not None
        if after is not None and not await self._has(session, after):
            after = None
            yield _MISSED
        begun = False
        try:
            async with aclosing(self._store.follow(_log(session), after)) as events:
                async for event in events:
                    if event.data == mine:
                        begun = speaks = True
                    elif event.data == _ENDED or event.data.startswith(_TAKEN):
                        if begun:
                            return
                    elif speaks:
                        yield sse.event(event.data, f"{LISTENER}/{event.id}".encode())
        except Gap:
            # So slow a reader that its place was dropped, and perhaps word of another listener
            # with it. The client comes back, and gets what is kept.
            yield _MISSED

    async def end(self, session: str) -> None:
        """End the stream *session* listens on."""
        await self._append(session, _ENDED)

    async def _append(self, session: str, data: bytes) -> None:
        await self._store.apply(Append(_log(session), data, ttl=self._ttl, keep=self._keep))

    async def _has(self, session: str, after: str) -> bool:
        try:
            await self._store.read(_log(session), after, limit=1)
        except Gap:
            return False
        return True


def _log(session: str) -> str:
    return f"session:{session}:{LISTENER}"
