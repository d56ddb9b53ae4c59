"""The bytes of a response, written as fast as its client reads.

ASGI has no event for "the client has read": a server takes bytes until its own buffer is full, and
the next `send` waits. So a large body is sent in pieces, and the last `send` returns when all of it
has left the server. Most responses fit into the buffer; nothing below is made for them. One that
waits becomes an `UnreadResponse`, with the deadline of `Limits.write_timeout`, an
entry in the account of its client (`_mux/unsent.py`), and a place in the shutdown.
"""

from collections.abc import Coroutine, Sequence
from typing import Any, Final

from genmcp._core.exchange import ExchangeAction, FullResponse, StreamChunk, StreamEnd, StreamHead
from genmcp._transports.request import (
    PIECE,
    ClientLeft,
    Headers,
    HttpRequest,
    Send,
    UnreadResponse,
    transport_of,
)
from genmcp._transports.timers import drive
from genmcp._wire.sse import MEDIA_TYPE

START: Final = "http.response.start"
BODY: Final = "http.response.body"

_JSON = (b"content-type", b"application/json")
# 2026-07-28, Streamable HTTP, "Receiving Messages": a proxy should not hold events back.
_STREAM_HEADERS: Headers = (
    (b"content-type", MEDIA_TYPE),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


def reply(
    http: HttpRequest, status: int, body: bytes = b"", headers: Headers = ()
) -> Coroutine[Any, Any, None]:
    """Send a complete response; a *body* is JSON, and *headers* are added to those of *http*.

    Raises:
        ClientLeft: as for `write`.
    """
    http.response_begun = True
    head = [(b"content-length", b"%d" % len(body)), *http.headers, *headers]
    if body:
        head.append(_JSON)
    start = {"type": START, "status": status, "headers": head}
    if len(body) > PIECE:
        return write(http, start, body)
    return _run(http, _send_whole(http.send, start, {"type": BODY, "body": body}), [body])


def perform(http: HttpRequest, actions: Sequence[ExchangeAction]) -> Coroutine[Any, Any, None]:
    """Send what the *actions* of an exchange ask for; chunks that are ready are joined.

    Raises:
        ClientLeft: as for `write`.
    """
    first = actions[0]
    if type(first) is FullResponse:  # always the only action
        return reply(http, first.status, first.body)
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


def write(
    http: HttpRequest,
    start: dict[str, Any] | None,
    body: bytes | None,
    *,
    more_body: bool = False,
) -> Coroutine[Any, Any, None]:
    """Send the message *start*, if given, and *body*, if given, as fast as the client reads.

    Raises:
        ClientLeft: the connection is closed, or the client has read nothing for
            `Limits.write_timeout` seconds.
    """
    pending = [] if body is None else _pieces(body)
    if len(pending) > 1 and (transport := transport_of(http)) is not None:
        transport.set_write_buffer_limits(0)  # or else the end of it would wait there, uncounted
    return _run(http, _send(http, start, pending, more_body), pending)


async def _run(http: HttpRequest, sending: Coroutine[Any, Any, None], pending: list[bytes]) -> None:
    """Run *sending*; count the bytes in *pending*, and limit its time, only if it has to wait."""
    try:
        waited = sending.send(None)
    except StopIteration:
        return
    except OSError:  # raised by ASGI servers after a disconnect (ASGI specification 2.4)
        raise ClientLeft from None
    if http.unread is None:
        http.unread = UnreadResponse(http, http.client_key)
    await http.unread.wait(drive(sending, waited), pending)


async def _send_whole(send: Send, start: dict[str, Any], body: dict[str, Any]) -> None:
    await send(start)
    await send(body)


def _pieces(body: bytes) -> list[bytes]:
    """Return *body* in pieces, the last one first."""
    if len(body) <= PIECE:
        return [body]
    return [body[at : at + PIECE] for at in range(0, len(body), PIECE)][::-1]


async def _send(
    http: HttpRequest, start: dict[str, Any] | None, pending: list[bytes], more_body: bool
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
