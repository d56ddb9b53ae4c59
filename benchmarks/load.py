"""What is asked of a server."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["ID", "INITIALIZE", "Load", "initialized", "legacy", "modern"]

MODERN, LEGACY = "2026-07-28", "2025-11-25"
HEADERS = {
    "content-type": "application/json",
    "accept": "application/json, text/event-stream",
}
CLIENT = {"name": "load", "version": "1"}
ID = 1_000_000


@dataclass(frozen=True)
class Load:
    """One request, to be sent over and over by *connections* at once.

    ids: give each request an id of its own, in place of ID. Requests of one session that are in
    flight at the same time must differ in their ids.
    """

    headers: Mapping[str, str]
    body: str
    connections: int = 16
    ids: bool = False


def modern(method: str, connections: int = 16, token: str | None = None, **params: Any) -> Load:
    """Return a request of 2026-07-28; with a *token* it asks for progress."""
    meta: dict[str, Any] = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/clientInfo": CLIENT,
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    if token is not None:
        meta["progressToken"] = token
    headers = {**HEADERS, "mcp-protocol-version": MODERN, "mcp-method": method}
    if "name" in params:
        headers["mcp-name"] = params["name"]
    return Load(headers, _message(method, {**params, "_meta": meta}, id=1), connections)


def legacy(session: str, method: str, connections: int = 16, **params: Any) -> Load:
    """Return a request of 2025-11-25, within *session*."""
    return Load(_of(session), _message(method, params, id=ID), connections)


def initialized(session: str) -> Load:
    """Return the notification that *session* is initialized."""
    return Load(_of(session), _message("notifications/initialized", {}))


def _of(session: str) -> dict[str, str]:
    return {**HEADERS, "mcp-protocol-version": LEGACY, "mcp-session-id": session}


def _message(method: str, params: Mapping[str, Any], **id: int) -> str:
    message = {"jsonrpc": "2.0", **id, "method": method, "params": params}
    return json.dumps(message, separators=(",", ":"))


INITIALIZE = Load(
    HEADERS,
    _message(
        "initialize", {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": CLIENT}, id=1
    ),
)
