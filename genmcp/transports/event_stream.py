"""Event streams that no call writes: a session's own stream, and streams that are resumed."""

import asyncio
from collections.abc import AsyncIterator, Collection
from typing import Final

from genmcp.core.actions import Action, Begin, Chunk, End
from genmcp.stores.waiter import Waiter
from genmcp.transports.asgi import ClientLeft, Headers, Receive, Send, left, perform
from genmcp.wire.sse import COMMENT

__all__ = ["EventStream"]


_LAST_WORDS: Final = 1.0
"""How many seconds the end of a stream may take to be written."""


class EventStream:
    """Sends what a source yields until it ends, the client leaves, or it is told to stop.

    *heartbeat* is how many seconds of silence a comment breaks.
    """

    idle = True

    def __init__(self, send: Send, *, headers: Headers, heartbeat: float, stall: float) -> None:
        self._send = send
        self._headers = headers
        self._heartbeat = heartbeat
        self._stall = stall
        self._stopped = Waiter()

    def stop(self) -> None:
        """End the stream; its client may come back elsewhere. From any thread."""
        self._stopped.wake()

    def hand_over(self) -> None:
        """Leave the stream to another connection of its client, which is there already."""
        self.stop()

    async def serve(self, source: AsyncIterator[bytes], receive: Receive) -> None:
        """Send the events of *source*, which are complete in the form they have on the wire.

        Raises:
            ClientLeft: a write told of it.
        """
        loop = asyncio.get_running_loop()
        ends = {loop.create_task(self._stopped.wait()), loop.create_task(left(receive))}
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
            await self._perform(End(), ())
        finally:
            for task in (following, *ends):
                task.cancel()
            await asyncio.gather(following, *ends, return_exceptions=True)

    async def _perform(self, action: Action, ends: Collection["asyncio.Task[None]"]) -> None:
        """Write, for as long as the client reads and none of *ends* has come."""
        writing = asyncio.get_running_loop().create_task(
            perform([action], self._send, self._headers)
        )
        await asyncio.sleep(0)  # a write that nothing holds up is done after this
        try:
            if not writing.done():
                patience = self._stall if ends else _LAST_WORDS
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
