"""A soak test: a long mixed load on one server, which must respond correctly and leak nothing.

    python -m benchmarks.soak --calls 1000000

Modern and legacy calls, event streams, sessions, cancellations, resumed streams, and clients that
disconnect at any point. At the end, memory must be flat, and no asyncio.Task, file descriptor or
error in the log may be left.
"""

import argparse
import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any

from benchmarks.processes import served
from tests.support.sockets import Connection, Response, called, http, initialize, notification

CLIENTS = 32
GENERATION = 20_000  # calls, after which new clients replace the old ones
TIMEOUT = 20.0  # seconds, of a request
GROWTH = 8.0  # MiB from the tenth part of the calls to the end


class Client:
    """A client that repeats random steps, and replaces its connection and session now and then."""

    def __init__(self, url: str, seed: int, done: Counter[str]) -> None:
        self._url = url
        self._random = Random(seed)
        self._done = done
        self._id = seed * 100_000
        self._kept: Connection | None = None
        self._session = self._lasting = ""

    async def run(self, calls: "asyncio.Queue[None]") -> None:
        """Take calls from the queue until it is empty."""
        names, weights = [*_STEPS], [weight for _, weight in _STEPS.values()]
        await self.begin()
        self._lasting = self._session  # ending a session cancels the calls in it
        await self.begin()
        while not calls.empty():
            calls.get_nowait()
            (name,) = self._random.choices(names, weights)
            async with asyncio.timeout(TIMEOUT):
                await _STEPS[name][0](self)
            self._done[name] += 1
        await self.close()

    async def begin(self) -> None:
        """Open a session."""
        answer = await self._ask(initialize())
        await answer.messages()
        self._session = answer.headers["mcp-session-id"]

    async def end(self) -> None:
        """End the session, and open another."""
        # 429: this address has ended as many sessions as are remembered for it; it opens a new
        # one.
        answer = await self._ask(http("DELETE", self._header()))
        assert answer.status in (204, 429)
        await answer.body()
        await self.begin()

    async def echo(self) -> None:
        """Call on 2026-07-28."""
        await self._call("echo", None)

    async def legacy_echo(self) -> None:
        """Call in the session."""
        await self._call("echo", self._session)

    async def steps(self) -> None:
        """Read an event stream on 2026-07-28."""
        await self._call("steps", None, times=self._random.randrange(1, 5))

    async def legacy_steps(self) -> None:
        """Read an event stream in the session."""
        await self._call("steps", self._session, times=self._random.randrange(1, 5))

    async def leave(self) -> None:
        """Disconnect from a waiting call of 2026-07-28, which is cancelled."""
        await self._left(called("wait", {}, id=self._next()))

    async def legacy_leave(self) -> None:
        """Disconnect from a call in a session, which continues."""
        await self._left(called("linger", {}, id=self._next(), session=self._lasting))

    async def cut(self) -> None:
        """Disconnect in the middle of a request."""
        session = self._random.choice([None, self._session])
        request = called("echo", {"text": "x" * 500}, id=self._next(), session=session)
        async with await Connection.open(self._url) as connection:
            await connection.send(request[: self._random.randrange(len(request))])
            await asyncio.sleep(self._random.random() * 0.003)

    async def listen(self) -> None:
        """Open the listening stream of the session for a moment."""
        async with await Connection.open(self._url) as connection:
            assert (await connection.ask(http("GET", self._header()))).status == 200
            await asyncio.sleep(self._random.random() * 0.01)

    async def cancel(self) -> None:
        """Cancel a call in the session, whose stream ends without a response."""
        id = self._next()
        async with await Connection.open(self._url) as connection:
            answer = await connection.ask(called("wait", {}, id=id, session=self._session))
            chunks = answer.chunks()
            await anext(chunks)
            await self._ask(notification(self._session, "notifications/cancelled", requestId=id))
            said = b"".join([chunk async for chunk in chunks])
            assert b'"result"' not in said, said

    async def resume(self) -> None:
        """Disconnect from a stream of the session, and resume it."""
        id, text = self._next(), str(self._id)
        request = called("steps", {"times": 3, "text": text}, id=id, session=self._session)
        async with await Connection.open(self._url) as connection:
            first = await anext((await connection.ask(request)).chunks())
        last = first.rpartition(b"id: ")[2].partition(b"\n")[0].decode()
        async with await Connection.open(self._url) as connection:
            answer = await connection.ask(http("GET", {**self._header(), "last-event-id": last}))
            _check(await answer.messages(), id, text)

    async def close(self) -> None:
        """Close the persistent connection."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None

    async def _call(self, tool: str, session: str | None, **arguments: Any) -> None:
        id, text = self._next(), f"text {self._id}"
        request = called(tool, {"text": text, **arguments}, id=id, session=session)
        answer = await self._ask(request)
        assert answer.status == 200, answer.status
        _check(await answer.messages(), id, text)

    async def _left(self, request: bytes) -> None:
        async with await Connection.open(self._url) as connection:
            await connection.send(request)
            if self._random.random() < 0.5:
                assert (await connection.response()).status == 200
            else:
                await asyncio.sleep(self._random.random() * 0.003)

    async def _ask(self, request: bytes) -> Response:
        if self._kept is None:
            self._kept = await Connection.open(self._url)
        return await self._kept.ask(request)

    def _header(self) -> dict[str, str]:
        return {"mcp-session-id": self._session}

    def _next(self) -> int:
        self._id += 1
        return self._id


_STEPS: dict[str, tuple[Callable[[Client], Awaitable[None]], int]] = {
    "echo": (Client.echo, 52),
    "legacy echo": (Client.legacy_echo, 20),
    "steps": (Client.steps, 5),
    "legacy steps": (Client.legacy_steps, 4),
    "leave": (Client.leave, 4),
    "legacy leave": (Client.legacy_leave, 3),
    "cut": (Client.cut, 3),
    "listen": (Client.listen, 2),
    "cancel": (Client.cancel, 2),
    "resume": (Client.resume, 1),
    "end": (Client.end, 2),
    "close": (Client.close, 2),
}


def _check(messages: list[Any], id: int, text: str) -> None:
    """Check that *messages* belong to call *id*, whose result must be *text*."""
    *said, answer = messages
    assert answer["id"] == id, (answer, id)
    assert answer["result"]["content"][0]["text"] == text, (answer, text)
    for each in said:
        assert each["params"]["progressToken"] == id, (each, id)


async def look(url: str) -> dict[str, Any]:
    """Return the state of the server process."""
    async with await Connection.open(url) as connection:
        answer = await connection.ask(http("GET", {}, path="/look"))
        found: dict[str, Any] = json.loads(await answer.body())
        return found


async def settled(url: str, before: dict[str, Any]) -> dict[str, Any]:
    """Return the state of the server once it is as before, or after the timeout."""
    until = time.monotonic() + TIMEOUT
    while True:
        found = await look(url)
        over = all(found[name] <= before[name] for name in ("tasks", "files"))
        if over or time.monotonic() > until:
            return found
        await asyncio.sleep(0.2)


async def soak(url: str, calls: int, seed: int) -> list[str]:
    """Make *calls* in ten parts, and return the faults found."""
    done: Counter[str] = Counter()
    await _part(url, 2000, seed + 1, Counter())  # warm-up: imports and caches
    before = await settled(url, {"tasks": 4, "files": 99})
    at = {0: before}
    began = time.monotonic()
    for part in range(1, 11):
        await _part(url, calls // 10, seed + calls * part, done)
        at[part] = await settled(url, before)
        rate = sum(done.values()) / (time.monotonic() - began)
        print(
            f"{sum(done.values()):>9,} calls, {rate:6.0f}/s: {at[part]['memory']:6.1f} MiB, "
            f"{at[part]['tasks']} tasks, {at[part]['files']} files",
            flush=True,
        )
    print(dict(done))
    print(at[10]["ended"])
    return _faults(before, at[1], at[10], done)


async def _part(url: str, calls: int, seed: int, done: Counter[str]) -> None:
    for first in range(0, calls, GENERATION):
        queue: asyncio.Queue[None] = asyncio.Queue()
        for _ in range(min(GENERATION, calls - first)):
            queue.put_nowait(None)
        async with asyncio.TaskGroup() as group:
            for number in range(CLIENTS):
                group.create_task(Client(url, seed + number, done).run(queue))
        seed += CLIENTS


def _faults(
    before: dict[str, Any], early: dict[str, Any], end: dict[str, Any], done: Counter[str]
) -> list[str]:
    faults = list(end["errors"])
    faults += [
        f"{name}: {before[name]} before, {end[name]} after"
        for name in ("tasks", "files", "calls")
        if end[name] != before[name]
    ]
    if end["memory"] > early["memory"] + GROWTH:
        faults.append(f"memory: {early['memory']:.1f} MiB after a tenth, {end['memory']:.1f} now")
    ended = Counter(end["ended"])
    for step, tool, era, how in (
        ("leave", "wait", "modern", "cancelled"),
        ("cancel", "wait", "legacy", "cancelled"),
        ("legacy leave", "linger", "legacy", "finished"),
    ):
        if not ended[f"{tool} {era} begun"] == ended[f"{tool} {era} {how}"] > 0:
            faults.append(f"{tool} ({era}) was not always {how}: {ended}")
        if done[step] * 0.8 > ended[f"{tool} {era} begun"]:
            faults.append(f"{tool} ({era}) rarely began: {ended}")
    return faults


def main() -> None:
    """Run the soak, print its figures, and exit with status 1 if there are faults."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with served("benchmarks.soaked:app") as server:
        url = f"http://127.0.0.1:{server.port}"
        faults = asyncio.run(soak(url, options.calls, options.seed))
    print("\n".join(faults) or "no faults")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
