"""Streams of 2025-11-25 whose server was killed, resumed at another server with the same store.

2025-11-25, transports, "Resumability and Redelivery". Without this the client would wait for
ever, while the result of its call is in the store.
"""

import asyncio
import json
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.asgi import until
from tests.support.serving import PATIENCE

pytestmark = pytest.mark.slow

VERSION = "2025-11-25"
HEADERS = {
    "accept": "application/json, text/event-stream",
    "mcp-protocol-version": VERSION,
}


@asynccontextmanager
async def process(folder: Path) -> AsyncIterator[tuple[str, Process]]:
    """Run a server in a process; yield its URL and the process."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        url = "http://{}:{}/".format(*listener.getsockname())
        served = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.continuations.recovering", str(listener.fileno())),
            str(folder),
            pass_fds=[listener.fileno()],
        )
    try:
        yield url, served
    finally:
        if served.returncode is None:
            served.kill()
        async with asyncio.timeout(PATIENCE):
            await served.wait()


class Caller:
    """A client of 2025-11-25 that remembers the id of the last event."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http
        self.headers = dict(HEADERS)
        self.last = ""

    async def begin(self, url: str) -> None:
        params = {
            "protocolVersion": VERSION,
            "capabilities": {"elicitation": {}},
            "clientInfo": {"name": "test", "version": "1"},
        }
        response = await self.post(url, 0, "initialize", params)
        self.headers["mcp-session-id"] = response.headers["mcp-session-id"]

    async def post(self, url: str, id: int, method: str, params: Any) -> httpx.Response:
        body = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
        return await self.http.post(url, json=body, headers=self.headers)

    async def answer(self, url: str, question: Any) -> int:
        """Answer a question of the server; return the HTTP status."""
        result = {"action": "accept", "content": {"name": "Ann"}}
        body = {"jsonrpc": "2.0", "id": question["id"], "result": result}
        return (await self.http.post(url, json=body, headers=self.headers)).status_code

    @asynccontextmanager
    async def call(self, url: str, tool: str) -> AsyncIterator[AsyncIterator[Any]]:
        params = {"name": tool, "_meta": {"progressToken": "p"}}
        body = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
        async with self.http.stream("POST", url, json=body, headers=self.headers) as response:
            yield self._messages(response)

    @asynccontextmanager
    async def resume(self, url: str) -> AsyncIterator[AsyncIterator[Any]]:
        headers = {**self.headers, "last-event-id": self.last, "accept": "text/event-stream"}
        async with self.http.stream("GET", url, headers=headers) as response:
            assert response.status_code == 200, await response.aread()
            yield self._messages(response)

    async def _messages(self, response: httpx.Response) -> AsyncIterator[Any]:
        """Yield the messages, and None for an event that has only an id."""
        async for line in response.aiter_lines():
            name, _, value = line.partition(":")
            if name == "id":
                self.last = value.strip()
            elif name == "data":
                yield json.loads(value) if value.strip() else None


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[list[tuple[str, Process]]]:
    """Return the URLs of two processes with one store."""
    async with AsyncExitStack() as stack, asyncio.timeout(60):
        yield [await stack.enter_async_context(process(tmp_path)) for _ in range(2)]


async def killed(caller: Caller, url: str, process: Process, tool: str, folder: Path) -> None:
    """Call *tool*, and kill the server while the call waits."""
    await caller.begin(url)
    async with caller.call(url, tool) as messages:
        assert None is await anext(messages)
        if tool != "waits":
            await until(lambda: [*folder.glob("began.*")], pause=0.02)
        process.kill()
        with pytest.raises(httpx.TransportError):
            await anext(messages)
    assert caller.last


async def test_resumed_call_gets_the_result_of_its_job(
    served: list[tuple[str, Process]], tmp_path: Path
) -> None:
    """It may be resumed several times, before and after the end of the job."""
    (one, victim), (two, _) = served
    async with httpx.AsyncClient(timeout=30) as http:
        caller = Caller(http)
        await killed(caller, one, victim, "works", tmp_path)
        seen = caller.last
        async with caller.resume(two) as messages:
            (tmp_path / "go").touch()
            received = [each async for each in messages]
        async with caller.resume(two) as messages:
            again = [each async for each in messages]

    answer = received[-1]
    assert (answer["id"], answer["result"]["content"][0]["text"]) == (7, "worked")
    assert answer == again[-1]
    assert seen == caller.last


async def test_resumed_call_asks_its_client(
    served: list[tuple[str, Process]], tmp_path: Path
) -> None:
    """The question and the result are sent on the resumed stream."""
    (one, victim), (two, _) = served
    async with httpx.AsyncClient(timeout=30) as http:
        caller = Caller(http)
        await killed(caller, one, victim, "asks", tmp_path)
        (tmp_path / "go").touch()
        async with caller.resume(two) as messages:
            question = await anext(messages)
            assert await caller.answer(two, question) == 202
            *_, answer = [each async for each in messages]

    assert question["method"] == "elicitation/create"
    assert (answer["id"], answer["result"]["content"][0]["text"]) == (7, "worked for Ann")


async def test_resumed_call_that_was_lost_is_an_error(
    served: list[tuple[str, Process]], tmp_path: Path
) -> None:
    """A call that is not a task cannot continue in another process: the client gets an error."""
    (one, victim), (two, _) = served
    async with httpx.AsyncClient(timeout=30) as http:
        caller = Caller(http)
        await killed(caller, one, victim, "waits", tmp_path)
        async with caller.resume(two) as messages:
            *_, answer = [each async for each in messages]

    assert (answer["id"], answer["error"]["code"]) == (7, -32603)
    assert "lost" in answer["error"]["message"]
