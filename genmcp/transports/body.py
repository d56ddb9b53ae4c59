"""Reading a request's body, within its limits."""

import asyncio
from typing import Final

from genmcp.errors import TooLarge, TooSlow
from genmcp.mux.limits import Limits
from genmcp.transports.asgi import ClientLeft, Message, Receive
from genmcp.transports.deadline import Deadline

__all__ = ["read_body"]

_LONGEST_LENGTH: Final = 18
"""Digits of a Content-Length that is still worth reading as a number."""


async def read_body(receive: Receive, length: bytes | None, limits: Limits) -> bytes:
    """Return the request's body; *length* is its Content-Length header, if it has one.

    Raises:
        TooLarge: it is larger than `limits.body`.
        TooSlow: it took longer than `limits.body_time`.
        ClientLeft: the connection closed first.
    """
    if (
        length is not None
        and length.isdigit()
        and (len(length) > _LONGEST_LENGTH or int(length) > limits.body)
    ):
        raise _too_large(limits)
    deadline = Deadline(limits.body_time)
    try:
        message = await receive()
        if message["type"] == "http.request" and not message.get("more_body", False):
            return _whole(message.get("body", b""), limits)
        return await _read_on(message, receive, limits)
    except asyncio.CancelledError:
        if deadline.was_the_only_reason():
            raise _too_slow(limits) from None
        raise
    finally:
        deadline.lift()


def _whole(body: bytes, limits: Limits) -> bytes:
    if len(body) > limits.body:
        raise _too_large(limits)
    return body


async def _read_on(message: Message, receive: Receive, limits: Limits) -> bytes:
    """Return the body that begins with *message*."""
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


def _too_large(limits: Limits) -> TooLarge:
    return TooLarge(f"The body is larger than {limits.body} bytes (limit: body)")


def _too_slow(limits: Limits) -> TooSlow:
    return TooSlow(f"The body did not arrive within {limits.body_time:g} s (limit: body_time)")
