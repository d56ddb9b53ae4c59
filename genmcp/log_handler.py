"""Python's `logging`, forwarded to the client of the request in which it is called."""

import asyncio
import copy
import logging
import threading
from collections import deque
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from contextvars import Context, ContextVar, copy_context
from typing import Any, ClassVar, Final, TypeVar

from genmcp.channel import Channel
from genmcp.errors import ConfigurationError
from genmcp.protocol.params import SEVERITY, LoggingLevel

__all__ = ["ClientLogHandler", "forwarding"]

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

_LONGEST: Final = 16_384
"""How many characters of a message are sent."""
_LAST_WORDS: Final = 1.0
"""For how many seconds an answer waits for what was logged before it."""


class ClientLogHandler(logging.Handler):
    """Forwards what is logged while a hook runs to the client that waits for the hook.

        logging.getLogger("shop").addHandler(ClientLogHandler())

    level: the least severe level that is looked at. traceback: whether the text of a traceback is
    sent as well, which shows the client what no error ever does. pending: how many records of a
    request may wait to be sent; what is logged past that is dropped, and the client is told how
    much that was.

    The client hears of what it asked for: the level of the request on 2026-07-28, of the session
    before (`logging/setLevel`). The message is `{"message": ...}`, formatted by the handler's
    formatter if it has one, with the name of the logger; `"exception"` is the type of the
    exception that is logged along. A record belongs to the request in whose context it is
    logged: in an asyncio.Task or thread that a hook has started (`asyncio.to_thread`), too.

    Logging never waits for the client. An answer waits for what was logged before it, a second
    at most; what is logged when the request is over goes nowhere, nor does what this package
    itself logs.

    Raises:
        ConfigurationError: pending is not positive.
    """

    made: ClassVar[bool] = False
    """Whether there ever was one: without any, no request is prepared for it."""

    def __init__(
        self, level: int | str = logging.NOTSET, *, traceback: bool = False, pending: int = 256
    ) -> None:
        super().__init__(level)
        if pending < 1:
            raise ConfigurationError(f"ClientLogHandler: pending must be positive, not {pending!r}")
        self._traceback = traceback
        self._pending = pending
        ClientLogHandler.made = True

    def emit(self, record: logging.LogRecord) -> None:
        """Forward *record*, if it is logged in a request that is not over."""
        line = _line.get()
        if line is None or record.name.partition(".")[0] == "genmcp":
            return
        level = _level(record.levelno)
        if not line.wants(level):
            return
        token = _line.set(None)  # what formatting logs is not forwarded
        try:
            line.offer((level, self._data(record), record.name), self._pending)
        except Exception:
            self.handleError(record)
        finally:
            _line.reset(token)

    def _data(self, record: logging.LogRecord) -> Mapping[str, str]:
        bare = copy.copy(record)  # formatters write the traceback behind the message
        bare.exc_info = bare.exc_text = bare.stack_info = None
        data = {"message": _sendable(self.format(bare))}
        if record.exc_info and record.exc_info[0] is not None:
            data["exception"] = record.exc_info[0].__qualname__
            if self._traceback:
                text = logging.Formatter().formatException(record.exc_info)
                data["traceback"] = _sendable(text)
        return data


Entry = tuple[LoggingLevel, Mapping[str, str], str]


class _Line:
    """What is logged in one request, on its way to the client."""

    def __init__(self, channel: Channel) -> None:
        self.over = False
        self._channel = channel
        self._entries: deque[Entry] = deque()
        self._dropped = 0
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self._sending: asyncio.Task[None] | None = None

    def wants(self, level: LoggingLevel) -> bool:
        """Whether the client may want to hear of *level*; that of a session is asked for later."""
        request = self._channel.request
        if self.over or request.session is not None:
            return not self.over
        return request.log_level is not None and SEVERITY[level] >= SEVERITY[request.log_level]

    def offer(self, entry: Entry, most: int) -> None:
        """Send *entry* soon, unless *most* wait already; from any thread."""
        with self._lock:
            if len(self._entries) >= most:
                self._dropped += 1
                return
            self._entries.append(entry)
        if threading.get_ident() == self._thread:
            self._send_soon()
        else:
            with suppress(RuntimeError):  # the loop was closed, and the request with it
                self._loop.call_soon_threadsafe(self._send_soon)

    def _send_soon(self) -> None:
        if self._sending is None and not self.over:
            # A context of its own: what sending logs is not forwarded.
            self._sending = self._loop.create_task(self._send(), context=_nowhere())

    async def _send(self) -> None:
        try:
            while (self._entries or self._dropped) and not self._channel.closed:
                await self._channel.log(*self._next())
        except Exception:
            self.over = True
            logger.exception("what was logged cannot be forwarded to the client")
        finally:
            self._sending = None

    def _next(self) -> Entry:
        with self._lock:
            if self._entries:
                return self._entries.popleft()
            dropped, self._dropped = self._dropped, 0
        text = f"{dropped} log records came too fast, and were dropped"
        return "warning", {"message": text}, logger.name

    async def finish(self) -> None:
        """Send what is left, as far as the client takes it in time."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS):
                while self._sending is not None:
                    await asyncio.wait([self._sending])

    def end(self) -> None:
        """Forget what is left."""
        self.over = True
        if self._sending is not None:
            self._sending.cancel()


_line: ContextVar[_Line | None] = ContextVar("genmcp_log_line", default=None)


async def forwarding(channel: Channel, work: Coroutine[Any, Any, T]) -> T:
    """Do *work*, and forward to the client of *channel* what is logged meanwhile."""
    line = _Line(channel)
    token = _line.set(line)
    try:
        result = await work
        await line.finish()
        return result
    finally:
        with suppress(ValueError):  # closed from elsewhere, with its loop
            _line.reset(token)
        line.end()


def _nowhere() -> Context:
    context = copy_context()
    context.run(_line.set, None)
    return context


def _level(number: int) -> LoggingLevel:
    return next((level for least, level in _LEVELS if number >= least), "debug")


def _sendable(text: str) -> str:
    """Return *text* cut where it is too long, without what no JSON carries."""
    if len(text) > _LONGEST:
        text = f"{text[:_LONGEST]}..."
    return text.encode("utf-8", "replace").decode()
