"""Machines whose clocks differ by ten seconds, without an effect for clients."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import httpx
import pytest

from tests.chaos.callers import Caller, Message, _message, _tool, is_end
from tests.chaos.clients import _PROGRESS, Client, _events, _value, random_of
from tests.chaos.processes import Fleet, Server, running
from tests.support.stores import KINDS, shared_store

pytestmark = pytest.mark.chaos

OFFSETS = (5.0, -5.0, 0.0)
BOUND = 60.0  # seconds for all calls
PING = _message("ping", {}, 2)


@asynccontextmanager
async def fleet_with_wrong_clocks(kind: str, folder: Path) -> AsyncIterator[Fleet]:
    """Run three servers and two workers, each with a wrong clock from the start."""
    async with shared_store(kind, folder) as store:
        fleet = Fleet(folder, servers=3, workers=2, url=store.url)
        fleet.set_clocks(*OFFSETS)
        async with running(fleet):
            yield fleet


@pytest.mark.parametrize("kind", KINDS)
async def test_calls_do_not_depend_on_the_clocks(tmp_path: Path, kind: str) -> None:
    """Tasks, questions, sessions and keyed calls, whose requests reach any of three servers."""
    random = Random(0)
    async with (
        fleet_with_wrong_clocks(kind, tmp_path) as fleet,
        httpx.AsyncClient(timeout=BOUND) as http,
        asyncio.timeout(BOUND),
    ):
        ways = []
        for n in range(15):
            caller = Caller(http, fleet, random_of(random))
            way = (caller.as_task, caller.by_state, caller.in_session)[n % 3]
            ways.append(way(n, "fail"))
        for ended in await asyncio.gather(*ways):
            # With `fail`, a job whose worker is wrongly considered dead would be lost.
            assert "lost" not in (ended.value or {})
            assert ended.value is not None and is_end(ended.n, ended.tool, ended.value), ended
        twins = [Client(http, fleet, random_of(random)).keyed_twice(n) for n in range(20, 25)]
        for n, (one, two) in enumerate(await asyncio.gather(*twins), 20):
            ends = [each.get("result", each)["structuredContent"] for each in (one, two)]
            assert ends == [{"n": n}] * 2

    began = [n for n, step, _ in fleet.notes() if step == "edge"]
    assert sorted(began) == [*range(20, 25)], "a call with a key ran twice"


@pytest.mark.parametrize("kind", KINDS)
async def test_streams_and_sessions_do_not_depend_on_the_clocks(tmp_path: Path, kind: str) -> None:
    """A stream is resumed at another clock; a session ends on all servers."""
    async with (
        fleet_with_wrong_clocks(kind, tmp_path) as fleet,
        httpx.AsyncClient(timeout=BOUND) as http,
        asyncio.timeout(BOUND),
    ):
        client = Client(http, fleet, Random(0))
        ahead, behind, right = fleet.servers
        for begins, resumes in ((ahead, behind), (behind, ahead), (right, behind)):
            headers = await client._session()
            call = _message("tools/call", {**_tool(1, "rerun", 0.5), "_meta": _PROGRESS}, 1)
            last: str | None = None
            value: Message | None = None
            server = begins
            while value is None:
                async with client._opened(server, call, headers, last) as (response, _):
                    async for id, message in _events(response):
                        last = id or last
                        if message and message.get("method") == "elicitation/create":
                            await client._answered(1, message, headers)
                            break  # the connection is closed, and the other server sends the rest
                        if message and message.get("id") == 1:
                            value = _value(message)
                server = resumes
            assert is_end(1, "rerun", value)

            sent = {**headers, "accept": "application/json, text/event-stream"}
            assert (await http.post(resumes.url, json=PING, headers=sent)).status_code == 200
            assert (await http.delete(begins.url, headers=sent)).status_code == 204
            for each in fleet.servers:
                await ended(http, each, sent)


async def ended(http: httpx.AsyncClient, server: Server, headers: Mapping[str, str]) -> None:
    """Wait until a session has ended at *server*, which learns of it asynchronously."""
    while True:
        response = await http.post(server.url, json=PING, headers=headers)
        if response.status_code == 404:
            return
        await asyncio.sleep(0.01)
