"""Workers that were forked from a process with the application, and are alive at the same time."""

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest

from tests.support.asgi import Client

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")

BOUND = 30.0
ROOT = Path(__file__).parents[2]
LEGACY = "2025-11-25"


class Workers(NamedTuple):
    """A client of each of two workers, and what both print."""

    first: httpx.AsyncClient
    second: httpx.AsyncClient
    printed: asyncio.StreamReader


@asynccontextmanager
async def forked(folder: Path) -> AsyncIterator[Workers]:
    command = (sys.executable, "-m", "tests.stores.preforked", str(folder / "store.db"))
    process = await asyncio.create_subprocess_exec(*command, cwd=ROOT, stdin=PIPE, stdout=PIPE)
    assert process.stdin is not None and process.stdout is not None
    try:
        async with asyncio.timeout(BOUND):
            urls = [f"http://127.0.0.1:{int(await process.stdout.readline())}" for _ in range(2)]
            async with (
                httpx.AsyncClient(base_url=urls[0], timeout=BOUND) as first,
                httpx.AsyncClient(base_url=urls[1], timeout=BOUND) as second,
            ):
                yield Workers(first, second, process.stdout)
    finally:
        process.stdin.close()
        await process.communicate()


class User:
    """A user with a session, whose calls go to one worker."""

    def __init__(self, worker: httpx.AsyncClient) -> None:
        self.worker = worker
        self.client = Client(None, LEGACY, capabilities={"elicitation": {}})

    async def post(self, message: Any, worker: httpx.AsyncClient | None = None) -> httpx.Response:
        headers = self.client._headers(message)
        return await (worker or self.worker).post("/", json=message, headers=headers)

    async def begin(self) -> None:
        answer = await self.post(self.client.initialize())
        self.client.session = answer.headers["mcp-session-id"]

    @asynccontextmanager
    async def asked(self, name: str) -> AsyncIterator[tuple[Any, AsyncIterator[Any]]]:
        """Call the tool that asks; yield the question, and the messages after it."""
        call = self.client.call("ask", {"name": name})
        headers = self.client._headers(call)
        async with self.worker.stream("POST", "/", json=call, headers=headers) as response:
            lines = response.aiter_lines()
            messages = (json.loads(each[5:]) async for each in lines if each.startswith("data: {"))
            yield await anext(messages), messages


def answer(question: Any, word: str) -> Any:
    result = {"action": "accept", "content": {"word": word}}
    return {"jsonrpc": "2.0", "id": question["id"], "result": result}


async def test_answer_reaches_the_worker_that_asked(tmp_path: Path) -> None:
    """An answer in a request to another worker is not taken for the answer of its user."""
    async with forked(tmp_path) as (first, second, _):
        alice, bob = User(first), User(second)
        await alice.begin()
        await bob.begin()
        async with (
            alice.asked("Alice") as (of_alice, for_alice),
            bob.asked("Bob") as (of_bob, for_bob),
        ):
            await alice.post(answer(of_alice, "of Alice"), second)
            of_first = await anext(for_alice)
            await bob.post(answer(of_bob, "of Bob"), first)
            results = [of_first["result"], (await anext(for_bob))["result"]]

    texts = [each["content"][0]["text"] for each in results]
    assert texts == ["of Alice", "of Bob"]


async def test_wait_survives_the_check_of_another_worker(tmp_path: Path) -> None:
    """The worker that does not know the wait reads whether the process that knows it is alive."""
    async with forked(tmp_path) as (first, second, printed):
        alice, bob = User(first), User(second)
        await alice.begin()
        await bob.begin()
        calling = asyncio.create_task(alice.post(alice.client.call("wait")))
        checked = asyncio.create_task(printed.readuntil(b"checked\n"))
        await asyncio.wait([calling, checked], return_when=asyncio.FIRST_COMPLETED)
        for user in (alice, bob):
            await user.post(user.client.call("release"))
        text = (await calling).text
        checked.cancel()

    assert "it has waited" in text
