"""Completion of calls whose process has died, for a client that resumes their stream.

2025-11-25, transports, "Resumability and Redelivery": a client that lost its connection resumes,
and its request may reach any process.
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
from genmcp.mux.mux import Mux
from genmcp.mux.replay import OpenCall
from genmcp.mux.resumption import StoredRequest
from genmcp.protocol.params import RequestParams
from genmcp.transports.piped import PipedCall
from genmcp.transports.visit import Visit
from genmcp.wire.jsonrpc import ErrorBody

__all__ = ["Recovery"]

_AGAIN: Final = 1.0
"""Seconds before a failed access to the store is retried."""

_WAITING: Final = 16
"""Messages buffered for a client that reads slowly; when the buffer is full, the calls wait."""


class Recovery:
    """The unanswered calls of a resumed stream, and the pipe of their messages. Owned by the GET.

    A call that waits for a task is followed to the end of that task, and its questions are sent
    again. Any other call ended with its process and is answered with an error.
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
        """Yield the messages of *calls* until each of them is answered."""
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
        """Send the answer to *call*: the result of its task, or an error."""
        request = Request(
            id=call.id,
            method=call.method,
            params=RequestParams(),  # the params of a finished task are not stored
            revision=self._session.revision,
            client=self._session.client,
            session=self._session.key,
        )
        try:
            if call.task is None:
                lost = msgspec.json.decode(LOST, type=ErrorBody)
                raise McpError(lost.message, code=lost.code)
            answer = self.mux.said(request, await self._followed(request, call.task))
        except Exception as error:  # the client must get an answer in any case
            answer = self.mux.failure(request, error)
        assert answer.message is not None
        await self.say(answer.message)

    async def _followed(self, request: Request, task: str) -> Any:
        while True:
            try:
                kept = await self.mux.tasks.service.records.call(task)
                if kept is not None:
                    request = StoredRequest.unpack(kept).request()
                channel = Channel(request, PipedCall(self, request), self.principal)
                return await self.mux.continuations.followed(task, channel)
            except StoreError:
                await asyncio.sleep(_AGAIN)

    # Messages of the calls.

    async def say(self, message: bytes) -> None:
        """Send *message*, waiting for room in the buffer."""
        await self._messages.put(message)

    async def report(self, request: Request, message: bytes) -> None:
        """Send the progress of *request*, waiting for room in the buffer."""
        await self.say(message)

    async def answer(self, request: Request, message: bytes | None) -> None:
        """Send the answer to *request*, if there is one."""
        if message is not None:
            await self.say(message)
