"""Standard streams: one client, which has started this process.

2026-07-28, basic/transports, "stdio"; 2025-11-25, transports, "stdio".
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import NamedTuple

from genmcp.errors import TooLarge
from genmcp.mux.mux import Mux, mux_of
from genmcp.server import Server
from genmcp.transports.conversation import PipeConnection
from genmcp.transports.descriptors import Reader, Writer
from genmcp.transports.shutdown import LAST_WORDS
from genmcp.wire.lines import LineReader, TooLong

__all__ = ["Streams", "private_streams", "serve_stdio", "serve_streams"]


class Streams(NamedTuple):
    """Two file descriptors: where messages come from, and where they go."""

    reader: int
    writer: int


async def serve_stdio(
    target: Mux | Server, *, principal: str | None = None, grace: float = 0.5
) -> None:
    """Serve a mux, or a server in a mux of its own, over standard input and output.

        asyncio.run(serve_stdio(suite))

    It returns when the input ends, or nobody reads the output any more. What is open then has
    *grace* seconds to end by itself, and is cancelled. *principal* is who is served.

    Until then the real output is nobody else's: what is printed, here or by a program that a tool
    runs, goes to standard error, and standard input is empty.
    """
    with private_streams() as streams:
        await serve_streams(target, streams, principal=principal, grace=grace)


@contextmanager
def private_streams() -> Iterator[Streams]:
    """Give the real standard input and output, which nothing else reads or writes meanwhile."""
    streams = Streams(os.dup(0), os.dup(1))
    nothing = os.open(os.devnull, os.O_RDONLY)
    try:
        os.dup2(nothing, 0)
        os.dup2(2, 1)
        if sys.stdout is not None:
            sys.stdout.flush()  # what was printed before was meant for nobody's client either
        with redirect_stdout(sys.stderr):
            yield streams
    finally:
        if sys.stdout is not None:
            sys.stdout.flush()
        os.dup2(streams.reader, 0)
        os.dup2(streams.writer, 1)
        for each in (nothing, *streams):
            os.close(each)


async def serve_streams(
    target: Mux | Server, streams: Streams, *, principal: str | None = None, grace: float = 0.5
) -> None:
    """Serve a mux, or a server, as `serve_stdio` does, over other *streams*: a pair of pipes, say.

    They are left open.
    """
    mux = mux_of(target)
    reader = Reader(streams.reader)
    writer = Writer(streams.writer, mux.limits, read=lambda: connection.flush(), gone=reader.close)
    connection = PipeConnection(mux, writer, principal=principal)
    lines = LineReader(mux.limits.body)
    try:
        while data := await reader.read():
            for line in lines.feed(data):
                _take(connection, line, mux)
            await writer.room()
        for line in lines.finish():
            _take(connection, line, mux)
    finally:
        await connection.end(grace=grace)
        await writer.finish(LAST_WORDS)
        if mux is not target:
            await mux.aclose()


def _take(connection: PipeConnection, line: bytes | TooLong, mux: Mux) -> None:
    if isinstance(line, TooLong):
        most = mux.limits.body
        error = TooLarge(f"A message of {line.size} bytes is larger than {most} (limit: body)")
        connection.reject_front(line.head, error)
    else:
        connection.receive(line)
