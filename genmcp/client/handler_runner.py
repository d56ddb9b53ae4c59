"""Answers to the requests of a server: input requests and, before 2026-07-28, its own requests.

The hooks see values of 2026-07-28 in either case.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from functools import partial
from inspect import isasyncgenfunction, isawaitable, iscoroutinefunction, isgeneratorfunction
from pathlib import Path
from secrets import token_hex
from typing import Any, Final, TypeVar

import msgspec

from genmcp._schema.limits import FOREIGN_LIMITS
from genmcp._schema.schema import Schema
from genmcp.cancellation import cancel_and_wait, cancel_requested
from genmcp.client.errors import ClientClosed, ProcessExited
from genmcp.client.handler import ClientHandler, Denied
from genmcp.client.hooks import CallQueue
from genmcp.client.tool_catalog import read_schemas
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
from genmcp.question.question import Accepted, Cancelled, Declined
from genmcp.question.urls import check_url

logger = logging.getLogger("genmcp.client")

V = TypeVar("V")

Answer = msgspec.Struct | Mapping[str, Any]
"""A result: a value of the protocol, or a mapping from a hook."""

Reply = Callable[[Answer | McpError], Awaitable[None]]
"""Sends the answer to a request of the server."""

_CONCURRENCY = 8  # input requests that are answered at once
_MAX_QUEUED = 64  # input requests that wait for that; more are rejected
_MAX_NOTIFICATIONS = 1024  # that wait for hooks
_CLOSE_TIMEOUT = 5.0  # seconds that hooks have to finish when the client closes
_MAX_ASKED: Final = 64  # unanswered requests of the server; `ClientHandler.most_open` overrides it

_FORM = "handle_elicitation_create"
_URL = "handle_url_elicitation"
_SAMPLE = "handle_create_message"
_ROOTS = "handle_list_roots"
_NOTIFICATION: Final = "handle_notification"
_NOTIFICATIONS: Final = {
    "notifications/tasks": "handle_task_status",
    "notifications/progress": "handle_progress",
    "notifications/message": "handle_log",
}


class HandlerRunner:
    """Answers the requests of one server with the hooks of a handler. Owned by a `Connection`.

    An `async def` runs in the event loop, a `def` in a thread.

    Args:
        handler: the handler; None: only `ping` is answered.
        extensions: extensions to declare with their settings, besides those of the handler.
        decode: returns the params of a notification as the type that an extension gives.

    Attributes:
        capabilities: those that the client declares: those of the handler, or those that follow
            from its hooks, with the extensions.
        max_asked: maximum number of unanswered requests of the server.

    Raises:
        ConfigurationError: a hook of the handler is a generator.
    """

    def __init__(
        self,
        handler: ClientHandler | None = None,
        extensions: Mapping[str, Any] | None = None,
        decode: Callable[[str, Any], Any] | None = None,
    ) -> None:
        self._handler = handler = ClientHandler() if handler is None else handler
        self._decode = decode
        for name in vars(ClientHandler):
            hook = getattr(handler, name)
            if isgeneratorfunction(hook) or isasyncgenfunction(hook):
                raise ConfigurationError(
                    f"{type(handler).__name__}.{name} yields; a hook returns one answer"
                )
        declared = handler.capabilities or self._implemented()
        self.capabilities = msgspec.structs.replace(
            declared, extensions={**(extensions or {}), **(declared.extensions or {})} or None
        )
        # Two more threads than input requests: for a notification, and for `terminate`.
        self._threads = ThreadPoolExecutor(_CONCURRENCY + 2, "genmcp-hook")
        name = type(handler).__name__
        self._notifications = CallQueue(self._call, _MAX_NOTIFICATIONS, f"a hook of {name}")
        self._slots = asyncio.Semaphore(_CONCURRENCY)
        self._queued = 0
        self._running: dict[RequestId, asyncio.Task[None]] = {}
        self._forwards = handler.most_open is not None
        self._max_running = handler.most_open or 2 * (_CONCURRENCY + _MAX_QUEUED)
        self.max_asked = handler.most_open or _MAX_ASKED

    def __repr__(self) -> str:
        return f"<HandlerRunner of {type(self._handler).__name__}>"

    async def answer(self, method: str, params: Any) -> Answer:
        """Return the answer to one request; *params* is its decoded value of 2026-07-28.

        Raises:
            Denied: the user rejected it.
            MethodNotFound: its capability was not declared.
            InvalidParams: it is not supported in this form.
            Overloaded: too many requests wait already.
            McpError: the hook refused; or it failed, and the error refers to the log.
        """
        # A forwarded request waits for a person: it would occupy a slot that a request of another
        # caller needs.
        if self._forwards:
            return await self._answer(method, params)
        if self._slots.locked() and self._queued >= _MAX_QUEUED:
            raise Overloaded(f"Too many input requests wait already: {_MAX_QUEUED}")
        self._queued += 1
        try:
            await self._slots.acquire()
        finally:
            self._queued -= 1
        try:
            return await self._answer(method, params)
        finally:
            self._slots.release()

    async def answer_all(self, requests: Mapping[str, InputRequest]) -> dict[str, Answer]:
        """Return the answers to *requests*, which are answered concurrently, under their keys.

        Raises:
            McpError: as for `answer`, for the first that fails; the others are cancelled.
        """
        loop = asyncio.get_running_loop()
        tasks = [
            loop.create_task(self.answer(str(type(each).__struct_config__.tag), each.params))
            for each in requests.values()
        ]
        try:
            return dict(zip(requests, await asyncio.gather(*tasks), strict=True))
        finally:
            await cancel_and_wait(*tasks, timeout=_CLOSE_TIMEOUT)

    def start(self, id: RequestId, method: str, params: Any, reply: Reply) -> None:
        """Answer a request of the server (before 2026-07-28) in a task; *reply* sends the answer.

        Requests are dropped while too many are open: a server that sends requests without reading
        the answers must not fill the memory.
        """
        if len(self._running) >= self._max_running:
            logger.debug("a request of the server is dropped: %d are open", self._max_running)
            return
        task = asyncio.get_running_loop().create_task(self._serve(method, params, reply))
        self.cancel(id)  # an id that is used twice gets one answer
        self._running[id] = task
        task.add_done_callback(lambda task: self._forget(id, task))

    def cancel(self, id: RequestId) -> None:
        """Cancel the answer to request *id*, if it is running."""
        task = self._running.get(id)
        if task is not None:
            task.cancel()

    def notify(self, method: str, params: Any) -> None:
        """Queue a notification for its hook, if the handler has one, and return at once."""
        if self._decode is not None:
            try:
                params = self._decode(method, params)
            except msgspec.ValidationError as error:
                logger.warning("%s is dropped: %s", method, error)
                return
        name = _NOTIFICATIONS.get(method)
        if name is None and self._has(_NOTIFICATION):
            self._notifications.put(_NOTIFICATION, method, params)
        elif name is not None and self._has(name):
            self._notifications.put(name, params)

    def runs_in(self, task: "asyncio.Task[Any]") -> bool:
        """Return whether *task* is one that calls hooks."""
        return task in self._running.values() or self._notifications.runs_in(task)

    async def close(self, reason: BaseException | None = None) -> None:
        """Cancel running answers, deliver queued notifications, and call `terminate`.

        Each step takes 5 seconds at most; errors of the hooks are logged.
        """
        try:
            await cancel_and_wait(*self._running.values(), timeout=_CLOSE_TIMEOUT)
            await self._notifications.end(_CLOSE_TIMEOUT)
            await self._notifications.cancel()
            async with asyncio.timeout(_CLOSE_TIMEOUT):
                await self._call("terminate", reason)
        except Exception:
            logger.exception("%r failed in terminate", self)
        finally:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _has(self, name: str) -> bool:
        """Return whether the handler overrides the hook *name*."""
        hook = getattr(self._handler, name)
        return getattr(hook, "__func__", None) is not vars(ClientHandler)[name]

    async def _call(self, name: str, *arguments: Any) -> Any:
        """Call the hook *name*, and return what it returns.

        Raises:
            Exception: as raised by the hook.
        """
        hook = getattr(self._handler, name)
        try:
            if iscoroutinefunction(hook):
                return await hook(*arguments)
            if not self._has(name):
                return hook(*arguments)  # the default of ClientHandler does not block
            loop, run = asyncio.get_running_loop(), copy_context().run
            returned = await loop.run_in_executor(self._threads, run, _called, hook, *arguments)
            return await returned if isawaitable(returned) else returned
        except asyncio.CancelledError as error:
            if cancel_requested():
                raise
            raise RuntimeError(f"{name} waited for something that was cancelled") from error

    async def _answer(self, method: str, params: Any) -> Answer:
        try:
            return await self._call_hook(method, params)
        except McpError:
            raise
        except Exception as error:
            reference = token_hex(8)
            logger.exception("%r failed with %s (reference %s)", self, method, reference)
            raise InternalError(
                f"The client failed to answer (reference {reference})", reference=reference
            ) from error

    async def _call_hook(self, method: str, params: Any) -> Answer:
        """Return the answer of the hook for *method*.

        Raises:
            McpError: the request is not supported, or the hook refused.
            ContractError: the hook returned an invalid value.
            Exception: as raised by the hook.
        """
        declared = self.capabilities
        match method:
            case "roots/list" if declared.roots is not None:
                return ListRootsResult(_roots(await self._call(_ROOTS)))
            case "sampling/createMessage" if declared.sampling is not None:
                return await self._sample(params, declared.sampling)
            case "elicitation/create" if declared.elicitation is not None:
                return await self._elicit(params, declared.elicitation)
            case "roots/list" | "sampling/createMessage" | "elicitation/create":
                raise MethodNotFound(method)
            case _:
                hook = "handle_request"
                result: Answer = _read(hook, await self._call(hook, method, params), dict[str, Any])
                return result

    async def _sample(
        self, params: CreateMessageRequestParams, declared: SamplingCapability
    ) -> CreateMessageResult:
        """Answer a sampling request.

        2025-11-25, client/sampling, "Tools in Sampling": tools need a capability of their own.
        """
        if declared.tools is None and (params.tools is not None or params.tool_choice is not None):
            raise InvalidParams("The client did not declare sampling.tools")
        params = await self._approve(params, CreateMessageRequestParams)
        result = _read(_SAMPLE, await self._call(_SAMPLE, params), CreateMessageResult)
        return await self._approve(result, CreateMessageResult)

    async def _approve(self, subject: V, kind: type[V]) -> V:
        agreed = await self._call("approve", subject)
        if agreed is False:
            raise Denied("User rejected sampling request")
        return subject if agreed is True else _read("approve", agreed, kind)

    async def _elicit(
        self, params: ElicitRequestParams, declared: ElicitationCapability
    ) -> ElicitResult:
        """Answer an elicitation request.

        2025-11-25, client/elicitation, "Error Handling": -32602 for a mode that is not declared.
        """
        mode = "form" if params.url is None else "url"
        if not (declared.takes_forms if params.url is None else declared.takes_urls):
            raise InvalidParams(f"The client did not declare elicitation.{mode}")
        if params.url is not None:
            try:
                check_url(params.url, self._handler.url_schemes)
            except ConfigurationError as error:
                logger.warning("%r: a server asks for a URL that is refused: %s", self, error)
                raise InvalidParams(f"url: {error}") from None
            answer = _elicit_result(_URL, await self._call(_URL, params.message, params.url))
            return ElicitResult(answer.action)
        try:
            form = await self._form(params.requested_schema or {})
        except ConfigurationError as error:
            raise InvalidParams(str(error)) from None
        answer = _elicit_result(_FORM, await self._call(_FORM, params.message, form.document))
        if answer.action != "accept":
            return ElicitResult(answer.action)
        content = form.fill(dict(answer.content or {}))
        if faults := form.check(content):
            raise ContractError(
                "\n".join([f"{_FORM} accepted content that does not match the form:", *faults])
            )
        return ElicitResult("accept", content)

    async def _form(self, schema: Mapping[str, Any]) -> Schema:
        read = partial(Schema, schema, origin="requestedSchema", limits=FOREIGN_LIMITS)
        return await read_schemas([msgspec.json.encode(schema)], read)

    async def _serve(self, method: str, params: Any, reply: Reply) -> None:
        answer: Answer | McpError
        try:
            answer = await self.answer(method, params)
        except McpError as error:
            answer = error
        try:
            await reply(answer)
        except (ClientClosed, ProcessExited) as error:  # every request fails with it as well
            logger.debug("the answer to %s was not sent: %s", method, error)
        except Exception as error:
            logger.warning("the answer to %s could not be sent: %s", method, error)

    def _implemented(self) -> ClientCapabilities:
        """Return the capabilities that follow from the hooks."""
        has, handler = self._has, self._handler
        sampling = elicitation = None
        if has(_SAMPLE):
            sampling = SamplingCapability(
                context={} if handler.sampling_context else None,
                tools={} if handler.sampling_tools else None,
            )
        if has(_FORM) or has(_URL):
            elicitation = ElicitationCapability(
                form={} if has(_FORM) else None, url={} if has(_URL) else None
            )
        roots: Mapping[str, Any] | None = {} if has(_ROOTS) else None
        return ClientCapabilities(roots=roots, sampling=sampling, elicitation=elicitation)

    def _forget(self, id: RequestId, task: "asyncio.Task[None]") -> None:
        if self._running.get(id) is task:
            del self._running[id]


def _called(hook: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return hook(*arguments)
    except StopIteration as error:
        # A future cannot have it as its error: the caller would wait for ever.
        raise RuntimeError("a hook raised StopIteration") from error


def _read(hook: str, value: Any, kind: Any) -> Any:
    """Return *value*, which *hook* has returned, as a *kind*.

    Raises:
        ContractError: it cannot be converted.
    """
    try:
        return decoder_for(kind).decode(msgspec.json.encode(value))
    except (msgspec.MsgspecError, TypeError, ValueError) as error:
        raise ContractError(f"{hook} returned {type(value).__name__}: {error}") from error


def _elicit_result(hook: str, value: Any) -> ElicitResult:
    match value:
        case Accepted(content):
            value = {"action": "accept", "content": content}
        case Declined():
            return ElicitResult("decline")
        case Cancelled():
            return ElicitResult("cancel")
    try:
        result: ElicitResult = _read(hook, value, ElicitResult)
    except ContractError as error:
        advice = "return Accepted({...}), Declined() or Cancelled()"
        raise ContractError(f"{error}; {advice}") from error
    return result


def _roots(given: Any) -> Sequence[Root]:
    """Return *given* as roots. They have `file://` URIs: 2026-07-28, client/roots, "Root"."""
    if not isinstance(given, list | tuple):
        raise ContractError(f"{_ROOTS} returned {type(given).__name__}: it must return a list")
    roots = [
        Root(each.as_uri(), each.name) if isinstance(each, Path) else _read(_ROOTS, each, Root)
        for each in given
    ]
    for root in roots:
        if not root.uri.startswith("file://"):
            raise ContractError(f"{_ROOTS} returned {root.uri!r}: a root is a file:// URI")
    return roots
