"""ASGI, as the transports use it: what it is made of, and the actions that go out through it."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any

from genmcp.core.actions import Action, Begin, Chunk, End, Whole
from genmcp.wire.sse import MEDIA_TYPE

__all__ = [
    "ClientLeft",
    "Headers",
    "Message",
    "Receive",
    "Scope",
    "Send",
    "encoded",
    "left",
    "perform",
    "reply",
]

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Sequence[tuple[bytes, bytes]]

START = "http.response.start"
BODY = "http.response.body"

_JSON = (b"content-type", b"application/json")
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
    while message["type"] == "http.request" and message.get("more_body", False):
        message = await receive()  # the body of a GET, which nobody has read
    if message["type"] == "http.request":
        message = await receive()
    while message["type"] != "http.disconnect":
        await asyncio.sleep(1)  # some middlewares give the body again whenever they are asked
        message = await receive()


async def reply(send: Send, status: int, body: bytes = b"", headers: Headers = ()) -> None:
    """Send a complete response; a *body* is JSON.

    Raises:
        ClientLeft: the connection is closed.
    """
    head = [(b"content-length", b"%d" % len(body)), *headers]
    if body:
        head.append(_JSON)
    try:
        await send({"type": START, "status": status, "headers": head})
        await send({"type": BODY, "body": body})
    except OSError:  # what an ASGI server raises then (specification 2.4)
        raise ClientLeft from None


async def perform(actions: Sequence[Action], send: Send, headers: Headers) -> None:
    """Turn what the core asks for into ASGI messages. The only place that does.

    Chunks that are ready together leave together.

    Raises:
        ClientLeft: the connection is closed.
    """
    first = actions[0]
    if type(first) is Whole:  # nothing goes with it
        await reply(send, first.status, first.body, headers)
        return
    ready: list[bytes] = []
    ended = False
    try:
        for action in actions:
            match action:
                case Begin():
                    stream = [*_STREAM_HEADERS, *headers]
                    await send({"type": START, "status": 200, "headers": stream})
                case Chunk(data=data):
                    ready.append(data)
                case End(data=data):
                    ready.append(data)
                    ended = True
        if ready:
            await send({"type": BODY, "body": b"".join(ready), "more_body": not ended})
    except OSError:
        raise ClientLeft from None
