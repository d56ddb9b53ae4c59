"""Reading a request's body, within its limits."""

from collections.abc import Awaitable, Generator
from types import CoroutineType, coroutine
from typing import Any, Final

from genmcp.errors import InvalidRequest, TooLarge, TooSlow
from genmcp.mux.limits import Limits
from genmcp.transports.asgi import ClientLeft, Message
from genmcp.transports.steps import Deadline, resume
from genmcp.transports.visit import Visit
from genmcp.wire import jsonrpc

__all__ = ["decoded", "read_body"]

_LONGEST_LENGTH: Final = 18
"""Digits of a Content-Length that is still worth reading as a number."""

_UNCOUNTED: Final = 16 * 1024
"""Bytes of a body up to which it is not counted: other parts of a request take as many."""


@coroutine
def read_body(visit: Visit, length: bytes | None) -> Generator[Any, Any, bytes]:
    """Read the body of a request; *length* is its Content-Length header, if it has one.

    Once more than 16 KiB have been received, all bytes of the body count towards its client's share
    until the request ends, or until a `subscriptions/listen` opens its stream.

    Raises:
        TooLarge: it is larger than `limits.body`.
        TooSlow: it took longer than `limits.body_time`.
        Overloaded: the large bodies of the client, or of all clients, exceed their limit.
        ClientLeft: the connection closed first.
    """
    limits = visit.mux.limits
    if (
        length is not None
        and length.isdigit()
        and (len(length) > _LONGEST_LENGTH or int(length) > limits.body)
    ):
        raise _too_large(limits)
    work = visit.receive()
    if not isinstance(work, CoroutineType):
        work = _awaited(work)
    try:
        waited = work.send(None)
    except StopIteration as done:  # it is there, and as a rule all of it
        message: Message = done.value
        body: bytes = message.get("body", b"")
        if (
            message["type"] == "http.request"
            and not message.get("more_body", False)
            and len(body) <= _UNCOUNTED
            and len(body) <= limits.body
        ):
            return body
        rest = _read(message, visit)
    else:
        rest = _read_from(resume(work, waited), visit)
    try:
        body = yield from Deadline(limits.body_time).bound(rest)
    except TimeoutError:
        raise TooSlow(
            f"The body did not arrive within {limits.body_time:g} s (limit: body_time)"
        ) from None
    return body


async def _awaited(work: Awaitable[Message]) -> Message:
    return await work


async def _read_from(first: Awaitable[Message], visit: Visit) -> bytes:
    return await _read(await first, visit)


async def _read(message: Message, visit: Visit) -> bytes:
    """Return the body that begins with *message*."""
    parts: list[bytes] = []
    limits = visit.mux.limits
    left = limits.body
    while True:
        if message["type"] == "http.disconnect":
            raise ClientLeft
        parts.append(message.get("body", b""))
        left -= len(parts[-1])
        if left < 0:
            raise _too_large(limits)
        if limits.body - left > _UNCOUNTED:
            visit.count_body(limits.body - left)
        if not message.get("more_body", False):
            return b"".join(parts)
        message = await visit.receive()


def decoded(
    body: bytes, limits: Limits
) -> jsonrpc.Message | list[jsonrpc.Message | InvalidRequest]:
    """Decode *body* within *limits*: one message, or the members of a batch.

    Raises:
        McpError: it is not JSON-RPC, or exceeds one of the limits.
    """
    return jsonrpc.decode(
        body, max_depth=limits.depth, containers=limits.containers, batch=limits.batch
    )


def _too_large(limits: Limits) -> TooLarge:
    return TooLarge(f"The body is larger than {limits.body} bytes (limit: body)")
