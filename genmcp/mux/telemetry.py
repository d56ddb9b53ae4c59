"""What hears of the requests a mux serves: the interface, and how it is told.

Ready-made ones are in `genmcp.telemetry`.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal

import msgspec

from genmcp.channel import Channel
from genmcp.core.request import Request
from genmcp.core.task import Suspended
from genmcp.errors import ConfigurationError, McpError
from genmcp.protocol.content import TextContent
from genmcp.protocol.meta import RequestId
from genmcp.protocol.result import Result
from genmcp.protocol.tools import CallToolResult

__all__ = ["Failure", "Observers", "Rejection", "Resumed", "Telemetry"]

logger = logging.getLogger("genmcp")


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """How a request failed.

    kind: "error" if it was answered with an error, whose *code* this is; "tool_error" if with a
    result that says `isError`; "cancelled" if the work was cancelled. message: what its client was
    told. raised: what its hook raised, if it did; its text is for nobody else's eyes.
    """

    kind: Literal["error", "tool_error", "cancelled"]
    message: str = ""
    code: int | None = None
    raised: BaseException | None = None


class Rejection(msgspec.Struct, frozen=True, kw_only=True):
    """What was answered with *error* before it became a request.

    id, method: as the client says, where that could be read. principal: who it was authenticated
    as. session: the key of its legacy session.
    """

    error: McpError
    id: RequestId | None = None
    method: str | None = None
    principal: str | None = None
    session: str | None = None


class Resumed(msgspec.Struct, frozen=True, kw_only=True):
    """How a call went on where nobody requested that.

    What it waited for under *tag* is over, and `continue_` has run, for *seconds* since *began*
    (Unix time). request: that of the call, which another process may have taken. principal: whose
    it is. result: what the call has come to. failure: how it failed. With neither it waits for
    something else.
    """

    request: Request
    principal: str | None
    tag: str
    began: float
    seconds: float
    result: Result | None = None
    failure: Failure | None = None


class Telemetry:
    """Observes the requests of a mux: override the methods for the events of interest.

    Each method is called in the event loop, in the asyncio.Task and the context of the request
    (what it sets in a contextvar is there while the hook runs), and must not block. What it
    raises is logged, and changes nothing. More methods may come; each does nothing here.
    """

    def request_began(self, request: Request, channel: Channel) -> Any:
        """Hear that *request* is about to be answered.

        What is returned comes back as the *mark* when it has ended or failed; exactly one of
        the two follows: when it is answered, or when a call that became a task meanwhile waits
        for others, or is over.
        """

    def request_ended(self, request: Request, result: Result, mark: Any) -> None:
        """Hear that *request* is answered with a *result*.

        That of a call that became a task is what it came to; the handle if it is not over, but
        waits for others. That of one that was held over is what its client was told of that.
        """

    def request_failed(self, request: Request, failure: Failure, mark: Any) -> None:
        """Hear that *request* is answered with an error, or with none: it was cancelled."""

    def request_rejected(self, rejection: Rejection) -> None:
        """Hear of a message that never became a request: its head or params are wrong, or what
        it names is not there."""

    def request_resumed(self, resumed: Resumed) -> None:
        """Hear that a call which had become a task, or waited for a job, has gone on.

        Its request is told of besides, by the process that took it: as ended, with the handle
        if its client got that. This is called in the asyncio.Task of the work.
        """


Tell = Callable[..., None]
Marks = Sequence[tuple[Telemetry, Any]]


class Observers:
    """Tells each of several `Telemetry`; the one that began first ends last.

    Raises:
        ConfigurationError: one of them is no Telemetry.
    """

    def __init__(self, given: Telemetry | Iterable[Telemetry]) -> None:
        self._all: Sequence[Telemetry] = [given] if isinstance(given, Telemetry) else [*given]
        for each in self._all:
            if not isinstance(each, Telemetry):
                raise ConfigurationError(f"telemetry takes instances of Telemetry, not {each!r}")

    def __bool__(self) -> bool:
        return bool(self._all)

    def include(self, kind: type[Telemetry]) -> bool:
        """Return whether one of them is of this *kind*."""
        return any(isinstance(each, kind) for each in self._all)

    def began(self, request: Request, channel: Channel) -> Marks:
        """Tell that *request* is about to be answered; return what each wants to remember."""
        return [(each, _told(each.request_began, request, channel)) for each in self._all]

    def ended(
        self,
        request: Request,
        outcome: Result | McpError | None,
        raised: BaseException | None,
        marks: Marks,
    ) -> None:
        """Tell what became of *request*; no *outcome*: it was cancelled."""
        failure = _failure(outcome, raised)
        for each, mark in reversed(marks):
            if failure is None:
                _told(each.request_ended, request, outcome, mark)
            else:
                _told(each.request_failed, request, failure, mark)

    def resuming(self, channel: Channel, tag: str) -> Tell:
        """Return what tells how the call of *channel*, which goes on now, has gone on.

        It takes what the call has come to, Suspended or None if it was cancelled, and what was
        raised.
        """
        if not self._all:
            return _nothing
        began, start = time.time(), time.perf_counter()

        def tell(
            came_to: Result | McpError | Suspended | None, raised: BaseException | None = None
        ) -> None:
            failure = None if isinstance(came_to, Suspended) else _failure(came_to, raised)
            resumed = Resumed(
                request=channel.request,
                principal=channel.principal,
                tag=tag,
                began=began,
                seconds=time.perf_counter() - start,
                result=came_to if isinstance(came_to, Result) and failure is None else None,
                failure=failure,
            )
            for each in self._all:
                _told(each.request_resumed, resumed)

        return tell

    def rejected(self, rejection: Rejection) -> None:
        """Tell of what never became a request."""
        for each in self._all:
            _told(each.request_rejected, rejection)


def _failure(outcome: Result | McpError | None, raised: BaseException | None) -> Failure | None:
    if outcome is None:
        return Failure(kind="cancelled", message="The call was cancelled", raised=raised)
    if isinstance(outcome, McpError):
        return Failure(kind="error", message=outcome.message, code=outcome.code, raised=raised)
    if isinstance(outcome, CallToolResult) and outcome.is_error:
        texts = [block.text for block in outcome.content if isinstance(block, TextContent)]
        return Failure(kind="tool_error", message="\n".join(texts), raised=raised)
    return None


def _nothing(*_: object) -> None:
    """Tell nobody."""


def _told(method: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return method(*arguments)
    except Exception:
        logger.exception("telemetry: %r failed", method)
    return None
