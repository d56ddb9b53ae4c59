"""The bounds of one batch: how many of its requests run at once, and how large its answer gets."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

from genmcp.core.request import Request
from genmcp.errors import Overloaded, TooLarge
from genmcp.mux.calls import Reason
from genmcp.mux.mux import Answer, Mux
from genmcp.transports.held import Held
from genmcp.transports.hooks import NO_ANSWER

__all__ = ["BatchAnswers"]


Begin = Callable[[Request], Answer | Awaitable[Answer]]
"""Runs a request up to its first wait; returns its answer, or what is left of it."""


class BatchAnswers:
    """The answers of one batch. Owned by the response to it.

    *refused* are the answers of members that make no call; *held* is the response over HTTP. turns:
    held by each request that runs.
    """

    def __init__(self, mux: Mux, refused: Iterable[bytes] = (), held: Held | None = None) -> None:
        self._held = held
        self.turns = asyncio.Semaphore(mux.limits.batch_concurrency)
        self._mux = mux
        self._left = mux.limits.result - sum(map(len, refused))

    async def in_turn(self, requests: Iterable[Request]) -> AsyncIterator[Request]:
        """Yield each of *requests* when it may run; `answer` ends its turn.

        Nothing is made for a request before: a client may send many batches whose first requests
        wait, and an asyncio.Task for each of the others would take the most memory of all.
        """
        for request in requests:
            await self.turns.acquire()
            yield request

    async def answer(self, request: Request, begin: Begin) -> Answer:
        """Return the answer to *request*, whose turn it is to be begun by *begin*.

        It is not begun where those before it were cancelled, as a whole batch is.
        """
        held, sessions = self._held, self._mux.sessions
        assert held is not None
        try:
            if held.closed or (request.session and sessions.has_ended(request.session)):
                return NO_ANSWER
            if held.hooks.reason is Reason.STOPPING:
                return self._mux.refusal(request, Overloaded("The server is shutting down"))
            if self.full:  # its client may send it again
                return self._mux.refusal(request, self.overflow())
            begun = begin(request)
            answer = begun if isinstance(begun, Answer) else await begun
            await asyncio.sleep(0)  # requests of other clients run between two members
            return self.bounded(request, answer)
        finally:
            self.turns.release()

    @property
    def full(self) -> bool:
        """Whether there is no room for the answer of another request."""
        return self._left <= 0

    def overflow(self) -> TooLarge:
        """Return the error of a request whose answer has no room."""
        most = self._mux.limits.result
        return TooLarge(f"The answers of this batch are larger than {most} bytes (limit: result)")

    def bounded(self, request: Request, answer: Answer) -> Answer:
        """Return *answer*, or an error if there is no room for it."""
        size = len(answer.message or b"")
        if size > self._left:
            self._left = 0
            return self._mux.refusal(request, self.overflow())
        self._left -= size
        return answer
