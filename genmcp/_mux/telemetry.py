"""Telemetry of the requests that a mux serves: the interface, and its calls.

Implementations are in `genmcp.telemetry`.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import msgspec

from genmcp._core.request import Request
from genmcp._core.waiting import Suspended
from genmcp.channel import Channel
from genmcp.errors import ConfigurationError, McpError
from genmcp.protocol.content import TextContent
from genmcp.protocol.params import RequestId
from genmcp.protocol.tools import CallToolResult
from genmcp.protocol.value import Result

logger = logging.getLogger("genmcp")


class RequestFailure(msgspec.Struct, frozen=True, kw_only=True):
    """The failure of a request.

    kind: "error" for an error response, whose code is *code*; "tool_error" for a result with
    `isError`; "cancelled" if the work was cancelled. message: the text that the client received.
    raised: the exception of the hook, if it raised one; its text must not be shown to clients.
    """

    kind: Literal["error", "tool_error", "cancelled"]
    message: str = ""
    code: int | None = None
    raised: BaseException | None = None


class Rejection(msgspec.Struct, frozen=True, kw_only=True):
    """A message that was answered with *error* before it became a request.

    id, method: the id and method of the message, if they could be read. principal: the
    authenticated client. session: the key of its legacy session.
    """

    error: McpError
    id: RequestId | None = None
    method: str | None = None
    principal: str | None = None
    session: str | None = None


class Resumed(msgspec.Struct, frozen=True, kw_only=True):
    """A step of a call that is resumed without a request.

    tag: the tag of the wait that has ended. began: when `continue_` began, in Unix time. seconds:
    how long it ran. request: the request of the call, which another process may have received.
    principal: its client. result: the result of the call. failure: the failure of the call. If both
    are None, the call waits again.
    """

    request: Request
    principal: str | None
    tag: str
    began: float
    seconds: float
    result: Result | None = None
    failure: RequestFailure | None = None


class Telemetry:
    """Observes the requests of a mux: override the methods for the events of interest.

    Each method is called in the event loop, in the asyncio.Task and the context of the request (a
    contextvar that it sets is set in the hook as well), and must not block. An exception is logged,
    and changes nothing. Later releases may add methods; each does nothing by default.
    """

    def request_began(self, request: Request, channel: Channel) -> Any:
        """Handle the start of *request*.

        The return value is passed as *mark* to `request_ended` or `request_failed`. Exactly one of
        the two is called: when the request is answered, or, if the call has become a task, when the
        task waits for a job or a client, or has ended.
        """

    def request_ended(self, request: Request, result: Result, mark: Any) -> None:
        """Handle the *result* of *request*.

        If the call has become a task, *result* is the result of the task, or the handle if the task
        waits for a job or a client. If the call exceeded `max_hold`, *result* is the response that
        states that.
        """

    def request_failed(self, request: Request, failure: RequestFailure, mark: Any) -> None:
        """Handle the failure of *request*, or its cancellation."""

    def request_rejected(self, rejection: Rejection) -> None:
        """Handle a message that never became a request: its headers or params are invalid, or the
        tool, prompt or resource that it names does not exist.

        Over a pipe, a `subscriptions/listen` that ends because the store failed is reported here as
        well, even if it was acknowledged: it is answered with an error.
        """

    def request_resumed(self, resumed: Resumed) -> None:
        """Handle a step of a call that has become a task, or waited for a job.

        The process that received the request of the call calls `request_ended` as well, with the
        handle if the client received a handle. `request_resumed` is called in the asyncio.Task of
        the step.
        """


OnStep = Callable[..., None]
Marks = Sequence[tuple[Telemetry, Any]]


class Observers:
    """Calls several `Telemetry` objects: at the start in order, at the end in reverse order.

    Raises:
        ConfigurationError: one of them is not a Telemetry.
    """

    def __init__(self, given: Telemetry | Iterable[Telemetry]) -> None:
        self.all: Sequence[Telemetry] = [given] if isinstance(given, Telemetry) else [*given]
        for each in self.all:
            if not isinstance(each, Telemetry):
                raise ConfigurationError(f"telemetry takes instances of Telemetry, not {each!r}")

    def __bool__(self) -> bool:
        return bool(self.all)

    def began(self, request: Request, channel: Channel) -> Marks:
        """Notify all observers of the start of *request*; return their marks."""
        return [(each, _call(each.request_began, request, channel)) for each in self.all]

    def ended(
        self,
        request: Request,
        outcome: Result | McpError | None,
        raised: BaseException | None,
        marks: Marks,
    ) -> None:
        """Notify all observers of the *outcome* of *request*; None: the request was cancelled."""
        failure = _failure(outcome, raised)
        for each, mark in reversed(marks):
            if failure is None:
                _call(each.request_ended, request, outcome, mark)
            else:
                _call(each.request_failed, request, failure, mark)

    def resuming(self, channel: Channel, tag: str) -> OnStep:
        """Return the function to call when the step of *channel* that begins now has ended.

        Its arguments are the outcome of the step (the result, Suspended, or None if the call was
        cancelled), and the exception of the hook, if any.
        """
        if not self.all:
            return lambda *_: None
        began, start = time.time(), time.perf_counter()

        def on_step(
            outcome: Result | McpError | Suspended | None, raised: BaseException | None = None
        ) -> None:
            failure = None if isinstance(outcome, Suspended) else _failure(outcome, raised)
            resumed = Resumed(
                request=channel.request,
                principal=channel.principal,
                tag=tag,
                began=began,
                seconds=time.perf_counter() - start,
                result=outcome if isinstance(outcome, Result) and failure is None else None,
                failure=failure,
            )
            for each in self.all:
                _call(each.request_resumed, resumed)

        return on_step

    def rejected(self, rejection: Rejection) -> None:
        """Notify all observers of a message that never became a request."""
        for each in self.all:
            _call(each.request_rejected, rejection)


def _failure(
    outcome: Result | McpError | None, raised: BaseException | None
) -> RequestFailure | None:
    if outcome is None:
        return RequestFailure(kind="cancelled", message="The call was cancelled", raised=raised)
    if isinstance(outcome, McpError):
        return RequestFailure(
            kind="error", message=outcome.message, code=outcome.code, raised=raised
        )
    if isinstance(outcome, CallToolResult) and outcome.is_error:
        texts = [block.text for block in outcome.content if isinstance(block, TextContent)]
        return RequestFailure(kind="tool_error", message="\n".join(texts), raised=raised)
    return None


def _call(method: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return method(*arguments)
    except Exception:
        logger.exception("telemetry: %r failed", method)
    return None
