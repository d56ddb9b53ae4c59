"""Forwarding of questions from a hub's servers to the hub's clients.

A question belongs to a call. If it arrives in response to that call (2026-07-28; before, over HTTP,
on the event stream of the POST), the call is known. Otherwise (stdio; the stream of a GET;
HTTP+SSE) the question does not identify its call, and is forwarded only while the server can be
working on a single call. A call that was given up counts until the server answers it, which many
never do, or the connection ends: its question must not reach another client. It may reach the same
client, or user. If such a call is the reason that a question was refused, the hub reconnects to the
server once no call is under way.
A call whose caller sends no answer for a while, or has disconnected, is given up when it blocks
another question.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Hashable, Mapping
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

from genmcp.channel import Channel, is_detached
from genmcp.client.client import Client
from genmcp.client.errors import ClientError
from genmcp.client.handler import ClientHandler, Sampled
from genmcp.client.hooks import HEARD_IN
from genmcp.core.outcome import Done, Outcome
from genmcp.core.waiting import Continue
from genmcp.errors import (
    CapabilityMissing,
    ConfigurationError,
    GenmcpError,
    InvalidParams,
    McpError,
)
from genmcp.hub.asked import Asked
from genmcp.protocol.capabilities import (
    ClientCapabilities,
    ElicitationCapability,
    SamplingCapability,
)
from genmcp.protocol.client_features import CreateMessageRequestParams
from genmcp.protocol.params import SEVERITY, LoggingLevel, LoggingMessageNotificationParams
from genmcp.protocol.value import Result
from genmcp.question.elicitation import FormQuestion, UrlQuestion
from genmcp.question.form import form_of_schema
from genmcp.question.question import Question
from genmcp.question.sampling import RootsQuestion, SampleQuestion

__all__ = ["TAG", "Relay", "RelayingHandler", "Work", "caller"]

TAG = "passed on"
"""What a call waits under whose questions were passed on."""

logger = logging.getLogger("genmcp.hub")

_OVER = "Nobody can be asked: the call is over"
_SEVERAL = (
    "Nobody can be asked: the question may be about another call that is under way; "
    "call again when that is over, which is within minutes if its client is gone"
)
_LEFT = (
    "Nobody can be asked: the question may be about a call that was given up; the server is "
    "connected to again once no call is under way: call again then"
)

_current: ContextVar["Relay | None"] = ContextVar("genmcp_hub_relay", default=None)

Work = Callable[["Relay"], Coroutine[Any, Any, Result]]
"""What is asked of a server: it is given the relay of the call, for its progress."""


def caller() -> Hashable:
    """Return who has made the call that is on its way here: its user, or client; None: unknown."""
    relay = _current.get()
    return None if relay is None else relay.caller


class Relay:
    """A call on its way through a hub: *work* runs, and `step` returns what is asked meanwhile.

    channel: the channel of the caller's last request. asked: counts the questions that wait for
    answers.
    """

    def __init__(self, channel: Channel, work: Work, asked: Asked) -> None:
        self.channel = channel
        self._places = asked
        self._asked: dict[str, tuple[Question, asyncio.Future[Any]]] = {}
        self._passed: list[str] = []
        self._passed_at = 0.0
        self._news = asyncio.Event()
        self._count = 0
        self._logs: deque[LoggingMessageNotificationParams] = deque()
        self._logging: asyncio.Task[None] | None = None
        token = _current.set(self)
        try:
            self._work = asyncio.get_running_loop().create_task(self._whole(work))
        finally:
            _current.reset(token)
        self._work.add_done_callback(self._ended)

    @property
    def caller(self) -> Hashable:
        """Who has called: the user, or else the client, or None if neither can be told again."""
        request, principal = self.channel.request, self.channel.principal
        if principal is not None:
            return "user", principal
        return None if request.session is None else ("client", request.session)

    @property
    def waits(self) -> bool:
        """Whether a question of the server is unanswered."""
        return bool(self._asked)

    @property
    def is_silent(self) -> bool:
        """Whether it waits for an answer for too long if others have questions.

        Since 2026-07-28 no connection stays open while a client answers, so that only a time limit
        can detect a client that is gone; before, the connection of the request does.
        """
        if not self._passed:
            return False
        if is_detached(self.channel):
            return True
        now = asyncio.get_running_loop().time()
        return now - self._passed_at >= self._places.patience.of(self._client)

    def abandon(self) -> None:
        """Cancel the call, since its client left a question open that blocks others."""
        self._places.patience.left(self._client)
        self.cancel()

    @property
    def _client(self) -> Hashable:
        return self.caller or self.channel.sink.client_key.owner

    @property
    def given_up(self) -> bool:
        """Whether it was stopped: there is no result."""
        return self._work.cancelled()

    async def step(self) -> Result | Continue:
        """Wait for the result, or for questions that need to be answered first.

        Raises:
            Exception: what *work* raises.
        """
        while not self._work.done():
            if not self._asked:
                self._news.clear()
                await self._news.wait()
                await asyncio.sleep(0)  # questions that were put together are passed on together
                await self._logged()
                continue
            self._passed, self._passed_at = [*self._asked], asyncio.get_running_loop().time()
            return Continue(TAG, {key: question for key, (question, _) in self._asked.items()})
        return self._work.result()

    def answer(self, outcome: Outcome) -> None:
        """Take in how the questions that were passed on were answered."""
        if isinstance(outcome, Done):
            self._places.patience.answered(self._client)
        for key in self._passed:
            _, future = self._asked.pop(key, (None, None))
            if future is None or future.done():
                continue  # whoever asked does not want to know any more
            if isinstance(outcome, Done):
                future.set_result(outcome.value[key])
            elif isinstance(outcome.error, CapabilityMissing):
                future.set_exception(InvalidParams(str(outcome.error)))
            else:
                future.set_exception(McpError(str(outcome.error)))
        self._passed = []

    async def ask(self, question: Question) -> Any:
        """Forward *question* to the caller, and return the answer.

        Raises:
            McpError: there is no answer, or the call is over.
            Overloaded: too many questions wait for the client.
        """
        if self._work.done():
            raise McpError(_OVER)
        with self._places.place(self.channel.sink.client_key):
            self._count += 1
            key = f"q{self._count}"
            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self._asked[key] = question, future
            self._news.set()
            try:
                return await future
            finally:
                self._asked.pop(key, None)

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Pass on how far it is."""
        await self.channel.progress(progress, total, message)

    def log(self, message: LoggingMessageNotificationParams) -> None:
        """Pass on what the server has logged, soon; before anything it says later."""
        if self._work.done():
            return
        if len(self._logs) >= (most := self._places.limits.logs):
            logger.warning("a log message is dropped: %d wait (HubLimits.logs)", most)
            return
        self._logs.append(message)
        if self._logging is None or self._logging.done():
            self._logging = asyncio.get_running_loop().create_task(self._log())

    def cancel(self) -> None:
        """Stop: nobody waits for it any more."""
        self._work.cancel()
        self._logs.clear()
        if self._logging is not None:
            self._logging.cancel()

    async def log_level(self) -> LoggingLevel | None:
        """Return the least severe level that whoever has called wants to hear of."""
        try:
            return await self.channel.log_level()
        except GenmcpError:  # it is not worth a call
            return None

    async def _whole(self, work: Work) -> Result:
        try:
            return await work(self)
        finally:
            await asyncio.sleep(0)  # what was logged before the answer is taken in by now
            await self._logged()

    async def _log(self) -> None:
        while self._logs:
            message = self._logs.popleft()
            try:
                await self.channel.log(message.level, message.data, message.logger)
            except GenmcpError as error:
                logger.warning("a log message is not passed on: %s", error)

    async def _logged(self) -> None:
        """Wait until what was logged is passed on."""
        if self._logging is not None:
            await asyncio.wait((self._logging,))

    def _ended(self, work: "asyncio.Task[Result]") -> None:
        self._news.set()
        for _, future in self._asked.values():
            if not future.done():
                future.set_exception(McpError(_OVER))
        if not work.cancelled():
            work.exception()  # whoever waits is told; perhaps nobody does


class RelayingHandler(ClientHandler[None]):
    """Forwards the questions and log messages of one server to the caller. Owned by its member.

    asked: counts the unanswered questions of all servers of the hub.
    work: returns the number of requests that wait for the server, and the callers that have given
    up others. renew: reconnects once no request waits. in_turn: see `ServerConfig.asks_in_turn`.
    """

    capabilities = ClientCapabilities(
        roots={},
        sampling=SamplingCapability(context={}, tools={}),
        elicitation=ElicitationCapability(form={}, url={}),
    )

    def __init__(
        self,
        asked: Asked,
        work: Callable[[], tuple[int, Collection[Hashable]]],
        renew: Callable[[], None],
        *,
        in_turn: bool = False,
    ) -> None:
        self._in_turn = in_turn
        self.most_open = asked.limits.all_questions
        self._open: set[Relay] = set()
        self._work = work
        self._renew = renew
        self._levels: WeakKeyDictionary[Client, LoggingLevel] = WeakKeyDictionary()

    async def handle_list_roots(self, state: None) -> Any:
        """Pass the question on."""
        return await self._relay().ask(RootsQuestion())

    async def handle_create_message(self, params: CreateMessageRequestParams, state: None) -> Any:
        """Pass the question on: it is there that somebody approves."""
        return await self._relay().ask(SampleQuestion(params))

    async def handle_elicitation_create(
        self, message: str, schema: Mapping[str, Any], state: None
    ) -> Any:
        """Pass the form on, if it is one that may be asked for."""
        try:
            form = form_of_schema(schema)
        except ConfigurationError as error:
            raise InvalidParams(f"requestedSchema: {error}") from None
        return await self._relay().ask(FormQuestion(message, schema=form.document))

    async def handle_url_elicitation(self, message: str, url: str, state: None) -> Any:
        """Pass the URL on."""
        return await self._relay().ask(UrlQuestion(message, url))

    async def handle_log(self, message: LoggingMessageNotificationParams, state: None) -> Any:
        """Pass it on, if it can be told to whom; it is no matter of anybody else's."""
        relay = HEARD_IN.get().get(_current) or self._only(strictly=True)
        if relay is not None:
            relay.log(message)

    async def approve(self, subject: Sampled, state: None) -> Any:
        """Agree: whoever has called is asked, and has somebody who approves."""
        return True

    @asynccontextmanager
    async def serving(self, relay: Relay, client: Client) -> AsyncIterator[None]:
        """Let *relay* be one of the calls that the server of *client* works on.

        The server is to log what any of them wants to hear of; the rest is left out on the way.
        """
        self._open.add(relay)
        try:
            level = await relay.log_level()
            if level is not None and client.capabilities.logging is not None:
                before = self._levels.get(client)
                if before is None or SEVERITY[level] < SEVERITY[before]:
                    self._levels[client] = level
                    with suppress(ClientError):  # it is not worth a call
                        await client.log_level(level)
            yield
        finally:
            self._open.discard(relay)

    def _relay(self) -> Relay:
        """Return the call that the question, which is being asked now, is about."""
        relay = _current.get() or self._only(strictly=False)
        if relay is not None:
            return relay
        running, left_by = self._work()
        silent = [each for each in self._open if each.is_silent] if running > 1 else []
        if running - len(silent) > 1 or not (left_by or silent):
            raise McpError(_SEVERAL)
        for each in silent:
            each.abandon()
        self._renew()
        raise McpError(_LEFT)

    def _only(self, *, strictly: bool) -> Relay | None:
        """Return the call that the server is working on, if there is only one.

        Calls that the same caller has given up do not count, nor do calls that wait for an answer
        if the server asks in turn. With *strictly* both count.
        """
        running, left_by = self._work()
        able = [*self._open]
        if self._in_turn and not strictly:
            able = [each for each in able if not each.waits]
        if running != len(self._open) or len(able) != 1:
            return None
        (relay,) = able
        if any(strictly or each is None or each != relay.caller for each in left_by):
            return None
        return relay
