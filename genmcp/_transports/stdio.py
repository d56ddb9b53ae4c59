"""Standard streams: one client, which has started this process.

2026-07-28, basic/transports, "stdio"; 2025-11-25, transports, "stdio".

The blocking mode of the file descriptors is never changed: a terminal, or a pipe that standard
error is sent to as well, may be shared with processes that rely on it.
"""

import asyncio
import logging
import os
import select
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from functools import partial
from typing import Final

from genmcp._mux.limits import Limits
from genmcp._mux.mux import Mux, mux_of
from genmcp._transports.pipe import PipeConnection
from genmcp._transports.shutdown import LAST_WORDS
from genmcp.cancellation import cancel_and_wait
from genmcp.core.access import Access
from genmcp.daemon import in_daemon_thread
from genmcp.server import Server
from genmcp.wire.lines import LineReader, frame

logger = logging.getLogger("genmcp")

_READ_AT_ONCE: Final = 256 * 1024
_HANDLED_AT_ONCE: Final = (
    2048  # in one turn of the event loop: up to a thousand lines of some 20 us
)
_WRITTEN_AT_ONCE: Final = 256 * 1024
_WITHOUT_BLOCKING: Final = getattr(select, "PIPE_BUF", 0)
"""Bytes that a writable pipe accepts without blocking; 0 where the platform defines no limit."""


async def serve_stdio(
    target: Mux | Server,
    *,
    streams: tuple[int, int] | None = None,
    principal: str | Access | None = None,
    grace: float = 0.5,
) -> None:
    """Serve a mux, or a server in a mux of its own, to one client over two streams.

        asyncio.run(serve_stdio(suite))

    Returns when the input ends, or the client no longer reads the output.

    While this serves the standard streams, `print` in this process or in a program that a tool
    starts writes to standard error, and standard input is empty.

    Args:
        target: the mux or server to serve. A mux that is made here is closed at the end.
        streams: the file descriptors of the input and the output, of which the caller closes both.
            Default: standard input and output.
        principal: the client's identity, or its `Access`, for hooks that ask for either; the scopes
            of components are not checked.
        grace: seconds that running calls have to finish at the end; then they are cancelled.
    """
    if streams is None:
        with private_streams() as streams:
            await serve_stdio(target, streams=streams, principal=principal, grace=grace)
        return
    input, output = streams
    mux = mux_of(target)
    reader = DescriptorReader(input)
    writer = DescriptorWriter(
        output, mux.limits, on_drain=lambda: connection.flush(), on_close=reader.close
    )
    connection = PipeConnection(mux, writer, principal=principal)
    lines = LineReader(mux.limits.max_body_bytes)
    try:
        while data := await reader.read():
            for at in range(0, len(data), _HANDLED_AT_ONCE):
                if at:
                    await asyncio.sleep(0)
                for line in lines.feed(data[at : at + _HANDLED_AT_ONCE]):
                    connection.receive(line)
                # Back-pressure: a client that does not read its responses is not read either.
                await writer.room()
        for line in lines.finish():
            connection.receive(line)
    finally:
        # In this order: `end` produces the last responses, which `finish` writes, within a limit.
        await connection.end(grace=grace)
        await writer.finish(LAST_WORDS)
        if mux is not target:
            await mux.aclose()


@contextmanager
def private_streams() -> Iterator[tuple[int, int]]:
    """Yield the real standard input and output, which nothing else uses until the end."""
    input, output = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        os.dup2(nothing, 0)
        os.dup2(2, 1)
        if sys.stdout is not None:
            sys.stdout.flush()  # output printed before must not reach the client either
        with redirect_stdout(sys.stderr):
            yield input, output
    finally:
        if sys.stdout is not None:
            sys.stdout.flush()
        os.dup2(input, 0)
        os.dup2(output, 1)
        for each in (nothing, input, output):
            os.close(each)


class DescriptorReader:
    """Reads from *descriptor* without blocking the event loop."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._closed = False
        self._reading: asyncio.Future[bytes] | None = None

    async def read(self) -> bytes:
        """Return the next bytes as soon as there are some; none at the end."""
        if self._closed:
            return b""
        loop = asyncio.get_running_loop()
        reading: asyncio.Future[bytes] = loop.create_future()
        self._reading = reading
        try:
            loop.add_reader(self._descriptor, self._read, reading)
        except (OSError, ValueError, NotImplementedError):  # a file, or an event loop of Windows
            self._reading = reading = in_daemon_thread(partial(_read, self._descriptor))
            return await reading
        try:
            return await reading
        finally:
            loop.remove_reader(self._descriptor)

    def close(self) -> None:
        """End `read`, which returns no bytes from now on."""
        self._closed = True
        if self._reading is not None and not self._reading.done():
            self._reading.set_result(b"")

    def _read(self, reading: "asyncio.Future[bytes]") -> None:
        if not reading.done():
            with suppress(BlockingIOError):  # another process has read it
                reading.set_result(_read(self._descriptor))


class DescriptorWriter:
    """Writes messages to *descriptor*, one a line, without blocking the event loop.

    on_drain: called when the buffer has been written, and has room. on_close: called once, when
    the other end was closed, or has read nothing for `limits.write_timeout` seconds.
    """

    def __init__(
        self,
        descriptor: int,
        limits: Limits,
        *,
        on_drain: Callable[[], None],
        on_close: Callable[[], None],
    ) -> None:
        self._descriptor = descriptor
        self._limits = limits
        self._on_drain = on_drain
        self._on_close = on_close
        self._loop = asyncio.get_running_loop()
        self._lines: list[bytes] = []
        self._size = 0
        self._writing: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self._closed = False
        # Only for a pipe does POSIX guarantee that a small write does not block after `poll` has
        # reported the descriptor as writable. Everything else is written in a thread.
        mode = os.fstat(descriptor).st_mode
        is_pipe = stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)
        self._small = _WITHOUT_BLOCKING if is_pipe else 0
        if self._small:
            self._poll = select.poll()
            self._poll.register(descriptor, select.POLLOUT)

    @property
    def full(self) -> bool:
        """Whether more than `limits.write_buffer_bytes` bytes wait to be written."""
        return self._size > self._limits.write_buffer_bytes and not self._closed

    async def room(self) -> None:
        """Wait until it is not full, or the other end is closed."""
        while self.full:
            self._room.clear()
            await self._room.wait()

    def put(self, message: bytes) -> None:
        """Write *message*, together with others of this iteration of the loop."""
        if self._closed:
            return
        line = frame(message)
        self._lines.append(line)
        self._size += len(line)
        if self._writing is None and len(self._lines) == 1:
            self._loop.call_soon(self._write)

    async def finish(self, seconds: float) -> None:
        """Write the rest of the buffer, if it is read within *seconds*."""
        self._write()
        if (writer := self._writing) is not None:
            await asyncio.wait([writer], timeout=seconds)
            self._closed = True
            await cancel_and_wait(writer)
        self._closed = True

    def _write(self) -> None:
        """Write the buffer: at once if that cannot block, else in a thread."""
        if self._writing is not None or not self._lines or self._closed:
            return
        if self._size <= self._small and self._poll.poll(0):
            data = b"".join(self._lines)
            try:
                done = os.write(self._descriptor, data)
            except BlockingIOError:
                done = 0
            except OSError:
                self._give_up()
                return
            self._size -= done
            self._lines = [data[done:]] if self._size else []
        if self._lines:
            self._writing = self._loop.create_task(self._write_on())

    async def _write_on(self) -> None:
        try:
            while self._lines and not self._closed:
                data = memoryview(b"".join(self._lines))
                self._lines.clear()
                while data:
                    async with asyncio.timeout(self._limits.write_timeout):
                        piece = data[:_WRITTEN_AT_ONCE]
                        # A copy: the number may be that of another file by the time that a thread
                        # goes on for which nobody waits any more.
                        copy = os.dup(self._descriptor)
                        done = await in_daemon_thread(partial(_write, copy, piece))
                    self._size -= done
                    data = data[done:]
                if not self.full:
                    self._room.set()
                    self._on_drain()
        except OSError as error:
            if isinstance(error, TimeoutError):
                logger.warning(
                    "a connection is closed: its client has read nothing for %g seconds "
                    "(limit: write_timeout)",
                    self._limits.write_timeout,
                )
            self._give_up()
        finally:
            self._writing = None

    def _give_up(self) -> None:
        self._closed = True
        self._lines.clear()
        self._room.set()
        self._on_close()


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, _READ_AT_ONCE)
    except BlockingIOError:
        raise
    except OSError:
        return b""  # a terminal was hung up, or a connection reset: the end as well


def _write(descriptor: int, data: memoryview) -> int:
    """Write some of *data*, and return how much; block until there is room for some of it.

    Closes *descriptor*. What is larger than the room would block until all of it is read, so that
    nobody could tell a slow reader from one that reads nothing. Another process may have made a
    shared pipe non-blocking.
    """
    try:
        if not _WITHOUT_BLOCKING:
            return os.write(descriptor, data)
        room, done = select.poll(), 0
        room.register(descriptor, select.POLLOUT)
        while not done:
            room.poll()
            with suppress(BlockingIOError):
                while done < len(data) and room.poll(0):
                    done += os.write(descriptor, data[done : done + _WITHOUT_BLOCKING])
        return done
    finally:
        os.close(descriptor)
