"""stdio: the server is a process of ours, one message a line.

2026-07-28, stdio; the same in every revision before.
"""

import asyncio
import ctypes
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import ClassVar, Final, cast

from genmcp.client.errors import (
    ClientClosed,
    ClientError,
    ConnectError,
    ProcessExited,
    RequestTimeout,
)
from genmcp.client.options import Command, StdioOptions
from genmcp.client.transports.base import Transport, TransportSink
from genmcp.core.client.events import Send
from genmcp.wire.lines import MAX_MESSAGE, LineReader, OversizedMessage, frame

__all__ = ["OrphanGuard", "StdioTransport", "_ServerProcess"]

logger = logging.getLogger("genmcp.client")


class StdioTransport(Transport):
    """Starts *command*, talks to it over its standard streams, and ends it.

    max_message: the most bytes a line may have; one that is longer is lost, the next one is not.

    Neither the process nor what it has started outlives this one, also if this one is killed; on
    Linux the process does not outlive the thread it was started from either.
    """

    per_message: ClassVar[bool] = False

    def __init__(
        self,
        command: Command,
        options: StdioOptions | None = None,
        *,
        max_message: int = MAX_MESSAGE,
    ) -> None:
        self.where = str(command)
        self._command = command
        self._options = options or StdioOptions()
        self._max_message = max_message
        self._lines: LineReader
        self._sink: TransportSink
        self._process: _ServerProcess | None = None
        self._starting = asyncio.Lock()
        self._over: ClientError | None = None
        self._closed = False
        self._unsent: set[int] = set()  # requests that wait for the server to read
        self._waiting = 0

    @property
    def pid(self) -> int | None:
        """The number of the process, None before it is started."""
        return self._process.pid if self._process else None

    async def open(self, sink: TransportSink) -> None:
        """Start the process, or another one when it has ended.

        Raises:
            ConnectError: the command cannot be started.
            ClientClosed: `close` was called meanwhile.
        """
        if self._closed:
            raise ClientClosed(self.where)
        self._over = None
        self._lines = LineReader(self._max_message)
        self._sink = sink
        async with self._starting:
            self._process = await _ServerProcess.start(
                self._command, self._options, self._read, self._process_ended
            )
            if self._closed:
                await self._process.end()
                raise ClientClosed(self.where)

    async def send(self, message: Send) -> None:
        """Write a message, once the process has read most of what came before.

        A request that is cancelled before that is never written, and nor is that it is cancelled.

        Raises:
            RequestTimeout: it did not read for too long; what has a time of its own, a request,
                waits on.
            ConnectError: too much waits for it to read already.
            ClientError: the process is over.
        """
        if self._over is not None:
            raise self._over
        process = self._process
        if process is None:
            raise ClientClosed(self.where)
        if message.withdraws in self._unsent:
            self._unsent.remove(message.withdraws)
        elif process.writable or await self._turn(process, message):
            process.write(frame(message.message))

    async def close(self) -> None:
        """End the process, and return when it is gone."""
        self._closed = True
        self._over = self._over or ClientClosed(self.where)
        async with self._starting:  # what is being started now has to be ended as well
            if self._process is not None:
                await self._process.end()

    async def _turn(self, process: "_ServerProcess", message: Send) -> bool:
        """Wait until the process reads; return whether *message* is wanted still."""
        if message.id is None:
            await self._patiently(process, message.method or "an answer")
            return True
        self._unsent.add(message.id)
        await self._until_it_reads(process)
        wanted = message.id in self._unsent
        self._unsent.discard(message.id)
        return wanted

    async def _patiently(self, process: "_ServerProcess", what: str) -> None:
        if self._waiting >= self._options.max_pending_writes:
            raise ConnectError(
                self.where,
                f"it does not read, and {self._options.max_pending_writes} messages wait for that",
            )
        self._waiting += 1
        try:
            async with asyncio.timeout(self._options.write_timeout):
                await self._until_it_reads(process)
        except TimeoutError:
            raise RequestTimeout(
                f"sending {what}", self.where, self._options.write_timeout
            ) from None
        finally:
            self._waiting -= 1

    async def _until_it_reads(self, process: "_ServerProcess") -> None:
        if not await process.reads():
            raise self._over or ClientClosed(self.where)

    def _read(self, data: bytes) -> None:
        self._pass_on(self._lines.feed(data))

    def _pass_on(self, lines: list[bytes | OversizedMessage]) -> None:
        for line in lines:
            if self._over is not None:
                return
            if isinstance(line, OversizedMessage):
                logger.warning("%s wrote a line of %d bytes, which is lost", self.where, line.size)
                self._sink.on_oversized(line.size, line.head)
            else:
                self._sink.on_message(line)

    def _process_ended(self) -> None:
        self._pass_on(self._lines.finish())
        if self._over is None and self._process is not None:
            status, last_line = self._process.status, self._process.last_line
            self._over = ProcessExited(self.where, status, last_line)
            self._sink.on_failure(None, self._over)


server_logger = logging.getLogger("genmcp.server")

_IN, _OUT, _ERR = 0, 1, 2
_LINGER = 0.5  # seconds in which what a process has written is read when it has ended
_LOG_LINE = 64 * 1024  # bytes of a line of stderr; of a longer one the beginning is told
_PR_SET_PDEATHSIG = 1


class _ServerProcess(asyncio.SubprocessProtocol):
    """A running server. Told of are, in the event loop:

    out: what it wrote to stdout, in pieces. ended: that it is over, its output read.
    """

    def __init__(
        self,
        command: Command,
        options: StdioOptions,
        out: Callable[[bytes], None],
        ended: Callable[[], None],
    ) -> None:
        self.last_line = ""
        self._command = command
        self._options = options
        self._out = out
        self._ended = ended
        self._log = LineReader(_LOG_LINE)
        self._transport: asyncio.SubprocessTransport
        self._input: asyncio.WriteTransport
        self._lifeline: OrphanGuard
        self._fading: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._exited = asyncio.Event()
        self._over = asyncio.Event()

    @classmethod
    async def start(
        cls,
        command: Command,
        options: StdioOptions,
        out: Callable[[bytes], None],
        ended: Callable[[], None],
    ) -> "_ServerProcess":
        """Start *command*.

        Raises:
            ConnectError: it cannot be started.
        """
        try:
            # A session of its own: an interrupt typed at a terminal is for this process, which
            # then ends the server properly; and what the command has started can be ended with it.
            _, process = await asyncio.get_running_loop().subprocess_exec(
                lambda: cls(command, options, out, ended),
                command.command,
                *command.args,
                env=command.environment(),
                cwd=command.cwd,
                start_new_session=True,
                preexec_fn=_dying_with(os.getpid()),
            )
        except (OSError, ValueError) as error:
            raise ConnectError(str(command), f"it cannot be started: {error}") from error
        return process

    @property
    def pid(self) -> int:
        """The number the system knows it by."""
        return self._transport.get_pid()

    @property
    def status(self) -> int | None:
        """The exit status, negative for the signal that ended it; None while it runs."""
        return self._transport.get_returncode()

    @property
    def writable(self) -> bool:
        """Whether it has read most of what was written, and may read more."""
        return self._writable.is_set() and not self._gone

    def write(self, data: bytes) -> None:
        """Write to its stdin; nobody waits until it reads that."""
        self._input.write(data)

    async def reads(self) -> bool:
        """Wait until it is writable, or over; return whether it is writable."""
        while not self._writable.is_set() and not self._gone:
            await self._writable.wait()
        if self._gone:
            await self._over.wait()
            return False
        return True

    async def end(self) -> None:
        """End it, and return when it is over: by closing its stdin, SIGTERM, and SIGKILL.

        2026-07-28, stdio, "Shutdown".
        """
        try:
            await asyncio.wait((self._begin_to_fade(),))
            await self._wait_until_over()
        finally:
            # Also when this is cancelled, and when something else holds its streams open.
            if not self._over.is_set():
                self._signal(_KILL)
                self._transport.close()
        await self._wait_until_over()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Learn that the process runs."""
        # Casts: the transports of uvloop are of no class of asyncio's.
        self._transport = cast(asyncio.SubprocessTransport, transport)
        self._lifeline = OrphanGuard(self.pid)
        self._input = cast(asyncio.WriteTransport, self._transport.get_pipe_transport(_IN))
        output = self._transport.get_pipe_transport(_OUT)
        if isinstance(output, asyncio.ReadTransport):  # uvloop passes its output on at once anyway
            output.set_protocol(_StdoutProtocol(self._out, output.get_protocol()))

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Take what it has written."""
        if fd == _OUT:
            self._out(data)
        else:
            self._take_log(self._log.feed(data))

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        """Learn that it has closed one of its streams; a server ends with them."""
        if fd == _ERR:
            self._take_log(self._log.finish())
            return
        self._writable.set()
        if not self._exited.is_set():
            self._begin_to_fade()

    def process_exited(self) -> None:
        """Learn that it has ended; what it has written may still have to be read."""
        self._exited.set()
        self._writable.set()
        # What it has started may hold its streams open for as long as it likes.
        asyncio.get_running_loop().call_later(_LINGER, self._finish)

    def connection_lost(self, exc: Exception | None) -> None:
        """Learn that it has ended, and that everything is read."""
        self._finish()

    def pause_writing(self) -> None:
        """Learn that it does not read as fast as it is written to."""
        self._writable.clear()

    def resume_writing(self) -> None:
        """Learn that it has caught up."""
        self._writable.set()

    @property
    def _gone(self) -> bool:
        return self._exited.is_set() or self._fading is not None or self._input.is_closing()

    def _begin_to_fade(self) -> "asyncio.Task[None]":
        """End it from now on; once, whoever wants it: a second SIGTERM may mean something else."""
        if self._fading is None:
            self._fading = asyncio.get_running_loop().create_task(self._fade())
        return self._fading

    async def _fade(self) -> None:
        self._input.close()
        patience = self._options.exit_timeout
        for number in (signal.SIGTERM, _KILL, None):
            with suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await self._exited.wait()
                    return
            if number is not None:
                self._signal(number)
            patience = (
                self._options.term_timeout
                if number == signal.SIGTERM
                else self._options.kill_timeout
            )

        self._finish()  # it cannot be ended

    async def _wait_until_over(self) -> None:
        """Wait for its end, also for one that was given up: closing its transport kills it."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LINGER):
                await self._over.wait()
                await self._exited.wait()

    def _finish(self) -> None:
        if not self._over.is_set():
            self._over.set()
            self._signal(_KILL)
            self._lifeline.drop()
            self._transport.close()
            self._ended()

    def _signal(self, number: int) -> None:
        """Send a signal to the process and to all it has started."""
        with suppress(ProcessLookupError, PermissionError):
            if sys.platform == "win32":
                self._transport.send_signal(number)
            else:
                os.killpg(self.pid, number)

    def _take_log(self, lines: list[bytes | OversizedMessage]) -> None:
        for line in lines:
            raw = line.head if isinstance(line, OversizedMessage) else line
            self.last_line = raw.decode("utf-8", "replace").strip()
            self._tell(self.last_line)

    def _tell(self, line: str) -> None:
        if self._options.stderr is None:
            server_logger.info("%s: %s", self._command, line)
        elif self._options.stderr == "pass":
            sys.stderr.write(f"{line}\n")
        else:
            try:
                self._options.stderr(line)
            except Exception:
                logger.exception("the function that is given what a server writes to stderr failed")


class _StdoutProtocol(asyncio.Protocol):
    """The stdout of a process: *told* is given what comes of it, *owner* learns of its end.

    asyncio's own protocol, the owner, passes data on in the next turn of the loop, and a turn costs
    a tenth of a call.
    """

    def __init__(self, told: Callable[[bytes], None], owner: asyncio.BaseProtocol) -> None:
        self._told = told
        self._owner = owner

    def data_received(self, data: bytes) -> None:
        self._told(data)

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.connection_lost(exc)


_KILL: Final = signal.SIGTERM if sys.platform == "win32" else signal.SIGKILL


def _dying_with(parent: int) -> Callable[[], None] | None:
    """Return what makes a new process die with process *parent*, where the system can do that.

    It runs between fork and exec, so everything it needs is found before.
    """
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None).prctl

    def bind() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it was too late
            os._exit(1)

    return bind


#: Nothing is ever written to its input, which the system closes when the last process that has the
#: other end of it is gone, however that ended.
_SCRIPT: Final = 'read -r _; kill -9 "-$0"'


class OrphanGuard:
    """Kills the process group *group* when this process is gone, by a shell that waits for that.

    The signal that Linux can send to a child whose parent dies does not reach what the child has
    started: `npx` and `uv run` are not the server. Where there is no shell, nothing is done.
    """

    def __init__(self, group: int) -> None:
        self._shell: subprocess.Popen[bytes] | None = None
        with suppress(OSError):
            self._shell = subprocess.Popen(
                ("/bin/sh", "-c", _SCRIPT, str(group)),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
                start_new_session=True,
            )

    def drop(self) -> None:
        """Do nothing of that: the group is no more, and its number may soon be another's."""
        shell, self._shell = self._shell, None
        if shell is not None:
            shell.kill()
            shell.wait()  # it has no time to do anything else
            if shell.stdin is not None:
                shell.stdin.close()
