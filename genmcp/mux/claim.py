"""The key of a call that runs here, and the record that tells other processes of it.

While the call runs its process renews the record, which lapses otherwise; once the call is a task,
the task counts. All times are the store's: the clocks of two machines are never compared.

A call becomes a task in two writes, of two subjects: the record of the key names the task, then
the task is written. Beside the first one lies a short-lived record, renewed until the second write.
When it is gone and there is no task, the process has died, or was frozen for more than a lease.
"""

import asyncio
import logging
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec
from msgspec.structs import replace

from genmcp.errors import Conflict, StoreError
from genmcp.protocol.input_required import InputRequiredResult
from genmcp.protocol.result import Result
from genmcp.protocol.tools import CallToolResult
from genmcp.stores.store import Append, Delete, Op, Put, Store

__all__ = ["Claim", "Known", "becoming", "logged"]

logger = logging.getLogger("genmcp")


class Known(msgspec.Struct, frozen=True, array_like=True):
    """The record of a key.

    arguments: their digest. call: a random name of the call that has the key. task: the task that
    it becomes. result: its result as JSON. asked: the step of the question that *result* is, if it
    is one.
    """

    arguments: bytes
    call: str
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


def becoming(key: str) -> str:
    """Return where the store has the record that says that a task of *key* is being written."""
    return f"{key}:becoming"


class Claim:
    """The key of a call that runs here: no other call runs with it.

    kept: seconds for which the result is kept. lease: seconds after which the key is free if this
    process gives no sign of life. task: the task that the call becomes, or has become.
    """

    def __init__(self, store: Store, key: str, *, kept: float, lease: float) -> None:
        self.ttl = kept
        self.task: str | None = None
        self._store = store
        self._key = key
        self._lease = lease
        self._known: Known | None = None
        self._writing = asyncio.Lock()
        self._renewing: asyncio.Task[None] | None = None
        self._over = False

    async def begin(self, arguments: bytes, *, expect: int) -> bool:
        """Take the key for a call with these *arguments*; False if another process was faster."""
        known = Known(arguments, secrets.token_urlsafe(9))
        try:
            await self._store.apply(Put(self._key, known.pack(), ttl=self._lease, expect=expect))
        except Conflict:
            return False
        self._known = known
        self._renewing = asyncio.create_task(self._renew())
        return True

    async def becomes(self, task: str) -> None:
        """Note that the call becomes *task*, whose record is written next. May be called again.

        Raises:
            Conflict: another call has taken the key.
            StoreError: it cannot be written.
        """
        async with self._writing:
            known = self._known
            if known is None or known.result is not None:
                return  # the call is over, and its task is deleted again
            self.task = task  # also where the write fails: then it may have been written
            mark = Put(becoming(self._key), b"", ttl=self._lease)
            if not await self._write(replace(known, task=task), mark, ttl=self.ttl):
                self.task = None
                raise Conflict("the key of a call was taken by another")

    async def became(self) -> None:
        """Note that the record of the task is written.

        Raises:
            Conflict: another call has taken the key meanwhile: this process was frozen.
        """
        async with self._writing:
            known = self._known
            if known is None or known.task is None or known.result is not None:
                return
            entry = await self._store.get(self._key)
            if entry is not None and not self._is_mine(entry.value):
                raise Conflict("the key of a call was taken by another")
        await self._pause()

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
        async with self._writing:
            with logged():
                await self._write(None)
            self._known = None

    async def rest(self) -> None:
        """Stop renewing the key: the call is over."""
        self._over = True
        await self._pause()

    async def _end(self, result: Result, asked: int | None, ttl: float) -> bool:
        async with self._writing:
            if self._known is None:
                return True
            known = replace(self._known, result=msgspec.json.encode(result), asked=asked)
            with logged():
                return await self._write(known, ttl=ttl)
            return True  # the store failed: the client gets its answer all the same

    async def _pause(self) -> None:
        renewing, self._renewing = self._renewing, None
        if renewing is not None:
            async with self._writing:  # no write is cancelled half way
                renewing.cancel()
            await asyncio.wait([renewing])

    def _is_mine(self, packed: bytes) -> bool:
        return self._known is not None and Known.unpack(packed).call == self._known.call

    async def _write(self, known: Known | None, *more: Op, ttl: float = 0.0) -> bool:
        """Write *known*, None to free the key; False if another call has the key.

        A key that has lapsed, and was not taken since, is still this call's.
        """
        entry = await self._store.get(self._key)
        if entry is not None and not self._is_mine(entry.value):
            return False
        expect = 0 if entry is None else entry.version
        change: Put | Delete = Delete(self._key, expect=expect or None)
        if known is not None:
            change = Put(self._key, known.pack(), ttl=ttl, expect=expect)
        try:
            await self._store.apply(change, *more, Append(self._key, b"", ttl=self._lease, keep=1))
        except Conflict:
            return False
        self._known = known
        return True

    async def _renew(self) -> None:
        there = True
        while there and not self._over:
            await asyncio.sleep(self._lease / 3)
            with logged():
                async with self._writing:
                    there = await self._renewed()

    async def _renewed(self) -> bool:
        """Renew the key; False if there is nothing to renew any more."""
        known = self._known
        if known is None or known.result is not None:
            return False
        if known.task is not None:
            if await self._store.touch(becoming(self._key), self._lease):
                return True
            mark = Put(becoming(self._key), b"", ttl=self._lease)
            return await self._write(known, mark, ttl=self.ttl)
        if await self._store.touch(self._key, self._lease):
            return True
        return await self._write(known, ttl=self._lease)


@contextmanager
def logged() -> Iterator[None]:
    """Log what a store raises: it costs the key, and not the call."""
    try:
        yield
    except StoreError as error:
        logger.warning("what becomes of an idempotency key is not kept: %s", error)


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Known)
