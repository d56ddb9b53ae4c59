"""Forwarding of questions and log messages from a hub's servers to the hub's clients.

A question is a request of a server to its client: elicitation, sampling or roots. It belongs to a
call, and must only reach the client that made this call.

A question identifies its call if it arrives in the response to the call (2026-07-28) or on the
event stream of the call's POST (HTTP before 2026-07-28). A question that arrives over stdio, on the
stream of a GET or over HTTP+SSE does not identify its call. Such a question is forwarded only while
the server can be working on a single call.

The server may be working on a cancelled call until it responds to that call, which many servers
never do, or until the connection ends. A later question may therefore belong to the cancelled call.
It is forwarded only if the cancelled call was made by the same user or client. If a question is
rejected because of a cancelled call, the hub reconnects to the server once no call is running.

A call whose open question blocks another question is cancelled if its client has disconnected, or
has sent no answer for a while.
"""

import asyncio
import logging
from collections import Counter, OrderedDict, deque
from collections.abc import (
    AsyncIterator,
    Callable,
    Collection,
    Coroutine,
    Hashable,
    Iterator,
    Mapping,
)
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, Final
from weakref import WeakKeyDictionary

from genmcp._core.client_key import ClientKey, Share
from genmcp._core.outcome import Done, Outcome
from genmcp._core.waiting import Continue
from genmcp.channel import Channel
from genmcp.client.client import Client
from genmcp.client.errors import ClientError
from genmcp.client.handler import ClientHandler, Sampled
from genmcp.client.hooks import ORIGIN_CONTEXT
from genmcp.client.tool_catalog import read_schemas
from genmcp.content import json_of
from genmcp.errors import (
    CapabilityMissing,
    ConfigurationError,
    GenmcpError,
    InvalidParams,
    McpError,
    Overloaded,
)
from genmcp.hub.config import HubLimits
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

TAG = "passed on"
"""The tag of the continuation of a call that waits for forwarded questions."""

# Bytes of a form. It is compiled in the event loop if the cache has lost it before its answer.
_MAX_FORM: Final = 32_768

logger = logging.getLogger("genmcp.hub")
_CALL_ENDED = "No client can answer: the call has ended"
_SEVERAL_CALLS = (
    "No client can answer: the question may belong to another call that is running; "
    "repeat the call when that has ended, which takes minutes if its client is gone"
)
_CANCELLED_CALL = (
    "No client can answer: the question may belong to a call that was cancelled; the hub "
    "reconnects to the server once no call is running: repeat the call then"
)

_current: ContextVar["ForwardedCall | None"] = ContextVar("genmcp_hub_call", default=None)

Work = Callable[["ForwardedCall"], Coroutine[Any, Any, Result]]
"""Sends the request of a call to the server, forwards its progress, and returns the result."""


def current_caller() -> Hashable:
    """Return the user or client of the call in this context; None if it cannot be identified."""
    call = _current.get()
    return None if call is None else call.caller


class QuestionLimiter:
    """Counts the forwarded questions that wait for answers, by client. Owned by the hub."""

    def __init__(self, limits: HubLimits) -> None:
        self.limits = limits
        self.blocking = BlockingTimes(limits.blocking_timeout, limits.max_blocking_clients)
        self._open: Counter[Share] = Counter()
        self._total = 0
        anonymous = max(1, int(limits.anonymous_share * limits.max_questions))
        of_client = (limits.max_questions_per_client, "max_questions_per_client")
        self._limits = {
            "principal": of_client,
            "session": of_client,
            "address": (limits.max_questions_per_address, "max_questions_per_address"),
            "anonymous": (anonymous, "anonymous_share"),
        }

    @contextmanager
    def slot(self, client: ClientKey) -> Iterator[None]:
        """Count a question to *client* while the context is entered.

        Raises:
            Overloaded: too many questions wait for this client, or for all clients.
        """
        # A question counts towards every group of its client: its session, its address, and all
        # anonymous clients.
        shares = client.shares
        for share in shares:
            limit, setting = self._limits[share[0]]
            if self._open[share] >= limit:
                raise Overloaded(
                    f"Too many questions wait for the client: {limit} (HubLimits.{setting})"
                )
        if self._total >= (limit := self.limits.max_questions):
            raise Overloaded(
                f"Too many questions wait for answers: {limit} (HubLimits.max_questions)"
            )
        self._total += 1
        self._open.update(shares)
        try:
            yield
        finally:
            self._total -= 1
            self._open.subtract(shares)
            for share in shares:
                if not self._open[share]:
                    del self._open[share]


class BlockingTimes:
    """For each client, how long its open question may block the questions of other clients.

    A client that leaves its forms open could block all other clients again and again. Therefore
    each question that a client leaves open halves the blocking time of that client. An answer
    resets its blocking time to `HubLimits.blocking_timeout`.
    """

    def __init__(self, seconds: float, max_clients: int) -> None:
        self._seconds = seconds
        self._max_clients = max_clients
        self._unanswered: OrderedDict[Hashable, int] = OrderedDict()

    def of(self, client: Hashable) -> float:
        """Return the blocking time of *client* in seconds."""
        return self._seconds / 2.0 ** self._unanswered.get(client, 0)

    def record_unanswered(self, client: Hashable) -> None:
        """Halve the blocking time of *client*, after its open question blocked others."""
        self._unanswered[client] = min(self._unanswered.get(client, 0) + 1, 30)
        self._unanswered.move_to_end(client)
        if len(self._unanswered) > self._max_clients:
            self._unanswered.popitem(last=False)

    def record_answer(self, client: Hashable) -> None:
        """Reset the blocking time of *client* to the full `blocking_timeout`."""
        self._unanswered.pop(client, None)


class ForwardedCall:
    """A call that is forwarded to a server. *work* runs in an asyncio.Task of its own.

    `step` returns the result, or the questions that the client has to answer first. Owned by the
    request that is being handled, and by `SuspendedCalls` while the client answers.

    channel: the channel of the client's last request. questions: counts the open questions.
    """

    def __init__(self, channel: Channel, work: Work, questions: QuestionLimiter) -> None:
        self.channel = channel
        self._limiter = questions
        self._questions: dict[str, tuple[Question, asyncio.Future[Any]]] = {}
        self._forwarded: list[str] = []
        self._forwarded_at = 0.0
        self._changed = asyncio.Event()
        self._count = 0
        self._logs: deque[LoggingMessageNotificationParams] = deque()
        self._logging: asyncio.Task[None] | None = None
        # The task inherits `_current`. A question that arrives in the response to the call is
        # handled in the context of the task, so that its handler finds the call.
        token = _current.set(self)
        try:
            self._work = asyncio.get_running_loop().create_task(self._run(work))
        finally:
            _current.reset(token)
        self._work.add_done_callback(self._ended)

    @property
    def caller(self) -> Hashable:
        """The user of the call, or else its session; None if both are unknown."""
        request, principal = self.channel.request, self.channel.principal
        if principal is not None:
            return "user", principal
        return None if request.session is None else ("client", request.session)

    @property
    def waits(self) -> bool:
        """Whether a question of the server still waits for its answer."""
        return bool(self._questions)

    @property
    def is_silent(self) -> bool:
        """Whether the client has left a question open for longer than its blocking time.

        Before 2026-07-28 the request is open while its client answers, so that a disconnect is
        detected. Since 2026-07-28 no connection is open meanwhile, and only the blocking time
        detects a client that has disconnected.
        """
        if not self._forwarded:
            return False
        if self.channel.context.caller.detached:
            return True
        now = asyncio.get_running_loop().time()
        return now - self._forwarded_at >= self._limiter.blocking.of(self._client)

    def abandon(self) -> None:
        """Cancel the call, because its open question blocks others."""
        self._limiter.blocking.record_unanswered(self._client)
        self.cancel()

    @property
    def _client(self) -> Hashable:
        return self.caller or self.channel.context.client

    @property
    def cancelled(self) -> bool:
        """Whether the call was cancelled, and has no result."""
        return self._work.cancelled()

    async def step(self) -> Result | Continue:
        """Wait for the result, or for questions to the client, and return that.

        Raises:
            Exception: any that *work* raises.
        """
        while not self._work.done():
            if self._questions:
                self._forwarded = [*self._questions]
                self._forwarded_at = asyncio.get_running_loop().time()
                return Continue(TAG, {key: each for key, (each, _) in self._questions.items()})
            self._changed.clear()
            await self._changed.wait()
            # Questions that arrived in one read are forwarded in one response.
            await asyncio.sleep(0)
            await self._flush_logs()
        return self._work.result()

    def answer(self, outcome: Outcome) -> None:
        """Resolve the forwarded questions with the client's answers, or with its error.

        `RelayingHandler` then sends them to the server.
        """
        if isinstance(outcome, Done):
            self._limiter.blocking.record_answer(self._client)
        # Only the forwarded questions: others may have arrived while the client answered.
        for key in self._forwarded:
            _, future = self._questions.pop(key, (None, None))
            if future is None or future.done():
                continue  # the server has cancelled the question
            if isinstance(outcome, Done):
                future.set_result(outcome.value[key])
            elif isinstance(outcome.error, CapabilityMissing):
                future.set_exception(InvalidParams(str(outcome.error)))
            else:
                future.set_exception(McpError(str(outcome.error)))
        self._forwarded = []

    async def ask(self, question: Question) -> Any:
        """Forward *question* to the client, and return the answer.

        Raises:
            McpError: the question was not answered, or the call has ended.
            Overloaded: too many questions wait for the client.
        """
        if self._work.done():
            raise McpError(_CALL_ENDED)
        with self._limiter.slot(self.channel.context.caller.client_key):
            self._count += 1
            key = f"q{self._count}"
            future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            self._questions[key] = question, future
            self._changed.set()
            try:
                return await future
            finally:
                self._questions.pop(key, None)

    async def progress(self, progress: float, total: float | None, message: str | None) -> None:
        """Forward a progress notification."""
        await self.channel.progress(progress, total, message)

    def log(self, message: LoggingMessageNotificationParams) -> None:
        """Queue a log message for the client. It is sent before later questions and the result."""
        if self._work.done():
            return
        if len(self._logs) >= (limit := self._limiter.limits.max_queued_logs):
            logger.warning(
                "a log message is dropped: %d are queued (HubLimits.max_queued_logs)", limit
            )
            return
        self._logs.append(message)
        if self._logging is None or self._logging.done():
            self._logging = asyncio.get_running_loop().create_task(self._send_logs())

    def cancel(self) -> None:
        """Cancel the call, and drop its log messages."""
        # Cancels the request of the hub's client, which then sends `notifications/cancelled` to the
        # server.
        self._work.cancel()
        self._logs.clear()
        if self._logging is not None:
            self._logging.cancel()

    async def log_level(self) -> LoggingLevel | None:
        """Return the least severe log level that the client wants; None if it wants no logs."""
        try:
            return await self.channel.log_level()
        except GenmcpError:  # a call does not fail because of its log messages
            return None

    async def _run(self, work: Work) -> Result:
        try:
            return await work(self)
        finally:
            # The handlers of log messages that were read together with the response run in this
            # iteration of the event loop, and call `log`.
            await asyncio.sleep(0)
            await self._flush_logs()

    async def _send_logs(self) -> None:
        while self._logs:
            message = self._logs.popleft()
            try:
                await self.channel.log(message.level, message.data, message.logger)
            except GenmcpError as error:
                logger.warning("a log message is not forwarded: %s", error)

    async def _flush_logs(self) -> None:
        if self._logging is not None:
            await asyncio.wait((self._logging,))

    def _ended(self, work: "asyncio.Task[Result]") -> None:
        self._changed.set()
        for _, future in self._questions.values():
            if not future.done():
                future.set_exception(McpError(_CALL_ENDED))
        if not work.cancelled():
            work.exception()  # marks the error as retrieved: a cancelled request awaits no task


class RelayingHandler(ClientHandler):
    """Forwards the questions and log messages of one server to the clients that called it.

    Owned by the `HubMember` of the server.

    questions: counts the open questions of all servers of the hub.
    work: returns the number of running requests, and the callers of those that were cancelled and
        have no response. renew: reconnects once no request is running.
    in_turn: see `ServerConfig.asks_in_turn`.
    """

    capabilities = ClientCapabilities(
        roots={},
        sampling=SamplingCapability(context={}, tools={}),
        elicitation=ElicitationCapability(form={}, url={}),
    )

    def __init__(
        self,
        questions: QuestionLimiter,
        work: Callable[[], tuple[int, Collection[Hashable]]],
        renew: Callable[[], None],
        *,
        in_turn: bool = False,
    ) -> None:
        self._in_turn = in_turn
        self.most_open = questions.limits.max_questions
        self._calls: set[ForwardedCall] = set()
        self._work = work
        self._renew = renew
        self._levels: WeakKeyDictionary[Client, LoggingLevel] = WeakKeyDictionary()

    async def handle_list_roots(self) -> Any:
        """Forward a request for roots."""
        return await self._call_of_question().ask(RootsQuestion())

    async def handle_create_message(self, params: CreateMessageRequestParams) -> Any:
        """Forward a sampling request; the client approves it."""
        return await self._call_of_question().ask(SampleQuestion(params))

    async def handle_elicitation_create(self, message: str, schema: Mapping[str, Any]) -> Any:
        """Forward a form.

        Raises:
            InvalidParams: the schema is too large, or has keywords that a form must not have.
        """
        # Before the form is read: other calls may begin or end meanwhile.
        call = self._call_of_question()
        text = json_of(schema)
        if len(text) > _MAX_FORM:
            raise InvalidParams(f"requestedSchema: a hub forwards at most {_MAX_FORM} bytes")
        try:
            form = await read_schemas([text], partial(form_of_schema, schema))
        except ConfigurationError as error:
            raise InvalidParams(f"requestedSchema: {error}") from None
        return await call.ask(FormQuestion(message, schema=form.document))

    async def handle_url_elicitation(self, message: str, url: str) -> Any:
        """Forward a URL."""
        return await self._call_of_question().ask(UrlQuestion(message, url))

    async def handle_log(self, message: LoggingMessageNotificationParams) -> Any:
        """Forward a log message; drop it if its call is unknown, since it may be confidential."""
        # A message that arrives on the stream of a call has the context of that call.
        call = ORIGIN_CONTEXT.get().get(_current) or self._only_call(strictly=True)
        if call is not None:
            call.log(message)

    async def approve(self, subject: Sampled) -> Any:
        """Approve all sampling here: the client that gets the forwarded question decides."""
        return True

    @asynccontextmanager
    async def running(self, call: ForwardedCall, client: Client) -> AsyncIterator[None]:
        """Count *call* as one that the server of *client* works on, while this is entered.

        The log level of the server is lowered to the least severe level that the client of any call
        wants. The channel of each call then drops the messages that its own client does not want.
        """
        self._calls.add(call)
        try:
            level = await call.log_level()
            if level is not None and client.capabilities.logging is not None:
                before = self._levels.get(client)
                if before is None or SEVERITY[level] < SEVERITY[before]:
                    self._levels[client] = level
                    with suppress(ClientError):  # a call does not fail because of its log messages
                        await client.log_level(level)
            yield
        finally:
            self._calls.discard(call)

    def _call_of_question(self) -> ForwardedCall:
        """Return the call that the question being handled is about.

        Raises:
            McpError: it may be about several calls, or about a cancelled one.
        """
        call = _current.get() or self._only_call(strictly=False)
        if call is not None:
            return call
        # The question may belong to several calls. After reconnecting only the running calls that
        # are not silent remain. With at most one of these, a repeated call is unambiguous. With
        # two or more it would be ambiguous again, so that reconnecting does not help.
        running, cancelled_by = self._work()
        silent = [each for each in self._calls if each.is_silent] if running > 1 else []
        if running - len(silent) > 1 or not (cancelled_by or silent):
            raise McpError(_SEVERAL_CALLS)
        for each in silent:
            each.abandon()
        self._renew()
        raise McpError(_CANCELLED_CALL)

    def _only_call(self, *, strictly: bool) -> ForwardedCall | None:
        """Return the only call that the server can be working on; None unless there is one.

        Cancelled calls of the same caller do not count. If the server asks in turn, calls that wait
        for an answer do not count either. With *strictly* these calls count too.
        """
        running, cancelled_by = self._work()
        candidates = [*self._calls]
        if self._in_turn and not strictly:
            candidates = [each for each in candidates if not each.waits]
        # `running` includes requests of the application itself (`Hub.call`), which are not made for
        # a client that could answer questions.
        if running != len(self._calls) or len(candidates) != 1:
            return None
        (call,) = candidates
        if any(strictly or each is None or each != call.caller for each in cancelled_by):
            return None
        return call
