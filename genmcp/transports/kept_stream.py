"""The stored events of a response, for a client that resumes its stream.

2025-11-25, transports, "Resumability and Redelivery".
"""

import logging
from collections.abc import Sequence
from contextlib import suppress

import msgspec

from genmcp.core.exchange import Action, Record
from genmcp.core.request import Request
from genmcp.errors import StoreError
from genmcp.mux.replay import OpenCall, Replay, Writer
from genmcp.stores.accounts import Owner

__all__ = ["KeptStream"]

logger = logging.getLogger("genmcp")


class KeptStream(msgspec.Struct, eq=False):
    """The stored copy of one response's stream. Owned by the response.

    calls: the requests that the response answers, with the tasks they wait for. If this process
    dies, another one uses them to send the remaining answers. owner: the accounts that the stored
    events count towards.
    """

    _replay: Replay
    _session: str
    _stream: str
    _calls: dict[Request, str | None]
    _owner: Owner
    # The index of each one's response, and of the last event that was given to the store.
    _answered: dict[Request, int] = {}
    _stored: int = -1
    _begun: bool = False  # events are stored, and the last one is not among them

    def add(self, writer: Writer) -> None:
        """Register *writer* as the response that writes the stream."""
        self._replay.add(self._session, self._stream, writer)

    def discard(self, writer: Writer) -> None:
        """Unregister *writer*."""
        self._replay.discard(self._session, self._stream, writer)

    async def keep(self, records: Sequence[Record]) -> None:
        """Store *records*; a failure of the store is logged."""
        self._begun = True
        before, self._stored = self._stored, records[-1].index
        try:
            await self._replay.keep(self._session, records, self._open(), self._owner)
            self._begun = not records[-1].last
            for request in [each for each in self._answered if not self._is_open(each)]:
                self._calls.pop(request, None)
                del self._answered[request]
        except StoreError as error:
            self._stored = before
            # The client still receives them; only a resumption after a disconnect is lost.
            logger.warning("what a stream says cannot be kept for resuming it: %s", error)

    def set_task(self, request: Request, task: str | None) -> None:
        """Record that *request* waits for *task*; the record is stored with the next events."""
        if request in self._calls:
            self._calls[request] = task

    async def follow(self, request: Request, task: str) -> None:
        """Record that *request* waits for *task*, so that another process can follow the task."""
        self.set_task(request, task)
        if self._begun:
            try:
                await self._replay.note(self._session, self._stream, self._open(), self._owner)
            except StoreError as error:
                logger.warning("the task that a stream waits for cannot be kept: %s", error)

    def answered(self, request: Request, actions: Sequence[Action]) -> None:
        """Record that *request* was answered by *actions*.

        It stays open until its response is stored: a slow client may delay that, and if the process
        is killed in the meantime, another one has to answer the request.
        """
        # Without a record the response is sent with the first event of the stream, or never.
        records = (each.index for each in actions if type(each) is Record)
        self._answered[request] = next(records, 0)

    async def end(self) -> None:
        """End the stored stream, so that no client waits for it."""
        if self._begun:
            with suppress(StoreError):
                await self._replay.end(self._session, self._stream, self._owner)

    def _open(self) -> tuple[OpenCall, ...]:
        return tuple(
            OpenCall(each.id, each.method, task)
            for each, task in self._calls.items()
            if self._is_open(each)
        )

    def _is_open(self, request: Request) -> bool:
        """Return whether the response to *request* is not among the events given to the store."""
        index = self._answered.get(request)
        return index is None or index > self._stored
