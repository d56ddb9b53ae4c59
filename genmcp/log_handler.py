"""A handler for Python's `logging` that forwards records to the client of the current request."""

import asyncio
import copy
import logging
from collections import deque
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, ClassVar, Final, TypeVar

from genmcp.channel import Channel
from genmcp.protocol.params import SEVERITY, LoggingLevel

logger = logging.getLogger("genmcp")

T = TypeVar("T")

_LEVELS: Final[tuple[tuple[int, LoggingLevel], ...]] = (
    (70, "emergency"),
    (60, "alert"),
    (logging.CRITICAL, "critical"),
    (logging.ERROR, "error"),
    (logging.WARNING, "warning"),
    (25, "notice"),
    (logging.INFO, "info"),
)

_MAX_CHARACTERS: Final = 16_384  # of a message or traceback
_MAX_PENDING: Final = 256  # records of one request that wait to be sent
_FLUSH_TIMEOUT: Final = 1.0  # seconds that a response waits for them


class ClientLogHandler(logging.Handler):
    """Forwards log records to the client of the request in which they are logged.

        logging.getLogger("shop").addHandler(ClientLogHandler())

    A record belongs to the request in whose context it is logged, which includes asyncio.Tasks and
    threads (`asyncio.to_thread`) that a hook has started. Records below the level that the client
    requested are not sent. On 2026-07-28 each request has a level; before, a session has a level
    (`logging/setLevel`). The data is `{"message": ...}`, formatted by the formatter of this handler
    if it has one; `"exception"` is the type of a logged exception. Records of this package are not
    forwarded.

    Logging never waits for the client. If more than 256 records of a request wait to be sent,
    further ones are dropped, and the client gets a warning with their number. A response waits for
    the records logged before it, for one second at most. Records that are logged after the response
    are dropped.

    Args:
        level: the least severe level to forward. Default: every level.
    """

    created: ClassVar[bool] = False
    """Whether a handler was ever created. Until then, calls skip the preparation for it."""

    def __init__(self, level: int | str = logging.NOTSET) -> None:
        super().__init__(level)
        ClientLogHandler.created = True

    def emit(self, record: logging.LogRecord) -> None:
        """Forward *record*, if it is logged in a request that has not ended."""
        queue = _current_queue.get()
        if queue is None or record.name.partition(".")[0] == "genmcp":
            return
        level = _mcp_level(record.levelno)
        if not queue.accepts(level):
            return
        # A formatter that logs would otherwise forward its own records, without end.
        token = _current_queue.set(None)
        try:
            queue.put((level, self._data(record), record.name))
        except Exception:
            self.handleError(record)
        finally:
            _current_queue.reset(token)

    def _data(self, record: logging.LogRecord) -> Mapping[str, str]:
        # Removed, since a formatter would append the traceback to the message, which may show
        # secrets to the client.
        bare = copy.copy(record)
        bare.exc_info = bare.exc_text = bare.stack_info = None
        data = {"message": _encodable(self.format(bare))}
        if record.exc_info and record.exc_info[0] is not None:
            data["exception"] = record.exc_info[0].__qualname__
        return data


Entry = tuple[LoggingLevel, Mapping[str, str], str]


class _RecordQueue:
    """The log records of one call that wait to be sent. Owned by `forwarding`."""

    def __init__(self, channel: Channel) -> None:
        self.closed = False
        self._channel = channel
        self._entries: deque[Entry] = deque()
        self._dropped = 0
        self._loop = asyncio.get_running_loop()
        self._sending: asyncio.Task[None] | None = None

    def accepts(self, level: LoggingLevel) -> bool:
        """Return whether the client may want records of *level*."""
        request = self._channel.request
        # The level of a session is in the store. It is compared when the record is sent.
        if self.closed or request.session is not None:
            return not self.closed
        return request.log_level is not None and SEVERITY[level] >= SEVERITY[request.log_level]

    def put(self, entry: Entry) -> None:
        """Queue *entry*, unless too many wait. May be called in any thread."""
        if len(self._entries) < _MAX_PENDING:
            self._entries.append(entry)
        else:
            self._dropped += 1
        with suppress(RuntimeError):  # the loop was closed, and the request with it
            self._loop.call_soon_threadsafe(self._send)

    def _send(self) -> None:
        if not self.closed and (self._sending is None or self._sending.done()):
            self._sending = self._loop.create_task(self._send_all())

    async def _send_all(self) -> None:
        _current_queue.set(None)  # records that are logged by the sending are not forwarded
        try:
            while (self._entries or self._dropped) and not self._channel.closed:
                await self._channel.log(*self._next())
        except Exception:
            self.closed = True
            logger.exception("log records cannot be forwarded to the client")

    def _next(self) -> Entry:
        if self._entries:
            return self._entries.popleft()
        dropped, self._dropped = self._dropped, 0
        text = f"{dropped} log records were dropped: the client did not keep up"
        return "warning", {"message": text}, logger.name

    async def flush(self) -> None:
        """Wait until all entries are sent, for `_FLUSH_TIMEOUT` at most."""
        if self._entries:
            self._send()
        if self._sending is not None:
            await asyncio.wait([self._sending], timeout=_FLUSH_TIMEOUT)

    def close(self) -> None:
        """Drop the entries that are left."""
        self.closed = True
        if self._sending is not None:
            self._sending.cancel()


_current_queue: ContextVar[_RecordQueue | None] = ContextVar("genmcp_log_queue", default=None)


async def forwarding(channel: Channel, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of *work*, forwarding its log records to the client of *channel*."""
    queue = _RecordQueue(channel)
    token = _current_queue.set(queue)
    try:
        result = await work
        await queue.flush()
        return result
    finally:
        # If its event loop was closed, this coroutine is finalized in another context, where the
        # token is invalid.
        with suppress(ValueError):
            _current_queue.reset(token)
        queue.close()


def _mcp_level(number: int) -> LoggingLevel:
    return next((level for minimum, level in _LEVELS if number >= minimum), "debug")


def _encodable(text: str) -> str:
    """Return *text* cut to `_MAX_CHARACTERS`, with lone surrogates replaced for JSON."""
    if len(text) > _MAX_CHARACTERS:
        text = f"{text[:_MAX_CHARACTERS]}..."
    return text.encode("utf-8", "replace").decode()
