"""The connection of one client over a pipe, in both eras: its requests and their responses.

2026-07-28 and 2025-11-25, stdio; "nothing in this binding depends on [standard streams] except
the process lifecycle".
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Collection, Coroutine, Sequence
from contextlib import aclosing, suppress
from typing import Any, Protocol

from genmcp.core.client_key import LOCAL, ClientKey
from genmcp.core.request import Request
from genmcp.core.server import (
    Action,
    Cancel,
    Deliver,
    OpenSession,
    Reject,
    ServerConnection,
    SessionReady,
    Start,
)
from genmcp.core.session import Session, begin
from genmcp.errors import InvalidRequest, McpError, StoreError
from genmcp.mux.mux import LISTEN, Answer, Mux, error_of
from genmcp.mux.telemetry import Rejection
from genmcp.protocol.revisions.chain import LATEST
from genmcp.stores.store import Event
from genmcp.transports.batch_answers import BatchAnswers
from genmcp.transports.body import decoded
from genmcp.transports.listening import farewell, heard, honoured, without_params
from genmcp.transports.piped import PipedCall
from genmcp.transports.rates import LatestProgress, RateLimiter
from genmcp.transports.shutdown import LAST_WORDS
from genmcp.wire import jsonrpc
from genmcp.wire.jsonrpc import Message

__all__ = ["Conversation", "Outlet"]

logger = logging.getLogger("genmcp")


class Outlet(Protocol):
    """Where messages to the client go."""

    @property
    def full(self) -> bool:
        """Whether some of what waits for the client should be read before more is said."""

    async def room(self) -> None:
        """Wait until it is not full, or the client is gone."""

    def put(self, message: bytes) -> None:
        """Send *message*, behind those there are."""


class Conversation:
    """The conversation of *mux* with one client, whose messages `take` is given.

    It is the pipe of its calls. principal: who the client was authenticated as. session: what it
    is served as where it neither shakes hands nor names a revision.
    """

    copied = None
    keep: Collection[str] = ()

    def __init__(
        self,
        mux: Mux,
        outlet: Outlet,
        *,
        principal: str | None = None,
        session: Session | None = None,
    ) -> None:
        self.mux = mux
        self.principal = principal
        self.client_key = LOCAL if principal is None else ClientKey(principal)
        self._outlet = outlet
        self._progress = LatestProgress(RateLimiter(mux.limits.progress_rate), outlet.put)
        self._server = ServerConnection(mux, session)
        self._begun: Session | None = None
        self._news = _News(self)
        self._calls: set[PipedCall] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        if mux.tasks.worker.dormant:
            mux.tasks.worker.wake()

    def __repr__(self) -> str:
        return f"<Conversation of {self.mux!r}, {len(self._calls)} calls>"

    def take(self, body: bytes) -> None:
        """Handle one message or a batch. Responses are sent as they become ready."""
        method = None
        try:
            message = decoded(body, self.mux.limits)
            if isinstance(message, list):
                self._take_batch(message)
            else:
                method = message.method if message.is_request else None
                self._perform(self._server.receive(message))
        except Exception as error:  # whatever it is, it costs one message
            self.put(self.refused(error_of(error), jsonrpc.id_of(body), method))

    def refuse(self, beginning: bytes, error: McpError) -> None:
        """Answer with *error* a message of which no more than the *beginning* was read."""
        self.put(self.refused(error, jsonrpc.id_at_front(beginning)))

    def _perform(self, action: Action) -> None:
        match action:
            case Start(request=request):
                if request.route is None and request.method == LISTEN:
                    self._news.begin(request)
                else:
                    self._begin(PipedCall(self, request), self)
            case OpenSession(id=id, params=params):
                # A client that sends `initialize` again, behind a proxy say, begins anew.
                session = begin(params, key=secrets.token_urlsafe(12), now=time.time())
                self._news.forget()
                self._server.session = self._begun = session
                result = session.welcome(self.mux.server)
                self.put(self.mux.encoder.response(session.revision, id, result))
            case SessionReady() if self._begun is not None:
                self._news.relay(self._begun)
            case Cancel(id=id):
                self._cancel(id)
            case Deliver(session=session, message=message):
                self.start(self._deliver(session, message))
            case Reject(error=error, answered=True, id=id, method=method):
                self.put(self.refused(error, id, method))

    def _take_batch(self, batch: Sequence[Message | InvalidRequest]) -> None:
        """Begin to answer a batch, in one message: 2025-03-26, basic, "Batching".

        Raises:
            InvalidRequest: the revision spoken has none.
        """
        self._server.check_batch()
        answers = _Batch(self)
        calls: list[PipedCall] = []
        for member in batch:
            match self._action_of(member):
                case Start(request=request):
                    calls.append(PipedCall(answers, request))
                case Reject(error=error, answered=True, id=id, method=method):
                    answers.said.append(self.refused(error, id, method))
                case action:
                    self._perform(action)
        answers.limit()
        self.start(answers.send([self._begin(call, answers) for call in calls]))

    def _action_of(self, member: Message | InvalidRequest) -> Action:
        try:
            return self._server.receive_member(member)
        except Exception as error:  # a defect of the server costs one member
            assert isinstance(member, Message)
            return Reject(error_of(error), True, member.request_id, member.method)

    async def _deliver(self, session: Session, message: Message) -> None:
        try:
            await self.mux.asked.deliver(session.key, self.principal, message)
        except (InvalidRequest, StoreError) as error:
            logger.debug("a response is dropped: %s", error)

    def _cancel(self, id: jsonrpc.RequestId) -> None:
        """Cancel request *id*, which gets no response then."""
        self._news.cancel(id)
        for call in self._calls:
            if call.request.id == id:
                call.withdraw()

    def refused(
        self, error: McpError, id: jsonrpc.RequestId | None, method: str | None = None
    ) -> bytes:
        """Return *error* as the answer to what never became a request, and tell telemetry."""
        session = self._server.session
        rejection = Rejection(
            error=error,
            id=id,
            method=method,
            principal=self.principal,
            session=None if session is None else session.key,
        )
        self.mux.observers.rejected(rejection)
        return self.mux.encoder.error(LATEST if session is None else session.revision, id, error)

    # What is said to it.

    async def say(self, message: bytes) -> None:
        """Send *message*, once there is room."""
        await self._outlet.room()
        self.put(message)

    def put(self, message: bytes) -> None:
        """Send *message* now."""
        self._outlet.put(message)

    async def report(self, request: Request, message: bytes) -> None:
        """Send the newest progress of *request*, once there is room and it is time."""
        self._progress.offer(request, message, room=not self._outlet.full)

    async def answer(self, request: Request, message: bytes | None) -> None:
        """Send what answers *request*, behind its progress."""
        self._progress.finish(request)
        if message is not None:
            await self.say(message)

    def said(self) -> None:
        """Send progress that was held back while the write buffer was full."""
        self._progress.flush()

    # Its calls.

    def _begin(self, call: PipedCall, pipe: "Conversation | _Batch") -> "asyncio.Task[None]":
        self._calls.add(call)
        return self.start(self._called(call, pipe))

    async def _called(self, call: PipedCall, pipe: "Conversation | _Batch") -> None:
        request = call.request
        try:
            await pipe.run(call)
        except Exception as error:
            await pipe.answer(request, self.refused(error_of(error), request.id, request.method))
        finally:
            self._calls.discard(call)

    async def run(self, call: PipedCall) -> None:
        """Run *call*."""
        await call.run()

    def start(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        """Do *work* in an asyncio.Task, which ends with the conversation at the latest."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def idle(self) -> None:
        """Wait until everything is answered."""
        while self._tasks:
            await asyncio.wait(set(self._tasks))

    async def end(self, *, grace: float) -> None:
        """Let calls end by themselves for *grace* seconds, and end those that have not then."""
        self._news.end()
        await _over(self._tasks, grace)
        for call in self._calls:
            call.leave()
        await _over(self._tasks, LAST_WORDS)
        for task in self._tasks:
            task.cancel()
        await _over(self._tasks, LAST_WORDS)
        self._progress.close()
        if self._begun is not None:
            with suppress(StoreError):
                owner = self.mux.owners.of(self.client_key)
                await self.mux.listeners.end(self._begun.key, owner)


class _News:
    """The notification streams of the client of *conversation*."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation
        self._relay: asyncio.Task[None] | None = None
        self._streams: dict[Request, asyncio.Task[None]] = {}

    def begin(self, request: Request) -> None:
        """Begin the stream that *request*, a `subscriptions/listen`, opens."""
        kept = without_params(request)
        self._streams[kept] = stream = self._conversation.start(self._stream(kept, request))
        stream.add_done_callback(lambda _: self._streams.pop(kept))

    def relay(self, session: Session) -> None:
        """Start to relay the notifications of *session*, unless that has been done."""
        if self._relay is None:
            self._relay = self._conversation.start(self._relayed(session))

    def cancel(self, id: jsonrpc.RequestId) -> None:
        """End the stream *id* without a response."""
        for request, stream in self._streams.items():
            if request.id == id:
                stream.cancel()

    def forget(self) -> None:
        """Stop relaying the notifications of the session."""
        if self._relay is not None:
            self._relay.cancel()
            self._relay = None

    def end(self) -> None:
        """End all streams, and say so.

        2026-07-28, basic/patterns, "Subscriptions", "Graceful Closure".
        """
        self.forget()
        for request, stream in self._streams.items():
            stream.cancel()
            self._conversation.put(farewell(self._conversation.mux, request))

    async def _stream(self, request: Request, whole: Request) -> None:
        conversation = self._conversation
        mux, client = conversation.mux, conversation.client_key
        try:
            wanted = await honoured(mux, whole, client)
            del whole
            async with heard(mux, request, wanted, client) as messages:
                async for each in messages:
                    for message in each:
                        await conversation.say(message)
        except StoreError as error:
            logger.warning("a client hears of no more changes: %s", error)
            await conversation.say(farewell(conversation.mux, request))
        except Exception as error:
            told = conversation.refused(error_of(error), request.id, request.method)
            await conversation.say(told)

    async def _relayed(self, session: Session) -> None:
        conversation = self._conversation
        mux = conversation.mux
        owner = mux.owners.of(conversation.client_key)
        try:
            while True:
                messages = await mux.listeners.heard(session, owner=owner)
                async with aclosing(messages):
                    async for each in messages:
                        if isinstance(each, Event):
                            await conversation.say(each.data)
        except StoreError as error:
            logger.warning("a client hears of no more changes: %s", error)


class _Batch:
    """The pipe of the calls of a batch, whose answers go out together."""

    def __init__(self, conversation: Conversation) -> None:
        self.mux = conversation.mux
        self.principal = conversation.principal
        self.client_key = conversation.client_key
        self.copied = conversation.copied
        self.keep = conversation.keep
        self.say = conversation.say
        self.report = conversation.report
        self.said: list[bytes] = []
        self._conversation = conversation
        self._bounds = BatchAnswers(conversation.mux)

    def limit(self) -> None:
        """Count the error responses so far towards the limits; call it before the calls start."""
        self._bounds = BatchAnswers(self.mux, self.said)

    async def run(self, call: PipedCall) -> None:
        """Run *call* as soon as `Limits.batch_concurrency` permits.

        Raises:
            TooLarge: the response has no room for its answer.
        """
        async with self._bounds.turns:
            if self._bounds.full:
                raise self._bounds.overflow()
            await call.run()

    async def answer(self, request: Request, message: bytes | None) -> None:
        """Add the response of one of the requests to the batch."""
        await self._conversation.answer(request, None)
        bounded = self._bounds.bounded(request, Answer(message)).message
        if bounded is not None:
            self.said.append(bounded)

    async def send(self, calls: "Sequence[asyncio.Task[None]]") -> None:
        """Send all answers, as soon as the *calls* are over; a batch may have none."""
        await asyncio.gather(*calls, return_exceptions=True)
        if self.said:
            await self.say(jsonrpc.encode_batch(self.said))


async def _over(tasks: "Collection[asyncio.Task[None]]", seconds: float) -> None:
    if tasks:
        await asyncio.wait(set(tasks), timeout=seconds)
