"""stdio: the server is a process of ours, one message a line.

2026-07-28, stdio; the same in every revision before.
"""

import asyncio
import logging
from typing import ClassVar

from genmcp.client.errors import ClientError, Closed, ProcessEnded
from genmcp.client.process import Process
from genmcp.client.stdio_options import Command, StdioOptions
from genmcp.client.transport import Sink, Transport
from genmcp.core.client_events import Send
from genmcp.wire.lines import MAX_MESSAGE, LineReader, TooLong, frame

__all__ = ["StdioTransport"]

logger = logging.getLogger("genmcp.client")


class StdioTransport(Transport):
    """Starts *command*, talks to it over its standard streams, and ends it.

    max_message: the most bytes a line may have; one that is longer is lost, the next one is not.

    The process does not outlive this one (on Linux also if this one is killed), nor the thread it
    was started from.
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
        self._lines = LineReader(max_message)
        self._sink: Sink
        self._process: Process | None = None
        self._starting = asyncio.Lock()
        self._over: ClientError | None = None

    @property
    def pid(self) -> int | None:
        """The number of the process, None before it is started."""
        return self._process.pid if self._process else None

    async def open(self, sink: Sink) -> None:
        """Start the process.

        Raises:
            Unreachable: the command cannot be started.
            Closed: `close` was called meanwhile.
        """
        if self._over is not None:
            raise self._over
        self._sink = sink
        async with self._starting:
            self._process = await Process.start(
                self._command, self._options, self._read, self._process_ended
            )
            if isinstance(self._over, Closed):
                await self._process.end()
                raise self._over

    async def send(self, message: Send) -> None:
        """Write a message, once the process has read most of what came before."""
        if self._over is not None:
            raise self._over
        process = self._process
        if process is None:
            raise Closed(self.where)
        if not await process.write(frame(message.message)):
            raise self._over or Closed(self.where)

    async def close(self) -> None:
        """End the process, and return when it is gone."""
        self._over = self._over or Closed(self.where)
        async with self._starting:  # what is being started now has to be ended as well
            if self._process is not None:
                await self._process.end()

    def _read(self, data: bytes) -> None:
        self._pass_on(self._lines.feed(data))

    def _pass_on(self, lines: list[bytes | TooLong]) -> None:
        for line in lines:
            if self._over is not None:
                return
            if isinstance(line, TooLong):
                logger.warning("%s wrote a line of %d bytes, which is lost", self.where, line.size)
                self._sink.too_long(line.size, line.head)
            else:
                self._sink.received(line)

    def _process_ended(self) -> None:
        self._pass_on(self._lines.finish())
        if self._over is None and self._process is not None:
            status, last_line = self._process.status, self._process.last_line
            self._over = ProcessEnded(self.where, status, last_line)
            self._sink.failed(None, self._over)
