"""The stream on which a server before 2026-07-28 says what belongs to no request.

2025-11-25, transports, "Listening for Messages from the Server".
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Final

from genmcp.client.errors import ClientError, HttpStatusError, SessionEnded
from genmcp.client.event_place import EventPlace
from genmcp.client.http_options import HttpOptions
from genmcp.client.transport import Sink

__all__ = ["PASSING", "Follow", "ServerStream"]

logger = logging.getLogger("genmcp.client")

PASSING: Final = (429, 502, 503, 504)  # HTTP statuses of what may be over soon
_LIVED = 5.0  # seconds after which a stream that ends has not failed

Follow = Callable[[str | None, EventPlace, Callable[[], None]], Awaitable[object]]
"""Opens a stream of a revision at a place, says that it has begun, and passes on what it brings."""


class ServerStream:
    """Holds the stream of the server *where* open with *follow*, for as long as there may be one.

    A stream that breaks is opened again, where it broke if its events have ids. If they have none,
    or there is no stream for a while, what the server has said meanwhile is lost: *sink* is told.
    """

    def __init__(self, where: str, follow: Follow, options: HttpOptions, max_message: int) -> None:
        self._where = where
        self._follow = follow
        self._options = options
        self._max_message = max_message
        self._task: asyncio.Task[None] | None = None
        self._heard = asyncio.Event()
        self._sink: Sink
        self._failures = 0  # in a row, of all sessions
        self._lossy = False  # whether something was said, perhaps, that was not heard
        self._began: float | None = None

    def begin(self, sink: Sink, revision: str | None) -> None:
        """Open the stream beside the caller, for a new session."""
        self._sink = sink
        heard = self._heard = asyncio.Event()
        # Not in the context of whoever sent the message that comes before it.
        self._task = asyncio.create_task(self._run(revision), context=Context())
        self._task.add_done_callback(lambda _: heard.set())

    async def stop(self) -> None:
        """Close the stream: the session is over."""
        if self._task is not None:
            task, self._task = self._task, None
            self._lossy = True
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def hearing(self) -> None:
        """Wait until the stream is open, or is not expected to be soon."""
        if self._task is not None:
            await self._heard.wait()

    async def _run(self, revision: str | None) -> None:
        place = EventPlace(self._max_message)
        had = False
        if self._failures:  # in the session before: a server may forget one after the other
            if self._given_up:
                self._heard.set()
            await asyncio.sleep(self._delay(place))
        while True:
            events = place.events
            self._began = None
            try:
                await self._follow(revision, place, self._begun)
            except HttpStatusError as error:
                if error.status not in PASSING:
                    if not had:  # mostly 405: it has none
                        return
                    if isinstance(error, SessionEnded):
                        self._sink.session_ended(error)
                        return
                    place.last_id = ""  # perhaps it does not know that any more
            except ClientError as error:
                logger.debug("the stream of %s broke: %s", self._where, error)
            had = had or self._began is not None
            self._ended(place.events > events, place)
            await asyncio.sleep(self._delay(place))

    def _begun(self) -> None:
        self._began = asyncio.get_running_loop().time()
        self._heard.set()
        if self._lossy:
            self._lossy = False
            self._sink.missed()

    def _ended(self, moved: bool, place: EventPlace) -> None:
        now = asyncio.get_running_loop().time()
        lived = moved or (self._began is not None and now - self._began > _LIVED)
        self._failures = 0 if lived else self._failures + 1
        self._lossy = self._lossy or not place.last_id
        if not self._given_up:
            return
        if self._failures == self._options.resumptions + 1:
            logger.warning(
                "%s says nothing unasked for now: its stream cannot be had, and is asked for every "
                "%g s (option: listen_interval)",
                self._where,
                self._options.listen_interval,
            )
        self._heard.set()
        self._sink.missed()

    def _delay(self, place: EventPlace) -> float:
        if self._given_up:
            return self._options.listen_interval
        return place.delay(self._failures)

    @property
    def _given_up(self) -> bool:
        return self._failures > self._options.resumptions
