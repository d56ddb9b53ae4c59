"""What is measured, each for every subject in turn, the floor first."""

import json
import sys
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.load import Load, Measured, legacy, measure, modern
from benchmarks.processes import Served, served

__all__ = ["CASES", "Case", "Row", "Subject", "run"]

MESSAGE = {"message": "hello"}
NUMBERS = {"numbers": list(range(100_000))}


@dataclass(frozen=True)
class Subject:
    """Something that is measured: its name, where its application is, how it is run."""

    name: str
    app: str
    python: str
    server: str = "uvicorn"


@dataclass(frozen=True)
class Case:
    """One row of the table: how many tools are registered, and what is asked of the server."""

    name: str
    load: Callable[[Served], Load]
    tools: int = 1
    legacy: bool = False


@dataclass
class Row:
    """A case and what came of it, by the subject's name."""

    case: str
    found: dict[str, Measured] = field(default_factory=dict)


def _echo(connections: int) -> Callable[[Served], Load]:
    return lambda _: modern("tools/call", connections, name="echo", arguments=MESSAGE)


def _legacy_echo(server: Served) -> Load:
    return legacy(_session(server), "tools/call", name="echo", arguments=MESSAGE)


def _session(server: Served) -> str:
    """Begin a legacy session and return its id; the floor has none, and gets one as long."""
    body = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-11-25",
            "capabilities": {},
            "clientInfo": {"name": "load", "version": "1"},
        },
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{server.port}/mcp",
        data=json.dumps(body).encode(),
        headers={
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
        },
    )
    with urllib.request.urlopen(request) as response:
        return response.headers.get("mcp-session-id") or "x" * 200


CASES: Sequence[Case] = (
    *(Case(f"echo, {count} at once", _echo(count)) for count in (1, 16, 64)),
    Case("echo, 1000 tools registered, 16 at once", _echo(16), tools=1000),
    Case("echo in a legacy session, 16 at once", _legacy_echo, legacy=True),
    *(Case(f"tools/list of {n}", lambda _: modern("tools/list"), tools=n) for n in (1, 100, 1000)),
    Case(
        "100,000 numbers in an argument",
        lambda _: modern(
            "tools/call", 4, name="count", arguments={"numbers": list(range(100_000))}
        ),
    ),
    Case(
        "a tool that sleeps 100 ms, 500 at once",
        lambda _: modern("tools/call", 500, name="sleep", arguments={}),
    ),
    Case(
        "200 progress notifications, 4 at once",
        lambda _: modern("tools/call", 4, token="t", name="progress", arguments={"times": 200}),
    ),
)


def run(
    cases: Sequence[Case], subjects: Sequence[Subject], *, rounds: int, seconds: float
) -> Iterator[Row]:
    """Yield a row a case: for each subject the best of *rounds*, taken in turn."""
    for case in cases:
        row = Row(case.name)
        for _ in range(rounds):
            for subject in subjects:
                try:
                    found = _once(case, subject, seconds)
                except RuntimeError as error:
                    why = str(error).partition("\n")[0]
                    print(f"{case.name}, {subject.name}: {why}", file=sys.stderr)
                    continue
                row.found[subject.name] = _better(row.found.get(subject.name), found)
        yield row


def _once(case: Case, subject: Subject, seconds: float) -> Measured:
    env = {"TOOLS": str(case.tools)}
    with served(subject.app, python=subject.python, server=subject.server, env=env) as server:
        return measure(server, case.load(server), seconds=seconds)


def _better(old: Measured | None, new: Measured) -> Measured:
    """Noise only ever makes things slower: the best of each figure is the least disturbed."""
    if old is None:
        return new
    return Measured(max(old.rate, new.rate), min(old.cpu, new.cpu), min(old.p99, new.p99))
