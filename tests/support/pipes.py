"""A stdio client in this process: it sends and receives JSON over two pipes."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from genmcp import Access, Limits, Mux, Suite
from genmcp._transports.stdio import serve_stdio
from tests.support.asgi import PATIENCE

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}


class Wires:
    """The client's ends of two pipes. *serving* is the asyncio.Task of the server."""

    def __init__(self, to_server: int, from_server: int, serving: "asyncio.Task[None]") -> None:
        self.serving = serving
        self.to_server = to_server
        self.from_server = from_server
        self.received: list[Any] = []
        self._rest = b""

    def send(self, *messages: Any) -> None:
        """Write each message as a line. Bytes are written unchanged."""
        for each in messages:
            os.write(self.to_server, each if isinstance(each, bytes) else line(each))

    async def receive(self) -> Any:
        """Return the next message."""
        async with asyncio.timeout(PATIENCE):
            while b"\n" not in self._rest:
                data = await asyncio.to_thread(os.read, self.from_server, 1 << 20)
                assert data, f"the server has hung up, leaving {self._rest!r}"
                self._rest += data
        first, _, self._rest = self._rest.partition(b"\n")
        self.received.append(json.loads(first))
        return self.received[-1]

    async def answer(self, id: Any) -> Any:
        """Return the response to request *id*. Earlier messages are kept in `received`."""
        while True:
            message = await self.receive()
            if isinstance(message, dict) and message.get("id") == id and "method" not in message:
                return message

    async def ask(self, method: str, params: Any = None, id: Any = 1) -> Any:
        """Send a request of 2026-07-28, and return its response."""
        self.send(modern(method, params, id=id))
        return await self.answer(id)

    async def initialize(self, version: str = "2025-11-25", **capabilities: Any) -> Any:
        """Initialize the session."""
        client = {"name": "pipes", "version": "1"}
        params = {"protocolVersion": version, "capabilities": capabilities, "clientInfo": client}
        self.send(request("initialize", params, id="hello"))
        answer = await self.answer("hello")
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return answer

    def hang_up(self) -> None:
        """Close the stream from which the server reads."""
        if self.to_server >= 0:
            os.close(self.to_server)
            self.to_server = -1


def line(message: Any) -> bytes:
    return json.dumps(message).encode() + b"\n"


def request(method: str, params: Any = None, id: Any = 1) -> Any:
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}}


def modern(
    method: str, params: Any = None, id: Any = 1, capabilities: Any = None, **meta: Any
) -> Any:
    named = {**META, "io.modelcontextprotocol/clientCapabilities": capabilities or {}, **meta}
    return request(method, {**(params or {}), "_meta": named}, id)


def cancelled(id: Any) -> Any:
    return {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}


@asynccontextmanager
async def piped(*tools: Any, grace: float = 0.1, **options: Any) -> AsyncIterator[Wires]:
    """Serve *tools* over two pipes, and give the other ends."""
    limits = Limits(**options)
    mux = Mux(Suite(name="test", version="1", tools=tools), limits=limits)
    async with piped_mux(mux, grace=grace) as wires:
        yield wires


@asynccontextmanager
async def piped_mux(
    mux: Mux, *, grace: float = 0.1, principal: str | Access | None = None
) -> AsyncIterator[Wires]:
    """Serve *mux* over two pipes."""
    server_input, to_server = os.pipe()
    from_server, server_output = os.pipe()
    streams = server_input, server_output
    serving = asyncio.create_task(
        serve_stdio(mux, streams=streams, principal=principal, grace=grace)
    )
    wires = Wires(to_server, from_server, serving)
    try:
        yield wires
    finally:
        wires.hang_up()
        try:
            async with asyncio.timeout(PATIENCE):
                await serving
        finally:
            for each in (from_server, *streams):
                os.close(each)
            await mux.aclose()
