"""File descriptors, read and written without holding up the event loop.

They stay as they are: a terminal, or a pipe that standard error goes to as well, may be shared
with others, who would be surprised if it did not block any more.
"""

import asyncio
import logging
import os
import select
import stat
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Final, TypeVar

from genmcp.mux.limits import Limits
from genmcp.wire.lines import frame

__all__ = ["Reader", "Writer"]

T = TypeVar("T")

logger = logging.getLogger("genmcp")

_READ_AT_ONCE: Final = 256 * 1024
_WRITTEN_AT_ONCE: Final = 256 * 1024
#: What a pipe that can be written to takes without blocking; 0 where nobody can tell.
_WITHOUT_BLOCKING: Final = getattr(select, "PIPE_BUF", 0)


class Reader:
    """Reads what comes in at *descriptor*."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._reading: asyncio.Future[bytes] | None = None

    async def read(self) -> bytes:
        """Return what has come in, as soon as there is something; nothing at the end."""
        if self._over.is_set():
            return b""
        self._reading = reading = self._loop.create_future()
        try:
            self._loop.add_reader(self._descriptor, self._read)
        except (OSError, ValueError, NotImplementedError):  # a file, or an event loop of Windows
            return await self._read_in_thread(reading)
        try:
            await reading
        finally:
            self._loop.remove_reader(self._descriptor)
        data: bytes = reading.result()
        return data

    def close(self) -> None:
        """Let whoever reads find the end."""
        self._over.set()
        if self._reading is not None and not self._reading.done():
            self._reading.set_result(b"")

    def _read(self) -> None:
        assert self._reading is not None
        if not self._reading.done():
            with suppress(BlockingIOError):  # somebody else has read it
                self._reading.set_result(_read(self._descriptor))

    async def _read_in_thread(self, reading: "asyncio.Future[bytes]") -> bytes:
        in_thread(self._loop, reading, lambda: _read(self._descriptor))
        return await reading


class Writer:
    """Writes messages to *descriptor*, one a line, as fast as they are read there.

    read: is told when all there was has been read, after more waited than may. gone: is told,
    once, when nobody reads any more: the other end was closed, or took nothing for `limits.stall`
    seconds.
    """

    def __init__(
        self,
        descriptor: int,
        limits: Limits,
        *,
        read: Callable[[], None],
        gone: Callable[[], None],
    ) -> None:
        self._descriptor = descriptor
        self._limits = limits
        self._read = read
        self._gone = gone
        self._loop = asyncio.get_running_loop()
        self._ready: list[bytes] = []
        self._size = 0
        self._due = False
        self._writer: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._over = False
        self._small = _may_be_asked(descriptor)
        if self._small:
            self._asked = select.poll()
            self._asked.register(descriptor, select.POLLOUT)

    @property
    def full(self) -> bool:
        """Whether more than `limits.buffer` waits for the reader."""
        return self._size > self._limits.buffer and not self._over

    async def room(self) -> None:
        """Wait until it is not full, or nobody reads any more."""
        while self.full:
            self._room.clear()
            await self._room.wait()

    def put(self, message: bytes) -> None:
        """Write *message*, with all that is put in this turn of the loop."""
        if self._over:
            return
        line = frame(message)
        self._ready.append(line)
        self._size += len(line)
        if self._writer is None and not self._due:
            self._due = True
            self._loop.call_soon(self._write)

    async def finish(self, seconds: float) -> None:
        """Write what is left, if it is read within *seconds*."""
        self._write()
        if (writer := self._writer) is not None:
            await asyncio.wait([writer], timeout=seconds)
            self._over = True
            writer.cancel()
            await asyncio.wait([writer])
        self._over = True

    def _write(self) -> None:
        """Write what is there: now if that cannot block, else beside the loop."""
        self._due = False
        if self._writer is not None or not self._ready or self._over:
            return
        if self._size <= self._small and self._asked.poll(0):
            data = b"".join(self._ready)
            self._ready.clear()
            try:
                done = os.write(self._descriptor, data)
            except BlockingIOError:
                done = 0
            except OSError:
                self._give_up()
                return
            self._size -= done
            if not self._size:
                return
            self._ready.append(data[done:])
        self._writer = self._loop.create_task(self._write_on())

    async def _write_on(self) -> None:
        try:
            while self._ready and not self._over:
                was_full, data = self.full, memoryview(b"".join(self._ready))
                self._ready.clear()
                while data:
                    async with asyncio.timeout(self._limits.stall):
                        done = await self._write_in_thread(data[:_WRITTEN_AT_ONCE])
                    self._size -= done
                    data = data[done:]
                if was_full and not self.full:
                    self._room.set()
                    self._read()
        except TimeoutError:
            logger.warning(
                "the client is given up: it has read nothing for %g seconds (limit: stall)",
                self._limits.stall,
            )
            self._give_up()
        except OSError:
            self._give_up()
        finally:
            self._writer = None

    async def _write_in_thread(self, data: memoryview) -> int:
        writing: asyncio.Future[int] = self._loop.create_future()
        in_thread(self._loop, writing, lambda: _write(self._descriptor, data))
        return await writing

    def _give_up(self) -> None:
        self._over = True
        self._ready.clear()
        self._room.set()
        self._gone()


def in_thread(
    loop: asyncio.AbstractEventLoop, future: "asyncio.Future[T]", work: Callable[[], T]
) -> None:
    """Let *future* have what *work* returns or raises, in a thread that nobody waits for.

    Those of an executor would keep the process from its end for as long as they are blocked.
    """

    def run() -> None:
        try:
            settle, outcome = future.set_result, work()
        except OSError as error:
            settle, outcome = future.set_exception, error  # type: ignore[assignment]
        with suppress(RuntimeError):  # the loop was closed
            loop.call_soon_threadsafe(_settle, future, settle, outcome)

    threading.Thread(target=run, daemon=True).start()


def _settle(future: "asyncio.Future[T]", settle: Callable[[T], None], outcome: T) -> None:
    if not future.done():
        settle(outcome)


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, _READ_AT_ONCE)
    except BlockingIOError:
        raise
    except OSError:
        return b""  # whoever was there has gone: a terminal hung up, a connection was reset


def _write(descriptor: int, data: memoryview) -> int:
    """Write some of *data*, and return how much; wait for that, whether *descriptor* does or not.

    Whoever shares a pipe may have said that it does not block.
    """
    while True:
        try:
            return os.write(descriptor, data)
        except BlockingIOError:
            room = select.poll()
            room.register(descriptor, select.POLLOUT)
            room.poll()


def _may_be_asked(descriptor: int) -> int:
    """Return how many bytes may be written to *descriptor* when it says it takes some."""
    mode = os.fstat(descriptor).st_mode
    return _WITHOUT_BLOCKING if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) else 0
