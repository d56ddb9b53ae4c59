"""Messages between the processes that share a store, and the server's requests to its clients.

Each process follows two logs: the messages to all processes, and those to itself. Delivery is at
least once, as long as a process is not suspended for longer than a message is retained:

| Message | If it is lost |
| `CancelInSession` | the call runs on; its client ignores the response |
| `StopTask` | the record of the task is read once per lease as well |
| `ClientReply` | the question times out |

Ended sessions have a log of their own (`genmcp._mux.sessions`), which retains them for the lifetime
of a session; so have changes of lists and resources (`genmcp._mux.changes`), and those of tasks
(`genmcp.tasks.follower`). The log level of a session is read from its record.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from functools import partial
from itertools import count
from typing import Any, Final, TypeVar, Union

import msgspec

from genmcp.cancellation import cancel_and_wait
from genmcp.core.request import Request
from genmcp.core.seal import Purpose, Seal
from genmcp.errors import (
    CapabilityMissing,
    ContractError,
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
from genmcp.tasks.heartbeats import ProcessName
from genmcp.wire.encoder import Encoder
from genmcp.wire.jsonrpc import Message

logger = logging.getLogger("genmcp")

M = TypeVar("M", bound=msgspec.Struct)

EVERYBODY: Final = ""
"""The name that addresses all processes, the sender included."""


def check_stopped(loop: asyncio.AbstractEventLoop) -> None:
    """Check that *loop*, which has used the mux, does not run beside the present one.

    Raises:
        ContractError: it does.
    """
    if loop.is_running():
        raise ContractError("a mux cannot be used by two event loops at the same time")


class LogFollower(msgspec.Struct, eq=False):
    """The task that follows a log. Owned by the bus, the ended sessions or the subscriptions.

    handle: called with each event. After events were dropped, those that are retained may come
    twice. caught_up: called when all stored events were read, also after an interruption.

    current: whether all events from before `open` were read.
    """

    _store: Store
    _log: str
    _handle: Callable[[LogEvent], None]
    _caught_up: Callable[[], None] = lambda: None
    current: bool = False
    _following: asyncio.Task[None] | None = None
    _attempted: asyncio.Event = msgspec.field(default_factory=asyncio.Event)
    _unavailable: StoreUnavailable | None = None

    def open(self) -> None:
        """Follow the log on the running loop, unless this follows it already.

        Raises:
            ContractError: another event loop, which still runs, uses the mux.
        """
        loop, following = asyncio.get_running_loop(), self._following
        if following is not None and not following.done():
            if following.get_loop() is loop:
                return
            check_stopped(following.get_loop())
        self.current, self._attempted = False, asyncio.Event()
        self._following = loop.create_task(self._follow())

    async def catch_up(self) -> None:
        """Wait until this, once opened, is `current`.

        Raises:
            StoreUnavailable: the store cannot be read at present.
        """
        if not self.current:
            await self._attempted.wait()
            if not self.current:
                raise StoreUnavailable(str(self._unavailable))

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
                    if self._following is not asyncio.current_task():
                        return  # its loop was stopped, and another one has followed
                    if isinstance(item, LogEvent):
                        self._handle(item)
                        continue
                    if item is None:
                        self.current = True
                        self._caught_up()
                    elif isinstance(item, StoreUnavailable):
                        self._unavailable = item
                    else:
                        logger.info("events of %s were dropped before they were read", self._log)
                        continue
                    self._attempted.set()
        except StoreUnavailable as error:  # it was closed
            self._unavailable = error
            self._attempted.set()


class MessageBus:
    """Messages between the processes that serve one *audience*. Owned by the mux.

    Delivery is at least once: a message may be handled twice. Messages to single processes have a
    log for each recipient, so that neither kind of messages makes a log drop those of the other.

    Args:
        store: carries the messages. A store that no other process sees carries none.
        audience: the name of the log of messages to EVERYBODY.
        ttl: seconds for which messages are retained for a slow process.
        keep: the number of messages that are retained. keep_bytes: their total size.

    Attributes:
        process_name: returns the name of this process.
    """

    def __init__(
        self, store: Store, audience: str, ttl: float, keep: int, keep_bytes: int | None = None
    ) -> None:
        self.process_name = ProcessName()
        self._store = store
        self._audience = audience
        self._append = partial(Append, ttl=ttl, keep=keep, keep_bytes=keep_bytes)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._handlers: dict[type[msgspec.Struct], Callable[[Any], None]] = {}
        self._inboxes: dict[str, LogFollower] = {}

    @property
    def node(self) -> str:
        """The name of this process."""
        return self.process_name()

    def _inbox(self, node: str) -> LogFollower:
        return LogFollower(self._store, self._log_of(node), self._handle)

    def _log_of(self, node: str) -> str:
        return f"inbox:{node or self._audience}"

    def subscribe(self, kind: type[M], handler: Callable[[M], None]) -> None:
        """Register *handler* for the messages of this *kind*, a struct with a tag.

        It may be called twice with the same message.
        """
        self._handlers[kind] = handler
        # The tag of each kind tells them apart, also in a log that two releases share.
        kinds: Any = Union[tuple(self._handlers)]  # noqa: UP007
        self._decode = msgspec.msgpack.Decoder(kinds).decode

    def open(self) -> None:
        """Start to receive messages on the running loop, unless this receives them already.

        Raises:
            ContractError: another event loop, which still runs, uses the mux.
        """
        loop = asyncio.get_running_loop()
        if self._loop is not loop:
            if self._loop is not None:
                check_stopped(self._loop)
            self._loop = loop
            nodes = (EVERYBODY, self.node) if self._store.shared else ()
            # A process that was forked has another name since.
            self._inboxes = {each: self._inboxes.get(each) or self._inbox(each) for each in nodes}
        for inbox in self._inboxes.values():
            inbox.open()

    async def send(self, node: str, message: msgspec.Struct, client: str = "") -> None:
        """Send *message* to *node*, or to EVERYBODY.

        Args:
            node: the recipient.
            message: handled by this process at once, if it is a recipient.
            client: the client that the stored message counts towards. Default: none.

        Raises:
            StoreError: the message cannot be written.
        """
        if node in (self.node, EVERYBODY):
            self._handlers[type(message)](message)
        if node != self.node and self._store.shared:
            packed = msgspec.msgpack.encode(message)
            await self._store.apply(self._append(self._log_of(node), packed, client=client))

    async def aclose(self) -> None:
        """Stop receiving messages."""
        for inbox in self._inboxes.values():
            await inbox.aclose()

    def _handle(self, event: LogEvent) -> None:
        try:
            message = self._decode(event.data)
        except msgspec.MsgspecError as error:
            logger.warning("a message of another release cannot be read: %s", error)
        else:
            self._handlers[type(message)](message)


# Requests of the server.


class _Address(msgspec.Struct, frozen=True, array_like=True):
    """The recipient of a response: its process, the request's number there, and the session."""

    node: str
    number: int
    session: str


_decode_address: Final = msgspec.msgpack.Decoder(_Address).decode


class ClientReply(msgspec.Struct, frozen=True, array_like=True, tag="answer"):
    """A client's response, for the process that waits: a result as JSON, or an error message.

    session: in which the client has responded.
    """

    number: int
    result_json: bytes
    error_message: str | None
    session: str


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
    # By session and number.
    _replies: dict[tuple[str, int], "asyncio.Future[ClientReply]"] = {}
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
        self._bus.open()
        number = next(self._numbers)
        address = msgspec.msgpack.encode(_Address(self._bus.node, number, request.session))
        id = self._seal.seal(Purpose.SERVER_REQUEST, address, principal, ttl=self._timeout)
        reply_future: asyncio.Future[ClientReply] = asyncio.get_running_loop().create_future()
        self._replies[request.session, number] = reply_future
        try:
            await _sent(send(self._encoder.request(revision, id, method, params)))
            async with asyncio.timeout(self._timeout):
                reply = await reply_future
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
            self._replies.pop((request.session, number), None)
        if reply.error_message is not None:
            raise WorkRaised(secrets.token_hex(6), "ClientError", reply.error_message)
        return reply.result_json

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
        reply = ClientReply(address.number, bytes(message.result), error, session)
        await self._bus.send(address.node, reply, client)

    def _on_reply(self, reply: ClientReply) -> None:
        future = self._replies.pop((reply.session, reply.number), None)
        if future is not None and not future.done():
            future.set_result(reply)


async def _sent(sending: Awaitable[None] | None) -> None:
    if sending is not None:
        await sending
