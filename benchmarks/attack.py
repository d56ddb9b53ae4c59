"""A denial-of-service test: one anonymous client takes as many resources as it can.

    python -m benchmarks.attack --seconds 60

The attacker has 64 connections from 127.0.0.2: calls that wait, sessions begun and ended,
subscriptions, batches, questions, jobs, streams, blocked threads, large bodies and URIs. Meanwhile
clients with a principal, and anonymous ones from other addresses, continue to work. No request of
theirs may be rejected, and the server must stay below 200 MiB. Their latency is printed.
"""

import argparse
import asyncio
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import cache
from typing import Any
from urllib.parse import urlsplit

from benchmarks.processes import Served, served
from benchmarks.soak import look
from tests.support.sockets import Connection, Response, http, initialize

ATTACKER = "127.0.0.2"
CONNECTIONS = 64
CLIENTS = 4  # of each kind
MEMORY = 200.0  # MiB, maximum of the server
TIMEOUT = 30.0  # seconds, timeout of a request
HOLD = 2.0  # seconds for which the attacker keeps responses open

MODERN = "2026-07-28"
_META = "io.modelcontextprotocol/"
ABLE: dict[str, Any] = {"elicitation": {"form": {}}, "extensions": {_META + "tasks": {}}}
_LOST = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, TimeoutError)


def modern(method: str, user: str | None = None, able: Any = (), **params: Any) -> bytes:
    """Return a request of 2026-07-28, authenticated as *user* if given."""
    meta = {_META + "protocolVersion": MODERN, _META + "clientCapabilities": dict(able)}
    headers = {"mcp-protocol-version": MODERN, "mcp-method": method}
    if (name := params.get("name", params.get("uri"))) is not None:
        headers["mcp-name"] = name
    return _request(method, headers, user, {**params, "_meta": meta})


def legacy(method: str, session: str, user: str | None = None, **params: Any) -> bytes:
    """Return a request in a *session*."""
    return _request(method, {"mcp-session-id": session}, user, params)


def _request(method: str, headers: Mapping[str, str], user: str | None, params: Any) -> bytes:
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return http("POST", {**headers, **_user(user)}, json.dumps(body).encode())


def _user(user: str | None) -> dict[str, str]:
    return {} if user is None else {"x-user": user}


@asynccontextmanager
async def connected(url: str, address: str) -> Any:
    """Open a connection from the source address *address*."""
    where = urlsplit(url)
    streams = await asyncio.open_connection(where.hostname, where.port, local_addr=(address, 0))
    async with Connection(*streams) as connection:
        yield connection


async def opened_session(connection: Connection, version: str, user: str | None = None) -> str:
    request = (
        initialize(version).replace(b"\r\n", b"\r\nx-user: %b\r\n" % user.encode(), 1)
        if user
        else initialize(version)
    )
    request = request.replace(b'"capabilities": {}', b'"capabilities": {"elicitation": {}}')
    request = _with_length(request)
    answer = await connection.ask(request)
    await answer.body()
    return answer.headers["mcp-session-id"]


def _with_length(request: bytes) -> bytes:
    """Return *request*, whose body was changed, with the correct Content-Length."""
    head, _, body = request.partition(b"\r\n\r\n")
    lines = [line for line in head.split(b"\r\n") if not line.startswith(b"content-length")]
    return b"\r\n".join([*lines, b"content-length: %d" % len(body)]) + b"\r\n\r\n" + body


# The attacker.

Attack = Callable[[Connection], Awaitable[Response | None]]


async def _waits(connection: Connection) -> Response | None:
    return await _kept(connection, modern("tools/call", name="wait", arguments={}))


async def _waits_with_large_arguments(connection: Connection) -> Response | None:
    return await _kept(connection, _large_call())


@cache
def _large_call() -> bytes:
    return modern("tools/call", name="wait", arguments={}, text="x" * 3_000_000)


async def _lingers(connection: Connection) -> Response | None:
    """Disconnect from calls of a session, which continue."""
    session = await opened_session(connection, "2025-11-25")
    return await _left(connection, legacy("tools/call", session, name="wait", arguments={}))


async def _asks(connection: Connection) -> Response | None:
    session = await opened_session(connection, "2025-11-25")
    return await _left(connection, legacy("tools/call", session, name="ask", arguments={}))


async def _ends(connection: Connection) -> Response | None:
    """Open and end sessions."""
    for _ in range(20):
        session = await opened_session(connection, "2025-11-25")
        level = await connection.ask(legacy("logging/setLevel", session, level="error"))
        await level.body()
        answer = await connection.ask(http("DELETE", {"mcp-session-id": session}))
        await answer.body()
    return answer


async def _subscribes(connection: Connection) -> Response | None:
    session = await opened_session(connection, "2025-11-25")
    for number in range(50):
        uri = f"note://{number}/".ljust(2000, "x")
        answer = await connection.ask(legacy("resources/subscribe", session, uri=uri))
        await answer.body()
    return answer


async def _listens(connection: Connection) -> Response | None:
    uris = [f"note://{number}/".ljust(2000, "x") for number in range(200)]
    wanted = {"resourceSubscriptions": uris}
    return await _kept(connection, modern("subscriptions/listen", notifications=wanted))


async def _streams(connection: Connection) -> Response | None:
    session = await opened_session(connection, "2025-11-25")
    return await _kept(connection, http("GET", {"mcp-session-id": session}))


async def _batches_of_pings(connection: Connection) -> Response | None:
    return await _batch(connection, '{"method":"ping"}', 80_000)


async def _batches_of_lists(connection: Connection) -> Response | None:
    return await _batch(connection, '{"method":"tools/list"}', 100)


async def _batches_of_waits(connection: Connection) -> Response | None:
    call = '{"method":"tools/call","params":{"name":"wait","arguments":{}}}'
    return await _batch(connection, call, 100, leave=True)


async def _batch(
    connection: Connection, member: str, times: int, *, leave: bool = False
) -> Response | None:
    session = await opened_session(connection, "2025-03-26")
    request = http("POST", {"mcp-session-id": session}, batch_of(member, times))
    return await (_left(connection, request) if leave else _asked(connection, request))


@cache
def batch_of(member: str, times: int) -> bytes:
    """Return a batch that repeats *member*; cached, since making it takes time from the clients."""
    members = (f'{{"jsonrpc":"2.0","id":{id},{member[1:]}' for id in range(times))
    return f"[{','.join(members)}]".encode()


async def _has_long_jobs_done(connection: Connection) -> Response | None:
    return await _has_jobs_done(connection, seconds=3600)


async def _has_jobs_done(connection: Connection, *, seconds: float = HOLD) -> Response | None:
    for _ in range(20):
        arguments = {"seconds": seconds}
        call = modern("tools/call", able=ABLE, name="work", arguments=arguments)
        answer = await _asked(connection, call)
    return answer


async def _blocks_threads(connection: Connection) -> Response | None:
    return await _left(
        connection, modern("tools/call", name="block", arguments={"seconds": HOLD / 2})
    )


async def _fills_replay(connection: Connection) -> Response | None:
    session = await opened_session(connection, "2025-11-25")
    meta = {"progressToken": 1}
    return await _left(
        connection, legacy("tools/call", session, name="talk", arguments={}, _meta=meta)
    )


async def _reads_long_uris(connection: Connection) -> Response | None:
    return await _asked(connection, _long_read())


@cache
def _long_read() -> bytes:
    request = modern("resources/read", uri="note://" + "x" * 3_500_000)
    return request.replace(b"mcp-name: note://" + b"x" * 3_500_000, b"mcp-name: note://x", 1)


async def _sends_many_arrays(connection: Connection) -> Response | None:
    return await _asked(connection, _many_arrays())


@cache
def _many_arrays() -> bytes:
    request = modern("tools/call", name="echo", arguments={"text": 0})
    return _with_length(request.replace(b": 0}", b": [" + b"[]," * 1_300_000 + b"0]}"))


ATTACKS: tuple[Attack, ...] = (
    _waits,
    _waits_with_large_arguments,
    _lingers,
    _asks,
    _ends,
    _subscribes,
    _listens,
    _streams,
    _batches_of_pings,
    _batches_of_lists,
    _batches_of_waits,
    _has_jobs_done,
    _blocks_threads,
    _fills_replay,
    _reads_long_uris,
    _sends_many_arrays,
)


async def _asked(connection: Connection, request: bytes) -> Response:
    answer = await connection.ask(request)
    await answer.body()
    return answer


async def _kept(connection: Connection, request: bytes) -> Response | None:
    """Keep a response open for HOLD seconds."""
    await connection.send(request)
    with suppress(TimeoutError):
        async with asyncio.timeout(HOLD):
            answer = await connection.response()
            await answer.body()
            return answer
    return None


async def _left(connection: Connection, request: bytes) -> Response | None:
    """Disconnect from a request that is not answered within 50 ms, such as with an error."""
    await connection.send(request)
    with suppress(TimeoutError):
        async with asyncio.timeout(0.05):
            return await connection.response()
    return None


async def attack(url: str, number: int, seen: Counter[str], steps: Sequence[Attack]) -> None:
    """Attack over one connection at a time, until this is cancelled."""
    while True:
        step = steps[number % len(steps)]
        number += 1
        try:
            async with asyncio.timeout(TIMEOUT), connected(url, ATTACKER) as connection:
                answer = await step(connection)
            seen[f"{step.__name__[1:]} {answer.status if answer else 'open'}"] += 1
        except (*_LOST, KeyError) as error:  # KeyError: no session was opened
            seen[f"{step.__name__[1:]} {type(error).__name__}"] += 1


# The others.


class Client:
    """A client with or without a principal; each of its requests must be served."""

    def __init__(self, url: str, address: str, user: str | None, faults: list[str]) -> None:
        self._url = url
        self._address = address
        self._user = user
        self._faults = faults
        self.took: dict[str, list[float]] = defaultdict(list)

    async def run(self) -> None:
        """Repeat all requests until this is cancelled."""
        while True:
            try:
                async with connected(self._url, self._address) as connection:
                    for _ in range(10):
                        await self._go_through(connection)
            except _LOST as error:
                self._faults.append(f"{self._user}: {type(error).__name__} {error}")

    async def _go_through(self, connection: Connection) -> None:
        user = self._user
        with self._timed("session"):
            session = await opened_session(connection, "2025-11-25", user)
        echo: dict[str, Any] = {"name": "echo", "arguments": {"text": "hello"}}
        for _ in range(5):
            await self._do(connection, "call", modern("tools/call", user, **echo))
        await self._do(connection, "call in a session", legacy("tools/call", session, user, **echo))
        block = {"name": "block", "arguments": {"seconds": 0}}
        await self._do(connection, "call in a thread", modern("tools/call", user, **block))
        work = {"name": "work", "arguments": {"seconds": 0}}
        await self._do(connection, "job", modern("tools/call", user, **work))
        read = modern("resources/read", user, uri="note://today")
        await self._do(connection, "read", read)
        subscribe = legacy("resources/subscribe", session, user, uri="note://today")
        await self._do(connection, "subscribe", subscribe)
        level = legacy("logging/setLevel", session, user, level="error")
        await self._do(connection, "level", level)
        async with connected(self._url, self._address) as other:
            with self._timed("listen"):
                header = {"mcp-session-id": session, **_user(user)}
                await self._check("listen", await other.ask(http("GET", header)))
        end = http("DELETE", {"mcp-session-id": session, **_user(user)})
        await self._do(connection, "end", end)

    async def _do(self, connection: Connection, step: str, request: bytes) -> None:
        async with asyncio.timeout(TIMEOUT):
            with self._timed(step):
                answer = await connection.ask(request)
                messages = await answer.messages()
            await self._check(step, answer)
            for message in messages:
                result = message.get("result", {})
                if "error" in message or result.get("isError"):
                    self._faults.append(f"{self._user}, {step}: {message}")

    async def _check(self, step: str, answer: Response) -> None:
        if answer.status not in (200, 204):
            self._faults.append(f"{self._user}, {step}: HTTP {answer.status}")

    @contextmanager
    def _timed(self, step: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.took[step].append(time.perf_counter() - began)


async def watch(server: Served, most: list[float]) -> None:
    """Record the peak memory of the server."""
    while True:
        most[0] = max(most[0], server.memory())
        await asyncio.sleep(0.05)


async def others(url: str, seconds: float, faults: list[str]) -> dict[str, list[float]]:
    """Run the other clients for *seconds*; return the latencies in seconds, by kind of request."""
    clients = [
        Client(url, address, user, faults)
        for number in range(CLIENTS)
        # An address each: they are so fast that one address would exhaust its share of ended
        # sessions.
        for address, user in ((f"127.0.0.{10 + number}", None), ("127.0.0.1", f"user-{number}"))
    ]
    running = [asyncio.create_task(each.run()) for each in clients]
    await asyncio.sleep(seconds)
    await cancel(running)
    took: dict[str, list[float]] = defaultdict(list)
    for client in clients:
        for step, times in client.took.items():
            took[step] += times
    return took


async def cancel(tasks: list["asyncio.Task[None]"]) -> None:
    for task in tasks:
        task.cancel()
    for ended in await asyncio.gather(*tasks, return_exceptions=True):
        if isinstance(ended, Exception):
            raise ended


async def attacked(
    server: Served, seconds: float, steps: Sequence[Attack] = ATTACKS
) -> tuple[list[str], str]:
    """Attack *server* for *seconds*; return the faults that were found, and a report."""
    url = f"http://127.0.0.1:{server.port}"
    faults: list[str] = []
    before = await others(url, max(1.0, seconds / 4), faults)
    seen: Counter[str] = Counter()
    most = [server.memory()]
    watching = asyncio.create_task(watch(server, most))
    attacking = [asyncio.create_task(attack(url, n, seen, steps)) for n in range(CONNECTIONS)]
    await asyncio.sleep(min(1.0, seconds / 4))
    during = await others(url, seconds, faults)
    await cancel([*attacking, watching])
    after = await look(url)
    faults += after["errors"]
    if most[0] > MEMORY:
        faults.append(f"the server took {most[0]:.0f} MiB, more than {MEMORY:.0f}")
    lines = [f"{'':20} {'alone':>28} {'attacked':>28}"]
    lines += [
        f"{step:20} {_figures(before[step]):>28} {_figures(during[step]):>28}" for step in during
    ]
    lines.append(f"most memory {most[0]:.0f} MiB; after it: {after}")
    lines += [f"{count:8} {what}" for what, count in sorted(seen.items())]
    return faults, "\n".join(lines)


def _figures(took: list[float]) -> str:
    if not took:
        return "none"
    ordered = sorted(took)
    p50, p99 = (ordered[int(len(ordered) * part)] * 1000 for part in (0.5, 0.99))
    return f"{len(took)} times, p50 {p50:.1f}, p99 {p99:.1f} ms"


def main() -> None:
    """Attack a server, print the report, and exit with status 1 if there are faults."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--long-jobs", action="store_true", help="the attacker's jobs take an hour")
    parser.add_argument("--store", help="URL of a store; default: in memory")
    options = parser.parse_args()
    env = (
        {} if options.store is None else {"GENMCP_STORE": options.store, "GENMCP_SECRET": "s" * 32}
    )
    with served("benchmarks.attacked:app", env=env) as server:
        steps = [*ATTACKS, _has_long_jobs_done] if options.long_jobs else ATTACKS
        faults, figures = asyncio.run(attacked(server, options.seconds, steps))
    print(figures)
    for fault, count in Counter(faults).most_common(30):
        print(f"{count} times: {fault}")
    print(f"{len(faults)} faults" if faults else "no request was rejected")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
