"""The claim on an idempotency key by a running call, and its record for other processes.

The record names the process in which the call runs. The key is free again once that process is
gone, by the same signs of life by which tasks are taken over: clocks of different machines are
never compared, and a process that was suspended itself, or whose store was unavailable, takes no
other for gone.

A call becomes a task in two writes, of two subjects: the record of the key names the task, then the
task is written. If there is no such task and the process is gone, it died between the two.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeAlias

import msgspec
from msgspec.structs import replace

from genmcp.errors import Conflict, StoreError
from genmcp.protocol.input_required import InputRequiredResult
from genmcp.protocol.result import Result
from genmcp.protocol.tools import CallToolResult
from genmcp.stores.store import Append, Delete, Put, Store

__all__ = ["Claim", "Known", "Later", "logged"]

logger = logging.getLogger("genmcp")


_AGAIN: Final = 0.5
_LONGEST: Final = 30.0
"""Seconds after which the end of a call is written again, doubled from `_AGAIN` up to this."""

_NEWS: Final = 60.0
"""Seconds for which calls that wait for a key can read that its record has changed."""

Later: TypeAlias = Callable[[Coroutine[Any, Any, None]], object]
"""Runs a coroutine to its end, independent of the call that started it."""


class Known(msgspec.Struct, frozen=True, array_like=True):
    """The record of a key.

    arguments: their digest. call: a random name of the call that owns the key. node: the process in
    which it runs. task: the task that it becomes. result: its result as JSON. asked: the step of
    the question, if *result* is one.
    """

    arguments: bytes
    call: str
    node: str
    task: str | None = None
    result: bytes | None = None
    asked: int | None = None

    @classmethod
    def unpack(cls, packed: bytes) -> "Known":
        """Decode what `pack` encoded."""
        return _decoder.decode(packed)

    def pack(self) -> bytes:
        """Return the encoded record."""
        return _encoder.encode(self)

    def came_to(self) -> Result:
        """Return the result."""
        assert self.result is not None
        kind = CallToolResult if self.asked is None else InputRequiredResult
        return msgspec.json.decode(self.result, type=kind)


class Claim:
    """The claim of a running call on its key: no other call runs with the key.

    kept: seconds for which the key and its result are retained. node: the name of this process.
    later: runs writes that have to wait for the store. task: the task that the call becomes, or has
    become.
    """

    def __init__(self, store: Store, key: str, *, kept: float, node: str, later: Later) -> None:
        self.ttl = kept
        self.task: str | None = None
        self._store = store
        self._key = key
        self._node = node
        self._later = later
        self._call = secrets.token_urlsafe(9)
        self._known: Known | None = None
        self._writing = asyncio.Lock()
        self._over = False

    async def begin(self, arguments: bytes, *, expect: int) -> bool:
        """Claim the key for a call with these *arguments*; False if another process was faster."""
        known = Known(arguments, self._call, self._node)
        try:
            await self._store.apply(Put(self._key, known.pack(), ttl=self.ttl, expect=expect))
        except Conflict:
            return False
        self._known = known
        return True

    async def becomes(self, task: str) -> None:
        """Record that the call becomes *task*, which is written next. May be called repeatedly.

        Raises:
            Conflict: another call has claimed the key.
            StoreError: it cannot be written.
        """
        async with self._writing:
            if self._known is None or self._over:
                return  # the call is over, and its task is deleted again
            self.task = task  # also if the write fails: it may have been written
            if not await self._write(replace(self._known, task=task), self.ttl):
                self.task = None
                raise Conflict("the key of a call was taken by another")

    async def became(self) -> None:
        """Check that the call still owns its key, after the task was written.

        Raises:
            Conflict: another call has claimed it in the meantime: this process was frozen.
        """
        entry = await self._store.get(self._key)
        if entry is not None and Known.unpack(entry.value).call != self._call:
            raise Conflict("the key of a call was taken by another")

    async def keep(self, result: Result) -> bool:
        """Store the result of the call; False if another call has claimed the key since."""
        return await self._end(result, None, self.ttl)

    async def ask(self, result: InputRequiredResult, step: int, *, ttl: float) -> bool:
        """Store *result*, the question of *step*, for *ttl* seconds; False as for `keep`.

        A copy of the call gets the same question. An answer continues the call.
        """
        return await self._end(result, step, ttl)

    async def free(self) -> None:
        """Free the key: the call has no result."""
        self._over = True
        await self._insist(None, 0.0)

    async def _end(self, result: Result, asked: int | None, ttl: float) -> bool:
        self._over = True
        if self._known is None:
            return True
        encoded = msgspec.json.encode(result)
        return await self._insist(replace(self._known, result=encoded, asked=asked), ttl)

    async def _insist(self, known: Known | None, ttl: float) -> bool:
        """Write the end of the call, at once or as soon as the store is reachable.

        Otherwise the key would stay claimed for as long as this process lives. The client does not
        wait for retries, and they continue if the call is cancelled in the meantime.
        """
        tried: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        async def write() -> None:
            pause = _AGAIN
            while True:
                with logged():
                    async with self._writing:
                        latest = known
                        if known is not None and self._known is not None:  # it may name a task now
                            latest = replace(known, task=self._known.task)
                        is_mine = await self._write(latest, ttl)
                    if not tried.done():
                        tried.set_result(is_mine)
                    return
                if not tried.done():
                    tried.set_result(True)
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST)

        self._later(write())
        return await asyncio.shield(tried)

    async def _write(self, known: Known | None, ttl: float) -> bool:
        """Write *known*, or None to free the key; False if another call owns the key.

        A record that has expired, and was not claimed since, still belongs to this call.
        """
        entry = await self._store.get(self._key)
        if entry is not None and Known.unpack(entry.value).call != self._call:
            return False
        expect = 0 if entry is None else entry.version
        change: Put | Delete = Delete(self._key, expect=expect or None)
        if known is not None:
            change = Put(self._key, known.pack(), ttl=ttl, expect=expect)
        try:
            await self._store.apply(change, Append(self._key, b"", ttl=_NEWS, keep=1))
        except Conflict:
            return False
        self._known = known
        return True


@contextmanager
def logged() -> Iterator[None]:
    """Log an error of the store: it affects the key, not the call."""
    try:
        yield
    except StoreError as error:
        logger.warning("what becomes of an idempotency key is not kept: %s", error)


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Known)
