"""Requests of the benchmark, a client for single requests, and load by wrk on the other core."""

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPMessage
from pathlib import Path
from typing import Any

from benchmarks.processes import LOAD_CORE, Served, pinned

__all__ = [
    "ID",
    "INITIALIZE",
    "Answer",
    "Load",
    "Measured",
    "begin",
    "check",
    "connected",
    "initialized",
    "legacy",
    "measure",
    "modern",
    "post",
    "repeat",
]

MODERN, LEGACY = "2026-07-28", "2025-11-25"
HEADERS = {
    "content-type": "application/json",
    "accept": "application/json, text/event-stream",
}
CLIENT = {"name": "load", "version": "1"}
ID = 1_000_000


@dataclass(frozen=True)
class Load:
    """A request that is sent repeatedly over a number of *connections*.

    ids: whether each request gets a unique id in place of ID, which concurrent requests of one
    session must have.
    """

    headers: Mapping[str, str]
    body: str
    connections: int = 16
    ids: bool = False


def modern(method: str, connections: int = 16, token: str | None = None, **params: Any) -> Load:
    """Return a request of 2026-07-28; with a progress *token* if given."""
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
    """Return a request of 2025-11-25 in *session*."""
    return Load(_of(session), _message(method, params, id=ID), connections)


def initialized(session: str) -> Load:
    """Return the `notifications/initialized` of *session*."""
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


@dataclass(frozen=True)
class Answer:
    """The headers and the whole body of a response."""

    headers: HTTPMessage
    body: bytes


def connected(server: Served) -> "closing[HTTPConnection]":
    """Return a connection; a `with` block closes it."""
    return closing(HTTPConnection("127.0.0.1", server.port, timeout=30))


def post(connection: HTTPConnection, load: Load) -> Answer:
    """Send *load* once.

    Raises:
        RuntimeError: the status is neither 200 nor 202.
        OSError, HTTPException: there was no response.
    """
    connection.request("POST", "/mcp", load.body.encode(), dict(load.headers))
    response = connection.getresponse()
    body = response.read()
    if response.status not in (200, 202):
        raise RuntimeError(f"HTTP {response.status}: {body[:200]!r}")
    return Answer(response.headers, body)


def begin(connection: HTTPConnection) -> str | None:
    """Open a legacy session and return its id, None if the server has no sessions."""
    session = post(connection, INITIALIZE).headers.get("mcp-session-id")
    if session is not None:
        post(connection, initialized(session))
    return session


def check(server: Served, load: Load, notifications: int = 0) -> bytes:
    """Send *load* once, check the response, and return its body.

    Raises:
        RuntimeError: it has no result, or not the expected number of progress *notifications*.
    """
    with connected(server) as connection:
        body = post(connection, load).body
    count = body.count(b'"notifications/progress"')
    if count != notifications:
        raise RuntimeError(f"{count} notifications instead of {notifications}")
    if b'"result":' not in body or b'"isError":true' in body:
        raise RuntimeError(f"unexpected response: {body[-200:]!r}")
    return body


UNITS = {"B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30, "us": 0.001, "ms": 1, "s": 1000}

# Ends the process: wrk itself would wait for the end of its duration.
_UNTIL = """
local answers = 0
response = function(status)
  if status ~= 200 then os.exit(1) end
  answers = answers + 1
  if answers == %d then os.exit(0) end
end
"""

# Each request has a unique id; all ids have the same number of digits.
_IDS = """
local id = {first}
request = function()
  id = id + 1
  return wrk.format(nil, nil, nil, [==[{0}]==] .. id .. [==[{1}]==])
end
"""


@dataclass(frozen=True)
class Measured:
    """Responses per second, CPU of the server for one in us, 99th percentile of latency in ms."""

    rate: float
    cpu: float
    p99: float


def measure(
    server: Served, load: Load, *, seconds: float, warm_up: float = 1, size: int = 0
) -> Measured:
    """Put *load* on *server* and return the figures; *size* is the expected size of a body.

    Raises:
        RuntimeError: wrk is missing, or a response was not 200 or too short.
    """
    if warm_up:
        _wrk(server, load, warm_up)
    before = server.cpu()
    report = _wrk(server, load, seconds)
    used = server.cpu() - before
    count = int(_found(r"(\d+) requests in", report)[1])
    if "Non-2xx" in report or not count:
        raise RuntimeError(f"responses were not 200:\n{report}")
    read = _quantity(_found(r"([\d.]+)([KMG]?B) read", report))
    if read < 0.99 * count * size:  # wrk rounds the number
        raise RuntimeError(f"responses were shorter under load: {read / count:.0f} of {size} bytes")
    return Measured(
        rate=float(_found(r"Requests/sec:\s+([\d.]+)", report)[1]),
        cpu=used / count * 1e6,
        p99=_quantity(_found(r"99%\s+([\d.]+)(us|ms|s)", report)),
    )


def repeat(server: Served, load: Load, times: int) -> None:
    """Send *load* the given number of times.

    Raises:
        RuntimeError: wrk is missing, or a response was not 200.
    """
    _wrk(server, load, 3600, _UNTIL % times)


def _wrk(server: Served, load: Load, seconds: float, lua: str = "") -> str:
    wrk = shutil.which("wrk")
    if wrk is None:
        raise RuntimeError("wrk is needed: apt-get install wrk")
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "request.lua"
        script.write_text(_script(load) + lua, encoding="utf-8")
        how = ["-t1", f"-c{load.connections}", f"-d{max(1, round(seconds))}s", "--latency"]
        url = f"http://127.0.0.1:{server.port}/mcp"
        command = pinned(LOAD_CORE, wrk, *how, "-s", str(script), url)
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(f"wrk ended with status {ended.returncode}: {ended.stderr}")
    return ended.stdout


def _script(load: Load) -> str:
    headers = "\n".join(
        f"wrk.headers[{json.dumps(name)}] = {json.dumps(value)}"
        for name, value in load.headers.items()
    )
    script = f'wrk.method = "POST"\n{headers}\nwrk.body = [==[{load.body}]==]\n'
    return script + _IDS.format(*load.body.split(str(ID), 1), first=ID) if load.ids else script


def _found(pattern: str, report: str) -> re.Match[str]:
    match = re.search(pattern, report)
    if match is None:
        raise RuntimeError(f"the report of wrk has an unknown format:\n{report}")
    return match


def _quantity(match: re.Match[str]) -> float:
    """Return a quantity in bytes or milliseconds."""
    return float(match[1]) * UNITS[match[2]]
