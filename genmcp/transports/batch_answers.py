"""The bounds of one batch: how many of its requests run at once, and how large its answer gets."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from genmcp.core.request import Request
from genmcp.errors import TooLarge
from genmcp.mux.mux import Answer, Mux

__all__ = ["BatchAnswers"]


Begin = Callable[[Request], Answer | Awaitable[Answer]]
"""Runs a request up to its first wait; returns its answer, or what is left of it."""


class BatchAnswers:
    """The answers of one batch. Owned by the response to it.

    *refused* are the answers of members that make no call. turns: held by each request that runs.
    """

    def __init__(self, mux: Mux, refused: Iterable[bytes] = ()) -> None:
        self.turns = asyncio.Semaphore(mux.limits.batch_concurrency)
        self._mux = mux
        self._left = mux.limits.result - sum(map(len, refused))

    async def answer(self, request: Request, begin: Begin) -> Answer:
        """Return the answer to *request*, once it is its turn to be begun by *begin*."""
        async with self.turns:
            if self.full:  # it has not begun: its client may send it again
                return self._mux.refusal(request, self.overflow())
            begun = begin(request)
            answer = begun if isinstance(begun, Answer) else await begun
            await asyncio.sleep(0)  # requests of other clients run between two members
            return self.bounded(request, answer)

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
