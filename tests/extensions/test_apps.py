"""Apps: pages of tools, what they may do, and tools that no model sees."""

from pathlib import Path
from typing import Any

import pytest

from genmcp import Client, ConfigurationError, Endpoint, Suite, Tool, ToolRequest, tool
from genmcp.channel import Channel
from genmcp.extensions import App, Csp, Extension
from genmcp.protocol.tools import ToolDefinition
from genmcp.testing import connect

UI = "io.modelcontextprotocol/ui"
MIME_TYPE = "text/html;profile=mcp-app"
HTML = "<!doctype html><title>Stock</title>"
HOST = Extension(UI, settings={"mimeTypes": [MIME_TYPE]})


@tool(meta={"com.example/a": 1})
async def show_stock(channel: Channel) -> str:
    """Shows the stock."""
    return "a page" if APP.shown_by(channel) else "3 bolts"


@tool
async def reorder(part: str) -> str:
    """Orders more."""
    return f"Ordered: {part}"


class Count(Tool):
    """Counts."""

    name = "count"

    async def call(self, request: ToolRequest, channel: Channel) -> str:
        return "3"


APP = App(
    "ui://shop/stock",
    HTML,
    tools=[show_stock, Count],
    app_tools=[reorder],
    csp=Csp(connect_domains=["https://api.example.com"], frame_domains=["https://*.example.com"]),
    permissions=["clipboardWrite"],
    prefers_border=True,
)
SUITE = Suite("shop", tools=[], extensions=[APP])
SETTINGS = {
    "csp": {
        "connectDomains": ["https://api.example.com"],
        "frameDomains": ["https://*.example.com"],
    },
    "permissions": {"clipboardWrite": {}},
    "prefersBorder": True,
}


async def listed(*extensions: Extension) -> dict[str, ToolDefinition]:
    async with Client(Endpoint(SUITE), extensions=extensions) as client:
        return {each.name: each for each in await client.tools()}


async def test_app_leaves_the_tools_of_its_user_as_they_are() -> None:
    """A tool of an app may be one for models at another server."""
    count = Count()
    App("ui://shop/count", HTML, app_tools=[count])
    async with connect(Suite("other", tools=[count])) as client:
        (found,) = await client.tools()

    assert found.meta is None
    assert "ui" not in (count.meta or {})


async def test_app_is_read_with_its_rules() -> None:
    """SEP-1865, "UI Resource Format": the type of the page, and what it may use, in `_meta`."""
    async with connect(SUITE) as client:
        assert (client.capabilities.extensions or {})[UI] == {}
        (resource,) = await client.resources()
        (content,) = (await client.read("ui://shop/stock")).contents

    assert [resource.uri, resource.mime_type] == ["ui://shop/stock", MIME_TYPE]
    assert [content.text, content.mime_type] == [HTML, MIME_TYPE]
    assert [resource.meta, content.meta] == [{"ui": SETTINGS}] * 2


async def test_app_is_named_by_its_tools() -> None:
    """SEP-1865, "Resource Discovery": also for a host that says nothing of apps."""
    tools = await listed(HOST)
    ui = {"resourceUri": "ui://shop/stock"}

    assert tools["show_stock"].meta == {"com.example/a": 1, "ui": ui}
    assert tools["count"].meta == {"ui": ui}
    assert tools["reorder"].meta == {"ui": {**ui, "visibility": ["app"]}}
    assert (await listed())["show_stock"].meta == tools["show_stock"].meta


async def test_tools_of_a_page_are_hidden_from_models() -> None:
    """A client without apps does not know `visibility`: it would show the tool to its model."""
    assert list(await listed(HOST)) == ["show_stock", "count", "reorder"]
    assert list(await listed()) == ["show_stock", "count"]
    assert list(await listed(Extension(UI))) == ["show_stock", "count"]
    assert list(await listed(Extension(UI, settings={"mimeTypes": "all"}))) == [
        "show_stock",
        "count",
    ]


async def test_tool_may_answer_with_text_alone() -> None:
    """SEP-2133, "Graceful Degradation"."""
    texts = []
    for extensions in ([], [HOST]):
        async with Client(Endpoint(SUITE), extensions=extensions) as client:
            texts.append((await client.call("show_stock")).text)

    assert texts == ["3 bolts", "a page"]


async def test_app_leaves_the_tool_of_other_servers_alone() -> None:
    """A function may be a tool of several suites, of which one has an app."""
    async with connect(Suite("s", tools=[show_stock])) as client:
        (definition,) = await client.tools()

    assert definition.meta == {"com.example/a": 1}


async def test_app_is_read_from_its_file(tmp_path: Path) -> None:
    """Again for each request; a folder has an index.html."""
    (tmp_path / "index.html").write_text("<p>one")
    apps = [App("ui://s/a", tmp_path / "index.html"), App("ui://s/b", tmp_path)]
    async with connect(Suite("s", extensions=apps)) as client:
        first = await client.read("ui://s/a")
        (tmp_path / "index.html").write_text("<p>two")
        second = [await client.read(uri) for uri in ("ui://s/a", "ui://s/b")]

    texts = [result.contents[0].text for result in (first, *second)]
    assert texts == ["<p>one", "<p>two", "<p>two"]


@pytest.mark.parametrize(
    "origin",
    [
        "https://a.example; script-src *",
        "https://a.example https://b.example",
        "'unsafe-eval'",
        "*",
        "https://*",
        "data:",
        "https://a.example/path",
        "https://a.example\n",
        "javascript:alert(1)",
        1,
    ],
)
def test_app_cannot_widen_the_policy_of_its_host(origin: Any) -> None:
    """Hosts put the origins into a Content-Security-Policy."""
    with pytest.raises(ConfigurationError, match="is not an origin"):
        Csp(resource_domains=[origin])


@pytest.mark.parametrize(
    ("uri", "html", "options", "text"),
    [
        ("https://shop/stock", HTML, {}, "must begin with ui://"),
        ("ui://", HTML, {}, "must begin with ui://"),
        ("ui://shop/a b", HTML, {}, "must begin with ui://"),
        ("ui://shop/stock", "stock.html", {}, "the Path of one"),
        ("ui://shop/stock", Path("/no/such/file.html"), {}, "there is no file"),
        ("ui://shop/stock", HTML, {"permissions": ["usb"]}, "none of camera"),
        ("ui://shop/stock", HTML, {"csp": {"connect_domains": []}}, "must be a Csp"),
        ("ui://shop/stock", HTML, {"tools": [APP.tools[0]]}, "belongs to another app"),
        ("ui://shop/stock", HTML, {"tools": ["add"]}, "is not a tool"),
    ],
)
def test_app_that_is_invalid_is_rejected(uri: str, html: Any, options: Any, text: str) -> None:
    """When it is made, by an error that names what is wrong."""
    with pytest.raises(ConfigurationError, match=text):
        App(uri, html, **options)


def test_origins_are_a_list() -> None:
    """A text would be taken for a list of letters."""
    with pytest.raises(ConfigurationError, match="must be a list"):
        Csp(connect_domains="https://a.example")
