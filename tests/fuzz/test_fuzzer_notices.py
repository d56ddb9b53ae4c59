"""The fuzzer detects each kind of fault, shown with deliberate ones."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from genmcp._transports.request import Receive, Scope, Send
from tests.fuzz.case import Case
from tests.fuzz.driver import World, Wrong, listening
from tests.fuzz.shrinking import shrunken

pytestmark = pytest.mark.fuzz

PING = Case(
    headers=(
        (b"content-type", b"application/json"),
        (b"mcp-protocol-version", b"2026-07-28"),
        (b"mcp-method", b"tools/list"),
    ),
    parts=(b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}',),
)


async def answer(send: Send, status: int, message: Any, **headers: str) -> None:
    body = json.dumps(message).encode()
    named = {"content-type": "application/json", "content-length": str(len(body)), **headers}
    pairs = [(name.encode(), value.encode()) for name, value in named.items()]
    await send({"type": "http.response.start", "status": status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})


def error(code: int = -32600, **members: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "error": {"code": code, "message": "x"}, **members}


async def never(scope: Scope, receive: Receive, send: Send) -> None:
    await asyncio.Event().wait()


async def raising(scope: Scope, receive: Receive, send: Send) -> None:
    raise KeyError("x")


async def silent(scope: Scope, receive: Receive, send: Send) -> None:
    pass


async def twice(scope: Scope, receive: Receive, send: Send) -> None:
    await answer(send, 400, error())
    await answer(send, 400, error())


async def odd_status(scope: Scope, receive: Receive, send: Send) -> None:
    await answer(send, 418, error())


async def bare_500(scope: Scope, receive: Receive, send: Send) -> None:
    await answer(send, 500, error(-32603))


async def unlogged(scope: Scope, receive: Receive, send: Send) -> None:
    await answer(send, 500, error(-32603) | {"error": {"code": -32603, "message": REFERENCE}})


async def other_id(scope: Scope, receive: Receive, send: Send) -> None:
    await answer(send, 400, error(id=2))


async def other_code(scope: Scope, receive: Receive, send: Send) -> None:
    await answer(send, 400, error(7))


async def no_result(scope: Scope, receive: Receive, send: Send) -> None:
    await answer(send, 200, {"jsonrpc": "2.0", "id": 1, "result": {"tools": []}})


async def not_json(scope: Scope, receive: Receive, send: Send) -> None:
    await answer(send, 400, float("nan"))


async def split_header(scope: Scope, receive: Receive, send: Send) -> None:
    await answer(send, 400, error(), vary="a\r\nb: c")


async def loud(scope: Scope, receive: Receive, send: Send) -> None:
    logging.getLogger("genmcp").error("out of order")
    await answer(send, 400, error())


async def untidy(scope: Scope, receive: Receive, send: Send) -> None:
    LEFT.append(asyncio.create_task(asyncio.Event().wait()))
    await answer(send, 400, error())


REFERENCE = "Internal error (reference 0123456789ab)"
LEFT: list[asyncio.Task[Any]] = []


@pytest.mark.parametrize(
    ("app", "fault"),
    [
        (never, "it hangs"),
        (raising, "KeyError escaped"),
        (silent, "not answered to the end"),
        (twice, "two beginnings; .*something behind the end"),
        (odd_status, "status 418"),
        (bare_500, "500 without a reference"),
        (unlogged, "references {'0123456789ab'}, logged set()"),
        (other_id, r"id 2, not \[1\]"),
        (other_code, "code 7"),
        (no_result, "ListToolsResult"),
        (not_json, "NaN is no JSON"),
        (split_header, "control characters"),
        (loud, "logged: out of order"),
        (untidy, "left running"),
    ],
)
async def test_fuzzer_notices(
    app: Callable[[Scope, Receive, Send], Awaitable[None]], fault: str
) -> None:
    """A server with one deliberate fault is reported."""
    with listening() as log:
        world = World(log)
        world.timeout = 0.05
        world.endpoint = app  # type: ignore[assignment]
        with pytest.raises(Wrong, match=fault.replace("(", r"\(").replace(")", r"\)")):
            await world.run(PING)
    while LEFT:
        LEFT.pop().cancel()


async def test_fuzzer_makes_cases_small() -> None:
    """Parts that are not needed for the fault are removed from its case."""
    case = Case("PUT", peer=None, headers=PING.headers, parts=(b"abc", b"d" * 99), leaves=3)

    async def fails(smaller: Case) -> bool:
        return b"c" in smaller.body and (b"mcp-method", b"tools/list") in smaller.headers

    small = await shrunken(case, fails)

    assert small == Case(headers=((b"mcp-method", b"tools/list"),), parts=(b"c",))


def test_fuzzer_writes_cases_down() -> None:
    """The text of a case can be parsed again, with session ids of another process."""
    case = Case("GET", headers=((b"mcp-session-id", b"old-\xff"),), parts=(b"\x80", b""), leaves=1)

    text = case.text({b"old": b"<session>"})

    assert Case.parse(text, {b"new": b"<session>"}).headers == ((b"mcp-session-id", b"new-\xff"),)
    assert Case.parse(text, {b"old": b"<session>"}) == case
