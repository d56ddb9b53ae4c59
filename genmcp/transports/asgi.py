"""The two ends of an ASGI request: the body that comes in, the actions that go out."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping, Sequence
from typing import Any

from genmcp.core.actions import Action, Begin, Chunk, End, Whole
from genmcp.errors import McpError
from genmcp.mux.limits import Limits
from genmcp.wire.sse import MEDIA_TYPE

__all__ = ["ClientLeft", "Headers", "Receive", "Scope", "Send", "perform", "read_body", "reply"]

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
    """The client closed the connection before its request was whole."""


async def read_body(receive: Receive, length: bytes | None, limits: Limits) -> bytes:
    """Return the request's body; *length* is its Content-Length header, if it has one.

    Raises:
        McpError: 413 past `limits.body`, 408 past `limits.body_time`.
        ClientLeft: the connection closed first.
    """
    if length is not None and length.isdigit() and int(length) > limits.body:
        raise _too_large(limits)
    message = await receive()
    body: bytes = message.get("body", b"")
    if message["type"] == "http.request" and not message.get("more_body", False):
        if len(body) > limits.body:
            raise _too_large(limits)
        return body
    try:
        async with asyncio.timeout(limits.body_time):
            return await _read_rest(message, receive, limits)
    except TimeoutError:
        raise McpError(
            f"The body did not arrive within {limits.body_time:g} s (limit: body_time)",
            code=-32600,
            status=408,
        ) from None


async def _read_rest(message: MutableMapping[str, Any], receive: Receive, limits: Limits) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        if message["type"] == "http.disconnect":
            raise ClientLeft
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > limits.body:
            raise _too_large(limits)
        if not message.get("more_body", False):
            return b"".join(parts)
        message = await receive()


def _too_large(limits: Limits) -> McpError:
    return McpError(
        f"The body is larger than {limits.body} bytes (limit: body)", code=-32600, status=413
    )


async def reply(
    send: Send, status: int, body: bytes = b"", headers: Iterable[tuple[bytes, bytes]] = ()
) -> None:
    """Send a complete response; a *body* is JSON."""
    media = [(b"content-type", b"application/json")] if body else []
    await send(
        {
            "type": "http.response.start",
            "status": status,
            "headers": [*media, (b"content-length", b"%d" % len(body)), *headers],
        }
    )
    await send({"type": "http.response.body", "body": body})


async def perform(actions: Iterable[Action], send: Send, headers: Headers) -> None:
    """Turn what the core asks for into ASGI messages. The only place that does.

    Chunks that are ready together leave together.
    """
    ready: list[bytes] = []
    ended = False
    for action in actions:
        match action:
            case Whole(status=status, body=body):
                await reply(send, status, body, headers)
            case Begin():
                start = {"status": 200, "headers": [*_STREAM_HEADERS, *headers]}
                await send({"type": "http.response.start", **start})
            case Chunk(data=data):
                ready.append(data)
            case End(data=data):
                ready.append(data)
                ended = True
    if ready:
        body = b"".join(ready)
        await send({"type": "http.response.body", "body": body, "more_body": not ended})
