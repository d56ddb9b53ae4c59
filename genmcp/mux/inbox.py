"""What one process tells another that shares its store.

All follow one log. Most of what is in it is for one of them, which finds it by its name.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec

from genmcp.errors import Gap, StoreError
from genmcp.stores.store import Append, Store

__all__ = ["EVERYBODY", "Inbox"]

logger = logging.getLogger("genmcp")

M = TypeVar("M", bound=msgspec.Struct)

EVERYBODY = ""
"""The name under which all processes are told, the one that tells it among them."""

_AGAIN = 1.0
"""How many seconds a store that could not be followed is left alone."""


class _Letter(msgspec.Struct, frozen=True, array_like=True):
    node: str
    kind: str
    packed: bytes


class Inbox:
    """Messages to and from the processes that serve the same *audience* from one store.

    node: the name of this one. Messages are structs; `take` says who is told of which.
    ttl, keep: for how many seconds, and how many of them, a slow process may read them.
    alone: whether nobody else has the store; then nothing is written to it, and nothing runs.
    """

    def __init__(
        self, store: Store, audience: str, *, ttl: float, keep: int, alone: bool = False
    ) -> None:
        self.node = secrets.token_urlsafe(9)
        self._store = store
        self._log = f"inbox:{audience}"
        self._ttl = ttl
        self._keep = keep
        self._alone = alone
        self._takers: dict[str, tuple[msgspec.msgpack.Decoder[Any], Callable[[Any], None]]] = {}
        self._follower: asyncio.Task[None] | None = None

    def take(self, kind: type[M], taker: Callable[[M], None]) -> None:
        """Let *taker* be told of each message of this *kind*, on any thread."""
        self._takers[kind.__name__] = (msgspec.msgpack.Decoder(kind), taker)

    def open(self) -> None:
        """Begin to hear what others say, if there may be others, on the running loop."""
        if not self._alone and not _runs(self._follower):
            self._follower = asyncio.get_running_loop().create_task(self._follow())

    async def send(self, node: str, message: msgspec.Struct) -> None:
        """Tell *node*, or EVERYBODY; this one at once, and perhaps twice.

        Raises:
            StoreError: it cannot be told.
        """
        kind = type(message).__name__
        if node in (self.node, EVERYBODY):
            self._takers[kind][1](message)
        if node == self.node or self._alone:
            return
        letter = msgspec.msgpack.encode(_Letter(node, kind, msgspec.msgpack.encode(message)))
        await self._store.apply(Append(self._log, letter, ttl=self._ttl, keep=self._keep))

    async def aclose(self) -> None:
        """Hear no more."""
        follower, self._follower = self._follower, None
        if follower is not None and not follower.get_loop().is_closed():
            follower.cancel()
            await asyncio.wait([follower])

    async def _follow(self) -> None:
        after: str | None = None
        while True:
            try:
                async with aclosing(self._store.follow(self._log, after)) as letters:
                    async for event in letters:
                        after = event.id
                        self._open_letter(event.data)
            except Gap:
                after = None  # with the oldest there is
            except StoreError as error:
                logger.warning("other processes cannot be heard: %s", error)
                await asyncio.sleep(_AGAIN)

    def _open_letter(self, packed: bytes) -> None:
        try:
            letter = _decoder.decode(packed)
            if letter.node in (self.node, EVERYBODY) and letter.kind in self._takers:
                decoder, taker = self._takers[letter.kind]
                taker(decoder.decode(letter.packed))
        except msgspec.MsgspecError as error:
            logger.warning("a message of another release cannot be read: %s", error)


_decoder = msgspec.msgpack.Decoder(_Letter)


def _runs(task: "asyncio.Task[None] | None") -> bool:
    return task is not None and not task.done() and not task.get_loop().is_closed()
