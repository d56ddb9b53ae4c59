"""The bounds of one batch: how many of its requests run at once, and how large its answer gets."""

import asyncio
from collections.abc import Iterable

from genmcp.core.request import Request
from genmcp.errors import TooLarge
from genmcp.mux.mux import Answer, Mux

__all__ = ["BatchAnswers"]


class BatchAnswers:
    """The answers of one batch. Owned by the response to it.

    *refused* are the answers of members that make no call. turns: held by each request that runs.
    """

    def __init__(self, mux: Mux, refused: Iterable[bytes] = ()) -> None:
        self.turns = asyncio.Semaphore(mux.limits.batch_concurrency)
        self._mux = mux
        self._left = mux.limits.result - sum(map(len, refused))

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
