"""stdio: the server is a child process; each line of its stdin and stdout is one message.

2026-07-28, stdio, defines the transport. It is the same in all earlier revisions.
"""

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final, Literal, cast

from genmcp.client.errors import (
    ClientClosed,
    ClientError,
    ConnectError,
    ProcessExited,
    RequestTimeout,
)
from genmcp.client.options import Command
from genmcp.client.transports.base import Transport, TransportSink
from genmcp.core.client.events import SendMessage
from genmcp.wire.lines import MAX_MESSAGE, LineReader, OversizedMessage, frame

logger = logging.getLogger("genmcp.client")
server_logger = logging.getLogger("genmcp.server")

_STDIN, _STDOUT, _STDERR = 0, 1, 2
_EXIT_TIMEOUT = 2.0  # seconds for the process to exit after its stdin was closed
_TERM_TIMEOUT = 2.0  # seconds for it to exit after SIGTERM; then it is killed
_KILL_TIMEOUT = 5.0  # seconds to wait for its end after SIGKILL
# Seconds for which the server may not read before a notification or an answer to it fails. A
# request has its own timeout.
_WRITE_TIMEOUT = 30.0
_DRAIN_TIMEOUT = 0.5  # seconds to read the output of a process that has exited
_MAX_LOG_LINE = 64 * 1024  # bytes of a line of stderr; a longer one is cut
# Bytes of a pipe that are handled in one turn of the event loop: they may be a thousand lines, each
# of which takes some 20 us, and a pipe has up to 1 MiB of them at once.
_TURN: Final = 2048
_KILL: Final = signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL


StderrReceiver = Callable[[str], None] | Literal["pass"] | None


class StdioTransport(Transport):
    """The transport for a `Command`: starts the server process and ends it. Owned by a client.

    When this process is killed, the system closes the stdin of the server, which then has to exit
    (2026-07-28, stdio, "Shutdown").

    Args:
        command: the command of the server.
        stderr: as for `ClientOptions`.
    """

    def __init__(
        self,
        command: Command,
        stderr: StderrReceiver = None,
    ) -> None:
        self.server_name = str(command)
        self._command = command
        self._stderr = stderr
        self._lines: LineReader
        self._sink: TransportSink
        self._process: _ServerProcess | None = None
        self._start_lock = asyncio.Lock()
        self._error: ClientError | None = None  # why the transport is not open any more
        self._closed = False
        self._unsent: set[int] = set()  # ids of requests that wait for the server to read

    @property
    def pid(self) -> int | None:
        """The process id, None before the process was started."""
        return self._process.pid if self._process else None

    async def open(self, sink: TransportSink) -> None:
        """Start the process. If an earlier process has exited, start another one.

        Raises:
            ConnectError: the command cannot be started.
            ClientClosed: `close` was called before, or while the process started.
        """
        if self._closed:
            raise ClientClosed(self.server_name)
        self._error = None
        self._lines = LineReader(MAX_MESSAGE)
        self._sink = sink
        async with self._start_lock:
            self._process = await self._start()
            if self._closed:
                await self._process.end()
                raise ClientClosed(self.server_name)

    async def send(self, message: SendMessage) -> None:
        """Write a message, once the server has read most of the previous ones.

        A request that is cancelled before it was written is never written, and neither is the
        notification that cancels it.

        Raises:
            RequestTimeout: the server did not read for 30 seconds. Raised only for notifications
                and responses; a request has its own timeout.
            ClientError: the process has exited, or the transport is closed.
        """
        if self._error is not None:
            raise self._error
        process = self._process
        if process is None:
            raise ClientClosed(self.server_name)
        if message.withdraws in self._unsent:
            self._unsent.remove(message.withdraws)
        elif process.writable or await self._wait_until_writable(process, message):
            process.write(frame(message.message))

    async def close(self) -> None:
        """End the process and wait for its exit."""
        self._closed = True
        self._error = self._error or ClientClosed(self.server_name)
        async with self._start_lock:  # a process that is being started has to be ended as well
            if self._process is not None:
                await self._process.end()

    async def _start(self) -> "_ServerProcess":
        command = self._command
        try:
            # A session of its own, for two reasons. Ctrl-C at a terminal interrupts only this
            # process, which then ends the server in order. And the descendants of the command are
            # in its process group, so they can be signalled with it.
            _, process = await asyncio.get_running_loop().subprocess_exec(
                lambda: _ServerProcess(command, self._stderr, self._on_output, self._on_exit),
                command.command,
                *command.args,
                env=command.environment(),
                cwd=command.cwd,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise ConnectError(self.server_name, f"it cannot be started: {error}") from error
        return process

    async def _wait_until_writable(self, process: "_ServerProcess", message: SendMessage) -> bool:
        """Wait until the server reads its input.

        Return False if *message* is a request that was cancelled in the meantime. Such a request is
        not written.
        """
        if message.id is None:
            try:
                async with asyncio.timeout(_WRITE_TIMEOUT):
                    await self._writable(process)
            except TimeoutError:
                what = f"sending {message.method or 'an answer'}"
                raise RequestTimeout(what, self.server_name, _WRITE_TIMEOUT) from None
            return True
        self._unsent.add(message.id)
        try:
            await self._writable(process)
            return message.id in self._unsent
        finally:
            self._unsent.discard(message.id)

    async def _writable(self, process: "_ServerProcess") -> None:
        if not await process.wait_writable():
            raise self._error or ClientClosed(self.server_name)

    def _on_output(self, data: bytes) -> None:
        self._deliver(self._lines.feed(data))

    def _on_exit(self, process: "_ServerProcess") -> None:
        self._deliver(self._lines.finish())
        if self._error is None:
            self._error = ProcessExited(self.server_name, process.status, process.last_line)
            # A process may exit before `open` returns; the first `send` then raises the error.
            if self._process is process:
                self._sink.on_failure(None, self._error)

    def _deliver(self, lines: list[bytes | OversizedMessage]) -> None:
        for line in lines:
            if self._error is not None:
                return
            if isinstance(line, OversizedMessage):
                logger.warning(
                    "%s wrote a line of %d bytes, which was discarded", self.server_name, line.size
                )
                self._sink.on_oversized(line.size, line.head)
            else:
                self._sink.on_message(line)


class _ServerProcess(asyncio.SubprocessProtocol):
    """The process of a server with its three streams. Owned by a `StdioTransport`.

    The process ends in two steps. It *exits*, and it is *finished* when all of its output was read.
    A descendant that holds stdout open can delay the second step. Both callbacks are called in the
    event loop.

    Args:
        command: the command.
        stderr: the receiver of stderr.
        on_output: called with each chunk of stdout.
        on_exit: called once, when the process is finished.
    """

    def __init__(
        self,
        command: Command,
        stderr: StderrReceiver,
        on_output: Callable[[bytes], None],
        on_exit: Callable[["_ServerProcess"], None],
    ) -> None:
        self.last_line = ""
        self._command = command
        self._stderr_receiver = stderr
        self._on_output = on_output
        self._on_exit = on_exit
        self._log = LineReader(_MAX_LOG_LINE)
        self._waiting = {_STDOUT: bytearray(), _STDERR: bytearray()}  # received, to be handled
        self._transport: asyncio.SubprocessTransport
        self._stdin: asyncio.WriteTransport
        self._shutdown: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._exited = asyncio.Event()
        self._finished = asyncio.Event()

    @property
    def pid(self) -> int:
        return self._transport.get_pid()

    @property
    def status(self) -> int | None:
        """The exit status, negative for a signal, None while the process runs."""
        return self._transport.get_returncode()

    @property
    def writable(self) -> bool:
        """Whether the process runs and has read most of its input."""
        return self._writable.is_set() and not self._ending

    def write(self, data: bytes) -> None:
        self._stdin.write(data)

    async def wait_writable(self) -> bool:
        """Wait until the process is writable, or finished; return whether it is writable."""
        while not self._writable.is_set() and not self._ending:
            await self._writable.wait()
        if self._ending:
            await self._finished.wait()
            return False
        return True

    async def end(self) -> None:
        """Close stdin, then send SIGTERM and SIGKILL: 2026-07-28, stdio, "Shutdown"."""
        try:
            # `wait` does not cancel the shutdown if its caller is cancelled.
            await asyncio.wait((self._begin_shutdown(),))
            await self._wait_finished()
        finally:
            # The caller was cancelled, or a descendant holds the streams open.
            if not self._finished.is_set():
                self._signal(_KILL)
                self._transport.close()
        await self._wait_finished()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Casts: the transports of uvloop are not instances of asyncio's classes.
        self._transport = cast(asyncio.SubprocessTransport, transport)
        self._stdin = cast(asyncio.WriteTransport, self._transport.get_pipe_transport(_STDIN))
        stdout = self._transport.get_pipe_transport(_STDOUT)
        # A transport of uvloop is no `asyncio.ReadTransport`. It needs no other protocol: uvloop
        # passes output on without the delay that `_StdoutProtocol` avoids.
        if isinstance(stdout, asyncio.ReadTransport):
            receive = partial(self.pipe_data_received, _STDOUT)
            stdout.set_protocol(_StdoutProtocol(receive, stdout.get_protocol()))

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        waiting = self._waiting[fd]
        waiting += data
        if len(waiting) == len(data):  # otherwise `_handle` is scheduled
            self._handle(fd)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == _STDERR:
            self._log_lines(self._log.finish())
            return
        # Without stdin or stdout the process cannot serve any more, even if it still runs.
        self._writable.set()
        if not self._exited.is_set():
            self._begin_shutdown()

    def process_exited(self) -> None:
        self._exited.set()
        self._writable.set()
        asyncio.get_running_loop().call_later(_DRAIN_TIMEOUT, self._finish)

    def connection_lost(self, exc: Exception | None) -> None:
        self._finish()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _handle(self, fd: int) -> None:
        """Handle a part of what was received; the pipe is not read while there is more of it."""
        if self._finished.is_set():
            return
        waiting = self._waiting[fd]
        part = bytes(waiting[:_TURN])
        del waiting[:_TURN]
        if fd == _STDOUT:
            self._on_output(part)
        else:
            self._log_lines(self._log.feed(part))
        pipe = cast(asyncio.ReadTransport, self._transport.get_pipe_transport(fd))
        if waiting:
            pipe.pause_reading()
            asyncio.get_running_loop().call_soon(self._handle, fd)
        else:
            pipe.resume_reading()

    @property
    def _ending(self) -> bool:
        return self._exited.is_set() or self._shutdown is not None or self._stdin.is_closing()

    def _begin_shutdown(self) -> "asyncio.Task[None]":
        # Only once: to many servers a second SIGTERM means to stop without cleaning up.
        if self._shutdown is None:
            self._shutdown = asyncio.get_running_loop().create_task(self._shut_down())
        return self._shutdown

    async def _shut_down(self) -> None:
        self._stdin.close()
        for timeout, next_signal in (
            (_EXIT_TIMEOUT, signal.SIGTERM),
            (_TERM_TIMEOUT, _KILL),
            (_KILL_TIMEOUT, None),
        ):
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._exited.wait()
                    return
            if next_signal is not None:
                self._signal(next_signal)
        self._finish()  # this process may lack the permission to signal it, as with sudo

    async def _wait_finished(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(_DRAIN_TIMEOUT):
                await self._finished.wait()
                await self._exited.wait()

    def _finish(self) -> None:
        if not self._finished.is_set():
            self._finished.set()
            self._signal(_KILL)  # its descendants
            self._transport.close()
            self._on_exit(self)

    def _signal(self, number: int) -> None:
        """Send a signal to the process and its descendants."""
        with suppress(ProcessLookupError, PermissionError):
            if sys.platform == "win32":
                self._transport.send_signal(number)
            else:
                os.killpg(self.pid, number)

    def _log_lines(self, lines: list[bytes | OversizedMessage]) -> None:
        for raw in lines:
            data = raw.head if isinstance(raw, OversizedMessage) else raw
            line = self.last_line = data.decode("utf-8", "replace").strip()
            if self._stderr_receiver is None:
                server_logger.info("%s: %s", self._command, line)
            elif self._stderr_receiver == "pass":
                sys.stderr.write(f"{line}\n")
            else:
                try:
                    self._stderr_receiver(line)
                except Exception:
                    logger.exception("ClientOptions.stderr raised an exception")


class _StdoutProtocol(asyncio.Protocol):
    """Receives stdout in place of asyncio's own protocol, *original*.

    asyncio's protocol would pass the output on in the next iteration of the event loop. That takes
    a tenth of the time of a tool call. Only the end of stdout is passed to *original*.
    """

    def __init__(self, on_output: Callable[[bytes], None], original: asyncio.BaseProtocol) -> None:
        self._on_output = on_output
        self._original = original

    def data_received(self, data: bytes) -> None:
        self._on_output(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._original.connection_lost(exc)
