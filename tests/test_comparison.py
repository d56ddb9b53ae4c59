"""The rows of the README's comparison that can be tried: genmcp beside the others, in one process.

The others are made as their documentation shows, with the defaults but for JSON responses:
sse-starlette leaves a task running for each event stream.
"""

import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastmcp import FastMCP
from mcp.server import MCPServer
from starlette.applications import Starlette
from starlette.routing import Mount

from genmcp import Endpoint, Mux, Suite, tool
from tests.support.results import row_beside_peers

pytestmark = pytest.mark.peers

ROOT = Path(__file__).parent.parent
HEADERS = {"accept": "application/json, text/event-stream"}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "a client", "version": "1"},
    },
}
_META = "io.modelcontextprotocol/"
TASK = {
    "jsonrpc": "2.0",
    "id": 3,
    "method": "tasks/get",
    "params": {
        "taskId": "unknown",
        "_meta": {
            f"{_META}protocolVersion": "2026-07-28",
            f"{_META}clientInfo": {"name": "a client", "version": "1"},
            f"{_META}clientCapabilities": {"extensions": {f"{_META}tasks": {}}},
        },
    },
}
OF_TASK = {
    "mcp-protocol-version": "2026-07-28",
    "mcp-method": "tasks/get",
    "mcp-name": "unknown",
}
LIST = {"jsonrpc": "2.0", "id": 2, "method": "tools/list"}


@tool
def greet(name: str) -> str:
    """Greets a person."""
    return f"Hello, {name}."


def of_genmcp() -> Starlette:
    mux = Mux(Suite(name="greeter", tools=[greet]), secret="one secret for all processes")
    return Starlette(routes=[Endpoint(mux).route("/mcp")])


def of_the_sdk() -> Starlette:
    return MCPServer("greeter").streamable_http_app(json_response=True)


def of_fastmcp() -> Starlette:
    return FastMCP("greeter").http_app(json_response=True)


OTHERS = pytest.mark.parametrize("make", [of_the_sdk, of_fastmcp])


@asynccontextmanager
async def client_of(app: Any) -> AsyncIterator[httpx.AsyncClient]:
    """Give a client of *app*, whose lifespan has not started."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    async with httpx.AsyncClient(
        transport=transport, base_url="http://127.0.0.1:8000", headers=HEADERS
    ) as client:
        yield client


async def statuses(make: Callable[[], Starlette], *, lifespan: bool) -> Mapping[str, int]:
    """Return how two processes respond that serve what *make* returns.

    The first one gets an `initialize` at either URL, and each a request in the session of that.
    """
    found = {}
    async with AsyncExitStack() as stack:
        apps = [make(), make()]
        for app in apps if lifespan else ():
            await stack.enter_async_context(app.router.lifespan_context(app))
        first, second = [await stack.enter_async_context(client_of(app)) for app in apps]
        for path in ("/mcp", "/mcp/"):
            opened = await first.post(path, json=INITIALIZE)
            found[path] = opened.status_code
        opened = await first.post("/mcp", json=INITIALIZE)
        session = {"mcp-session-id": opened.headers["mcp-session-id"]}
        for name, client in (("first", first), ("second", second)):
            found[name] = (await client.post("/mcp", json=LIST, headers=session)).status_code
    return found


async def test_comparison_genmcp_needs_no_lifespan_and_any_process() -> None:
    """A route of a host application, without its lifespan."""
    found = await statuses(of_genmcp, lifespan=False)

    assert found == {"/mcp": 200, "/mcp/": 200, "first": 200, "second": 200}


@OTHERS
async def test_comparison_others_redirect_and_keep_sessions(make: Callable[[], Starlette]) -> None:
    """One of the URLs is redirected, and a session belongs to the process that began it."""
    found = await statuses(make, lifespan=True)

    assert found == {"/mcp": 200, "/mcp/": 307, "first": 200, "second": 404}


@OTHERS
async def test_comparison_others_need_the_lifespan_of_the_app(
    make: Callable[[], Starlette],
) -> None:
    """Mounted in an application that does not run their lifespan, they fail."""
    async with client_of(Starlette(routes=[Mount("/", make())])) as client:
        assert (await client.post("/mcp", json=INITIALIZE)).status_code == 500


@pytest.mark.parametrize(
    ("make", "code"), [(of_genmcp, -32602), (of_the_sdk, -32601), (of_fastmcp, -32601)]
)
async def test_comparison_only_genmcp_has_tasks_built_in(
    make: Callable[[], Starlette], code: int
) -> None:
    """An unknown task is an invalid argument; the others do not have the method."""
    app = make()
    async with app.router.lifespan_context(app), client_of(app) as client:
        response = await client.post("/mcp", json=TASK, headers=OF_TASK)

    assert response.json()["error"]["code"] == code


def test_comparison_has_the_figures_of_the_benchmarks() -> None:
    """The README shows figures that benchmarks/ has, and no others."""
    rows = {
        name: re.findall(r"[\d,.]+", figures)
        for name, figures in re.findall(
            r"^\| (CPU of a small|1,000 calls)[^|]*\|(.*)\| \[",
            (ROOT / "README.md").read_text(),
            re.M,
        )
    }
    results = (ROOT / "benchmarks" / "RESULTS.md").read_text("utf-8")
    cells = row_beside_peers("echo, 16 at once")
    calls = re.search(
        r"^\| 1,000 calls over HTTP, one after another, 2026-07-28, s "
        r"\| genmcp: ([\d.]+) .*?, mcp: ([\d.]+) .*?fastmcp: ([\d.]+) ",
        results,
        re.MULTILINE,
    )

    assert calls is not None
    assert rows == {
        "CPU of a small": [cells[3], cells[9], cells[15]],
        "1,000 calls": [*calls.groups()],
    }
