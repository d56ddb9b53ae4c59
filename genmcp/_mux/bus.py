"""Messages between the processes that share a store, and the server's requests to its clients.

All processes follow one log. Most messages name one process as their recipient, and the others
ignore them. A client's response to a request of the server may reach another process than the one
that waits for it, which then sends it on over the bus.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import aclosing
from functools import partial
from itertools import count
from threading import Lock
from typing import Any, ClassVar, Final, TypeVar
from weakref import WeakSet

import msgspec

from genmcp._core.request import Request
from genmcp._core.seal import Purpose, Seal
from genmcp._wire.encoder import Encoder
from genmcp._wire.jsonrpc import Message
from genmcp.errors import (
    CapabilityMissing,
    InvalidRequest,
    LogTruncated,
    SealError,
    StoreError,
    WaitTimedOut,
    WorkRaised,
)
from genmcp.protocol.params import CancelledNotificationParams
from genmcp.protocol.value import Value
from genmcp.stores.store import Append, LogEvent, Store

logger = logging.getLogger("genmcp")

M = TypeVar("M", bound=msgspec.Struct)

EVERYBODY: Final = ""
"""The name that addresses all processes, the sender included."""

_READ_AT_ONCE: Final = 1000  # messages

_AGAIN: Final = 1.0
"""Seconds after which a failed read of the store is repeated."""


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """A message in the log: its recipient, the name of its type, and its msgpack."""

    node: str
    kind: str
    payload: bytes


_decode_envelope: Final = msgspec.msgpack.Decoder(Envelope).decode


def _name_of(kind: type[msgspec.Struct]) -> str:
    """Return the name of a type of messages: its attribute `bus_name`, else that of the class.

    A class that is renamed keeps its `bus_name`, since processes of two releases share a log
    during a rolling deploy.
    """
    name: str = getattr(kind, "bus_name", kind.__name__)
    return name


class MessageBus:
    """Messages between the processes that serve one *audience*. Owned by the mux.

    Delivery is at least once: after a failure of the store a message may be handled twice. If the
    log drops a message (see *ttl* and *keep*) before a process has read it, the message is lost.

    Args:
        store: carries the messages. A store that no other process sees needs no log: the buses of
            this process handle a message before `send` returns.
        audience: the name of the log.
        ttl: seconds for which messages are retained for a slow process.
        keep: the number of messages that are retained.

    Attributes:
        node: the name of this process.
        current: whether all messages from before the bus was opened have been read.
    """

    def __init__(self, store: Store, audience: str, *, ttl: float, keep: int) -> None:
        self.node = secrets.token_urlsafe(9)
        self.current = False
        self._store = store
        self._log = f"inbox:{audience}"
        self._append = partial(Append, self._log, ttl=ttl, keep=keep)
        self._handlers: dict[str, tuple[Callable[[bytes], Any], Callable[[Any], None]]] = {}
        self._follower: asyncio.Task[None] | None = None
        self._reading: Future[None] = Future()  # awaited from any event loop

    def subscribe(self, kind: type[M], handler: Callable[[M], None]) -> None:
        """Register *handler*, which is called on any thread, for the messages of this *kind*."""
        self._handlers[_name_of(kind)] = (msgspec.msgpack.Decoder(kind).decode, handler)

    def open(self) -> None:
        """Start to receive messages on the running loop, unless this receives them already."""
        if not self._store.shared:
            if not self.current:
                with _lock:
                    _local.add(self)
                self.current = True
        elif (
            self._follower is None
            or self._follower.done()
            or self._follower.get_loop().is_closed()  # a host may be started a second time
        ):
            self.current, self._reading = False, Future()
            self._follower = asyncio.get_running_loop().create_task(self._follow())

    async def catch_up(self) -> None:
        """Wait until the bus, once opened, is `current`.

        Raises:
            StoreError: the store cannot be read at present.
        """
        if not self.current:
            await asyncio.shield(asyncio.wrap_future(self._reading))

    async def send(self, node: str, message: msgspec.Struct) -> None:
        """Send *message* to *node*, or to EVERYBODY.

        This process handles its own messages at once, before they are written.

        Raises:
            StoreError: the message cannot be written.
        """
        kind = _name_of(type(message))
        for bus in (self, *self._others()):
            if node in (bus.node, EVERYBODY):
                bus._handlers[kind][1](message)
        if node != self.node and self._store.shared:
            envelope = Envelope(node, kind, msgspec.msgpack.encode(message))
            await self._store.apply(self._append(msgspec.msgpack.encode(envelope)))

    def _others(self) -> "list[MessageBus]":
        """Return the other open buses with the same log in a store that is not shared."""
        with _lock:
            buses = [*_local]
        return [
            bus
            for bus in buses
            if bus is not self and bus._store is self._store and bus._log == self._log
        ]

    async def aclose(self) -> None:
        """Stop receiving messages."""
        with _lock:
            _local.discard(self)
        self.current = False
        follower, self._follower = self._follower, None
        if follower is not None and not follower.get_loop().is_closed():
            follower.cancel()
            await asyncio.wait([follower])

    async def _follow(self) -> None:
        after: str | None = None
        while True:
            try:
                # All stored messages are read first: until then this process does not know, for
                # example, which sessions have ended, and `current` is False. `follow` then yields
                # the messages that were appended meanwhile.
                while not self.current:
                    events = await self._store.read(self._log, after, _READ_AT_ONCE)
                    for event in events:
                        after = self._handle(event)
                    if not events:
                        self.current = True
                        self._reading.set_result(None)
                async with aclosing(self._store.follow(self._log, after)) as following:
                    async for event in following:
                        after = self._handle(event)
            except LogTruncated:
                # All retained messages are read again, so that some of them are handled twice.
                logger.warning("messages of other processes were dropped before they were read")
                after = None
            except StoreError as error:
                logger.warning("messages of other processes cannot be read: %s", error)
                if not self.current:
                    reading, self._reading = self._reading, Future()
                    reading.set_exception(error)
                await asyncio.sleep(_AGAIN)

    def _handle(self, event: LogEvent) -> str:
        """Handle the message in *event*, and return the id of the event."""
        try:
            envelope = _decode_envelope(event.data)
            if envelope.node in (self.node, EVERYBODY) and envelope.kind in self._handlers:
                decode, handler = self._handlers[envelope.kind]
                handler(decode(envelope.payload))
        except msgspec.MsgspecError as error:
            logger.warning("a message of another release cannot be read: %s", error)
        return event.id


_local: "WeakSet[MessageBus]" = WeakSet()
"""The open buses over stores that no other process sees."""
_lock = Lock()


# Requests of the server.


class _Address(msgspec.Struct, frozen=True, array_like=True):
    """The recipient of a response: its process, the request's number there, and the session."""

    node: str
    number: int
    session: str


_decode_address: Final = msgspec.msgpack.Decoder(_Address).decode


class ClientReply(msgspec.Struct, frozen=True, array_like=True, tag="answer"):
    """A client's response, for the process that waits: a result as JSON, or an error message."""

    bus_name: ClassVar[str] = "Reply"

    number: int
    result: bytes
    error: str | None


class ServerRequests(msgspec.Struct, eq=False):
    """The requests of one mux to its clients, each of which waits at most *timeout* seconds.

    2025-11-25, transports, "Sending Messages to the Server": responses come in POSTs of their own,
    which may reach any process. The id of each request therefore contains, sealed, the name of the
    process that waits for the response.
    """

    _seal: Seal
    _bus: MessageBus
    _encoder: Encoder
    _timeout: float
    # The bus calls from any thread, and a request is awaited on any event loop.
    _waiting: dict[int, "Future[ClientReply]"] = {}
    _numbers: Iterator[int] = msgspec.field(default_factory=count)

    def __post_init__(self) -> None:
        self._bus.subscribe(ClientReply, self._on_reply)

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
            WaitError: the client lacks the capability, responds with an error, or not in time.
        """
        revision = request.revision
        if request.session is None or method not in revision.methods:
            # The capability has the name of the method's first part.
            raise CapabilityMissing({method.partition("/")[0]: {}})
        number, id = self._register(request.session, principal)
        reply_future = self._waiting[number]
        try:
            await _sent(send(self._encoder.request(revision, id, method, params)))
            async with asyncio.timeout(self._timeout):
                reply = await asyncio.wrap_future(reply_future)
        except (TimeoutError, asyncio.CancelledError) as error:
            # 2025-11-25, cancellation, and lifecycle, "Timeouts": the client SHOULD be notified;
            # otherwise its user might fill in a form for a call that has ended.
            late = isinstance(error, TimeoutError)
            reason = str(WaitTimedOut()) if late else "The call has ended"
            params = CancelledNotificationParams(request_id=id, reason=reason)
            cancelled = self._encoder.notification(revision, "notifications/cancelled", params)
            await _sent(send(cancelled))
            if late:
                raise WaitTimedOut from None
            raise
        finally:
            self._waiting.pop(number, None)
        if reply.error is not None:
            raise WorkRaised(secrets.token_hex(6), "ClientError", reply.error)
        return reply.result

    def _register(self, session: str, principal: str | None) -> tuple[int, str]:
        """Return the number of a new request to *session*, and its JSON-RPC id."""
        self._bus.open()
        number = next(self._numbers)
        address = _Address(self._bus.node, number, session)
        future: Future[ClientReply] = Future()
        self._waiting[number] = future
        # A future that is marked as running cannot be cancelled. If its caller is cancelled,
        # another thread can still set the reply, without a race against the cancellation.
        future.set_running_or_notify_cancel()
        packed, ttl = msgspec.msgpack.encode(address), self._timeout
        return number, self._seal.seal(Purpose.SERVER_REQUEST, packed, principal, ttl=ttl)

    async def deliver(self, session: str, principal: str | None, message: Message) -> None:
        """Deliver a response of *session* to the process that waits for it.

        A late or repeated response is ignored.

        Raises:
            InvalidRequest: it answers no request to this session.
            StoreError: it cannot be delivered at present.
        """
        try:
            packed = self._seal.open(Purpose.SERVER_REQUEST, str(message.id), principal)
            address = _decode_address(packed)
        except (SealError, msgspec.MsgspecError):
            address = None
        if address is None or address.session != session:
            raise InvalidRequest("The response answers no request of this server")
        error = None if message.error is None else message.error.message
        reply = ClientReply(address.number, bytes(message.result), error)
        await self._bus.send(address.node, reply)

    def _on_reply(self, reply: ClientReply) -> None:
        if (future := self._waiting.pop(reply.number, None)) is not None:
            future.set_result(reply)


async def _sent(sending: Awaitable[None] | None) -> None:
    if sending is not None:
        await sending
