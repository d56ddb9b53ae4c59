"""Messages between the processes that share a store, and the server's requests to its clients.

Each process follows two logs: the messages to all processes, and those to itself. A log drops its
oldest messages, and its messages expire. A process that fell behind, because it was suspended or
because of a burst of messages, therefore reads again what the messages have changed: the handler of
each kind of message is registered together with a function that does this.

| Message | What it changes | Where that is stored |
| `EndSession` | the ended sessions | the log itself, for the lifetime of a session |
| `CancelInSession` | the calls of a session | a log of the session, beside the messages |
| `StopTask` | a call that runs as a task | the record of the task, also read once per lease |
| `ClientReply` | a request to a client | a record beside the message, until it was read |

Changes of lists and resources, and those of tasks, have logs of their own (`genmcp._mux.changes`,
`genmcp.tasks.follower`); the log level of a session is read from its record.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from contextlib import aclosing, suppress
from functools import partial
from itertools import count
from threading import Lock
from typing import Any, ClassVar, Final, NamedTuple, TypeVar
from weakref import WeakSet

import msgspec

from genmcp._core.request import Request
from genmcp._core.seal import Purpose, Seal
from genmcp._wire.encoder import Encoder
from genmcp._wire.jsonrpc import Message
from genmcp.cancellation import cancel_and_wait
from genmcp.errors import (
    CapabilityMissing,
    InvalidRequest,
    LogTruncated,
    SealError,
    StoreError,
    StoreUnavailable,
    WaitTimedOut,
    WorkRaised,
)
from genmcp.protocol.params import CancelledNotificationParams
from genmcp.protocol.value import Value
from genmcp.stores.following import follow, retry_read
from genmcp.stores.store import Append, Delete, LogEvent, Op, Put, Store

logger = logging.getLogger("genmcp")

M = TypeVar("M", bound=msgspec.Struct)

EVERYBODY: Final = ""
"""The name that addresses all processes, the sender included."""


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


class _Kind(NamedTuple):
    """A kind of message: its decoder, its handler, and the function that recovers lost messages."""

    decode: Callable[[bytes], Any]
    handle: Callable[[Any], None]
    recover: Callable[[], Awaitable[None]] | None


class MessageBus:
    """Messages between the processes that serve one *audience*. Owned by the mux.

    Delivery is at least once: a message may be handled twice. A process that did not read a message
    before the log dropped it recovers the state instead, see `subscribe`.

    Args:
        store: carries the messages. A store that no other process sees needs no log: the buses of
            this process handle a message before `send` returns.
        audience: the name of the log of messages to EVERYBODY.
        ttl: seconds for which messages are retained for a slow process.
        keep: the number of messages that are retained. keep_bytes: their total size; None
            (the default): unlimited.
        addressed: whether messages to single processes are sent, which have a log for each
            recipient: neither kind of messages makes a log drop those of the other.

    Attributes:
        node: the name of this process.
        store: as given.
        current: whether all messages from before the bus was opened, or fell behind, were read.
    """

    def __init__(
        self,
        store: Store,
        audience: str,
        ttl: float,
        keep: int,
        keep_bytes: int | None = None,
        *,
        addressed: bool = True,
    ) -> None:
        self.node = secrets.token_urlsafe(9)
        self.current = False
        self.store = store
        self._log = f"inbox:{audience}"
        self._append = partial(Append, ttl=ttl, keep=keep, keep_bytes=keep_bytes)
        self._kinds: dict[str, _Kind] = {}
        logs = [self._log, self.log_of(self.node)] if addressed else [self._log]
        self._inboxes = [_Inbox(store, log, self._handle, self._recover) for log in logs]

    def log_of(self, node: str) -> str:
        """Return the name of the log with the messages to *node*, or to EVERYBODY.

        It is also the subject of the data that a sender writes together with a message.
        """
        return f"inbox:{node}" if node else self._log

    def subscribe(
        self,
        kind: type[M],
        handler: Callable[[M], None],
        recover: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """Register *handler*, which is called on any thread, for the messages of this *kind*.

        Args:
            kind: the type of the messages.
            handler: handles a message; it may be called twice with the same one.
            recover: called on the loop of the bus if messages may have been dropped before they
                were read. It reads from the store what they have changed. It is called again if it
                raises a StoreError. None (the default): the log retains all messages that count.
        """
        decode = msgspec.msgpack.Decoder(kind).decode
        self._kinds[_name_of(kind)] = _Kind(decode, handler, recover)

    def open(self) -> None:
        """Start to receive messages on the running loop, unless this receives them already."""
        if not self.store.shared:
            if not self.current:
                with _lock:
                    _local.add(self)
                self.current = True
            return
        for inbox in self._inboxes:
            inbox.open(self._check_current)
        self._check_current()

    def _check_current(self) -> None:
        self.current = all(inbox.current for inbox in self._inboxes)

    async def catch_up(self) -> None:
        """Wait until the bus, once opened, is `current`.

        Raises:
            StoreError: the store cannot be read at present.
        """
        if not self.current:
            await asyncio.gather(*(inbox.catch_up() for inbox in self._inboxes))

    async def send(
        self, node: str, message: msgspec.Struct, *data: Op, written_first: bool = False
    ) -> None:
        """Send *message* to *node*, or to EVERYBODY.

        Args:
            node: the recipient.
            message: handled by this process at once, if it is a recipient.
            *data: operations on the subject `log_of(node)`, written together with the message.
            written_first: whether this process handles the message only once it is written.
                Default False.

        Raises:
            StoreError: the message cannot be written.
        """
        if not written_first:
            self._handle_here(node, message)
        if node != self.node and self.store.shared:
            envelope = Envelope(node, _name_of(type(message)), msgspec.msgpack.encode(message))
            append = self._append(self.log_of(node), msgspec.msgpack.encode(envelope))
            await self.store.apply(*data, append)
        if written_first:
            self._handle_here(node, message)

    def _handle_here(self, node: str, message: msgspec.Struct) -> None:
        kind = _name_of(type(message))
        for bus in (self, *self._others()):
            if node in (bus.node, EVERYBODY):
                bus._kinds[kind].handle(message)

    def _others(self) -> "list[MessageBus]":
        """Return the other open buses with the same log in a store that is not shared."""
        with _lock:
            buses = [*_local]
        return [
            bus
            for bus in buses
            if bus is not self and bus.store is self.store and bus._log == self._log
        ]

    async def aclose(self) -> None:
        """Stop receiving messages."""
        with _lock:
            _local.discard(self)
        for inbox in self._inboxes:
            await inbox.aclose()
        self.current = False

    def _handle(self, event: LogEvent) -> str:
        """Handle the message in *event*, and return the id of the event."""
        try:
            envelope = _decode_envelope(event.data)
            if envelope.node in (self.node, EVERYBODY) and envelope.kind in self._kinds:
                kind = self._kinds[envelope.kind]
                kind.handle(kind.decode(envelope.payload))
        except msgspec.MsgspecError as error:
            logger.warning("a message of another release cannot be read: %s", error)
        return event.id

    async def _recover(self) -> None:
        # The log cannot tell of which kinds the dropped messages were.
        for kind in [*self._kinds.values()]:
            if kind.recover is not None:
                await kind.recover()


class _Inbox:
    """A log of messages, and the task that follows it. Owned by a bus.

    current: whether all messages from before it was opened, or fell behind, were read.
    """

    def __init__(
        self,
        store: Store,
        log: str,
        handle: Callable[[LogEvent], str],
        recover: Callable[[], Awaitable[None]],
    ) -> None:
        self.current = False
        self._store = store
        self._log = log
        self._handle_event = handle
        self._recover = recover
        self._follower: asyncio.Task[None] | None = None
        self._reading: Future[None] = Future()  # awaited from any event loop

    def open(self, changed: Callable[[], None]) -> None:
        """Follow the log on the running loop. *changed* is called whenever `current` changes."""
        if (
            self._follower is None
            or self._follower.done()
            or self._follower.get_loop().is_closed()  # a host may be started a second time
        ):
            self.current, self._reading = False, Future()
            self._follower = asyncio.get_running_loop().create_task(self._follow(changed))

    async def catch_up(self) -> None:
        """Wait until this is `current`.

        Raises:
            StoreError: the store cannot be read at present.
        """
        if not self.current:
            await asyncio.shield(asyncio.wrap_future(self._reading))

    async def aclose(self) -> None:
        """Stop following."""
        self.current = False
        follower, self._follower = self._follower, None
        if follower is not None and not follower.get_loop().is_closed():
            await cancel_and_wait(follower)

    async def _follow(self, changed: Callable[[], None]) -> None:
        # Until all stored messages are read, this process does not know, for example, which
        # sessions have ended, and `current` is False.
        behind = False
        try:
            async with aclosing(follow(self._store, self._log, catch_up=True)) as items:
                async for item in items:
                    if isinstance(item, LogEvent):
                        self._handle_event(item)
                    elif isinstance(item, StoreUnavailable):
                        self._fail(item)
                    elif isinstance(item, LogTruncated):
                        # All retained messages are read again, some of them for the second time.
                        logger.info("messages to this process were dropped before they were read")
                        behind = True
                        if self.current:
                            self.current, self._reading = False, Future()
                            changed()
                    else:
                        # The state is recovered after the messages were read. A dropped message is
                        # older than those, so that the data written with it can be read by now.
                        if behind:
                            await retry_read(self._store, self._recover, self._fail)
                            behind = False
                        if not self.current:
                            self.current = True
                            self._reading.set_result(None)
                            changed()
        except StoreUnavailable as error:  # it was closed
            self._fail(error)

    def _fail(self, error: StoreError) -> None:
        """Make those fail who wait until this is `current`."""
        if not self.current:
            reading, self._reading = self._reading, Future()
            reading.set_exception(error)


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
    result_json: bytes
    error_message: str | None
    node: str = ""  # the process that has received it


_decode_reply: Final = msgspec.msgpack.Decoder(ClientReply).decode


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
    _replies: dict[int, "Future[ClientReply]"] = {}
    _numbers: Iterator[int] = msgspec.field(default_factory=count)

    def __post_init__(self) -> None:
        self._bus.subscribe(ClientReply, self._on_reply, self._recover)

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
        reply_future = self._replies[number]
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
            self._replies.pop(number, None)
        if reply.node != self._bus.node:
            with suppress(StoreError):  # the record expires
                await self._bus.store.apply(Delete(self._record(self._bus.node, number)))
        if reply.error_message is not None:
            raise WorkRaised(secrets.token_hex(6), "ClientError", reply.error_message)
        return reply.result_json

    def _register(self, session: str, principal: str | None) -> tuple[int, str]:
        """Return the number of a new request to *session*, and its JSON-RPC id."""
        self._bus.open()
        number = next(self._numbers)
        address = _Address(self._bus.node, number, session)
        future: Future[ClientReply] = Future()
        self._replies[number] = future
        # A future that is marked as running cannot be cancelled. If its caller is cancelled,
        # another thread can still set the reply, without a race against the cancellation.
        future.set_running_or_notify_cancel()
        packed, ttl = msgspec.msgpack.encode(address), self._timeout
        return number, self._seal.seal(Purpose.SERVER_REQUEST, packed, principal, ttl=ttl)

    async def deliver(
        self, session: str, principal: str | None, message: Message, client: str = ""
    ) -> None:
        """Deliver a response of *session* to the process that waits for it.

        A late or repeated response is ignored. Until it was read, it counts towards *client*.

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
        reply = ClientReply(address.number, bytes(message.result), error, self._bus.node)
        record = Put(
            self._record(address.node, address.number),
            msgspec.msgpack.encode(reply),
            ttl=self._timeout,
            client=client,
        )
        await self._bus.send(address.node, reply, record)

    def _record(self, node: str, number: int) -> str:
        return f"{self._bus.log_of(node)}#reply:{number}"

    def _on_reply(self, reply: ClientReply) -> None:
        if (future := self._replies.pop(reply.number, None)) is not None:
            future.set_result(reply)

    async def _recover(self) -> None:
        """Read the replies to all open requests from their records."""
        for number in [*self._replies]:
            entry = await self._bus.store.get(self._record(self._bus.node, number))
            if entry is not None:
                self._on_reply(_decode_reply(entry.value))


async def _sent(sending: Awaitable[None] | None) -> None:
    if sending is not None:
        await sending
