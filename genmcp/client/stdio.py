"""stdio: the server is a process of ours, one message a line.

2026-07-28, stdio; the same in every revision before.
"""

import asyncio
import logging
from typing import ClassVar, Final

from genmcp.client.errors import (
    ClientClosed,
    ClientError,
    ConnectError,
    ProcessExited,
    RequestTimeout,
)
from genmcp.client.process import Process
from genmcp.client.stdio_options import Command, StdioOptions
from genmcp.client.transport import Sink, Transport
from genmcp.core.client_events import Send
from genmcp.wire.lines import MAX_MESSAGE, LineReader, OversizedMessage, frame

__all__ = ["StdioTransport"]

logger = logging.getLogger("genmcp.client")

_MOST: Final = 1000  # notifications and answers that may wait for the server to read


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
        self._sink: Sink
        self._process: Process | None = None
        self._starting = asyncio.Lock()
        self._over: ClientError | None = None
        self._closed = False
        self._unsent: set[int] = set()  # requests that wait for the server to read
        self._waiting = 0

    @property
    def pid(self) -> int | None:
        """The number of the process, None before it is started."""
        return self._process.pid if self._process else None

    async def open(self, sink: Sink) -> None:
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
            self._process = await Process.start(
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

    async def _turn(self, process: Process, message: Send) -> bool:
        """Wait until the process reads; return whether *message* is wanted still."""
        if message.id is None:
            await self._patiently(process, message.method or "an answer")
            return True
        self._unsent.add(message.id)
        await self._until_it_reads(process)
        wanted = message.id in self._unsent
        self._unsent.discard(message.id)
        return wanted

    async def _patiently(self, process: Process, what: str) -> None:
        if self._waiting >= _MOST:
            raise ConnectError(self.where, f"it does not read, and {_MOST} messages wait for that")
        self._waiting += 1
        try:
            async with asyncio.timeout(self._options.stall):
                await self._until_it_reads(process)
        except TimeoutError:
            raise RequestTimeout(f"sending {what}", self.where, self._options.stall) from None
        finally:
            self._waiting -= 1

    async def _until_it_reads(self, process: Process) -> None:
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
                self._sink.too_long(line.size, line.head)
            else:
                self._sink.received(line)

    def _process_ended(self) -> None:
        self._pass_on(self._lines.finish())
        if self._over is None and self._process is not None:
            status, last_line = self._process.status, self._process.last_line
            self._over = ProcessExited(self.where, status, last_line)
            self._sink.failed(None, self._over)
