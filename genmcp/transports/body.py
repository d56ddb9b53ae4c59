"""Reading a request's body, within its limits."""

import asyncio
from typing import Final

from genmcp.errors import McpError
from genmcp.mux.limits import Limits
from genmcp.transports.asgi import ClientLeft, Message, Receive

__all__ = ["read_body"]

_LONGEST_LENGTH: Final = 18
"""Digits of a Content-Length that is still worth reading as a number."""


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
    deadline = _Deadline(limits.body_time)
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


class _Deadline:
    """Cancels the running asyncio.Task after so many seconds, like `asyncio.timeout`.

    That one takes a tenth of the time of a whole call, and nearly every body is there already:
    here there is no timer before the loop has had a turn.
    """

    __slots__ = ("_handle", "_over", "_seconds", "_task")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._over = False
        self._task = asyncio.current_task()
        self._handle: asyncio.Handle = asyncio.get_running_loop().call_soon(self._begin)

    def _begin(self) -> None:
        self._handle = asyncio.get_running_loop().call_later(self._seconds, self._end)

    def _end(self) -> None:
        assert self._task is not None
        self._over = True
        self._task.cancel()

    def lift(self) -> None:
        """Let the task go on for as long as it likes."""
        self._handle.cancel()

    def was_the_only_reason(self) -> bool:
        """Whether the CancelledError that was caught is this one's alone; it counts no more."""
        return self._over and self._task is not None and self._task.uncancel() == 0


def _too_large(limits: Limits) -> McpError:
    return McpError(
        f"The body is larger than {limits.body} bytes (limit: body)", code=-32600, status=413
    )


def _too_slow(limits: Limits) -> McpError:
    return McpError(
        f"The body did not arrive within {limits.body_time:g} s (limit: body_time)",
        code=-32600,
        status=408,
        headers={"connection": "close"},
    )
