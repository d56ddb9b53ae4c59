"""Load from outside the process: wrk, pinned to the other core."""

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.processes import LOAD_CORE, Served

__all__ = ["Load", "Measured", "legacy", "measure", "modern"]

VERSION = "2026-07-28"
ACCEPT = "application/json, text/event-stream"


@dataclass(frozen=True)
class Load:
    """One request, sent over and over by *connections* at once."""

    headers: Mapping[str, str]
    body: str
    connections: int = 16


@dataclass(frozen=True)
class Measured:
    """What a load found: per second, CPU of the server a request in us, 99th percentile in ms."""

    rate: float
    cpu: float
    p99: float


def modern(method: str, connections: int = 16, token: str | None = None, **params: Any) -> Load:
    """Return a request of 2026-07-28."""
    meta = {
        "io.modelcontextprotocol/protocolVersion": VERSION,
        "io.modelcontextprotocol/clientInfo": {"name": "load", "version": "1"},
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    if token is not None:
        meta["progressToken"] = token
    headers = {
        "content-type": "application/json",
        "accept": ACCEPT,
        "mcp-protocol-version": VERSION,
        "mcp-method": method,
    }
    if "name" in params:
        headers["mcp-name"] = params["name"]
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    return Load(headers, json.dumps(body, separators=(",", ":")), connections)


def legacy(session: str, method: str, connections: int = 16, **params: Any) -> Load:
    """Return a request of 2025-11-25, within *session*."""
    headers = {
        "content-type": "application/json",
        "accept": ACCEPT,
        "mcp-protocol-version": "2025-11-25",
        "mcp-session-id": session,
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return Load(headers, json.dumps(body, separators=(",", ":")), connections)


def measure(server: Served, load: Load, *, seconds: float = 3, warm_up: float = 1) -> Measured:
    """Put *load* on *server* and return what came of it.

    Raises:
        RuntimeError: wrk is missing, or an answer was not 200.
    """
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "request.lua"
        script.write_text(_script(load), encoding="utf-8")
        _wrk(server, load, script, warm_up)
        before = server.cpu()
        report = _wrk(server, load, script, seconds)
        used = server.cpu() - before
    count = int(_found(r"(\d+) requests in", report))
    if "Non-2xx" in report or not count:
        raise RuntimeError(f"answers were not 200:\n{report}")
    return Measured(
        rate=float(_found(r"Requests/sec:\s+([\d.]+)", report)),
        cpu=used / count * 1e6,
        p99=_milliseconds(_found(r"99%\s+([\d.]+\w+)", report)),
    )


def _wrk(server: Served, load: Load, script: Path, seconds: float) -> str:
    wrk = shutil.which("wrk")
    if wrk is None:
        raise RuntimeError("wrk is needed: apt-get install wrk")
    url = f"http://127.0.0.1:{server.port}/mcp"
    command = ["taskset", "-c", str(LOAD_CORE), wrk, "-t1", f"-c{load.connections}"]
    command += [f"-d{max(1, round(seconds))}s", "--latency", "-s", str(script), url]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _script(load: Load) -> str:
    headers = "\n".join(
        f"wrk.headers[{json.dumps(name)}] = {json.dumps(value)}"
        for name, value in load.headers.items()
    )
    return f'wrk.method = "POST"\n{headers}\nwrk.body = [==[{load.body}]==]\n'


def _found(pattern: str, report: str) -> str:
    match = re.search(pattern, report)
    if match is None:
        raise RuntimeError(f"wrk said something else:\n{report}")
    return match[1]


def _milliseconds(text: str) -> float:
    number, unit = re.fullmatch(r"([\d.]+)(us|ms|s)", text).groups()  # type: ignore[union-attr]
    return float(number) * {"us": 0.001, "ms": 1, "s": 1000}[unit]
