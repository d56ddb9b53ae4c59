"""An API that shows what it receives, and clients of the tools that are made of its documents."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
from starlette.types import Receive, Scope, Send

from genmcp import Suite
from genmcp.openapi import OperationTools, openapi_tools
from genmcp.testing import RecordingClient, connect

BASE = "http://api.example"
CLIENT = httpx.AsyncClient(base_url=BASE)  # one for all tests: it loads certificates


def document(paths: Mapping[str, Any], version: str = "3.1.0", **components: Any) -> dict[str, Any]:
    """Return a document with these paths."""
    return {"openapi": version, "info": {}, "paths": paths, "components": components}


def offline(paths: Mapping[str, Any], version: str = "3.1.0", **components: Any) -> OperationTools:
    """Return the tools of a document, without an API."""
    return openapi_tools(document(paths, version, **components), client=CLIENT)


def input_of(schema: Any, version: str = "3.1.0", **components: Any) -> Any:
    """Return the schema of an argument whose schema in the document is *schema*."""
    parameter = {"name": "value", "in": "query", "schema": schema}
    paths = {"/x": {"get": {"parameters": [parameter]}}}
    (tool,) = offline(paths, version, schemas=components)
    Suite("valid", tools=[tool])  # compiles the schema
    assert isinstance(tool.input_schema, Mapping)
    return tool.input_schema["properties"]["value"]


class Api:
    """An ASGI app that responds with what it received, or as the test wants."""

    def __init__(self) -> None:
        self.status = 200
        self.headers = {"content-type": "application/json"}
        self.body: bytes | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        body, more = b"", True
        while more:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        received = {
            "method": scope["method"],
            "path": scope["raw_path"].decode(),
            "query": scope["query_string"].decode(),
            "headers": {name.decode(): value.decode() for name, value in scope["headers"]},
            "body": body.decode(),
        }
        sent = json.dumps(received).encode() if self.body is None else self.body
        headers = [(name.encode(), value.encode()) for name, value in self.headers.items()]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": sent})


@asynccontextmanager
async def tools_of(
    paths: Mapping[str, Any], api: Api | None = None, **options: Any
) -> AsyncIterator[RecordingClient]:
    """Connect a client to a server with the tools of the paths of an API."""
    transport = httpx.ASGITransport(api or Api())
    async with (
        httpx.AsyncClient(transport=transport, base_url=f"{BASE}/v1", **options) as http,
        connect(Suite("api", tools=openapi_tools(document(paths), client=http))) as client,
    ):
        yield client


async def received(paths: Mapping[str, Any], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the request that the API receives for a call of the only operation of *paths*."""
    async with tools_of(paths) as client:
        (tool,) = await client.tools()
        result = await client.call(tool.name, arguments)
    assert not result.is_error, result.data
    return dict(result.data)
