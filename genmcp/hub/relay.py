"""Questions of a hub's servers, passed on to whoever the hub serves.

A question is about a call. Where it comes in response to that call (2026-07-28; before, over HTTP,
on the event stream of the POST) it is known which. Elsewhere (stdio; the stream of a GET; HTTP+SSE)
it says nothing of it, and is passed on only while the server can be working on one call alone. One
that was given up counts until the server answers it, which many never do, or the connection ends:
its question must not be put to somebody else.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextvars import ContextVar
from typing import Any

from genmcp.channel import Channel
from genmcp.client.handler import ClientHandler, Sampled
from genmcp.continuation import Continue
from genmcp.core.outcome import Done, Outcome
from genmcp.errors import ConfigurationError, InvalidParams, McpError, Unable
from genmcp.protocol.capabilities import (
    ClientCapabilities,
    ElicitationCapability,
    SamplingCapability,
)
from genmcp.protocol.result import Result
from genmcp.protocol.sampling import CreateMessageRequestParams
from genmcp.question.elicitation import FormQuestion, UrlQuestion
from genmcp.question.form import form_of_schema
from genmcp.question.question import Question
from genmcp.question.roots import RootsQuestion
from genmcp.question.sampling import SampleQuestion

__all__ = ["TAG", "Relay", "RelayingHandler", "Work"]

TAG = "passed on"
"""What a call waits under whose questions were passed on."""

_OVER = "Nobody can be asked: the call is over"

_current: ContextVar["Relay | None"] = ContextVar("genmcp_hub_relay", default=None)

Work = Callable[["Relay"], Coroutine[Any, Any, Result]]
"""What is asked of a server: it is given the relay of the call, for its progress."""


class Relay:
    """A call on its way through a hub: *work* runs, and `step` returns what is asked meanwhile.

    channel: the line to whoever has called, that of its last request.
    """

    def __init__(self, channel: Channel, work: Work) -> None:
        self.channel = channel
        self._asked: dict[str, tuple[Question, asyncio.Future[Any]]] = {}
        self._passed: list[str] = []
        self._news = asyncio.Event()
        self._count = 0
        token = _current.set(self)
        try:
            self._work = asyncio.get_running_loop().create_task(work(self))
        finally:
            _current.reset(token)
        self._work.add_done_callback(self._ended)

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
                continue
            self._passed = [*self._asked]
            return Continue(TAG, {key: question for key, (question, _) in self._asked.items()})
        return self._work.result()

    def answer(self, outcome: Outcome) -> None:
        """Take in how the questions that were passed on were answered."""
        for key in self._passed:
            _, future = self._asked.pop(key, (None, None))
            if future is None or future.done():
                continue  # whoever asked does not want to know any more
            if isinstance(outcome, Done):
                future.set_result(outcome.value[key])
            elif isinstance(outcome.error, Unable):
                future.set_exception(InvalidParams(str(outcome.error)))
            else:
                future.set_exception(McpError(str(outcome.error)))
        self._passed = []

    async def ask(self, question: Question) -> Any:
        """Have *question* passed on, and return what `Done` has for it.

        Raises:
            McpError: there is no answer, or the call is over.
        """
        if self._work.done():
            raise McpError(_OVER)
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

    def cancel(self) -> None:
        """Stop: nobody waits for it any more."""
        self._work.cancel()

    def _ended(self, work: "asyncio.Task[Result]") -> None:
        self._news.set()
        for _, future in self._asked.values():
            if not future.done():
                future.set_exception(McpError(_OVER))
        if not work.cancelled():
            work.exception()  # whoever waits is told; perhaps nobody does


class RelayingHandler(ClientHandler[None]):
    """Passes on what one server asks to whoever has called.

    `open`: the calls of that server for whoever the hub serves. calls: says how many requests the
    server may be working on, whoever they are for.
    """

    capabilities = ClientCapabilities(
        roots={},
        sampling=SamplingCapability(context={}, tools={}),
        elicitation=ElicitationCapability(form={}, url={}),
    )

    def __init__(self, calls: Callable[[], int]) -> None:
        self.open: set[Relay] = set()
        self._calls = calls

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

    async def approve(self, subject: Sampled, state: None) -> Any:
        """Agree: whoever has called is asked, and has somebody who approves."""
        return True

    def _relay(self) -> Relay:
        """Return the call that the question, which is being asked now, is about."""
        relay = _current.get()
        if relay is not None:
            return relay
        calls = self._calls()
        if calls == len(self.open) == 1:
            (relay,) = self.open
            return relay
        raise McpError(f"Nobody can be asked: the question may be about any of {calls} calls")
