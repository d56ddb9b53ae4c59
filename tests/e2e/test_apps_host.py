"""An app in the reference host library of MCP Apps: its page calls a tool that no model sees."""

import asyncio
import json
from asyncio.subprocess import PIPE
from pathlib import Path

import pytest
from starlette.applications import Starlette

from genmcp import Endpoint, Suite, tool
from genmcp.extensions import App, Csp
from tests.support.npm import npm_package
from tests.support.peers import APPS_HOST
from tests.support.serving import serve

# The first run installs it.
pytestmark = [
    pytest.mark.peers,
    pytest.mark.e2e,
    pytest.mark.timeout(300),
]
SCRIPT = str(Path(__file__).with_name("apps_host.mjs"))


@tool
async def show_stock() -> str:
    """Shows the stock."""
    return "3 bolts"


@tool
async def reorder(part: str) -> str:
    """Orders more."""
    return f"Ordered: {part}"


async def test_app_in_the_reference_host_calls_its_tool() -> None:
    """The host finds the page by its tool, reads its rules, and forwards the call of the page."""
    html, uri = "<!doctype html><title>Stock</title>", "ui://shop/stock"
    csp = Csp(connect_domains=["https://api.example.com"])
    app = App(uri, html, tools=[show_stock], app_tools=[reorder], csp=csp, prefers_border=True)
    suite = Suite("shop", extensions=[app])
    node, modules = npm_package(*APPS_HOST)
    async with serve(Starlette(routes=[Endpoint(suite).route("/mcp")])) as url:
        command = (node, SCRIPT, str(modules), f"{url}/mcp")
        process = await asyncio.create_subprocess_exec(*command, stdout=PIPE)
        output, _ = await asyncio.wait_for(process.communicate(), 60)

    assert json.loads(output) == {
        "shown": [["show_stock", uri, False], ["reorder", uri, True]],
        "html": html,
        "meta": {"csp": {"connectDomains": ["https://api.example.com"]}, "prefersBorder": True},
        "called": "Ordered: bolt",
    }
