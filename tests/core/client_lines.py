"""A client's machine and messages of a server, for the tests beside this file."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from genmcp.core.client.dispatch import ClientDispatch, ConnectionState, DispatchOptions
from genmcp.core.client.events import CloseResponse, Outcome, SendMessage
from genmcp.protocol.capabilities import (
    TASKS,
    ClientCapabilities,
    ElicitationCapability,
    Implementation,
)
from genmcp.protocol.tools import CallToolRequestParams

INFO = Implementation("tester", "1.0")
DISCOVERED = {
    "resultType": "complete",
    "supportedVersions": ["2026-07-28", "2025-11-25"],
    "capabilities": {"tools": {}},
    "instructions": "Be kind.",
    "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "served", "version": "2"}},
    "ttlMs": 0,
    "cacheScope": "private",
}
WELCOME = {
    "protocolVersion": "2025-11-25",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "served", "version": "2"},
    "instructions": "Be kind.",
}

UNSUPPORTED = -32022
#: The result of a tool.
ANSWER = {"content": [{"type": "text", "text": "3"}]}
CALL = CallToolRequestParams(name="add", arguments=msgspec.Raw(b'{"a":1}'))
EVERYTHING = ClientCapabilities(
    roots={}, elicitation=ElicitationCapability(), extensions={TASKS: {}}
)


def machine(
    *,
    per_message: bool = False,
    capabilities: ClientCapabilities = ClientCapabilities(),  # noqa: B008  # frozen
    **options: Any,
) -> ClientDispatch:
    return ClientDispatch(
        INFO, capabilities, per_message=per_message, options=DispatchOptions(**options)
    )


def modern(**more: Any) -> ClientDispatch:
    """A machine that speaks 2026-07-28; its requests begin at 2."""
    client = machine(**more)
    client.begin(0)
    client.received(result(1, DISCOVERED), 0)
    return client


def legacy(version: str = "2025-11-25", **more: Any) -> ClientDispatch:
    """A machine that speaks an older revision; its requests begin at 2."""
    client = machine(revision=version, **more)
    client.begin(0)
    client.received(result(1, {**WELCOME, "protocolVersion": version}), 0)
    return client


def message(**members: Any) -> bytes:
    return msgspec.json.encode({"jsonrpc": "2.0", **members})


def result(id: int | str, value: Any) -> bytes:
    return message(id=id, result=value)


def error(id: int | None, code: int, text: str = "no", **more: Any) -> bytes:
    named = {} if id is None else {"id": id}
    return message(**named, error={"code": code, "message": text, **more})


def said(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """The messages among *outcomes*, decoded."""
    return [msgspec.json.decode(each.message) for each in outcomes if isinstance(each, SendMessage)]


def told(outcomes: Sequence[Outcome]) -> list[Any]:
    """The events among *outcomes*."""
    return [each for each in outcomes if not isinstance(each, SendMessage | CloseResponse)]


def cancelled(id: Any, **more: Any) -> bytes:
    return message(method="notifications/cancelled", params={"requestId": id, **more})


def called(client: ClientDispatch, **more: Any) -> int:
    """Call a tool, and return the id."""
    id, _ = client.request("tools/call", CALL, now=0, **more)
    return id


def in_state(state: ConnectionState) -> ClientDispatch:
    """A machine in a given state."""
    client = legacy() if state in (ConnectionState.READY, ConnectionState.CLOSED) else machine()
    if state in (ConnectionState.PROBING, ConnectionState.INITIALIZING):
        client.begin(0)
    if state is ConnectionState.INITIALIZING:
        client.received(error(1, -32601), 0)
    if state in (ConnectionState.CLOSING, ConnectionState.CLOSED):
        client.close()
    if state is ConnectionState.CLOSED:
        client.closed()
    if state is ConnectionState.FAILED:
        client.closed(ValueError("why"))
    assert state is client.state
    return client


def asks(client: ClientDispatch, method: str, id: Any = "q", **params: Any) -> list[Any]:
    """Let the server ask something."""
    return client.received(message(id=id, method=method, params=params), 0)


def versions(*supported: Any) -> dict[str, Any]:
    """The data of an UnsupportedProtocolVersionError."""
    return {"data": {"supported": list(supported), "requested": "2026-07-28"}}


def is_initialize(outcomes: list[Any], version: str = "2025-11-25") -> bool:
    """Is it nothing but an `initialize` that proposes *version*?"""
    (sent,) = said(outcomes)
    (send,) = outcomes
    assert None is send.revision, "no version is agreed on"
    return (sent["method"], sent["params"]["protocolVersion"]) == ("initialize", version)


either_era = pytest.mark.parametrize("made", [modern, legacy])
