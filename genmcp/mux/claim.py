"""The key of a call that runs here, and the record that tells other processes of it.

The record names the process in which the call runs. It is free again once that process is gone, by
the same signs of life by which tasks are taken over: no clock is compared with another machine's,
and a process that was away itself, or whose store was, takes no other for gone.

A call becomes a task in two writes, of two subjects: the record of the key names the task, then the
task is written. Where there is no such task and the process is gone, it died between the two.
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
"""Seconds after which the end of a call is written again, doubled up to the longest."""

_NEWS: Final = 60.0
"""Seconds for which those that wait for a key may read that something has become of it."""

Later: TypeAlias = Callable[[Coroutine[Any, Any, None]], object]
"""Runs something, whatever becomes of the call that it is about."""


class Known(msgspec.Struct, frozen=True, array_like=True):
    """The record of a key.

    arguments: their digest. call: a random name of the call that has the key. node: the process in
    which it runs. task: the task that it becomes. result: its result as JSON. asked: the step of
    the question that *result* is, if it is one.
    """

    arguments: bytes
    call: str
    node: str
    task: str | None = None
    result: bytes | None = None
    asked: int | None = None

    @classmethod
    def unpack(cls, packed: bytes) -> "Known":
        """Return what `pack` packed."""
        return _decoder.decode(packed)

    def pack(self) -> bytes:
        """Return the bytes that a store keeps."""
        return _encoder.encode(self)

    def came_to(self) -> Result:
        """Return the result."""
        assert self.result is not None
        kind = CallToolResult if self.asked is None else InputRequiredResult
        return msgspec.json.decode(self.result, type=kind)


class Claim:
    """The key of a call that runs here: no other call runs with it.

    kept: seconds for which the key, and its result, are kept. node: the name of this process.
    later: runs what has to be written when the store can be reached again. task: the task that the
    call becomes, or has become.
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
        """Take the key for a call with these *arguments*; False if another process was faster."""
        known = Known(arguments, self._call, self._node)
        try:
            await self._store.apply(Put(self._key, known.pack(), ttl=self.ttl, expect=expect))
        except Conflict:
            return False
        self._known = known
        return True

    async def becomes(self, task: str) -> None:
        """Note that the call becomes *task*, whose record is written next. May be called again.

        Raises:
            Conflict: another call has taken the key.
            StoreError: it cannot be written.
        """
        async with self._writing:
            if self._known is None or self._over:
                return  # the call is over, and its task is deleted again
            self.task = task  # also where the write fails: then it may have been written
            if not await self._write(replace(self._known, task=task), self.ttl):
                self.task = None
                raise Conflict("the key of a call was taken by another")

    async def became(self) -> None:
        """Check that the call has its key, now that the record of the task is written.

        Raises:
            Conflict: another call has taken it meanwhile: this process was frozen.
        """
        entry = await self._store.get(self._key)
        if entry is not None and Known.unpack(entry.value).call != self._call:
            raise Conflict("the key of a call was taken by another")

    async def keep(self, result: Result) -> bool:
        """Keep the result of the call; False if another call has taken the key meanwhile."""
        return await self._end(result, None, self.ttl)

    async def ask(self, result: InputRequiredResult, step: int, *, ttl: float) -> bool:
        """Keep *result*, which asks the client in *step*, for *ttl* seconds; False as for `keep`.

        A copy of the call gets the same question. An answer goes on with the call.
        """
        return await self._end(result, step, ttl)

    async def free(self) -> None:
        """Free the key: the call came to nothing."""
        self._over = True
        await self._insist(None, 0.0)

    async def _end(self, result: Result, asked: int | None, ttl: float) -> bool:
        self._over = True
        if self._known is None:
            return True
        encoded = msgspec.json.encode(result)
        return await self._insist(replace(self._known, result=encoded, asked=asked), ttl)

    async def _insist(self, known: Known | None, ttl: float) -> bool:
        """Write the end of the call, at once or when the store can be reached.

        A key that is not free, of a process that lives, would be nobody's. It costs the client of
        the call no time, and goes on where the call is cancelled meanwhile.
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
        """Write *known*, None to free the key; False if another call has the key.

        One that is gone, and was not taken since, is still this call's.
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
    """Log what a store raises: it costs the key, and not the call."""
    try:
        yield
    except StoreError as error:
        logger.warning("what becomes of an idempotency key is not kept: %s", error)


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Known)
