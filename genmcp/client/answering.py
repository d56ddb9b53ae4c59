"""What a server asks, answered by the hooks of a handler beside the loop that receives it.

The way a question comes makes no difference: a request of the server's own before 2026-07-28, an
input request since.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from secrets import token_hex
from typing import Any, Final, Generic

from typing_extensions import TypeVar

from genmcp.cancellation import cancel_and_wait
from genmcp.client.errors import ClientClosed, ProcessExited
from genmcp.client.handler import ClientHandler
from genmcp.client.hooks import Hooks
from genmcp.client.notices import Notices
from genmcp.client.questions import Answer, Questions
from genmcp.errors import ConfigurationError, InternalError, McpError, Overloaded
from genmcp.protocol.capabilities import ClientCapabilities
from genmcp.protocol.client_features import InputRequest
from genmcp.protocol.params import RequestId
from genmcp.question.elicitation import HTTPS
from genmcp.schema.limits import FOREIGN_LIMITS, SchemaLimits

__all__ = ["Answering", "Reply"]

S = TypeVar("S", default=Any)

Reply = Callable[[Answer | McpError], Awaitable[None]]
"""Sends the answer to a request of the server."""

logger = logging.getLogger("genmcp.client")

_ASKED: Final = 64  # concurrent requests of the server
_PARALLEL: Final = range(2, 17)
# For how many seconds notices are still taken in at the end, and `terminate` may run.
_GRACE: Final = 5.0


class Answering(Generic[S]):
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
        self._hooks = Hooks(handler, most=parallel + 2, waiting=waiting)
        self._notices = Notices(self._hooks, notices)
        self._questions = Questions(handler, self._hooks, capabilities, url_schemes, schemas)
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
