"""The two ends of an ASGI request: the body that comes in, the actions that go out."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping, Sequence
from typing import Any, Final

from genmcp.core.actions import Action, Begin, Chunk, End, Whole
from genmcp.errors import McpError
from genmcp.mux.limits import Limits
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
    "read_body",
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


_LONGEST_LENGTH: Final = 18
"""Digits of a Content-Length that is still worth reading as a number."""


class ClientLeft(Exception):
    """The client closed the connection: nobody is there to be told anything."""


async def read_body(receive: Receive, length: bytes | None, limits: Limits) -> bytes:
    """Return the request's body; *length* is its Content-Length header, if it has one.

    Raises:
        McpError: 413 past `limits.body`, 408 past `limits.body_time`.
        ClientLeft: the connection closed first.
    """
    if (
        length is not None
        and length.isdigit()
        and (len(length) > _LONGEST_LENGTH or int(length) > limits.body)
    ):
        raise _too_large(limits)
    try:
        async with asyncio.timeout(limits.body_time):
            return await _read(receive, limits)
    except TimeoutError:
        raise McpError(
            f"The body did not arrive within {limits.body_time:g} s (limit: body_time)",
            code=-32600,
            status=408,
            headers={"connection": "close"},
        ) from None


async def _read(receive: Receive, limits: Limits) -> bytes:
    parts: list[bytes] = []
    size = 0
    more = True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limits.body:
            raise _too_large(limits)
        more = message.get("more_body", False)
    return parts[0] if len(parts) == 1 else b"".join(parts)


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


def _too_large(limits: Limits) -> McpError:
    return McpError(
        f"The body is larger than {limits.body} bytes (limit: body)", code=-32600, status=413
    )


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
