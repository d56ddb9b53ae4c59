"""Forwarding of questions and notifications from a hub's servers to the hub's clients.

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
has sent no answer for a minute.
"""

import asyncio
import json
import logging
import secrets
from collections import deque
from collections.abc import (
    Callable,
    Collection,
    Coroutine,
    Hashable,
    Mapping,
    Sequence,
)
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from hashlib import sha256
from typing import Any, Final
from weakref import WeakKeyDictionary

from genmcp._mux.limits import ConcurrencyLimit, Limits
from genmcp.channel import Channel
from genmcp.client.client import Client
from genmcp.client.handler import ClientHandler, Sampled
from genmcp.client.hooks import ORIGIN_CONTEXT
from genmcp.client.tool_catalog import read_schemas
from genmcp.content import json_of
from genmcp.core.outcome import Done, Outcome
from genmcp.core.waiting import Continue
from genmcp.errors import (
    CapabilityMissing,
    ConfigurationError,
    GenmcpError,
    InvalidParams,
    McpError,
    Overloaded,
)
from genmcp.protocol.capabilities import (
    ClientCapabilities,
    ElicitationCapability,
    SamplingCapability,
)
from genmcp.protocol.client_features import CreateMessageRequestParams
from genmcp.protocol.params import (
    CALLER,
    SEVERITY,
    LoggingLevel,
    LoggingMessageNotificationParams,
)
from genmcp.protocol.revisions.chain import METHOD_NAMES
from genmcp.protocol.value import Result
from genmcp.question.elicitation import FormQuestion, UrlQuestion
from genmcp.question.form import form_of_schema
from genmcp.question.question import Question
from genmcp.question.sampling import RootsQuestion, SampleQuestion

TAG = "passed on"
"""The tag of the continuation of a call that waits for forwarded questions."""

# Bytes of a form. It is compiled in the event loop if the cache has lost it before its answer.
_MAX_FORM: Final = 32_768
# Questions that may wait for the answers of all clients together, and suspended calls.
_MAX_QUESTIONS: Final = 1000
# The part of them that one principal or address may use. Each occupies one of 100 connections at a
# server over HTTP before 2026-07-28.
_SHARE_OF_QUESTIONS: Final = 0.02
# Seconds for which a call waits for its client's answer: people fill in forms slowly.
_ANSWER_TIMEOUT: Final = 1200.0
# Seconds for which an open question may block the questions of other calls, at a server that does
# not identify the call of a question.
_BLOCKING_TIMEOUT: Final = 60.0
# Notifications of one call that may be queued for its client; further ones are dropped.
_MAX_NOTES: Final = 1000

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


def current_call() -> "ForwardedCall | None":
    """Return the forwarded call in whose context this is called."""
    return _current.get()


def question_limit() -> ConcurrencyLimit:
    """Return a bound on the forwarded questions that wait for answers, by client."""
    limits = Limits(client_share=_SHARE_OF_QUESTIONS)
    return ConcurrencyLimit("questions that wait for an answer", _MAX_QUESTIONS, limits)


class ForwardedCall:
    """A call that is forwarded to a server. *work* runs in an asyncio.Task of its own.

    `step` returns the result, or the questions that the client has to answer first. Owned by the
    request that is being handled, and by `SuspendedCalls` while the client answers.

    channel: the channel of the client's last request. questions: counts the open questions.
    """

    def __init__(self, channel: Channel, work: Work, questions: ConcurrencyLimit) -> None:
        self.channel = channel
        self._limiter = questions
        self._questions: dict[str, tuple[Question, asyncio.Future[Any]]] = {}
        self._forwarded: list[str] = []
        self._forwarded_at = 0.0
        self._changed = asyncio.Event()
        self._count = 0
        self._notes: deque[tuple[str, Any]] = deque()
        self._noting: asyncio.Task[None] | None = None
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
    def is_silent(self) -> bool:
        """Whether the client has left a question open for longer than `_BLOCKING_TIMEOUT`.

        Before 2026-07-28 the request is open while its client answers, so that a disconnect is
        detected. Since 2026-07-28 no connection is open meanwhile, and only the time detects a
        client that has disconnected.
        """
        if not self._forwarded:
            return False
        if self.channel.context.caller.detached:
            return True
        return asyncio.get_running_loop().time() - self._forwarded_at >= _BLOCKING_TIMEOUT

    @property
    def cancelled(self) -> bool:
        """Whether the call was cancelled, and has no result."""
        return self._work.cancelled()

    def meta(self, server: str) -> Mapping[str, Any]:
        """Return the `_meta` that tells *server* for whom this is: it sees the hub as its caller.

        Another text for each server, and the same one in each process of the hub. "" is an
        anonymous client. Empty for the only client of the hub, at the other end of its pipe.
        """
        received = self.channel.request.params.meta.caller  # this hub may be behind another one
        if self.channel.context.caller.client_key.is_anonymous or received == "":
            return {CALLER: ""}
        known = self.channel.principal, received
        text = json.dumps([server, *known]).encode()  # of `json`, which escapes lone surrogates
        return {CALLER: sha256(text).hexdigest()} if any(known) else {}

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
            await self._flush_notes()
        return self._work.result()

    def answer(self, outcome: Outcome) -> None:
        """Resolve the forwarded questions with the client's answers, or with its error.

        `RelayingHandler` then sends them to the server.
        """
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
        with self._limiter.acquired(self.channel.context.caller.client_key):
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

    def note(self, method: str, params: Any) -> None:
        """Queue a notification for the client. It is sent before later questions and the result."""
        if self._work.done():
            return
        if len(self._notes) >= _MAX_NOTES:
            logger.warning("%s is dropped: %d notifications are queued", method, _MAX_NOTES)
            return
        self._notes.append((method, params))
        if self._noting is None or self._noting.done():
            self._noting = asyncio.get_running_loop().create_task(self._send_notes())

    def cancel(self) -> None:
        """Cancel the call, and drop its notifications."""
        # Cancels the request of the hub's client, which then sends `notifications/cancelled` to the
        # server.
        self._work.cancel()
        self._notes.clear()
        if self._noting is not None:
            self._noting.cancel()

    async def _run(self, work: Work) -> Result:
        try:
            return await work(self)
        finally:
            # The handlers of notifications that were read together with the response run in this
            # iteration of the event loop, and call `note`.
            await asyncio.sleep(0)
            await self._flush_notes()

    async def _send_notes(self) -> None:
        while self._notes:
            method, params = self._notes.popleft()
            try:
                if isinstance(params, LoggingMessageNotificationParams):
                    await self.channel.log(params.level, params.data, params.logger)
                else:
                    await self.channel.notify(method, params)
            except GenmcpError as error:
                logger.warning("%s is not forwarded: %s", method, error)

    async def _flush_notes(self) -> None:
        if self._noting is not None:
            await asyncio.wait((self._noting,))

    def _ended(self, work: "asyncio.Task[Result]") -> None:
        self._changed.set()
        for _, future in self._questions.values():
            if not future.done():
                future.set_exception(McpError(_CALL_ENDED))
        if not work.cancelled():
            work.exception()  # marks the error as retrieved: a cancelled request awaits no task


class SuspendedCalls:
    """Calls that wait for their client's answers, in this process. Owned by the hub."""

    def __init__(self) -> None:
        self._calls: dict[str, tuple[ForwardedCall, asyncio.TimerHandle]] = {}

    def add(self, call: ForwardedCall, timeout: float = _ANSWER_TIMEOUT) -> str:
        """Keep *call* until it is resumed or *timeout* seconds have passed; return its key.

        Raises:
            Overloaded: too many calls wait. *call* is cancelled.
        """
        if len(self._calls) >= _MAX_QUESTIONS:
            call.cancel()
            raise Overloaded(f"Too many calls wait for an answer: {_MAX_QUESTIONS}")
        key = secrets.token_urlsafe(12)
        timer = asyncio.get_running_loop().call_later(timeout, self.cancel, key)
        self._calls[key] = call, timer
        return key

    def pop(self, key: str | None) -> ForwardedCall | None:
        """Remove and return the call *key*; None if it has expired or is in another process."""
        call, timer = self._calls.pop(key or "", (None, None))
        if timer is not None:
            timer.cancel()
        return call

    def cancel(self, key: str | None) -> None:
        """Remove and cancel the call *key*, if it is here."""
        call = self.pop(key)
        if call is not None:
            call.cancel()


class RelayingHandler(ClientHandler):
    """Forwards the questions and notifications of one server to the clients that called it.

    Owned by the `HubMember` of the server.

    work: returns the calls of the running requests, and the callers of those that were cancelled
        and have no response. renew: reconnects once no request is running.
    """

    capabilities = ClientCapabilities(
        roots={},
        sampling=SamplingCapability(context={}, tools={}),
        elicitation=ElicitationCapability(form={}, url={}),
    )

    # The hub bounds the questions of each client itself.
    most_open = _MAX_QUESTIONS

    def __init__(
        self,
        work: Callable[[], tuple[Sequence[ForwardedCall | None], Collection[Hashable]]],
        renew: Callable[[], None],
    ) -> None:
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
        await self._note("notifications/message", message)

    async def handle_notification(self, method: str, params: Any) -> None:
        """Forward a notification of an extension in the same way."""
        if method not in METHOD_NAMES:
            await self._note(method, params)

    async def _note(self, method: str, params: Any) -> None:
        # A notification that arrives on the stream of a call has the context of that call.
        call = ORIGIN_CONTEXT.get().get(_current) or self._only_call()
        if call is not None:
            call.note(method, params)

    async def approve(self, subject: Sampled) -> Any:
        """Approve all sampling here: the client that gets the forwarded question decides."""
        return True

    async def lower_log_level(self, call: ForwardedCall, client: Client) -> None:
        """Lower the log level of the server of *client* to the one that the client of *call* wants.

        It stays at the least severe level that any client wants. The channel of each call then
        drops the messages that its own client does not want.
        """
        if client.capabilities.logging is None:
            return
        with suppress(GenmcpError):  # a call does not fail because of its log messages
            level, before = await call.channel.log_level(), self._levels.get(client)
            if level is not None and (before is None or SEVERITY[level] < SEVERITY[before]):
                self._levels[client] = level
                await client.log_level(level)

    def _call_of_question(self) -> ForwardedCall:
        """Return the call that the question being handled is about.

        Raises:
            McpError: it may be about several calls, or about a cancelled one.
        """
        call = _current.get() or self._only_call()
        if call is not None:
            return call
        # The question may belong to several calls. After reconnecting only the running calls that
        # are not silent remain. With at most one of these, a repeated call is unambiguous. With
        # two or more it would be ambiguous again, so that reconnecting does not help.
        running, cancelled_by = self._work()
        silent = [each for each in running if each and each.is_silent] if len(running) > 1 else []
        if len(running) - len(silent) > 1 or not (cancelled_by or silent):
            raise McpError(_SEVERAL_CALLS)
        for each in silent:
            each.cancel()
        self._renew()
        raise McpError(_CANCELLED_CALL)

    def _only_call(self) -> ForwardedCall | None:
        """Return the only call that the server can be working on; None unless there is one.

        Cancelled calls of the same caller do not count.
        """
        running, cancelled_by = self._work()
        # A request of the application itself (`Hub.call`) is not made for a client that could
        # answer questions.
        if len(running) != 1 or (call := running[0]) is None:
            return None
        if any(each is None or each != call.caller for each in cancelled_by):
            return None
        return call
