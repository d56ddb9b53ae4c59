"""The process of a server over stdio: its start, its three streams, and its end."""

import asyncio
import ctypes
import logging
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Final, cast

from genmcp.client.errors import ConnectError
from genmcp.client.lifeline import Lifeline
from genmcp.client.stdio_options import Command, StdioOptions
from genmcp.wire.lines import LineReader, OversizedMessage

__all__ = ["Process"]

logger = logging.getLogger("genmcp.client")
server_logger = logging.getLogger("genmcp.server")

_IN, _OUT, _ERR = 0, 1, 2
_LINGER = 0.5  # seconds in which what a process has written is read when it has ended
_KILLED = 5.0  # seconds the system has to end a process that is killed
_LOG_LINE = 64 * 1024  # bytes of a line of stderr; of a longer one the beginning is told
_PR_SET_PDEATHSIG = 1


class Process(asyncio.SubprocessProtocol):
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
        self._lifeline: Lifeline
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
    ) -> "Process":
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
        self._lifeline = Lifeline(self.pid)
        self._input = cast(asyncio.WriteTransport, self._transport.get_pipe_transport(_IN))
        output = self._transport.get_pipe_transport(_OUT)
        if isinstance(output, asyncio.ReadTransport):  # uvloop passes its output on at once anyway
            output.set_protocol(_Output(self._out, output.get_protocol()))

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
            patience = self._options.term_timeout if number == signal.SIGTERM else _KILLED

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


class _Output(asyncio.Protocol):
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
