"""Requests of the server to its clients, and the answers that come back in POSTs of their own.

2025-11-25, transports, "Sending Messages to the Server". Which process an answer comes to is not
known beforehand: the id of a request says, sealed, who waits for it.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any, Final

import msgspec

from genmcp.core.request import Request
from genmcp.core.seal import Purpose, Seal
from genmcp.errors import InvalidRequest, Raised, SealError, TimedOut, Unable
from genmcp.mux.inbox import Inbox
from genmcp.mux.seals import Seals
from genmcp.protocol.notifications import CancelledNotificationParams
from genmcp.protocol.value import Value
from genmcp.wire.encoder import Encoder
from genmcp.wire.jsonrpc import Message

__all__ = ["ServerRequests"]


class _Place(msgspec.Struct, frozen=True, array_like=True):
    """Who waits for an answer: a process, its number there, the session that is asked."""

    node: str
    number: int
    session: str


class Reply(msgspec.Struct, frozen=True, array_like=True, tag="answer"):
    """An answer on its way to the process that waits: a result as JSON, or the error's message."""

    number: int
    result: bytes
    error: str | None


class Asking(msgspec.Struct, frozen=True, eq=False):
    """One request that waits for its answer; *id* is its JSON-RPC id."""

    id: str
    number: int
    reply: "asyncio.Future[Reply]"
    loop: asyncio.AbstractEventLoop


class ServerRequests:
    """The requests of one mux that wait for an answer, each for *timeout* seconds.

    now: the clock of all processes that open the same seals.
    """

    def __init__(
        self,
        seal: Seal,
        now: Callable[[], float],
        inbox: Inbox,
        encoder: Encoder,
        *,
        timeout: float,
    ) -> None:
        self._seals = Seals(seal, Purpose.SERVER_REQUEST, now, ttl=timeout)
        self._encoder = encoder
        self._inbox = inbox
        self._timeout = timeout
        self._numbers = count(1)
        self._waiting: dict[int, Asking] = {}
        inbox.take(Reply, self._arrived)

    async def ask(
        self,
        request: Request,
        principal: str | None,
        method: str,
        params: Value,
        say: Callable[[bytes], Awaitable[None] | None],
    ) -> bytes:
        """Ask the client of *request*, by *say*, and return its answer as JSON.

        Raises:
            Failure: the client cannot be asked, answers with an error, or not in time.
        """
        if request.session is None or method not in request.revision.methods:
            raise Unable({method.partition("/")[0]: {}})  # the capabilities are called like that
        asking = self._begin(request.session, principal)
        encode, revision = self._encoder, request.revision
        try:
            await _said(say(encode.request(revision, asking.id, method, params)))
            async with asyncio.timeout(self._timeout):
                reply = await asking.reply
        except (TimeoutError, asyncio.CancelledError) as error:
            # 2025-11-25, cancellation, and lifecycle, "Timeouts": the client SHOULD be told that
            # nobody waits any more; it may have somebody before it who would answer for nothing.
            late = isinstance(error, TimeoutError)
            reason = str(TimedOut()) if late else "The call that asked is over"
            told = CancelledNotificationParams(request_id=asking.id, reason=reason)
            await _said(say(encode.notification(revision, "notifications/cancelled", told)))
            if late:
                raise TimedOut from None
            raise
        finally:
            self._waiting.pop(asking.number, None)
        if reply.error is not None:
            raise Raised(secrets.token_hex(6), "ClientError", reply.error)
        return reply.result

    def _begin(self, session: str, principal: str | None) -> Asking:
        self._inbox.open()
        number = next(self._numbers)
        place = _Place(self._inbox.node, number, session)
        id = self._seals.seal(msgspec.msgpack.encode(place), principal)
        loop = asyncio.get_running_loop()
        self._waiting[number] = asking = Asking(id, number, loop.create_future(), loop)
        return asking

    async def take(self, session: str, principal: str | None, message: Message) -> None:
        """Take in a response of *session*.

        One that comes too late, or again, is dropped.

        Raises:
            InvalidRequest: it answers nothing that this session was asked.
        """
        try:
            place = _decoder.decode(self._seals.open(str(message.id), principal))
        except (SealError, msgspec.MsgspecError):
            place = None
        if place is None or place.session != session:
            raise InvalidRequest("The response answers no request of this server")
        error = None if message.error is None else message.error.message
        reply = Reply(place.number, bytes(message.result), error)
        await self._inbox.send(place.node, reply)

    def _arrived(self, reply: Reply) -> None:
        asking = self._waiting.pop(reply.number, None)
        if asking is not None:
            _soon(asking.loop, _settle, asking.reply, reply)


async def _said(saying: Awaitable[None] | None) -> None:
    if saying is not None:
        await saying


def _settle(future: "asyncio.Future[Reply]", reply: Reply) -> None:
    if not future.done():
        future.set_result(reply)


def _soon(loop: asyncio.AbstractEventLoop, step: Callable[..., None], *arguments: Any) -> None:
    if not loop.is_closed():
        loop.call_soon_threadsafe(step, *arguments)


_decoder: Final = msgspec.msgpack.Decoder(_Place)
