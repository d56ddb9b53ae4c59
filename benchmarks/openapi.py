"""OpenAPI documents as servers, beside FastMCP: `python -m benchmarks.openapi`.

Prints a table: tools and skipped operations; violations of `genmcp lint` without the number of
tools; seconds of CPU to load a document, and to list its tools for the first time; the size of that
list; and microseconds of CPU of a call. Both call the same API in the same process, over the
transport of httpx for ASGI apps, and are called by their own clients in memory. The subjects
alternate, and the least of the rounds counts.
"""

import asyncio
import json
import time
import warnings
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import httpx
import httpx2
from fastmcp import Client as FastMCPClient
from fastmcp import FastMCP
from starlette.types import Receive, Scope, Send

from genmcp import Suite
from genmcp.cli.lint import check_tools
from genmcp.openapi import openapi_tools
from genmcp.protocol.tools import ToolDefinition
from genmcp.testing import connect
from tests.support.openapi_documents import figma, github

_ROUNDS = 3
_CALLS = 300
_ME = b'{"id": "1", "email": "ada@example.com", "handle": "ada", "img_url": "https://img.example"}'
_BASE = "https://api.example"
_Figures = dict[str, float]


def made(operations: int = 1_000) -> dict[str, Any]:
    """Return a document of as many operations, each with 14 arguments and 10 results."""
    texts = {f"p{number}": {"type": "string", "description": "A text."} for number in range(10)}
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Texts"}}}
    query = [
        {"name": f"q{each}", "in": "query", "schema": {"type": "integer"}} for each in range(3)
    ]
    path = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
    post = {
        "parameters": [path, *query],
        "requestBody": {"required": True, "content": content},
        "responses": {"200": {"description": "Done.", "content": content}},
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "made", "version": "1"},
        "paths": {
            f"/r{each}/{{id}}": {"post": {**post, "operationId": f"op{each}"}}
            for each in range(operations)
        },
        "components": {"schemas": {"Texts": {"type": "object", "properties": texts}}},
    }


async def api(scope: Scope, receive: Receive, send: Send) -> None:
    """Respond with an object that fits all operations that are called."""
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": _ME})


async def measured(
    figures: _Figures, list_tools: Callable[[], Awaitable[Any]], call: Callable[[], Awaitable[Any]]
) -> Any:
    """Add the CPU of a first list and of calls to *figures*; return the list."""
    start = time.process_time()
    tools = await list_tools()
    figures["list s"] = time.process_time() - start
    await call()
    start = time.process_time()
    for _ in range(_CALLS):
        await call()
    figures["call us"] = (time.process_time() - start) / _CALLS * 1e6
    return tools


def described(figures: _Figures, tools: list[ToolDefinition]) -> None:
    """Add the number, the faults and the size of *tools* to *figures*."""
    faults = Counter(each.rule.id for each in check_tools(tools, revision="2026-07-28"))
    del faults["too-many-tools"]
    schemas = [[each.input_schema, each.output_schema] for each in tools]
    figures |= {
        "tools": len(tools),
        "violations": faults.total(),
        "schemas MB": len(json.dumps(schemas)) / 1e6,
    }


async def of_genmcp(document: Mapping[str, Any], name: str, arguments: dict[str, Any]) -> _Figures:
    client = httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url=_BASE)
    start = time.process_time()
    found = openapi_tools(document, client=client)
    suite = Suite("genmcp", tools=found)
    figures = {"load s": time.process_time() - start, "skipped": float(len(found.skipped))}
    async with connect(suite) as connected:
        tools = await measured(figures, connected.tools, lambda: connected.call(name, arguments))
    described(figures, [*tools])
    return figures


async def of_fastmcp(document: dict[str, Any], name: str, arguments: dict[str, Any]) -> _Figures:
    client = httpx2.AsyncClient(transport=httpx2.ASGITransport(api), base_url=_BASE)
    start = time.process_time()
    server = FastMCP.from_openapi(document, client=client)
    figures = {"load s": time.process_time() - start, "skipped": 0.0}
    async with FastMCPClient(server) as connected:
        tools = await measured(
            figures, connected.list_tools, lambda: connected.call_tool(name, arguments)
        )
    described(
        figures,
        [
            ToolDefinition(each.name, each.input_schema, output_schema=each.output_schema)
            for each in tools
        ],
    )
    return figures


async def main() -> None:
    warnings.simplefilter("ignore")
    documents: dict[str, tuple[dict[str, Any], tuple[str, str], dict[str, Any]]] = {
        "GitHub": (github(), ("gists_star", "gistsstar"), {"gist_id": "a"}),
        "Figma": (figma(), ("getMe", "getMe"), {}),
        "1,000 operations": (made(), ("op7", "op7"), {"id": "a", "q1": 1, "p1": "b"}),
    }
    for title, (document, names, arguments) in documents.items():
        rounds: dict[str, list[_Figures]] = {"genmcp": [], "fastmcp": []}
        for _ in range(_ROUNDS):
            rounds["genmcp"].append(await of_genmcp(document, names[0], arguments))
            rounds["fastmcp"].append(await of_fastmcp(document, names[1], arguments))
        for subject, found in rounds.items():
            least = {key: min(each[key] for each in found) for key in found[0]}
            print(title, subject, {key: round(each, 3) for key, each in least.items()})


if __name__ == "__main__":
    asyncio.run(main())
