"""ASGI, as the transports use it: what it is made of, and the actions that go out through it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any

from genmcp.core.actions import Action, Begin, Chunk, End, Whole
from genmcp.wire.sse import MEDIA_TYPE

__all__ = [
    "ClientLeft",
    "Headers",
    "Receive",
    "Scope",
    "Send",
    "encoded",
    "left",
    "perform",
    "reply",
]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]

# 2026-07-28, Streamable HTTP, "Receiving Messages": a proxy should not hold events back.
_STREAM_HEADERS: Headers = (
    (b"content-type", MEDIA_TYPE),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),
)


class ClientLeft(Exception):
    """The client closed the connection: nobody is there to be told anything."""


def encoded(headers: Mapping[str, str]) -> Headers:
    """Return *headers*, those of an error, as ASGI has them."""
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]


async def left(receive: Receive) -> None:
    """Return when the client has closed the connection."""
    message = await receive()
    if message["type"] == "http.request":  # the body of a GET: empty, and nobody has read it
        message = await receive()
    while message["type"] != "http.disconnect":
        await asyncio.sleep(1)  # some middlewares give the body again whenever they are asked
        message = await receive()


async def reply(
    send: Send, status: int, body: bytes = b"", headers: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    """Send a complete response; a *body* is JSON.

    Raises:
        ClientLeft: the connection is closed.
    """
    media = [(b"content-type", b"application/json")] if body else []
    length = (b"content-length", b"%d" % len(body))
    await _send(send, "start", status=status, headers=[*media, length, *headers])
    await _send(send, "body", body=body)


async def perform(actions: Iterable[Action], send: Send, headers: Headers) -> None:
    """Turn what the core asks for into ASGI messages. The only place that does.

    Chunks that are ready together leave together.

    Raises:
        ClientLeft: the connection is closed.
    """
    ready: list[bytes] = []
    ended = False
    for action in actions:
        match action:
            case Whole(status=status, body=body):
                await reply(send, status, body, headers)
            case Begin():
                await _send(send, "start", status=200, headers=[*_STREAM_HEADERS, *headers])
            case Chunk(data=data):
                ready.append(data)
            case End(data=data):
                ready.append(data)
                ended = True
    if ready:
        await _send(send, "body", body=b"".join(ready), more_body=not ended)


async def _send(send: Send, part: str, **what: Any) -> None:
    try:
        await send({"type": f"http.response.{part}", **what})
    except OSError:  # what an ASGI server raises then (specification 2.4)
        raise ClientLeft from None
