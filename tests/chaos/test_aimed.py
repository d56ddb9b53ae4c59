"""Faults at the moments that once left a client waiting, or ran a job twice.

CHAOS_ROUNDS is how often each is repeated, by default once.
"""

import asyncio
import os
import re
import signal
from contextlib import aclosing, suppress
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from genmcp.stores import open_store
from tests.chaos.callers import (
    _ACCEPT,
    ENDS,
    TASKS,
    Caller,
    Message,
    _called,
    _headers,
    _last,
    _messages,
    _modern,
)
from tests.chaos.faults import LEASE
from tests.chaos.processes import Fleet, running
from tests.chaos.stored import NAMESPACE, WORKING
from tests.chaos.test_stores import _done
from tests.support.stores import KINDS, shared_store

pytestmark = pytest.mark.chaos

ROUNDS = range(int(os.environ.get("CHAOS_ROUNDS", "1")))
BOUND = 45.0  # seconds for a call, faults included
LISTENERS = 90  # below the shares of an anonymous client
CALLS = 20
UNLIMITED = httpx.Limits(max_connections=None)

repeated = pytest.mark.parametrize("round", ROUNDS)


async def listen(http: httpx.AsyncClient, url: str, id: str) -> None:
    """Listen to a task until it has ended; open another stream only where the last one ended."""
    wanted = {"notifications": {"taskIds": [id]}}
    message = _modern("subscriptions/listen", wanted, TASKS)
    headers = {**_ACCEPT, **_headers(message)}
    del headers["mcp-name"]
    while True:
        async with http.stream("POST", url, json=message, headers=headers) as response:
            if response.status_code == 200:
                async for each in _messages(response, None):
                    if each.get("params", {}).get("status") in ENDS:
                        return
        await asyncio.sleep(0.05)


@repeated
@pytest.mark.parametrize("kind", ["redis", "postgres"])
async def test_listeners_outlive_their_store(kind: str, round: int, tmp_path: Path) -> None:
    """Streams that are open, or opened, while the store goes away learn of the end of the task."""
    random = Random(round)
    async with shared_store(kind, tmp_path, own_server=True) as store:
        server: Any = store.server
        fleet = Fleet(tmp_path, servers=1, workers=1, url=store.url, queues="none")
        async with running(fleet), httpx.AsyncClient(timeout=None, limits=UNLIMITED) as http:
            task = await Caller(http, fleet, random).begin(1, "rerun_held")
            await fleet.noted("held")
            url = fleet.servers[0].url
            async with asyncio.timeout(BOUND), asyncio.TaskGroup() as group:
                for _ in range(LISTENERS):
                    group.create_task(listen(http, url, task["taskId"]))
                # The server opens some of the streams before it, some after, some meanwhile.
                await asyncio.sleep(random.uniform(0.05, 0.4))
                await _done(server.kill())
                await asyncio.sleep(random.uniform(0, LEASE))
                await _done(server.start())
                (tmp_path / "go").touch()


@repeated
@pytest.mark.parametrize("kind", KINDS)
async def test_client_that_obeys_runs_no_job_twice(kind: str, round: int, tmp_path: Path) -> None:
    """Its server shuts down while it holds the call, whose job runs elsewhere."""
    async with shared_store(kind, tmp_path) as store:
        fleet = Fleet(tmp_path, servers=2, workers=1, url=store.url, queues="none")
        async with running(fleet), httpx.AsyncClient(timeout=BOUND) as http:

            async def call(url: str, message: Message) -> Message:
                sent = {**_ACCEPT, **_headers(message)}
                return _last(await http.post(url, json=message, headers=sent))

            first, second = fleet.servers
            held = asyncio.create_task(call(first.url, _called(1, "fail_held", 0, {})))
            await fleet.noted("held")
            first.send(signal.SIGTERM)
            answer = await held
            await first.lives[-1].process.wait()
            (tmp_path / "go").touch()
            if "retryAfter" in (answer.get("error", {}).get("data") or {}):
                answer = await call(second.url, _called(1, "fail_held", 0, {}))
            elif (result := answer["result"]).get("isError"):
                found = re.search(r"as call ([\w-]+)", result["content"][0]["text"])
                assert found is not None, result
                fetch = _modern(
                    "tools/call",
                    {"name": "get_call_result", "arguments": {"id": found[1]}},
                    {},
                )
                async with asyncio.timeout(BOUND):
                    while answer["result"].get("isError"):
                        answer = await call(second.url, fetch)
            await first.start()

            assert answer["result"]["structuredContent"] == {"n": 1, "attempt": 1}
            assert len([what for _, what, _ in fleet.notes() if what == "held"]) == 1


@repeated
@pytest.mark.parametrize("kind", KINDS)
async def test_killed_promotion_ends(kind: str, round: int, tmp_path: Path) -> None:
    """Its server is killed around the write of the record, and no client has the id."""
    random = Random(round)
    async with shared_store(kind, tmp_path) as store:
        fleet = Fleet(tmp_path, servers=1, workers=1, url=store.url)
        async with running(fleet), httpx.AsyncClient(timeout=None) as http:
            (server,) = fleet.servers

            async def call(n: int) -> None:
                message = _called(n, "edge", 60, TASKS)
                with suppress(httpx.TransportError):
                    await http.post(
                        server.url, json=message, headers={**_ACCEPT, **_headers(message)}
                    )

            calls = []
            for n in range(CALLS):
                calls.append(asyncio.create_task(call(n)))
                await asyncio.sleep(0.01)
            await fleet.noted("edge", CALLS)
            await asyncio.sleep(random.uniform(0.05, 0.3))  # `promote_after` is 0.3
            await server.kill()
            await asyncio.gather(*calls)
            await server.start()

            async with aclosing(open_store(store.url)) as records, asyncio.timeout(BOUND):
                while True:
                    if not any(
                        [await records.find(f"{NAMESPACE}state:{each}") for each in WORKING]
                    ):
                        break
                    await asyncio.sleep(0.1)
