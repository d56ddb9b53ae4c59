"""Servers over sockets that run a function of the test for each request."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

from starlette.types import ASGIApp

from genmcp.client.transports.base import Transport
from genmcp.client.transports.http_messages import NO_HEADERS
from genmcp.client.transports.targets import transport_to
from tests.client.sinks import Recorder
from tests.support.client_bounds import bounds, split
from tests.support.serving import serve

ANSWER = {"jsonrpc": "2.0", "id": 1, "result": {}}
NOTE = {"jsonrpc": "2.0", "method": "notifications/message", "params": {}}


class Asked:
    """A request to a scripted server, with methods to respond."""

    def __init__(self, scope: Any, receive: Any, send: Any, body: bytes) -> None:
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        self.body = body
        self.receive = receive
        self._send = send

    @property
    def rpc(self) -> Any:
        return json.loads(self.body or b"{}").get("method")

    async def head(self, status: int, **headers: str) -> None:
        named = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
        await self._send({"type": "http.response.start", "status": status, "headers": named})

    async def write(self, data: str, *, more: bool = True) -> None:
        await self._send({"type": "http.response.body", "body": data.encode(), "more_body": more})

    async def reply(self, status: int, body: object = None, **headers: str) -> None:
        await self.head(status, **{"content_type": "application/json", **headers})
        await self.write("" if body is None else json.dumps(body), more=False)

    async def stream(self, *events: str, more: bool = False) -> None:
        await self.head(200, content_type="text/event-stream; charset=utf-8")
        await self.write("".join(events), more=more)


Script = Callable[[Asked], Awaitable[None]]


def event(message: object, **fields: object) -> str:
    lines = "".join(f"{name}: {value}\n" for name, value in fields.items())
    return f"{lines}data: {json.dumps(message) if message else ''}\n\n"


def app_of(script: Script) -> ASGIApp:
    """Return an application that runs *script* for every request."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            body = b""
            while (part := await receive())["type"] == "http.request":
                body += part.get("body", b"")
                if not part.get("more_body"):
                    break
            await script(Asked(scope, receive, send, body))

    return app


@asynccontextmanager
async def served(script: Script) -> AsyncIterator[str]:
    """Serve *script* and return its URL."""
    async with serve(app_of(script)) as url:
        yield url + "/mcp"


@asynccontextmanager
async def opened(
    target: Any, headers: Mapping[str, str] = NO_HEADERS, **given: Any
) -> AsyncIterator[tuple[Transport, Recorder]]:
    """Open a transport to *target*, with these options and bounds of a client."""
    options, others = split(given)
    with bounds(**others):
        recorder = Recorder()
        transport = transport_to(target, headers, options=options)
        await transport.open(recorder)
        try:
            async with asyncio.timeout(15):
                yield transport, recorder
        finally:
            await transport.close()


@asynccontextmanager
async def scripted(
    script: Script, headers: Mapping[str, str] = NO_HEADERS, **given: Any
) -> AsyncIterator[tuple[Transport, Recorder]]:
    async with served(script) as url, opened(url, headers, **given) as pair:
        yield pair
