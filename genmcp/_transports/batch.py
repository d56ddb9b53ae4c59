"""The limits on a batch, which are the same over HTTP and over a pipe."""

import asyncio
from collections.abc import Iterable
from typing import Final

from genmcp._mux.mux import Mux
from genmcp._mux.responses import EncodedResponse
from genmcp.core.request import Request
from genmcp.errors import TooLarge

_CONCURRENCY: Final = 10
"""Requests of a batch that run at once."""


class BatchLimits:
    """The limits on the requests and responses of one batch. Owned by the response to the batch.

    rejections: the errors of members that are not valid requests; they count towards
    `Limits.max_result_bytes`. turns: the semaphore (`_CONCURRENCY`) that each running
    request holds.
    """

    def __init__(self, mux: Mux, rejections: Iterable[bytes] = ()) -> None:
        self.turns = asyncio.Semaphore(_CONCURRENCY)
        self._mux = mux
        self._left = mux.limits.max_result_bytes - sum(map(len, rejections))

    @property
    def full(self) -> bool:
        """Whether the response has reached `Limits.max_result_bytes`."""
        return self._left <= 0

    def overflow(self) -> TooLarge:
        """Return the error for a request with a response that does not fit."""
        most = self._mux.limits.max_result_bytes
        return TooLarge(
            f"The responses of this batch are larger than {most} bytes (limit: max_result_bytes)"
        )

    def bounded(self, request: Request, response: EncodedResponse) -> EncodedResponse:
        """Return *response*, or an error if it does not fit; after that nothing fits any more."""
        size = len(response.body or b"")
        if size > self._left:
            self._left = 0
            return self._mux.responses.encode(request, self.overflow())
        self._left -= size
        return response
