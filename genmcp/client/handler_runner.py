"""What each question of a server means to the hooks of a handler, and what they answer to the wire.

Values are those of 2026-07-28, whatever way the question came.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, Generic

import msgspec
from typing_extensions import TypeVar

from genmcp.cancellation import cancel_and_wait
from genmcp.client.errors import ClientClosed, ProcessExited
from genmcp.client.handler import ClientHandler, Denied
from genmcp.client.hooks import HookRunner, NotificationQueue
from genmcp.client.tool_catalog import reading
from genmcp.errors import (
    ConfigurationError,
    ContractError,
    InternalError,
    InvalidParams,
    McpError,
    MethodNotFound,
    Overloaded,
)
from genmcp.protocol.capabilities import (
    ClientCapabilities,
    ElicitationCapability,
    SamplingCapability,
)
from genmcp.protocol.client_features import (
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequestParams,
    ElicitResult,
    InputRequest,
    ListRootsResult,
    Root,
)
from genmcp.protocol.params import RequestId
from genmcp.protocol.value import decoder_for
from genmcp.question.elicitation import HTTPS, check_url
from genmcp.question.question import Accepted, Cancelled, Declined
from genmcp.schema.limits import FOREIGN_LIMITS, SchemaLimits
from genmcp.schema.schema import Schema

__all__ = ["Answer", "HandlerRunner", "InputResponder", "Reply"]

V = TypeVar("V")

Answer = msgspec.Struct | Mapping[str, Any]
"""A result: a value of the protocol, or what a hook for any request returned."""

logger = logging.getLogger("genmcp.client")

_FORM = "handle_elicitation_create"
_URL = "handle_url_elicitation"
_SAMPLE = "handle_create_message"
_ROOTS = "handle_list_roots"


class InputResponder:
    """The questions that *hooks*, those of *handler*, answer.

    `capabilities`: what the client declares: what is *declared*, or what *handler* says, or what
    its hooks show. url_schemes: the URL schemes that the user may be sent to, besides https and
    http to loopback. schemas: bounds on the schemas of forms.
    """

    def __init__(
        self,
        handler: ClientHandler[Any],
        hooks: HookRunner[Any],
        declared: ClientCapabilities | None = None,
        url_schemes: Collection[str] = HTTPS,
        schemas: SchemaLimits = FOREIGN_LIMITS,
    ) -> None:
        self._schemas = schemas
        self._hooks = hooks
        self._url_schemes = url_schemes
        self._warned = False
        self.capabilities = declared or handler.capabilities or _capabilities_of(handler, hooks)

    async def answer(self, method: str, params: Any) -> Answer:
        """Return what the hook for *method* answers.

        Raises:
            McpError: the question cannot be put to this client, or the hook refuses.
            ContractError: the hook returned what it must not.
            Exception: whatever else the hook raises.
        """
        declared = self.capabilities
        match method:
            case "roots/list" if declared.roots is not None:
                return ListRootsResult(_roots(await self._hooks.asked(_ROOTS)))
            case "sampling/createMessage" if declared.sampling is not None:
                return await self._sampled(params, declared.sampling)
            case "elicitation/create" if declared.elicitation is not None:
                return await self._elicited(params, declared.elicitation)
            case "roots/list" | "sampling/createMessage" | "elicitation/create":
                raise MethodNotFound(method)
            case "ping":
                return await self._mapping("handle_ping")
            case _:
                return await self._mapping("handle_request", method, params)

    async def _mapping(self, hook: str, *arguments: Any) -> Answer:
        result: dict[str, Any] = _read(
            hook, await self._hooks.asked(hook, *arguments), dict[str, Any]
        )
        return result

    async def _sampled(
        self, params: CreateMessageRequestParams, declared: SamplingCapability
    ) -> CreateMessageResult:
        """2025-11-25, client/sampling, "Tools in Sampling": an error without the capability."""
        if declared.tools is None and (params.tools is not None or params.tool_choice is not None):
            raise InvalidParams("The client did not declare sampling.tools")
        params = await self._approved(params, CreateMessageRequestParams)
        result = _read(_SAMPLE, await self._hooks.asked(_SAMPLE, params), CreateMessageResult)
        return await self._approved(result, CreateMessageResult)

    async def _approved(self, subject: V, kind: type[V]) -> V:
        agreed = await self._hooks.asked("approve", subject)
        if agreed is False:
            raise Denied("User rejected sampling request")
        return subject if agreed is True else _read("approve", agreed, kind)

    async def _elicited(
        self, params: ElicitRequestParams, declared: ElicitationCapability
    ) -> ElicitResult:
        """2025-11-25, client/elicitation, "Error Handling": -32602 for a mode not declared."""
        mode = "form" if params.url is None else "url"
        if not (declared.takes_forms if params.url is None else declared.takes_urls):
            raise InvalidParams(f"The client did not declare elicitation.{mode}")
        if params.url is not None:
            try:
                check_url(params.url, self._url_schemes)
            except ConfigurationError as error:
                logger.warning(
                    "%r: a server asks for a URL that is refused: %s", self._hooks, error
                )
                raise InvalidParams(f"url: {error}") from None
            said = await self._sent_to(params.message, params.url)
            return ElicitResult(said.action)
        try:
            form = await self._form(params.requested_schema or {})
        except ConfigurationError as error:
            raise InvalidParams(str(error)) from None
        said = _said(_FORM, await self._hooks.asked(_FORM, params.message, form.document))
        if said.action != "accept":
            return ElicitResult(said.action)
        content = form.fill(dict(said.content or {}))
        if faults := form.check(content):
            raise ContractError("\n".join([f"{_FORM} accepted with what does not fit:", *faults]))
        return ElicitResult("accept", content)

    async def _form(self, schema: Mapping[str, Any]) -> Schema:
        read = partial(Schema, schema, origin="requestedSchema", limits=self._schemas)
        return await reading([msgspec.json.encode(schema)], read)

    async def _sent_to(self, message: str, url: str) -> ElicitResult:
        if self._hooks.has(_URL) or not self._hooks.has(_FORM):
            return _said(_URL, await self._hooks.asked(_URL, message, url))
        if not self._warned:
            self._warned = True
            logger.warning("%r has no %s: %s is asked about URLs", self._hooks, _URL, _FORM)
        return _said(_FORM, await self._hooks.asked(_FORM, message, {"mode": "url", "url": url}))


def _capabilities_of(handler: ClientHandler[Any], hooks: HookRunner[Any]) -> ClientCapabilities:
    roots: Mapping[str, Any] | None = {} if hooks.has(_ROOTS) else None
    sampling = elicitation = None
    if hooks.has(_SAMPLE):
        sampling = SamplingCapability(
            context={} if handler.sampling_context else None,
            tools={} if handler.sampling_tools else None,
        )
    form, url = hooks.has(_FORM), hooks.has(_URL)
    if form or url:
        elicitation = ElicitationCapability(form={} if form else None, url={} if url else None)
    return ClientCapabilities(roots=roots, sampling=sampling, elicitation=elicitation)


def _read(hook: str, value: Any, kind: Any) -> Any:
    """Return what *hook* has returned as a *kind*.

    Raises:
        ContractError: it is none.
    """
    try:
        return decoder_for(kind).decode(msgspec.json.encode(value))
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise ContractError(f"{hook} returned {type(value).__name__}: {error}") from error


def _said(hook: str, value: Any) -> ElicitResult:
    match value:
        case Accepted(content):
            value = {"action": "accept", "content": content}
        case Declined():
            return ElicitResult("decline")
        case Cancelled():
            return ElicitResult("cancel")
    try:
        said: ElicitResult = _read(hook, value, ElicitResult)
    except ContractError as error:
        told = "return Accepted({...}), Declined() or Cancelled()"
        raise ContractError(f"{error}; {told}") from error
    return said


def _roots(given: Any) -> Sequence[Root]:
    """Return *given* as roots, which are `file://` URIs: 2026-07-28, client/roots, "Root"."""
    if not isinstance(given, list):
        raise ContractError(f"{_ROOTS} returned {type(given).__name__}: it must return a list")
    roots = [
        Root(each.as_uri(), each.name) if isinstance(each, Path) else _read(_ROOTS, each, Root)
        for each in given
    ]
    for root in roots:
        if not root.uri.startswith("file://"):
            raise ContractError(f"{_ROOTS} returned {root.uri!r}: a root is a file:// URI")
    return roots


S = TypeVar("S", default=Any)

Reply = Callable[[Answer | McpError], Awaitable[None]]
"""Sends the answer to a request of the server."""


_ASKED: Final = 64  # concurrent requests of the server
_PARALLEL: Final = range(2, 17)
# For how many seconds notices are still taken in at the end, and `terminate` may run.
_GRACE: Final = 5.0


class HandlerRunner(Generic[S]):
    """Answers the requests of one server with the hooks of *handler*; without one, only `ping`.

    Owned by the connection of a client.

    parallel: the number of questions answered concurrently, 2 to 16. waiting: how many more may be
        queued. notices: how many notifications may be queued for their hooks. capabilities: what
        the client declares, whatever *handler* does. url_schemes, schemas: see `ClientOptions`.

    `max_asked`: the number of concurrent requests of the server.

    Raises:
        ConfigurationError: *parallel* is out of range, or *handler* is not a handler.
    """

    def __init__(
        self,
        handler: ClientHandler[S] | None = None,
        *,
        parallel: int = 8,
        waiting: int = 64,
        notices: int = 1024,
        capabilities: ClientCapabilities | None = None,
        url_schemes: Collection[str] = HTTPS,
        schemas: SchemaLimits = FOREIGN_LIMITS,
    ) -> None:
        if parallel not in _PARALLEL:
            raise ConfigurationError(f"parallel: from 2 to 16, not {parallel!r}")
        handler = ClientHandler() if handler is None else handler
        # Besides the questions: a ping, and one notification at a time.
        self._hooks = HookRunner(handler, most=parallel + 2, waiting=waiting)
        self._notices = NotificationQueue(self._hooks, notices)
        self._questions = InputResponder(handler, self._hooks, capabilities, url_schemes, schemas)
        self._turns = asyncio.Semaphore(parallel)
        self._waiting = 0
        self._allowed = waiting
        self._running: dict[RequestId, asyncio.Task[None]] = {}
        self._passes_on = handler.most_open is not None
        self._most = handler.most_open or 2 * (parallel + waiting)
        self.max_asked = handler.most_open or _ASKED
        self._open = False
        self._warned = False

    @property
    def capabilities(self) -> ClientCapabilities:
        """What the client declares."""
        return self._questions.capabilities

    async def open(self) -> None:
        """Begin, with the state `init` returns; nothing happens if that is done.

        Raises:
            Exception: what `init` raises.
        """
        if not self._open:
            await self._hooks.open()
            self._open = True

    async def answer(self, method: str, params: Any) -> Answer:
        """Return the answer to one question; *params*: its decoded value of 2026-07-28.

        Raises:
            Denied: the user said no.
            MethodNotFound: what is asked for was not declared.
            InvalidParams: the question is not one this client takes.
            Overloaded: too many wait already.
            McpError: the hook refuses; or it failed, and the error refers to the log.
        """
        # A ping is answered regardless of the queue. A forwarded question waits for a person, and
        # would occupy a place that another caller's question needs.
        if method == "ping" or self._passes_on:
            return await self._answer(method, params)
        if self._turns.locked() and self._waiting >= self._allowed:
            raise Overloaded(f"Too many questions wait already: {self._allowed}")
        self._waiting += 1
        try:
            await self._turns.acquire()
        finally:
            self._waiting -= 1
        try:
            return await self._answer(method, params)
        finally:
            self._turns.release()

    async def answer_all(self, requests: Mapping[str, InputRequest]) -> dict[str, Answer]:
        """Return the answer to each of *requests*, which are answered side by side.

        Raises:
            McpError: as `answer`, for the first that fails; the others are cancelled.
        """
        loop = asyncio.get_running_loop()
        tasks = [
            loop.create_task(self.answer(str(type(each).__struct_config__.tag), each.params))
            for each in requests.values()
        ]
        try:
            return dict(zip(requests, await asyncio.gather(*tasks), strict=True))
        finally:
            await cancel_and_wait(*tasks, timeout=_GRACE)

    def start(self, id: RequestId, method: str, params: Any, reply: Reply) -> None:
        """Answer a request of the server's own with *reply*, and return at once.

        A server that asks and asks, and does not take in the answers, gets no more of them.
        """
        if len(self._running) >= self._most:
            if not self._warned:
                logger.warning("requests of the server are dropped: %d are open", self._most)
                self._warned = True
            return
        self._warned = False
        task = asyncio.get_running_loop().create_task(self._serve(method, params, reply))
        self.cancel(id)  # an id is used once; who uses it again gets one answer
        self._running[id] = task
        task.add_done_callback(lambda task: self._ended(id, task))

    def cancel(self, id: RequestId) -> None:
        """Stop answering the request *id*, which the server has cancelled; it may be over."""
        task = self._running.get(id)
        if task is not None:
            task.cancel()

    def tell(self, method: str, params: Any) -> None:
        """Let a hook take in a notification, after those before it, and return at once."""
        self._notices.tell(method, params)

    def runs_in(self, task: "asyncio.Task[Any]") -> bool:
        """Whether *task* is one of those in which hooks run here."""
        return task in self._running.values() or self._notices.runs_in(task)

    async def close(self, reason: BaseException | None = None) -> None:
        """Cancel what is being answered, let notices be taken in, and run `terminate`.

        Bounded in time whatever the hooks do; what they raise is logged. Nothing happens if it is
        not open.
        """
        if not self._open:
            return
        self._open = False
        try:
            await cancel_and_wait(*self._running.values(), timeout=_GRACE)
            await self._notices.close(_GRACE)
            async with asyncio.timeout(_GRACE):
                await self._hooks.told("terminate", reason)
        except Exception:
            logger.exception("%r failed in terminate", self._hooks)
        finally:
            self._hooks.close()

    async def _answer(self, method: str, params: Any) -> Answer:
        try:
            return await self._questions.answer(method, params)
        except McpError:
            raise
        except Exception as error:
            reference = token_hex(8)
            logger.exception("%r failed with %s (reference %s)", self._hooks, method, reference)
            raise InternalError(
                f"The client failed to answer (reference {reference})", reference=reference
            ) from error

    async def _serve(self, method: str, params: Any, reply: Reply) -> None:
        answer: Answer | McpError
        try:
            answer = await self.answer(method, params)
        except McpError as error:
            answer = error
        try:
            await reply(answer)
        except (ClientClosed, ProcessExited) as error:  # who uses the connection learns of it
            logger.debug("the answer to %s was not sent: %s", method, error)
        except Exception as error:
            logger.warning("the answer to %s could not be sent: %s", method, error)

    def _ended(self, id: RequestId, task: "asyncio.Task[None]") -> None:
        if self._running.get(id) is task:
            del self._running[id]
