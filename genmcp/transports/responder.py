"""What answers a POST: its hooks run here, in the asyncio.Task of the request."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from threading import Lock, get_ident
from typing import Any, Final

import msgspec

from genmcp.channel import Channel
from genmcp.core.client_key import ClientKey
from genmcp.core.exchange import Exchange
from genmcp.core.request import Request
from genmcp.errors import Overloaded, Unable
from genmcp.log_handler import ClientLogHandler, forwarding
from genmcp.mux.calls import Hook
from genmcp.mux.mux import AT_ONCE, LISTEN, Answer
from genmcp.protocol.severity import LoggingLevel
from genmcp.protocol.tools import CallToolResult
from genmcp.protocol.value import Value
from genmcp.subscription import Announcer
from genmcp.transports.asgi import ClientLeft, encoded, reply
from genmcp.transports.batch_answers import BatchAnswers
from genmcp.transports.held import Held
from genmcp.transports.hooks import NO_ANSWER, begin, release, tool_of
from genmcp.transports.listening import listen
from genmcp.transports.pending import TICK
from genmcp.transports.steps import resume
from genmcp.transports.visit import Visit

__all__ = ["Responder"]

Begun = Answer | Coroutine[Any, Any, Answer]
"""A hook that has run: what it answers, or what is left of it."""

_making: Final = Lock()


class Responder(msgspec.Struct, eq=False):
    """Answers the requests of one POST; it is the sink of their channels.

    Hooks run in the asyncio.Task of the POST. What only a response that takes its time needs is
    made when one of them first speaks or waits.
    """

    visit: Visit
    _request: Request | None = None
    _held: Held | None = None
    _over: bool = False
    _pending: "tuple[Channel, Hook] | None" = None

    def serve(self, request: Request) -> Awaitable[None]:
        """Return what answers the one *request* of a POST.

        Its hook has run up to its first wait; one that had none, and said nothing on the way,
        costs nothing more.
        """
        if request.route is None and request.method == LISTEN:
            return listen(self.visit, request)
        self._request = request
        begun = self._begin(request)
        if isinstance(begun, Answer) and self._held is None:
            return self._reply(begun)
        if self._pending is None:
            return self._serve(request, begun)
        return self._serve_pending(*self._pending, begun)

    def _reply(self, answer: Answer) -> Awaitable[None]:
        """Send *answer* as the whole response."""
        self._over = True
        visit = self.visit
        visit.answered = True
        headers = [*visit.headers, *encoded(answer.headers)] if answer.headers else visit.headers
        return reply(visit.send, answer.status, answer.message or b"", headers)

    async def _serve_pending(self, channel: Channel, hook: Hook, work: Any) -> None:
        """Await the rest of *work* of a pending call, which may be opened meanwhile, and respond.

        A cancelled call is opened first, so that `Hooks.settle` alone handles cancellation.
        """
        try:
            answer = await work
        except asyncio.CancelledError as error:
            self.open_call()
            settled = self._holding().hooks.settle(channel, NO_ANSWER, error)
        else:
            if self._held is None and not hook.cancelled:
                self._end_pending(channel, hook)
                await self._reply(answer)
                return
            self.open_call()
            settled = self._holding().hooks.settle(channel, answer)
        finally:
            if self._pending is not None:  # the process exits, or the loop was closed
                self._end_pending(channel, hook)
        await self._serve(channel.request, settled)

    def _end_pending(self, channel: Channel, hook: Hook) -> None:
        self._pending = None
        self.visit.shutdown.pending(self.visit.loop).discard(self)
        hook.end()
        release(self.visit, channel.request, hook)

    def open_call(self) -> None:
        """Open the pending call, if it is not open yet: watch its client and start its timers."""
        if self._pending is not None:
            (channel, hook), self._pending = self._pending, None
            self.visit.shutdown.pending(self.visit.loop).discard(self)
            self._holding().hold(channel, hook)

    async def _serve(self, request: Request, begun: Begun) -> None:
        held = self._holding()
        try:
            held.take_last(request, begun if isinstance(begun, Answer) else await begun)
            await held.finish()
        except asyncio.CancelledError:
            # By the host, or by the hook itself: whoever waits is told.
            held.take(request, self._cancelled(request))
            await _finish_at_once(held)
            raise
        finally:
            self._over = True
            await held.end()

    def _cancelled(self, request: Request) -> Answer:
        return self.visit.mux.refusal(request, Overloaded("The call was cancelled"))

    async def serve_batch(
        self, exchange: Exchange, requests: Sequence[Request], refused: Sequence[bytes]
    ) -> None:
        """Answer *requests*, each hook in an asyncio.Task of its own; *refused* are answered."""
        session = requests[0].session if requests else None
        self._held = held = Held(self.visit, exchange, session, requests)
        left = dict.fromkeys(requests)
        answers = BatchAnswers(self.visit.mux, refused, held)
        hooks: set[asyncio.Task[None]] = set()
        try:
            for message in refused:
                held.refuse(message)
            async for request in answers.in_turn(requests):
                hooks.add(asyncio.create_task(self._answer_member(request, answers, left)))
            for ended in await asyncio.gather(*hooks, return_exceptions=True):
                # One that its own hook has cancelled does not take the others along.
                if isinstance(ended, Exception):
                    raise ended
            for request in left:
                held.take(request, self._cancelled(request))
            await held.finish()
        except asyncio.CancelledError:
            for request in left:
                held.take(request, self._cancelled(request))
            await _finish_at_once(held)
            raise
        finally:
            self._over = True
            for hook in hooks:
                hook.cancel()
            try:
                await asyncio.gather(*hooks, return_exceptions=True)
            finally:  # a host may cancel again and again
                await held.end()

    async def _answer_member(
        self, request: Request, answers: BatchAnswers, left: dict[Request, None]
    ) -> None:
        self._holding().take(request, await answers.answer(request, self._begin))
        del left[request]

    def _begin(self, request: Request) -> Begun:
        """Run the hook of *request* here, up to its first wait; return its answer, or the rest.

        The rest raises asyncio.CancelledError where the host, or the hook itself, has cancelled
        this asyncio.Task.
        """
        visit = self.visit
        mux = visit.mux
        if mux.held.full and request.method not in AT_ONCE:
            try:
                mux.held.check(visit.client_key, tool_of(request))
            except Overloaded as error:  # its status counts on every revision: nothing has begun
                method, session = request.method, request.session
                visit.reject(error, id=request.id, method=method, session=session)
                return msgspec.structs.replace(mux.refusal(request, error), status=error.status)
        channel = Channel(request, self, visit.principal, mux.assigns, visit.copied)
        work = mux.answer(request, channel)
        if ClientLogHandler.made:
            work = forwarding(channel, work)
        try:
            waited = work.send(None)
        except StopIteration as done:
            answer: Answer = done.value
            return answer
        if self._held is None and _may_be_pending(request):
            hook = begin(visit, request)
            self._pending = channel, hook
            visit.shutdown.pending(visit.loop).add(self)
            return resume(work, waited)
        held = self._holding()
        held.hold(channel)
        return held.hooks.outcome(channel, resume(work, waited))

    def _holding(self) -> Held:
        held = self._held
        if held is None:
            with _making:  # a thread of the hook may send before the hook itself waits
                if self._held is None:
                    assert self._request is not None
                    self._held = Held.of(self.visit, self._request, streams=self.visit.streams)
                held = self._held
            if self._pending is not None:
                if get_ident() == self.visit.thread:
                    self.open_call()
                else:
                    with suppress(RuntimeError):  # the loop was closed, and the call with it
                        self.visit.loop.call_soon_threadsafe(self.open_call)
        return held

    # What channels say.

    @property
    def closed(self) -> bool:
        """Whether the response is over."""
        return self._over or (self._held is not None and self._held.closed)

    @property
    def client_key(self) -> ClientKey:
        """The client that the requests count towards."""
        return self.visit.client_key

    @property
    def announcer(self) -> Announcer:
        """What tells of changes of the server."""
        return self.visit.mux.announcer

    def note(
        self, request: Request, method: str, params: Value | None
    ) -> Coroutine[Any, Any, bool]:
        """Send a notification, in the words of the request's revision."""
        return self._holding().note(request, method, params)

    @property
    def keep(self) -> Collection[str]:
        """The keys of copied assigns that go along where a store keeps a call."""
        return self.visit.keep

    def watch_client(self) -> None:
        """Open the call, at the latest when it waits, so that its client is watched."""
        self._holding()

    async def promote(self, channel: Channel) -> None:
        """Make the call of *channel* a task, while it runs on."""
        await asyncio.sleep(0)  # what answers it is held from now on
        await self._holding().hooks.promote(channel.request)

    async def ask(self, request: Request, method: str, params: Value) -> bytes:
        """Send a request of the server's own, and return its result as JSON.

        Raises:
            Failure: the client cannot be asked, answers with an error, or not in time.
        """
        held, visit = self._holding(), self.visit
        if not held.streams:
            raise Unable({"streams": {}})
        asked = visit.mux.long.asked
        return await asked.ask(request, visit.principal, method, params, held.send_note)

    async def outcome_of(self, id: str, principal: str | None) -> CallToolResult:
        """Return what came of the call *id*."""
        return await self.visit.mux.long.outcome_of(id, principal)

    async def level(self, request: Request) -> LoggingLevel | None:
        """Return the request's own level, or its session's."""
        if request.session is None:
            return request.log_level
        return await self.visit.mux.sessions.level(request.session)

    def open(self) -> None:
        """Make the response an event stream."""
        self._holding().open()

    def release(self, retry: int) -> None:
        """End the connection, not the stream, where the client can come back for it."""
        self._holding().give_up(retry)

    async def in_thread(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Run a blocking *function* in the mux's pool."""
        client = self.visit.client_key.owner
        return await self.visit.mux.threads.run(function, *arguments, client=client)


def _may_be_pending(request: Request) -> bool:
    """Whether *request* needs no timer that would fire within a tick."""
    route = request.route
    if route is None:
        return True
    if route.pending:
        return False
    policy = route.policy
    return policy.patience > TICK and (policy.hold is None or policy.hold > TICK)


async def _finish_at_once(held: Held) -> None:
    """Send the rest to a client that reads it in time; give up if the host cancels again."""
    held.hasten()
    with suppress(ClientLeft, asyncio.CancelledError):
        await held.finish()
