"""Calls of a stream whose process is gone, finished for the client that came back for them.

2025-11-25, transports, "Resumability and Redelivery": a client that lost its connection resumes,
and any process may be the one that it reaches.
"""

import asyncio
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from genmcp.channel import Channel
from genmcp.core.client_key import ClientKey
from genmcp.core.request import Request
from genmcp.core.session import Session
from genmcp.core.task import LOST
from genmcp.errors import McpError, StoreError
from genmcp.mux.kept_call import KeptCall
from genmcp.mux.mux import Mux
from genmcp.mux.replay import OpenCall
from genmcp.protocol.params import RequestParams
from genmcp.transports.piped import PipedCall
from genmcp.transports.visit import Visit
from genmcp.wire.jsonrpc import ErrorBody

__all__ = ["Recovery"]

_AGAIN: Final = 1.0
"""Seconds after which a store that failed is asked again."""

_WAITING: Final = 16
"""How many messages wait for a client that reads slowly; then the calls wait."""


class Recovery:
    """The calls of a resumed stream. Owned by the GET of the client, and the pipe of the calls.

    A call that waits for a task is followed to the end of that task, and its questions are asked
    anew. Any other has ended with its process, and gets an error.
    """

    copied: Mapping[str, Any] | None = None
    keep: Collection[str] = ()

    def __init__(self, visit: Visit, session: Session) -> None:
        self.mux: Mux = visit.mux
        self.principal = visit.principal
        self.client_key: ClientKey = visit.client_key
        self._session = session
        self._messages: asyncio.Queue[bytes] = asyncio.Queue(_WAITING)

    async def messages(self, calls: Sequence[OpenCall]) -> AsyncGenerator[bytes, None]:
        """Yield the messages of *calls*, up to the answer of each."""
        left: asyncio.Future[Any] = asyncio.gather(*map(self._finish, calls))
        try:
            while not (left.done() and self._messages.empty()):
                coming: asyncio.Future[Any] = asyncio.ensure_future(self._messages.get())
                try:
                    await asyncio.wait({coming, left}, return_when=asyncio.FIRST_COMPLETED)
                    if coming.done():
                        yield coming.result()
                finally:
                    coming.cancel()
        finally:
            left.cancel()
            await asyncio.gather(left, return_exceptions=True)

    async def _finish(self, call: OpenCall) -> None:
        """Say what becomes of *call*, which has this one response left."""
        request = Request(
            id=call.id,
            method=call.method,
            params=RequestParams(),  # those of a task that is over are not kept
            revision=self._session.revision,
            client=self._session.client,
            session=self._session.key,
        )
        try:
            if call.task is None:
                lost = msgspec.json.decode(LOST, type=ErrorBody)
                raise McpError(lost.message, code=lost.code)
            answer = self.mux.said(request, await self._followed(request, call.task))
        except Exception as error:  # whatever it is, the client gets an answer
            answer = self.mux.failure(request, error)
        assert answer.message is not None
        await self.say(answer.message)

    async def _followed(self, request: Request, task: str) -> Any:
        while True:
            try:
                kept = await self.mux.long.jobs.call(task)
                if kept is not None:
                    request = KeptCall.unpack(kept).request()
                channel = Channel(request, PipedCall(self, request), self.principal)
                return await self.mux.long.continuations.followed(task, channel)
            except StoreError:
                await asyncio.sleep(_AGAIN)

    # What the calls say on the way.

    async def say(self, message: bytes) -> None:
        """Send *message*, once there is room."""
        await self._messages.put(message)

    async def report(self, request: Request, message: bytes) -> None:
        """Send the progress of *request*, once there is room."""
        await self.say(message)

    async def answer(self, request: Request, message: bytes | None) -> None:
        """Send what answers *request*."""
        if message is not None:
            await self.say(message)
