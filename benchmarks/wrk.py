"""Load from outside Python: wrk, pinned to the other core."""

import json
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load import ID, Load
from benchmarks.processes import LOAD_CORE, Served, pinned

__all__ = ["Measured", "measure", "repeat"]

UNITS = {"B": 1, "KB": 2**10, "MB": 2**20, "GB": 2**30, "us": 0.001, "ms": 1, "s": 1000}

# Ends wrk itself: it would wait for the end of its duration, whatever its threads do.
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
    """What a load found: per second, CPU of the server for one in us, 99th percentile in ms."""

    rate: float
    cpu: float
    p99: float


def measure(
    server: Served, load: Load, *, seconds: float, warm_up: float = 1, size: int = 0
) -> Measured:
    """Put *load* on *server* and return what came of it; *size* is that of an answer's body.

    Raises:
        RuntimeError: wrk is missing, or an answer was not 200, or too short.
    """
    if warm_up:
        _wrk(server, load, warm_up)
    before = server.cpu()
    report = _wrk(server, load, seconds)
    used = server.cpu() - before
    count = int(_found(r"(\d+) requests in", report)[1])
    if "Non-2xx" in report or not count:
        raise RuntimeError(f"answers were not 200:\n{report}")
    read = _quantity(_found(r"([\d.]+)([KMG]?B) read", report))
    if read < 0.99 * count * size:  # wrk rounds what it read
        raise RuntimeError(f"answers were shorter under load: {read / count:.0f} of {size} bytes")
    return Measured(
        rate=float(_found(r"Requests/sec:\s+([\d.]+)", report)[1]),
        cpu=used / count * 1e6,
        p99=_quantity(_found(r"99%\s+([\d.]+)(us|ms|s)", report)),
    )


def repeat(server: Served, load: Load, times: int) -> None:
    """Send *load* so many times.

    Raises:
        RuntimeError: wrk is missing, or an answer was not 200.
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
        raise RuntimeError(f"wrk said something else:\n{report}")
    return match


def _quantity(match: re.Match[str]) -> float:
    """Return a number with its unit in bytes, or in milliseconds."""
    return float(match[1]) * UNITS[match[2]]
