"""Requests of the server to its clients, and the answers that come back in POSTs of their own.

2025-11-25, transports, "Sending Messages to the Server". The process that an answer reaches is not
known beforehand: the id of a request contains, sealed, the process that waits for the answer.
"""

import asyncio
import secrets
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from itertools import count

import msgspec

from genmcp.core.request import Request
from genmcp.core.seal import Purpose, Seal
from genmcp.errors import InvalidRequest, Raised, SealError, TimedOut, Unable
from genmcp.mux.bus import MessageBus
from genmcp.protocol.notifications import CancelledNotificationParams
from genmcp.protocol.value import Value
from genmcp.wire.encoder import Encoder
from genmcp.wire.jsonrpc import Message

__all__ = ["ServerRequests"]


class _Address(msgspec.Struct, frozen=True, array_like=True):
    """Where an answer goes: a process, the request's number there, the session of its client."""

    node: str
    number: int
    session: str


_decode = msgspec.msgpack.Decoder(_Address).decode


class Reply(msgspec.Struct, frozen=True, array_like=True, tag="answer"):
    """An answer on its way to the process that waits: a result as JSON, or the error's message."""

    number: int
    result: bytes
    error: str | None


class ServerRequests:
    """The requests of one mux that wait for an answer, each for *timeout* seconds."""

    def __init__(
        self,
        seal: Seal,
        bus: MessageBus,
        encoder: Encoder,
        *,
        timeout: float,
    ) -> None:
        self._seal = seal
        self._encoder = encoder
        self._bus = bus
        self._timeout = timeout
        self._numbers = count(1)
        # The bus calls from any thread, and a request is awaited on any event loop.
        self._waiting: dict[int, Future[Reply]] = {}
        bus.subscribe(Reply, self._on_reply)

    async def ask(
        self,
        request: Request,
        principal: str | None,
        method: str,
        params: Value,
        send: Callable[[bytes], Awaitable[None] | None],
    ) -> bytes:
        """Send a request to the client of *request* by *send*, and return its result as JSON.

        Raises:
            Failure: the client lacks the capability, responds with an error, or not in time.
        """
        revision = request.revision
        if request.session is None or method not in revision.methods:
            raise Unable({method.partition("/")[0]: {}})  # capabilities are named like this
        number, id = self._register(request.session, principal)
        reply_future = self._waiting[number]
        try:
            await _sent(send(self._encoder.request(revision, id, method, params)))
            async with asyncio.timeout(self._timeout):
                reply = await asyncio.wrap_future(reply_future)
        except (TimeoutError, asyncio.CancelledError) as error:
            # 2025-11-25, cancellation, and lifecycle, "Timeouts": the client SHOULD be notified;
            # otherwise its user might fill in a form for a call that is over.
            late = isinstance(error, TimeoutError)
            reason = str(TimedOut()) if late else "The call that asked is over"
            told = CancelledNotificationParams(request_id=id, reason=reason)
            cancelled = self._encoder.notification(revision, "notifications/cancelled", told)
            await _sent(send(cancelled))
            if late:
                raise TimedOut from None
            raise
        finally:
            self._waiting.pop(number, None)
        if reply.error is not None:
            raise Raised(secrets.token_hex(6), "ClientError", reply.error)
        return reply.result

    def _register(self, session: str, principal: str | None) -> tuple[int, str]:
        """Return the number of a new request to *session*, and its JSON-RPC id."""
        self._bus.open()
        number = next(self._numbers)
        address = _Address(self._bus.node, number, session)
        future: Future[Reply] = Future()
        self._waiting[number] = future
        # A caller that is cancelled cannot cancel it, so that a reply may always be set.
        future.set_running_or_notify_cancel()
        packed, ttl = msgspec.msgpack.encode(address), self._timeout
        return number, self._seal.seal(Purpose.SERVER_REQUEST, packed, principal, ttl=ttl)

    async def deliver(self, session: str, principal: str | None, message: Message) -> None:
        """Deliver a response of *session* to the process that waits for it.

        A late or repeated one is ignored.

        Raises:
            InvalidRequest: it answers no request to this session.
            StoreError: it cannot be delivered at present.
        """
        try:
            packed = self._seal.open(Purpose.SERVER_REQUEST, str(message.id), principal)
            address = _decode(packed)
        except (SealError, msgspec.MsgspecError):
            address = None
        if address is None or address.session != session:
            raise InvalidRequest("The response answers no request of this server")
        error = None if message.error is None else message.error.message
        reply = Reply(address.number, bytes(message.result), error)
        await self._bus.send(address.node, reply)

    def _on_reply(self, reply: Reply) -> None:
        if (future := self._waiting.pop(reply.number, None)) is not None:
            future.set_result(reply)


async def _sent(sending: Awaitable[None] | None) -> None:
    if sending is not None:
        await sending
