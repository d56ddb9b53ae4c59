"""Questions of a call in one process, answered in another process with the same store.

2025-11-25: the answer comes in a POST of its own, which a load balancer may send to any process.
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

from tests.support.asking import ROOTS
from tests.support.serving import PATIENCE

pytestmark = pytest.mark.slow

HEADERS = {
    "accept": "application/json, text/event-stream",
    "mcp-protocol-version": "2025-11-25",
}


@asynccontextmanager
async def process(store: Path) -> AsyncIterator[tuple[str, Process]]:
    """Run a server in a process; yield its URL and the process.

    Its socket listens before the process starts, so an early request waits.
    """
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        url = "http://{}:{}/mcp".format(*listener.getsockname())
        served = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.continuations.served", str(listener.fileno())),
            str(store),
            pass_fds=[listener.fileno()],
        )
    try:
        yield url, served
    finally:
        served.terminate()
        async with asyncio.timeout(PATIENCE):
            await served.wait()


class Session:
    """A session of a client that declares roots."""

    def __init__(self, http: httpx.AsyncClient, id: str) -> None:
        self._http = http
        self._headers = {**HEADERS, "mcp-session-id": id}

    @classmethod
    async def begin(cls, http: httpx.AsyncClient, url: str) -> "Session":
        params = {
            "protocolVersion": "2025-11-25",
            "capabilities": {"roots": {}},
            "clientInfo": {"name": "test", "version": "1"},
        }
        body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
        response = await http.post(url, json=body, headers=HEADERS)
        return cls(http, response.headers["mcp-session-id"])

    async def send(self, url: str, **members: Any) -> int:
        """Send a message to *url*; return the HTTP status."""
        body = {"jsonrpc": "2.0", **members}
        return (await self._http.post(url, json=body, headers=self._headers)).status_code

    @asynccontextmanager
    async def call(self, url: str, id: int) -> AsyncIterator[AsyncIterator[Any]]:
        """Call the tool at *url*, and yield the messages of the stream."""
        body = {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": "ask"}}
        async with self._http.stream("POST", url, json=body, headers=self._headers) as response:
            yield self._messages(response)

    async def _messages(self, response: httpx.Response) -> AsyncIterator[Any]:
        async for line in response.aiter_lines():
            name, _, data = line.partition(": ")
            if name == "data" and data:  # the first event has only an id
                yield json.loads(data)


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[list[tuple[str, Process]]]:
    """Return the URLs of two processes with one store."""
    async with AsyncExitStack() as stack, asyncio.timeout(4 * PATIENCE):
        store = tmp_path / "shared.db"
        yield [await stack.enter_async_context(process(store)) for _ in range(2)]


async def test_answer_to_another_process_reaches_the_call(
    served: list[tuple[str, Process]],
) -> None:
    """The call continues in its own process; the other process only responds with 202."""
    (one, holder), (two, _) = served
    async with httpx.AsyncClient(timeout=PATIENCE) as http:
        session = await Session.begin(http, one)
        for url, id in ((one, 1), (one, 2)):
            async with session.call(url, id) as stream:
                question = await anext(stream)
                status = await session.send(two, id=question["id"], result=ROOTS)
                result = (await anext(stream))["result"]
                assert [each async for each in stream] == []

            assert (question["method"], status) == ("roots/list", 202)
            text = f"file:///home {holder.pid} {holder.pid}"
            assert [{"type": "text", "text": text}] == result["content"]


async def test_answer_of_another_session_is_refused_by_every_process(
    served: list[tuple[str, Process]],
) -> None:
    """The id of the question contains the sealed principal."""
    (one, _), (two, _) = served
    async with httpx.AsyncClient(timeout=PATIENCE) as http:
        session, other = await Session.begin(http, one), await Session.begin(http, two)
        async with session.call(one, 1) as stream:
            question = await anext(stream)
            refused = [await other.send(url, id=question["id"], result={}) for url in (one, two)]
            await session.send(two, id=question["id"], error={"code": -1, "message": "not here"})
            result = (await anext(stream))["result"]

    assert refused == [400, 400]
    assert "not here" in result["content"][0]["text"]


async def test_cancellation_at_another_process_ends_the_call(
    served: list[tuple[str, Process]],
) -> None:
    """The question is withdrawn, the stream ends without a response; a late answer is dropped."""
    (one, _), (two, _) = served
    async with httpx.AsyncClient(timeout=PATIENCE) as http:
        session = await Session.begin(http, one)
        async with session.call(one, 7) as stream:
            question = await anext(stream)
            await session.send(two, method="notifications/cancelled", params={"requestId": 7})
            (notification,) = [each async for each in stream]
        late = await session.send(two, id=question["id"], result=ROOTS)

    assert notification["method"] == "notifications/cancelled"
    assert question["id"] == notification["params"]["requestId"]
    assert late == 202
