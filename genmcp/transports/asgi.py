"""ASGI, as the transports use it: its types, the client's address, and the output of actions."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, MutableMapping, Sequence
from typing import Any

from genmcp.core.client_key import address_of
from genmcp.core.exchange import Action, Begin, Chunk, End, Whole
from genmcp.errors import ConfigurationError
from genmcp.wire.sse import MEDIA_TYPE

__all__ = [
    "IN_PROCESS",
    "ClientLeft",
    "FindClientKey",
    "Headers",
    "Message",
    "Receive",
    "Scope",
    "Send",
    "encoded",
    "find_address",
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


FindClientKey = Callable[[Scope], str | None]
"""Returns the key of an anonymous client from an ASGI scope; None stands for the peer address."""

IN_PROCESS = "genmcp.in_process"
"""The ASGI extension in the scopes of a client in the same process, which has no peer address."""


def find_address(scope: Scope, find: FindClientKey | None) -> str | None:
    """Return the address that a request with *scope* counts towards; empty if it is unknown.

    Returns None for a client in this process. *find* is the setting `Endpoint(client_key=)`.

    Raises:
        ConfigurationError: *find* returned neither a str nor None.
    """
    if find is not None:
        found = find(scope)
        if found is not None and not isinstance(found, str):
            raise ConfigurationError(
                f"client_key= of Endpoint returned {found!r}: it must return a text, or None to "
                f"count the request for its peer address"
            )
        if found is not None:
            return address_of(found)
    if IN_PROCESS in scope.get("extensions", ()):
        return None
    peer = scope.get("client")
    return address_of(peer[0]) if peer else ""
