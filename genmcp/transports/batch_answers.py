"""The limits of one batch: how many of its requests run at once, and the size of its response."""

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
"""Runs a request up to its first wait; returns its answer, or an awaitable of it."""


class BatchAnswers:
    """The limits on the requests and answers of one batch. Owned by the response to the batch.

    refused: the errors of members that are not valid requests; they count towards `Limits.result`.
    held: the response over HTTP. turns: the semaphore (`Limits.batch_concurrency`) that each
    running request holds.
    """

    def __init__(self, mux: Mux, refused: Iterable[bytes] = (), held: Held | None = None) -> None:
        self._held = held
        self.turns = asyncio.Semaphore(mux.limits.batch_concurrency)
        self._mux = mux
        self._left = mux.limits.result - sum(map(len, refused))

    async def in_turn(self, requests: Iterable[Request]) -> AsyncIterator[Request]:
        """Acquire a turn for each of *requests* and yield it; `answer` releases the turn.

        Nothing is allocated for a request before its turn: a client may send many batches whose
        first requests wait, and an asyncio.Task for each of the others would dominate memory use.
        """
        for request in requests:
            await self.turns.acquire()
            yield request

    async def answer(self, request: Request, begin: Begin) -> Answer:
        """Start *request*, which holds a turn, with *begin*; return its answer, release the turn.

        It is not started if the response or the session has ended, if the server is shutting down,
        or if there is no room for its answer.
        """
        held, sessions = self._held, self._mux.sessions
        assert held is not None
        try:
            if held.closed or (request.session and sessions.has_ended(request.session)):
                return NO_ANSWER
            if held.hooks.reason is Reason.STOPPING:
                return self._mux.refusal(request, Overloaded("The server is shutting down"))
            if self.full:  # not started, so the client can retry it
                return self._mux.refusal(request, self.overflow())
            begun = begin(request)
            answer = begun if isinstance(begun, Answer) else await begun
            await asyncio.sleep(0)  # let requests of other clients run between two members
            return self.bounded(request, answer)
        finally:
            self.turns.release()

    @property
    def full(self) -> bool:
        """Whether the response has reached `Limits.result`."""
        return self._left <= 0

    def overflow(self) -> TooLarge:
        """Return the error for a request whose answer does not fit."""
        most = self._mux.limits.result
        return TooLarge(f"The answers of this batch are larger than {most} bytes (limit: result)")

    def bounded(self, request: Request, answer: Answer) -> Answer:
        """Return *answer*, or an error if it does not fit; after that nothing fits any more."""
        size = len(answer.message or b"")
        if size > self._left:
            self._left = 0
            return self._mux.refusal(request, self.overflow())
        self._left -= size
        return answer
