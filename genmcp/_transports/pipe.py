"""The connection of one client that carries all its messages: standard streams, and the SSE pair.

Over such a pipe, only the ids and tokens in a message relate the message to a request. The rules
are those of stdio (2026-07-28 and 2025-11-25): "nothing in this binding depends on [standard
streams] except the process lifecycle".
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import partial
from typing import Any, Protocol

from genmcp._mux.mux import Mux
from genmcp._mux.responses import EncodedResponse, error_of
from genmcp._transports.batch import BatchLimits
from genmcp._transports.body import decode
from genmcp._transports.listening import closing_response, open_subscription, without_params
from genmcp._transports.request import reject
from genmcp._transports.running_call import NO_RESPONSE, RunningCall
from genmcp._transports.shutdown import LAST_WORDS
from genmcp._transports.timers import LatestProgress, RateLimiter
from genmcp.cancellation import cancel_and_wait
from genmcp.channel import Channel
from genmcp.core.access import Access
from genmcp.core.call import Cancel, Leave, StopServer
from genmcp.core.client_key import LOCAL, ClientKey
from genmcp.core.request import Request
from genmcp.core.server import (
    LISTEN,
    CancelRequest,
    DeliverResponse,
    OpenSession,
    Reject,
    ServerAction,
    ServerConnection,
    SessionReady,
    StartRequest,
)
from genmcp.core.session import Session, new_session
from genmcp.errors import InvalidRequest, StoreError, TooLarge
from genmcp.protocol.params import (
    LoggingMessageNotificationParams,
    ProgressNotificationParams,
)
from genmcp.protocol.value import Value
from genmcp.wire import jsonrpc
from genmcp.wire.jsonrpc import Message
from genmcp.wire.lines import OversizedMessage

logger = logging.getLogger("genmcp")


class Pipe:
    """The connection of one client. Sending waits while the client reads slowly."""

    def __init__(
        self,
        mux: Mux,
        access: Access | None,
        client_key: ClientKey,
        copied: Mapping[str, Any] | None = None,
        keep: Collection[str] = (),
    ) -> None:
        self.mux = mux
        self.access = access
        self.principal = None if access is None else access.principal
        self.client_key = client_key
        self.copied = copied
        self.keep = keep
        self.detached = False  # a pipe cannot outlive its connection

    def require_scopes(self, scopes: Sequence[str]) -> None:
        """Check nothing: a pipe has one local user."""

    async def send(self, message: bytes) -> None:
        """Send a *message*."""
        raise NotImplementedError

    async def send_progress(self, request: Request, message: bytes) -> None:
        """Send a *message* with the progress of *request*; later progress may replace it."""
        await self.send(message)

    async def respond(self, request: Request, message: bytes | None) -> None:
        """Send *message*, the response to *request*. Called once for each request.

        None: the request gets no response, since it was cancelled.
        """
        if message is not None:
            await self.send(message)


class PipedCall(RunningCall[Pipe], eq=False):
    """A call with an asyncio.Task of its own for its hook. Owned by the pipe."""

    batch: "PipedBatch | None" = None
    _logs: RateLimiter | None = None

    async def run(self) -> None:
        """Run the hook, and send the response.

        Raises:
            Overloaded: no slot is free; no response is sent.
        """
        if self.ended:  # cancelled before it began
            await self.respond(NO_RESPONSE)
            return
        try:
            await self.complete()
        finally:
            self.ended = True
            if promotions := self.promotions():
                await asyncio.wait(promotions)

    def register(self, channel: Channel) -> None:
        """Register the call, and start its promotion timer."""
        super().register(channel)
        self.start_timer()

    def cancel_call(self) -> None:
        """Report `Cancel`, at the request of the client: the hook is cancelled without a response.

        A call with a handle continues.
        """
        if not self.responded:
            self.ended = True
            self.report(Cancel())

    def leave(self) -> None:
        """Report that the client has disconnected, which cancels the hook.

        The event is `Leave`, or `StopServer` if the client has a handle: a process that serves one
        pipe ends with its client. The task is then abandoned: another process resumes it, or marks
        it as lost.
        """
        self.report(StopServer() if self.responded else Leave())

    async def respond(self, response: EncodedResponse) -> None:
        """Send *response*."""
        self.ended = self.responded = True
        await self.send_response(response.body)

    async def send_handle(self, handle: EncodedResponse) -> None:
        """Send *handle* while the hook runs on."""
        await super().send_handle(handle)
        await self.send_response(handle.body)

    async def send_response(self, message: bytes | None) -> None:
        """Send *message* as the response, or add it to those of the batch."""
        if self.batch is not None:
            self.batch.add(self.request, message)
            message = None
        await self.caller.respond(self.request, message)

    async def note(self, request: Request, method: str, params: Value | None) -> bool:
        """Send a notification, in the revision of the request."""
        pipe = self.caller
        message = pipe.mux.encoder.notification(request.revision, method, params)
        if isinstance(params, ProgressNotificationParams):
            await pipe.send_progress(self.request, message)
        else:
            if isinstance(params, LoggingMessageNotificationParams):
                self._logs = self._logs or RateLimiter(pipe.mux.limits.logs_per_second)
                await self._logs.wait()
            await pipe.send(message)
        await asyncio.sleep(0)  # so that it is sent
        return True

    async def send(self, message: bytes) -> None:
        """Send a request of the server, or a notification."""
        await self.caller.send(message)


class Outlet(Protocol):
    """The write buffer of a connection."""

    @property
    def full(self) -> bool:
        """Whether the client should read some of the buffer before more is sent."""

    async def room(self) -> None:
        """Wait until the buffer is not full, or the client has disconnected."""

    def put(self, message: bytes) -> None:
        """Send *message*, behind the buffered ones."""


class PipeConnection(Pipe):
    """The connection of one client to *mux*. Owned by the transport, which calls `receive`.

    *outlet* writes the messages to the client. *principal* is the identity of the client, or its
    access. *session* is used for a client that neither sends `initialize` nor names a revision.
    """

    def __init__(
        self,
        mux: Mux,
        outlet: Outlet,
        *,
        principal: str | Access | None = None,
        session: Session | None = None,
    ) -> None:
        access = Access(subject=principal) if isinstance(principal, str) else principal
        super().__init__(mux, access, LOCAL if access is None else ClientKey(access.principal))
        self._outlet = outlet
        self._progress = LatestProgress(RateLimiter(mux.limits.progress_per_second), outlet.put)
        self._server = ServerConnection(mux, session)
        self._opened: Session | None = None
        self._calls: set[PipedCall] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._subscriptions: dict[
            asyncio.Task[None], Request
        ] = {}  # those of `subscriptions/listen`
        self._relay: asyncio.Task[None] | None = None  # sends the notifications of the session
        if mux.tasks.worker.dormant:
            mux.tasks.worker.wake()

    def __repr__(self) -> str:
        return f"<PipeConnection of {self.mux!r}, {len(self._calls)} calls>"

    def receive(self, body: bytes | OversizedMessage) -> None:
        """Handle one message or a batch. Responses are sent as they become ready."""
        method = None
        try:
            if isinstance(body, OversizedMessage):
                most = self.mux.limits.max_body_bytes
                raise TooLarge(
                    f"A message of {body.size} bytes is larger than {most} (limit: max_body_bytes)"
                )
            message = decode(body, self.mux.limits)
            if isinstance(message, list):
                self._receive_batch(message)
            else:
                method = message.method if message.is_request else None
                self._perform(self._server.receive(message))
        except Exception as error:  # a defect of the server costs one message
            id = jsonrpc.id_of(body) if isinstance(body, bytes) else jsonrpc.id_at_front(body.head)
            self.put(self._reject(Reject(error_of(error), True, id, method)))

    def _receive_batch(self, members: Sequence[Message | InvalidRequest]) -> None:
        """Run the requests of a batch, and respond in one message: 2025-03-26, basic, "Batching".

        Raises:
            InvalidRequest: the revision of the session has no batches.
        """
        actions = self._server.receive_batch(members, error_of)
        rejects = [each for each in actions if isinstance(each, Reject) and each.responds]
        batch = PipedBatch(self, [self._reject(each) for each in rejects])
        calls = [
            PipedCall(self, each.request, batch=batch)
            for each in actions
            if isinstance(each, StartRequest)
        ]
        for action in actions:
            if not isinstance(action, StartRequest | Reject):
                self._perform(action)
        # The calls of the batch start only now: a cancellation in a batch concerns earlier calls.
        running = [self._run(call, partial(batch.run, call)) for call in calls]
        self._start(batch.finish(running))

    def _perform(self, action: ServerAction) -> None:
        match action:
            case StartRequest(request=request) if (
                request.route is None and request.method == LISTEN
            ):
                stream = self._start(self._listen(request))
                self._subscriptions[stream] = without_params(request)
                stream.add_done_callback(self._subscriptions.pop)
            case StartRequest(request=request):
                if request.method == "resources/subscribe" and self._relay is not None:
                    self._start_relay()
                call = PipedCall(self, request)
                self._run(call, call.run)
            case OpenSession(id=id, params=params):
                # A second `initialize`, for example of another client behind one proxy, opens
                # another session; the calls of the first one continue.
                session = new_session(params, key=secrets.token_urlsafe(12), now=time.time())
                self._stop_relay()
                if self._opened is not None:
                    self._start(self._end_stream(self._opened))
                self._server.session = self._opened = session
                result = session.initialize_result(self.mux.server)
                self.put(self.mux.encoder.response(session.revision, id, result))
            case SessionReady():
                self._start_relay()
            case CancelRequest(id=id):
                for stream, listened in self._subscriptions.items():
                    if listened.id == id:
                        stream.cancel()
                for call in self._calls:
                    if call.request.id == id:
                        call.cancel_call()
            case DeliverResponse(session=session, response=response):
                self._start(self._deliver(session, response))
            case Reject(responds=True):
                self.put(self._reject(action))

    async def _deliver(self, session: Session, message: Message) -> None:
        try:
            await self.mux.server_requests.deliver(session.key, self.principal, message)
        except (InvalidRequest, StoreError) as error:
            logger.debug("a response is dropped: %s", error)

    def _reject(self, action: Reject) -> bytes:
        session = self._server.session
        if session is None:
            return reject(self, action)
        return reject(self, action, session.key, session.revision)

    # Messages to the client.

    async def send(self, message: bytes) -> None:
        """Send *message*, once there is room."""
        await self._outlet.room()
        self.put(message)

    def put(self, message: bytes) -> None:
        """Send *message* now."""
        self._outlet.put(message)

    async def send_progress(self, request: Request, message: bytes) -> None:
        """Send the latest progress of *request*, once there is room and the rate permits it."""
        self._progress.offer(request, message, room=not self._outlet.full)

    async def respond(self, request: Request, message: bytes | None) -> None:
        """Send the response to *request*, behind its progress."""
        self._progress.finish(request)
        await super().respond(request, message)

    def flush(self) -> None:
        """Send progress that was held back while the write buffer was full."""
        self._progress.flush()

    # The calls of the client.

    def _run(self, call: PipedCall, run: Callable[[], Awaitable[None]]) -> "asyncio.Task[None]":
        self._calls.add(call)
        return self._start(self._ran(call, run))

    async def _ran(self, call: PipedCall, run: Callable[[], Awaitable[None]]) -> None:
        request = call.request
        try:
            await run()
        except Exception as error:
            if call.responded:
                raise
            action = Reject(error_of(error), True, request.id, request.method)
            await call.send_response(self._reject(action))
        finally:
            self._calls.discard(call)

    def _start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Run *work* in an asyncio.Task, which ends with the connection at the latest."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def idle(self) -> None:
        """Wait until every request has its response."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def end(self, *, grace: float) -> None:
        """Give calls *grace* seconds to finish, and cancel those that have not."""
        self._stop_relay()
        for stream, request in self._subscriptions.items():
            stream.cancel()
            # 2026-07-28, basic/patterns, "Subscriptions", "Graceful Closure".
            self.put(closing_response(self.mux, request))
        await _wait(self._tasks, grace)
        for call in self._calls:
            call.leave()
        # The first wait is for the responses of the cancelled calls. Tasks that have ignored their
        # cancellation are then cancelled again.
        await _wait(self._tasks, LAST_WORDS)
        await cancel_and_wait(*self._tasks, timeout=LAST_WORDS)
        self._progress.close()
        if self._opened is not None:
            await self._end_stream(self._opened)

    async def _end_stream(self, session: Session) -> None:
        """End the stream of *session*, and its subscriptions."""
        with suppress(StoreError):
            await self.mux.session_streams.end(session.key)

    # The notifications to the client.

    async def _listen(self, request: Request) -> None:
        """Send the notifications that *request*, a `subscriptions/listen`, subscribes to."""
        try:
            async with open_subscription(self, request) as (request, messages):
                async for each in messages:
                    for message in each:
                        await self.send(message)
        except Exception as error:
            action = Reject(error_of(error), True, request.id, request.method)
            await self.send(self._reject(action))

    async def _relay_notifications(self, session: Session) -> None:
        client = self.client_key.client
        try:
            while True:
                streams = self.mux.session_streams
                messages = await streams.listen(session, client=client, as_events=False)
                async with aclosing(messages):
                    async for message in messages:
                        await self.send(message)
        except StoreError as error:
            logger.warning("a session gets no more notifications: %s", error)

    def _start_relay(self) -> None:
        """Send the notifications of the session, if that was not begun or the store has failed."""
        if self._opened is not None and (self._relay is None or self._relay.done()):
            self._relay = self._start(self._relay_notifications(self._opened))

    def _stop_relay(self) -> None:
        if self._relay is not None:
            self._relay.cancel()
            self._relay = None


class PipedBatch:
    """The responses of a batch on *connection*, which are sent together.

    *responses* are the error responses of its members that are not valid requests.
    """

    def __init__(self, connection: PipeConnection, responses: list[bytes]) -> None:
        self._connection = connection
        self._responses = responses
        self._bounds = BatchLimits(connection.mux, responses)
        self._pending = 0
        self._complete = asyncio.Event()

    async def run(self, call: PipedCall) -> None:
        """Run *call* as soon as few enough of the batch run.

        Raises:
            TooLarge: the response to the batch is full.
        """
        async with self._bounds.turns:
            if self._bounds.full:
                raise self._bounds.overflow()
            await call.run()

    def add(self, request: Request, message: bytes | None) -> None:
        """Add the response to one of the requests, if it has one."""
        bounded = self._bounds.bounded(request, EncodedResponse(message)).body
        if bounded is not None:
            self._responses.append(bounded)
        self._pending -= 1
        if not self._pending:
            self._complete.set()

    async def finish(self, calls: Sequence["asyncio.Task[None]"]) -> None:
        """Send all responses, if any, once they are ready or the *calls* have ended.

        A call with a handle runs on after its response.
        """
        self._pending += len(calls)
        if self._pending:
            ended = asyncio.gather(*calls, return_exceptions=True)
            ended.add_done_callback(lambda _: self._complete.set())
            await self._complete.wait()
        if self._responses:
            await self._connection.send(jsonrpc.encode_batch(self._responses))


async def _wait(tasks: Collection["asyncio.Task[None]"], seconds: float) -> None:
    if tasks:
        await asyncio.wait(set(tasks), timeout=seconds)
