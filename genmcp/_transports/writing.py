"""The bytes of a response, written as fast as its client reads.

ASGI has no event for "the client has read": a server takes bytes until its own buffer is full, and
the next `send` waits. So a large body is sent in pieces, and the last `send` returns when all of it
has left the server. Most responses fit into the buffer; nothing below is made for them. One that
waits becomes an `UnreadResponse`, with the deadline of `Limits.write_timeout`, an
entry in the account of its client (`_mux/unsent.py`), and a place in the shutdown.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec

from genmcp._core.client_key import ClientKey
from genmcp._core.exchange import ExchangeAction, FullResponse, StreamChunk, StreamEnd, StreamHead
from genmcp._transports.shutdown import LAST_WORDS
from genmcp._transports.timers import AdjustableTimeout, drive
from genmcp._wire.sse import MEDIA_TYPE

if TYPE_CHECKING:
    from genmcp._transports.request import HttpRequest

logger = logging.getLogger("genmcp")

Headers = Sequence[tuple[bytes, bytes]]

START: Final = "http.response.start"
BODY: Final = "http.response.body"

_JSON = (b"content-type", b"application/json")
# 2026-07-28, Streamable HTTP, "Receiving Messages": a proxy should not hold events back.
_STREAM_HEADERS: Headers = (
    (b"content-type", MEDIA_TYPE),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)

_PIECE: Final = 64 * 1024
"""Bytes given to the server at once, and the size of its buffer, which are counted as well."""


class ClientLeft(Exception):
    """The client closed the connection, so that no response can reach it."""


def reply(
    http: "HttpRequest", status: int, body: bytes = b"", headers: Headers = ()
) -> Coroutine[Any, Any, None]:
    """Send a complete response; a *body* is JSON.

    Raises:
        ClientLeft: as for `write`.
    """
    head = [(b"content-length", b"%d" % len(body)), *headers]
    if body:
        head.append(_JSON)
    return write(http, {"type": START, "status": status, "headers": head}, body)


def perform(http: "HttpRequest", actions: Sequence[ExchangeAction]) -> Coroutine[Any, Any, None]:
    """Send what the *actions* of an exchange ask for; chunks that are ready are joined.

    Raises:
        ClientLeft: as for `write`.
    """
    first = actions[0]
    if type(first) is FullResponse:  # always the only action
        return reply(http, first.status, first.body, http.headers)
    start: dict[str, Any] | None = None
    ready: list[bytes] = []
    ended = False
    for action in actions:
        match action:
            case StreamHead():
                stream = [*_STREAM_HEADERS, *http.headers]
                start = {"type": START, "status": 200, "headers": stream}
            case StreamChunk(data=data):
                ready.append(data)
            case StreamEnd(data=data):
                ready.append(data)
                ended = True
    return write(http, start, b"".join(ready) if ready else None, more_body=not ended)


async def write(
    http: "HttpRequest",
    start: dict[str, Any] | None,
    body: bytes | None,
    *,
    more_body: bool = False,
) -> None:
    """Send the message *start*, if given, and *body*, if given, as fast as the client reads.

    Raises:
        ClientLeft: the connection is closed, or the client has read nothing for
            `Limits.write_timeout` seconds.
    """
    pending = [] if body is None else _pieces(body)
    del body  # a large one is held in pieces, which are freed as they are sent
    if len(pending) > 1 and (transport := _transport(http)) is not None:
        transport.set_write_buffer_limits(0)  # or else the end of it would wait there, uncounted
    sending = _send(http, start, pending, more_body)
    try:
        waited = sending.send(None)
    except StopIteration:
        return
    except OSError:  # raised by ASGI servers after a disconnect (ASGI specification 2.4)
        raise ClientLeft from None
    if http.unread is None:
        http.unread = UnreadResponse(http, http.client_key)
    await http.unread.wait(drive(sending, waited), pending)


def _pieces(body: bytes) -> list[bytes]:
    """Return *body* in pieces, the last one first."""
    if len(body) <= _PIECE:
        return [body]
    return [body[at : at + _PIECE] for at in range(0, len(body), _PIECE)][::-1]


async def _send(
    http: "HttpRequest", start: dict[str, Any] | None, pending: list[bytes], more_body: bool
) -> None:
    send = http.send
    if start is not None:
        await send(start)
    if len(pending) == 1:
        await send({"type": BODY, "body": pending[0], "more_body": more_body})
        return
    last = True
    while pending:
        piece = {"type": BODY, "body": pending.pop(), "more_body": True}
        last = not pending
        await send(piece)
        del piece
        # Nothing is held by this one, which waits until the server has room for the next piece.
        await send({"type": BODY, "body": b"", "more_body": more_body or not last})
        if http.unread is not None:
            http.unread.read()
    if not last:  # dropped, and the connection is closed
        raise ClientLeft


class UnreadResponse(msgspec.Struct, eq=False):
    """A response that its client does not read as fast as it is written. Owned by its request."""

    _http: "HttpRequest"
    client_key: ClientKey
    _queued: int = 0
    _pending: list[bytes] = []
    _deadline: AdjustableTimeout | None = None
    _drop: Callable[[], object] | None = None
    _closed: bool = False

    async def wait(self, sending: Coroutine[Any, Any, None], pending: list[bytes]) -> None:
        """Run *sending*, which waits for the client to read the body in *pending*.

        Raises:
            ClientLeft: as for `write`.
        """
        http = self._http
        self._pending = pending
        self._deadline = AdjustableTimeout(self._patience)
        http.shutdown.add(http.hasten)
        try:
            self._count()
            await self._deadline.bound(sending)
        except TimeoutError:
            logger.info("a connection is closed: its client has read nothing (%s)", self._limit)
            abort(http)
            await asyncio.sleep(0)  # the server learns of it before the request ends
            raise ClientLeft from None
        except OSError:
            raise ClientLeft from None
        finally:
            http.shutdown.discard(http.hasten)
            self._deadline = None
            self._pending = []
            self._count()

    def queue(self, size: int, drop: Callable[[], object] | None = None) -> None:
        """Set the size of the messages that are not being written yet.

        *drop* frees them; called when the connection is closed because of their size.
        """
        self._queued, self._drop = size, drop
        self._count()

    def read(self) -> None:
        """Extend the deadline, since the client has read a piece."""
        if self._deadline is not None:
            self._deadline.hasten(self._patience)
            self._count(was_read=True)

    def hasten(self) -> None:
        """Give the client `LAST_WORDS` seconds to read the rest."""
        if self._deadline is not None:
            self._deadline.hasten(LAST_WORDS)

    def close(self) -> None:
        """Close the connection, and drop the bytes; called by the account, from any thread."""
        self._http.in_loop(self._close)

    def _close(self) -> None:
        self._closed = True
        self._pending.clear()
        if self._drop is not None:
            self._drop()
        abort(self._http)
        if self._deadline is not None:
            self._deadline.hasten(0)

    @property
    def _patience(self) -> float:
        http = self._http
        return LAST_WORDS if http.hastened else http.mux.limits.write_timeout

    @property
    def _limit(self) -> str:
        if self._closed:
            return "its client's responses take too much memory"
        return "shutdown" if self._http.hastened else "limit: write_timeout"

    def _count(self, *, was_read: bool = False) -> None:
        if self._closed:
            return
        size = self._queued
        if self._deadline is not None:
            size += sum(map(len, self._pending)) + _PIECE
        self._http.mux.unsent_bytes.count(self, size, was_read=was_read)


def abort(http: "HttpRequest") -> None:
    """Close the connection of *http*, although its client has not read what was sent.

    ASGI has no message for it: a server that is told of an incomplete response still waits until
    its buffer is read.
    """
    if (transport := _transport(http)) is not None:
        transport.abort()


def _transport(http: "HttpRequest") -> asyncio.Transport | None:
    """Return the open connection, if the server is uvicorn, and `receive` is its own."""
    cycle = getattr(http.receive, "__self__", None)
    transport: asyncio.Transport | None = getattr(cycle, "transport", None)
    return None if transport is None or transport.is_closing() else transport
