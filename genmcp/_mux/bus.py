"""Messages between the processes that share a store, and the server's requests to its clients.

Each process follows two logs: the messages to all processes, and those to itself. Delivery is at
least once, as long as a process is not suspended for longer than a message is retained:

| Message | If it is lost |
| `EndSession` | it has a log of its own, which retains it for the lifetime of a session |
| `CancelInSession` | the call runs on; its client ignores the response |
| `StopTask` | the record of the task is read once per lease as well |
| `ClientReply` | the question times out |

Changes of lists and resources, and those of tasks, have logs of their own (`genmcp._mux.changes`,
`genmcp.tasks.follower`); the log level of a session is read from its record.
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
from typing import Any, Final, TypeVar
from weakref import WeakSet

import msgspec

from genmcp.cancellation import cancel_and_wait
from genmcp.core.request import Request
from genmcp.core.seal import Purpose, Seal
from genmcp.errors import (
    CapabilityMissing,
    InvalidRequest,
    SealError,
    StoreUnavailable,
    WaitTimedOut,
    WorkRaised,
)
from genmcp.protocol.params import CancelledNotificationParams
from genmcp.protocol.value import Value
from genmcp.stores.following import follow
from genmcp.stores.store import Append, LogEvent, Store
from genmcp.wire.encoder import Encoder
from genmcp.wire.jsonrpc import Message

logger = logging.getLogger("genmcp")

M = TypeVar("M", bound=msgspec.Struct)

EVERYBODY: Final = ""
"""The name that addresses all processes, the sender included."""

_READ_TIMEOUT: Final = 1.0  # seconds until a sender stops to wait for its own message


class LogFollower(msgspec.Struct, eq=False):
    """The task that follows a log on an event loop. Owned by a bus, or by the subscriptions.

    handle: called with each event. After events were dropped, those that are retained may come
    twice. caught_up: called when all stored events were read, also after an interruption.

    current: whether all events from before `open` were read.
    """

    _store: Store
    _log: str
    _handle: Callable[[LogEvent], None]
    _caught_up: Callable[[], None]
    current: bool = False
    _following: asyncio.Task[None] | None = None
    _reading: "Future[None]" = msgspec.field(default_factory=Future)  # awaited from any event loop

    def open(self) -> None:
        """Follow the log on the running loop, unless this follows it already."""
        following = self._following
        if (
            following is None
            or following.done()
            or following.get_loop().is_closed()  # a host may be started a second time
        ):
            self.current, self._reading = False, Future()
            self._following = asyncio.get_running_loop().create_task(self._follow())

    async def catch_up(self) -> None:
        """Wait until this is `current`.

        Raises:
            StoreUnavailable: the store cannot be read at present.
        """
        if not self.current:
            await asyncio.shield(asyncio.wrap_future(self._reading))

    async def aclose(self) -> None:
        """Stop following."""
        self.current = False
        following, self._following = self._following, None
        if following is not None and not following.get_loop().is_closed():
            await cancel_and_wait(following)

    async def _follow(self) -> None:
        try:
            async with aclosing(follow(self._store, self._log, catch_up=True)) as items:
                async for item in items:
                    if isinstance(item, LogEvent):
                        self._handle(item)
                    elif isinstance(item, StoreUnavailable):
                        self._fail(item)
                    elif item is not None:
                        logger.info("events of %s were dropped before they were read", self._log)
                    else:
                        if not self.current:
                            self.current = True
                            self._reading.set_result(None)
                        self._caught_up()
        except StoreUnavailable as error:  # it was closed
            self._fail(error)

    def _fail(self, error: StoreUnavailable) -> None:
        """Make those fail who wait until this is `current`."""
        if not self.current:
            reading, self._reading = self._reading, Future()
            reading.set_exception(error)


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    """A message in the log: its recipient, the tag of its type, and its msgpack."""

    node: str
    kind: str
    payload: bytes


_decode_envelope: Final = msgspec.msgpack.Decoder(Envelope).decode


class MessageBus:
    """Messages between the processes that serve one *audience*. Owned by the mux.

    Delivery is at least once: a message may be handled twice.

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
        current: whether all messages from before the bus was opened were read.
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
        self._unread: dict[bytes, Future[None]] = {}  # messages of `_append_and_read`
        # The decoder and the handler of each kind of message.
        self._kinds: dict[str, tuple[Callable[[bytes], Any], Callable[[Any], None]]] = {}
        logs = [self._log, self._log_of(self.node)] if addressed else [self._log]
        self._inboxes = [LogFollower(store, log, self._handle, self._check_current) for log in logs]

    def _log_of(self, node: str) -> str:
        return f"inbox:{node}" if node else self._log

    def subscribe(self, kind: type[M], handler: Callable[[M], None]) -> None:
        """Register *handler* for the messages of this *kind*, a struct with a tag.

        It is called on any thread, and may be called twice with the same message.
        """
        self._kinds[_tag_of(kind)] = msgspec.msgpack.Decoder(kind).decode, handler

    def open(self) -> None:
        """Start to receive messages on the running loop, unless this receives them already."""
        if self.store.shared:
            for inbox in self._inboxes:
                inbox.open()
            self._check_current()
        elif not self.current:
            with _lock:
                _local.add(self)
            self.current = True

    def _check_current(self) -> None:
        self.current = all(inbox.current for inbox in self._inboxes)

    async def catch_up(self) -> None:
        """Wait until the bus, once opened, is `current`.

        Raises:
            StoreUnavailable: the store cannot be read at present.
        """
        if not self.current:
            await asyncio.gather(*(inbox.catch_up() for inbox in self._inboxes))

    async def send(
        self, node: str, message: msgspec.Struct, client: str = "", *, written_first: bool = False
    ) -> None:
        """Send *message* to *node*, or to EVERYBODY.

        Args:
            node: the recipient.
            message: handled by this process at once, if it is a recipient.
            client: the client that the stored message counts towards. Default: none.
            written_first: whether this process handles the message only once it was written, and
                read from the log, as the other processes then have, too. Default False.

        Raises:
            StoreError: the message cannot be written.
        """
        if not written_first:
            self._handle_here(node, message)
        if node != self.node and self.store.shared:
            envelope = Envelope(node, _tag_of(type(message)), msgspec.msgpack.encode(message))
            packed = msgspec.msgpack.encode(envelope)
            append = self._append(self._log_of(node), packed, client=client)
            if written_first:
                await self._append_and_read(append)
            else:
                await self.store.apply(append)
        if written_first:
            self._handle_here(node, message)

    async def _append_and_read(self, append: Append) -> None:
        """Write *append*, and wait until this process reads it: the others read it at that time.

        A client whose next request goes to another process then finds what it has changed.
        """
        read = self._unread.setdefault(append.data, Future())  # two may send the same at once
        try:
            await self.store.apply(append)
            await asyncio.wait({asyncio.wrap_future(read)}, timeout=_READ_TIMEOUT)
        finally:
            self._unread.pop(append.data, None)

    def _handle_here(self, node: str, message: msgspec.Struct) -> None:
        with _lock:
            buses = {self, *_local}
        for bus in buses:
            if bus.store is self.store and bus._log == self._log and node in (bus.node, EVERYBODY):
                _, handler = bus._kinds[_tag_of(type(message))]
                handler(message)

    async def aclose(self) -> None:
        """Stop receiving messages."""
        with _lock:
            _local.discard(self)
        for inbox in self._inboxes:
            await inbox.aclose()
        self.current = False

    def _handle(self, event: LogEvent) -> None:
        if (read := self._unread.pop(event.data, None)) is not None:
            read.set_result(None)
        try:
            envelope = _decode_envelope(event.data)
            if envelope.node in (self.node, EVERYBODY) and envelope.kind in self._kinds:
                decode, handler = self._kinds[envelope.kind]
                handler(decode(envelope.payload))
        except msgspec.MsgspecError as error:
            logger.warning("a message of another release cannot be read: %s", error)


def _tag_of(kind: type[msgspec.Struct]) -> str:
    """Return the tag of a type of messages, which two releases that share a log have in common."""
    return str(kind.__struct_config__.tag)


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

    number: int
    result_json: bytes
    error_message: str | None


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
        reply = ClientReply(address.number, bytes(message.result), error)
        await self._bus.send(address.node, reply, client)

    def _on_reply(self, reply: ClientReply) -> None:
        if (future := self._replies.pop(reply.number, None)) is not None:
            future.set_result(reply)


async def _sent(sending: Awaitable[None] | None) -> None:
    if sending is not None:
        await sending
