"""The body of an HTTP request: read within its limits, and decoded."""

import asyncio
from collections.abc import Awaitable, Generator
from types import CoroutineType, coroutine
from typing import Any, Final

from genmcp._mux.limits import MAX_CONTAINERS, Limits
from genmcp._transports.request import UNCOUNTED, ClientLeft, HttpRequest, Message
from genmcp._transports.timers import drive
from genmcp.errors import BodyTimeout, InvalidRequest, TooLarge
from genmcp.wire import jsonrpc

MAX_BATCH_MESSAGES: Final = 100
"""The maximum number of messages in one batch (2025-03-26)."""

_LONGEST_LENGTH: Final = 18
"""Digits of a Content-Length that is still worth reading as a number."""


@coroutine
def read_body(http: HttpRequest, length: bytes | None) -> Generator[Any, Any, bytes]:
    """Read the body of a request; *length* is its Content-Length header, if it has one.

    Once more than 16 KiB have been received, all bytes of the body count towards its client's share
    until the request ends, or until a `subscriptions/listen` opens its stream.

    Raises:
        TooLarge: it is larger than `limits.max_body_bytes`.
        BodyTimeout: it took longer than `limits.body_timeout`.
        Overloaded: the large bodies of the client, or of all clients, exceed their limit.
        ClientLeft: the connection closed first.
    """
    limits = http.mux.limits
    if (
        length is not None
        and length.isdigit()
        and (len(length) > _LONGEST_LENGTH or int(length) > limits.max_body_bytes)
    ):
        raise _too_large(limits)
    work = http.receive()
    if not isinstance(work, CoroutineType):
        work = _awaited(work)
    try:
        waited = work.send(None)
    except StopIteration as done:  # nearly always: the server has received the body already
        message: Message = done.value
        body: bytes = message.get("body", b"")
        if (
            message["type"] == "http.request"
            and not message.get("more_body", False)
            and len(body) <= UNCOUNTED
            and len(body) <= limits.max_body_bytes
        ):
            return body
        first = _given(message)
    else:
        first = drive(work, waited)
    body = yield from _read(first, http)
    return body


async def _awaited(work: Awaitable[Message]) -> Message:
    return await work


async def _given(message: Message) -> Message:
    return message


async def _read(first: Awaitable[Message], http: HttpRequest) -> bytes:
    """Return the body that begins with the message *first*."""
    parts: list[bytes] = []
    limits = http.mux.limits
    left = limits.max_body_bytes
    try:
        async with asyncio.timeout(limits.body_timeout):
            message = await first
            while True:
                if message["type"] == "http.disconnect":
                    raise ClientLeft
                parts.append(message.get("body", b""))
                left -= len(parts[-1])
                if left < 0:
                    raise _too_large(limits)
                if limits.max_body_bytes - left > UNCOUNTED:
                    http.count_body(limits.max_body_bytes - left)
                if not message.get("more_body", False):
                    return b"".join(parts)
                message = await http.receive()
    except TimeoutError:
        raise BodyTimeout(
            f"The body did not arrive within {limits.body_timeout:g} s (limit: body_timeout)"
        ) from None


def _too_large(limits: Limits) -> TooLarge:
    return TooLarge(
        f"The body is larger than {limits.max_body_bytes} bytes (limit: max_body_bytes)"
    )


def decode(body: bytes, limits: Limits) -> jsonrpc.Message | list[jsonrpc.Message | InvalidRequest]:
    """Decode *body* within *limits*: one message, or the members of a batch.

    Raises:
        McpError: it is not JSON-RPC, or exceeds one of the limits.
    """
    return jsonrpc.decode(
        body,
        max_depth=limits.max_depth,
        containers=MAX_CONTAINERS,
        batch=MAX_BATCH_MESSAGES,
    )
