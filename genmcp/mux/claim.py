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
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec
from msgspec.structs import replace

from genmcp.errors import Conflict, InternalError, McpError, OverShare, StoreError, StoreFull
from genmcp.mux.late_writes import LateWrites
from genmcp.protocol.input_required import InputRequiredResult
from genmcp.protocol.result import Result
from genmcp.protocol.tools import CallToolResult
from genmcp.stores.store import Append, Delete, Put, Store

__all__ = ["Claim", "Known", "logged"]

logger = logging.getLogger("genmcp")


_AGAIN: Final = 0.5
_LONGEST: Final = 30.0
"""Seconds after which the end of a call is written again, doubled from `_AGAIN` up to this."""

_NEWS: Final = 60.0
"""Seconds for which calls that wait for a key can read that its record has changed."""

_NOT_KEPT: Final = b""
"""Stored instead of a result that the store has no room for."""


class Known(msgspec.Struct, frozen=True, array_like=True):
    """The record of a key.

    arguments: their digest. call: a random name of the call that owns the key. node: the process in
    which it runs. task: the task that it becomes. result: its result as JSON, empty if there was no
    room for it. asked: the step of the question, if *result* is one.
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
        """Return the result.

        Raises:
            McpError: the call has ended, but there was no room for its result.
        """
        assert self.result is not None
        if self.result == _NOT_KEPT:
            raise McpError(
                "The call with this idempotency key has ended, but its result was not kept: there "
                "was no room for it",
                code=InternalError.code,
            )
        kind = CallToolResult if self.asked is None else InputRequiredResult
        return msgspec.json.decode(self.result, type=kind)


class Claim:
    """The claim of a running call on its key: no other call runs with the key.

    kept: seconds for which the key and its result are retained. node: the name of this process.
    late: runs writes that have to wait for the store. patience: seconds for which a result waits
    for room in a full store. call: a random name of the call. task: the task that the call becomes,
    or has become.
    """

    def __init__(
        self,
        store: Store,
        key: str,
        *,
        kept: float,
        node: str,
        late: LateWrites,
        patience: float,
    ) -> None:
        self.ttl = kept
        self.task: str | None = None
        self.call = secrets.token_urlsafe(9)
        self._store = store
        self._key = key
        self._node = node
        self._late = late
        self._patience = patience
        self._known: Known | None = None
        self._writing = asyncio.Lock()
        self._over = False

    async def begin(self, arguments: bytes, *, expect: int) -> bool:
        """Claim the key for a call with these *arguments*; False if another process was faster."""
        known = Known(arguments, self.call, self._node)
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
        if entry is not None and Known.unpack(entry.value).call != self.call:
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
        writing = self._late.begin(self.call, self._write_end(known, ttl, tried))
        # However the write ends: a task that is cancelled before it starts runs no `finally`.
        writing.add_done_callback(lambda _: _resolve(tried, True))
        return await asyncio.shield(tried)

    async def _write_end(
        self, known: Known | None, ttl: float, tried: "asyncio.Future[bool]"
    ) -> None:
        """Write *known* until the store accepts it; *tried* is resolved by the first attempt.

        A result is dropped, and the record states so, when its client has used its share of the
        store, when the store stays full, and when too many results wait in memory.
        """
        begun, pause, announce = time.monotonic(), _AGAIN, True
        size = 0 if known is None or known.result is None else len(known.result)
        taken = False
        try:
            while (waited := time.monotonic() - begun) < self.ttl:  # then the key has expired
                try:
                    async with self._writing:
                        is_mine = await self._write(self._latest(known), ttl, announce=announce)
                    _resolve(tried, is_mine)
                    return
                except StoreError as caught:
                    error = caught
                _warn(error)
                _resolve(tried, True)
                full = isinstance(error, StoreFull)
                if known is not None and known.result != _NOT_KEPT:
                    taken = taken or self._late.take(size)
                    too_long = full and waited >= self._patience
                    if isinstance(error, OverShare) or too_long or not taken:
                        known = replace(known, result=_NOT_KEPT)
                        if taken:
                            self._late.give_back(size)
                            taken = False
                        continue
                elif announce and (full or isinstance(error, OverShare)):
                    announce = False  # the event, too, needs room
                    continue
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST)
        finally:
            if taken:
                self._late.give_back(size)

    def _latest(self, known: Known | None) -> Known | None:
        """Return *known* with the task that the call has become in the meantime."""
        if known is None or self._known is None:
            return known
        return replace(known, task=self._known.task)

    async def _write(self, known: Known | None, ttl: float, *, announce: bool = True) -> bool:
        """Write *known*, or None to free the key; False if another call owns the key.

        A record that has expired, and was not claimed since, still belongs to this call. announce:
        whether calls that wait for the key are woken.
        """
        while True:
            entry = await self._store.get(self._key)
            if entry is not None and Known.unpack(entry.value).call != self.call:
                return False
            if entry is None and known is not None and known.result == _NOT_KEPT:
                return True  # there is no record to replace, and for a new one there may be no room
            # A version also to delete, 0 if there is no record: another call may claim the key
            # between the read and the write, and its record must stay.
            expect = 0 if entry is None else entry.version
            change: Put | Delete = Delete(self._key, expect=expect)
            if known is not None:
                change = Put(self._key, known.pack(), ttl=ttl, expect=expect)
            news = [Append(self._key, b"", ttl=_NEWS, keep=1)] if announce else []
            try:
                await self._store.apply(change, *news)
            except Conflict:
                if known is None:  # the claim itself may have been written after the read
                    continue
                return False
            self._known = known
            return True


@contextmanager
def logged() -> Iterator[None]:
    """Log an error of the store: it affects the key, not the call."""
    try:
        yield
    except StoreError as error:
        _warn(error)


def _warn(error: StoreError) -> None:
    logger.warning("what becomes of an idempotency key is not kept: %s", error)


def _resolve(tried: "asyncio.Future[bool]", is_mine: bool) -> None:
    if not tried.done():
        tried.set_result(is_mine)


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Known)
