"""Event streams that no call writes: those of listeners, and streams that are resumed."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Collection, Iterator
from contextlib import aclosing, contextmanager, suppress

from genmcp.core.actions import Action, Begin, Chunk, End
from genmcp.core.client_key import ClientKey
from genmcp.mux.mux import Mux
from genmcp.transports.asgi import ClientLeft, Receive, left, perform
from genmcp.transports.shutdown import LAST_WORDS
from genmcp.transports.visit import Visit
from genmcp.wire.sse import COMMENT

__all__ = ["EventStream", "place"]


class EventStream:
    """Sends what a source yields until it ends, the client leaves, or it is told to stop.

    *heartbeat* is how many seconds of silence a comment breaks. *farewell* is the event that
    tells the client that it was the server who ended the stream.
    """

    idle = True

    def __init__(self, visit: Visit, *, farewell: bytes = b"") -> None:
        self._visit = visit
        self._heartbeat = visit.heartbeat
        self._stall = visit.mux.limits.stall
        self._farewell = farewell
        self._stopped = visit.loop.create_future()

    def stop(self) -> None:
        """End the stream; its client may come back elsewhere. From any thread."""
        with suppress(RuntimeError):  # the loop was closed, and the stream went with it
            self._visit.loop.call_soon_threadsafe(self._stop)

    def _stop(self) -> None:
        if not self._stopped.done():
            self._stopped.set_result(None)

    def hand_over(self) -> None:
        """Leave the stream to another connection of its client, which is there already."""
        self.stop()

    async def serve(self, source: AsyncGenerator[bytes, None]) -> None:
        """Answer with the events of *source*, which have the form they have on the wire.

        Raises:
            ClientLeft: a write told of it.
        """
        visit = self._visit
        visit.answered = True
        visit.shutdown.add(self)
        try:
            async with aclosing(source):
                await self._serve(source, visit.receive)
        finally:
            visit.shutdown.discard(self)

    async def _serve(self, source: AsyncIterator[bytes], receive: Receive) -> None:
        loop = asyncio.get_running_loop()
        ends = {self._stopped, loop.create_task(left(receive))}
        following = loop.create_task(_next(source))
        try:
            await self._perform(Begin(), ends)
            while True:
                done, _ = await asyncio.wait(
                    {following, *ends},
                    timeout=self._heartbeat,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if following in done:
                    data = following.result()
                    if data is None:
                        break
                    await self._perform(Chunk(data), ends)
                    following = loop.create_task(_next(source))
                elif done:
                    break
                else:
                    await self._perform(Chunk(COMMENT), ends)
            await self._perform(End(self._farewell), ())
        finally:
            for task in (following, *ends):
                task.cancel()
            await asyncio.gather(following, *ends, return_exceptions=True)

    async def _perform(self, action: Action, ends: Collection["asyncio.Future[None]"]) -> None:
        """Write, for as long as the client reads and none of *ends* has come."""
        writing = asyncio.get_running_loop().create_task(
            perform([action], self._visit.send, self._visit.headers)
        )
        await asyncio.sleep(0)  # a write that nothing holds up is done after this
        try:
            if not writing.done():
                patience = self._stall if ends else LAST_WORDS
                await asyncio.wait(
                    {writing, *ends}, timeout=patience, return_when=asyncio.FIRST_COMPLETED
                )
            if not writing.done():
                raise ClientLeft
            writing.result()
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)


async def _next(source: AsyncIterator[bytes]) -> bytes | None:
    return await anext(source, None)


@contextmanager
def place(mux: Mux, client: ClientKey) -> Iterator[None]:
    """Count an open stream of *client* while the context is entered.

    Raises:
        Overloaded: the client, or all clients, have too many streams.
    """
    streams = mux.streams
    streams.check(client)
    slots = streams.acquire(client)
    try:
        yield
    finally:
        streams.release(slots)
