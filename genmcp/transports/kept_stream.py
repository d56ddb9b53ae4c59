"""What is kept of a response for a client that resumes it.

2025-11-25, transports, "Resumability and Redelivery".
"""

import logging
from collections.abc import Sequence
from contextlib import suppress

from genmcp.core.actions import Record
from genmcp.core.request import Request
from genmcp.errors import StoreError
from genmcp.mux.replay import OpenCall, Replay, Writer
from genmcp.stores.accounts import Owner

__all__ = ["KeptStream"]

logger = logging.getLogger("genmcp")


class KeptStream:
    """The part of one response's stream that is in the store. Owned by the response.

    requests: those that it answers. Where their process dies, another one tells by their ids, and
    by the tasks they wait for, what is left to be said. owner: the accounts it counts for.
    """

    __slots__ = ("_begun", "_calls", "_owner", "_replay", "_session", "_stream")

    def __init__(
        self,
        replay: Replay,
        session: str,
        stream: str,
        requests: Sequence[Request],
        owner: Owner,
    ) -> None:
        self._owner = owner
        self._replay = replay
        self._session = session
        self._stream = stream
        self._calls: dict[Request, str | None] = dict.fromkeys(requests)
        self._begun = False  # and has no end yet

    def add(self, writer: Writer) -> None:
        """Know who writes the stream."""
        self._replay.add(self._session, self._stream, writer)

    def discard(self, writer: Writer) -> None:
        """Forget who writes the stream."""
        self._replay.discard(self._session, self._stream, writer)

    async def keep(self, records: Sequence[Record]) -> None:
        """Keep *records* of it."""
        self._begun = True
        try:
            await self._replay.keep(self._session, records, self._open(), self._owner)
            self._begun = not records[-1].last
        except StoreError as error:
            # Its client is still told; only one that lost its connection cannot come back.
            logger.warning("what a stream says cannot be kept for resuming it: %s", error)

    async def follow(self, request: Request, task: str) -> None:
        """Note that *request* waits for *task*."""
        if request in self._calls:
            self._calls[request] = task
        if self._begun:
            try:
                await self._replay.note(self._session, self._stream, self._open())
            except StoreError as error:
                logger.warning("the task that a stream waits for cannot be kept: %s", error)

    def answered(self, request: Request) -> None:
        """Note that *request* has its answer."""
        self._calls.pop(request, None)

    async def end(self) -> None:
        """Leave no stream that a client could wait for."""
        if self._begun:
            with suppress(StoreError):
                await self._replay.end(self._session, self._stream)

    def _open(self) -> tuple[OpenCall, ...]:
        return tuple(OpenCall(each.id, each.method, task) for each, task in self._calls.items())
