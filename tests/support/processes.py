"""Server processes, and an HTTP client of 2025-11-25 that may send to any of them."""

import asyncio
import json
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx

from tests.support.serving import PATIENCE

HEADERS = {
    "accept": "application/json, text/event-stream",
    "mcp-protocol-version": "2025-11-25",
}


@asynccontextmanager
async def server_process(
    module: str, *arguments: str, stop: Callable[[Process], None] = Process.terminate
) -> AsyncIterator[tuple[str, Process]]:
    """Run *module*, which serves on the socket of its first argument; yield the URL and process.

    The socket listens before the process starts, so an early request waits.
    """
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        url = "http://{}:{}/mcp".format(*listener.getsockname())
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, str(listener.fileno()), *arguments),
            pass_fds=[listener.fileno()],
        )
    try:
        yield url, process
    finally:
        if process.returncode is None:
            stop(process)
        async with asyncio.timeout(PATIENCE):
            await process.wait()


class HttpSession:
    """A session of 2025-11-25. Messages may be sent to any server; `last` is the last event id."""

    def __init__(self, http: httpx.AsyncClient, id: str) -> None:
        self.last = ""
        self._http = http
        self._headers = {**HEADERS, "mcp-session-id": id}

    @classmethod
    async def begin(cls, http: httpx.AsyncClient, url: str, **capabilities: Any) -> "HttpSession":
        """Initialize a session at *url*."""
        params = {
            "protocolVersion": "2025-11-25",
            "capabilities": capabilities,
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
    async def call(self, url: str, tool: str, id: int = 7) -> AsyncIterator[AsyncIterator[Any]]:
        """Call a tool at *url*, and yield the messages of the stream."""
        body = {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": {"name": tool}}
        async with self._http.stream("POST", url, json=body, headers=self._headers) as response:
            yield self._messages(response)

    @asynccontextmanager
    async def resume(self, url: str) -> AsyncIterator[AsyncIterator[Any]]:
        """Resume the stream at *url* after the last event, and yield its messages."""
        headers = {**self._headers, "last-event-id": self.last, "accept": "text/event-stream"}
        async with self._http.stream("GET", url, headers=headers) as response:
            assert response.status_code == 200, await response.aread()
            yield self._messages(response)

    async def _messages(self, response: httpx.Response) -> AsyncIterator[Any]:
        async for line in response.aiter_lines():
            name, _, value = line.partition(":")
            if name == "id":
                self.last = value.strip()
            elif name == "data" and value.strip():  # the first event has only an id
                yield json.loads(value)
