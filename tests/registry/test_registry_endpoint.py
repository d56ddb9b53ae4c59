"""A registry over HTTP: its servers together, and each at its own URL."""

import asyncio
import gc
from collections.abc import Mapping
from typing import Any
from weakref import ref

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from genmcp import (
    Access,
    Channel,
    ConfigurationError,
    Continue,
    Done,
    PromptTemplate,
    Provider,
    Suite,
    Tool,
    elicit,
    tool,
)
from genmcp.client.errors import ServerError
from genmcp.protocol import ResourceDefinition
from genmcp.protocol.prompts import PromptReference, ResourceTemplateReference
from genmcp.registry.endpoint import RegistryEndpoint
from genmcp.registry.registry import Registry
from genmcp.resources import ResourceRepo
from genmcp.testing import connect
from tests.support.asgi import PATIENCE, Client


@tool
async def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


class Ask(Tool):
    """Asks before it answers."""

    name = "ask"

    async def call(self, request: Any, channel: Channel) -> Any:
        return Continue("asked", elicit("Go on?", {"type": "object", "properties": {}}))

    async def continue_(self, tag: str, outcome: Any, channel: Channel) -> str:
        return "went on" if isinstance(outcome, Done) else "stopped"


class Hang(Tool):
    """Never ends."""

    name = "hang"

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def call(self, request: Any, channel: Channel) -> str:
        self.begun.set()
        await asyncio.Event().wait()
        return ""

    async def on_cancel(self, channel: Channel) -> None:
        self.cancelled.set()


class Books(ResourceRepo):
    """Books by their id."""

    name = "book"

    def __init__(self, scheme: str) -> None:
        self.template = f"{scheme}://books/{{id}}"
        self.scheme = scheme

    async def list(self, cursor: Any, channel: Channel, /) -> Any:
        return [ResourceDefinition(f"{self.scheme}://books/1", "one")]

    async def read(self, key: dict[str, str], channel: Channel, /) -> Any:
        return f"Book {key['id']} of {self.scheme}"

    async def complete(self, name: str, value: str, *arguments: Any) -> Any:
        return ["1", "2"]


def greeting() -> PromptTemplate:
    return PromptTemplate(name="greet", messages="Hello {city}", completions={"city": ["Oslo"]})


def suite(name: str, *tools: Any, **components: Any) -> Suite:
    return Suite(name=name, version="1", tools=tools, result_tool=False, **components)


def registry(*, page_size: int | None = None) -> Registry:
    first = suite("math", add, resources=[Books("math")], page_size=page_size)
    second = suite("art", add, Ask(), prompts=[greeting()], resources=[Books("art")])
    return Registry([first, suite("empty"), second])


async def test_composite_lists_qualified_names() -> None:
    """Tools and prompts have the name of their server before them, resources their URI."""
    async with connect(registry().server()) as client:
        tools = [each.name for each in await client.tools()]
        prompts = [each.name for each in await client.prompts()]
        resources = [each.uri for each in await client.resources()]
        templates = [each.uri_template for each in await client.templates()]

    assert tools == ["math/add", "art/add", "art/ask"]
    assert prompts == ["art/greet"]
    assert resources == ["math://books/1", "art://books/1"]
    assert templates == ["math://books/{id}", "art://books/{id}"]


async def test_composite_lists_page_by_page() -> None:
    """A page of a member ends a page; after `page_size` items the next member begins one."""
    live = Registry([suite("a", add, Ask(), page_size=1), suite("b", add), suite("c", add)])
    together = live.server()
    together.page_size = 1
    async with connect(together) as client:
        tools = [each.name for each in await client.tools()]

    assert tools == ["a/add", "a/ask", "b/add", "c/add"]


async def test_composite_routes_requests_by_name() -> None:
    """By the name it is listed under."""
    async with connect(registry().server()) as client:
        three = await client.call("art/add", {"a": 1, "b": 2})
        (book,) = (await client.read("art://books/7")).contents
        prompt = await client.prompt("art/greet", {"city": "Oslo"})

    assert three.text == "3"
    assert book.text == "Book 7 of art"
    assert prompt.messages[0].content.text == "Hello Oslo"  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["add", "nobody/add", "math/nothing", "off/add", ""])
async def test_composite_rejects_other_names(name: str) -> None:
    """A server that is disabled has no tools either."""
    live = registry()
    live.add(suite("off", add))
    live.toggle("off", False)
    async with connect(live.server()) as client:
        with pytest.raises(ServerError, match="Unknown tool") as raised:
            await client.call(name)
        with pytest.raises(ServerError):
            await client.read("nobody://books/1")

    assert raised.value.code == -32602


class Plugins(Provider):
    """Has a component of its own."""

    def tools(self, access: Access | None, assigns: Mapping[str, Any]) -> Any:
        return [add]

    def resources(self, access: Access | None, assigns: Mapping[str, Any]) -> Any:
        return [Books("more")]


async def test_composite_finds_components_of_providers() -> None:
    """A server with a catch-all template does not hide the listed resources of others."""
    live = Registry([suite("late", providers=[Plugins()]), suite("math", add)])
    live.add(suite("art", resources=[Books("art")]))
    async with connect(live.server()) as client:
        three = await client.call("late/add", {"a": 1, "b": 2})
        (sure,) = (await client.read("art://books/1")).contents
        (late,) = (await client.read("more://books/2")).contents
        with pytest.raises(ServerError, match="Unknown tool"):
            await client.call("late/nothing")

    assert (three.text, sure.text, late.text) == ("3", "Book 1 of art", "Book 2 of more")


class Lazy(Provider):
    """Has resources of one scheme, which are found by the request only."""

    def __init__(self, scheme: str) -> None:
        self.scheme = scheme

    def resources(self, access: Access | None, assigns: Mapping[str, Any]) -> Any:
        return [Books(self.scheme)]


async def test_composite_asks_the_providers_of_each_server() -> None:
    """A provider of the first server that lacks a resource does not hide those of the next."""
    servers = [suite(name, providers=[Lazy(name)]) for name in ("first", "second")]
    async with connect(Registry(servers).server()) as client:
        (one,) = (await client.read("first://books/1")).contents
        (two,) = (await client.read("second://books/1")).contents
        with pytest.raises(ServerError, match="Resource not found: third://books/1"):
            await client.read("third://books/1")

    assert (one.text, two.text) == ("Book 1 of first", "Book 1 of second")


async def test_composite_routes_completion() -> None:
    """A prompt by its qualified name, a resource template by its own."""
    async with connect(registry().server()) as client:
        city = await client.complete(PromptReference("art/greet"), "city", "O")
        book = await client.complete(ResourceTemplateReference("art://books/{id}"), "id")
        for nobody in (PromptReference("greet"), ResourceTemplateReference("x://{y}")):
            with pytest.raises(ServerError):
                await client.complete(nobody, "city")

    assert city.values == ["Oslo"]
    assert book.values == ["1", "2"]


async def test_composite_resumes_calls() -> None:
    """The continuation returns to the server that asked."""
    client = await Client.begin(
        RegistryEndpoint(registry()), capabilities={"elicitation": {}}, path="/", root_path=""
    )
    asked = (await client.send(client.call("art/ask", id=1))).json["result"]
    (key,) = asked["inputRequests"]
    answer = {key: {"action": "accept", "content": {}}}
    again = client.call("art/ask", id=2)
    again["params"] |= {"requestState": asked["requestState"], "inputResponses": answer}
    answered = (await client.send(again)).json["result"]

    assert answered["content"][0]["text"] == "went on"


async def test_composite_forwards_cancellation() -> None:
    """As if its server stood alone."""
    hang = Hang()
    endpoint = RegistryEndpoint(Registry([suite("slow", hang)]))
    client = Client(endpoint, path="/", root_path="")
    async with client.open(client.call("slow/hang")):
        await asyncio.wait_for(hang.begun.wait(), PATIENCE)
    await asyncio.wait_for(hang.cancelled.wait(), PATIENCE)


async def test_composite_announces_changes() -> None:
    """Of the registry, and of every server in it."""
    live = registry()
    together = live.server()
    heard: list[str] = []

    class Heard:
        def announce(self, change: Any) -> None:
            heard.append(change.uri or change.method.split("/")[1])

    listener: Any = Heard()
    together.changes.follow(listener)
    added = suite("new", add)
    live.add(added)
    added.add(Ask())
    added.resource_updated("art://books/1")
    live.remove("new")
    added.resource_updated("art://books/2")

    everything = ["tools", "prompts", "resources"]
    assert [*everything, "tools", "art://books/1", *everything] == heard


def test_composite_is_collected_before_its_registry() -> None:
    """A registry may be served for a while, many times."""
    live = registry()
    together = ref(live.server())
    gc.collect()
    live.reload()

    assert together() is None


async def test_composite_rejects_cursor_of_removed_server() -> None:
    """The list would look complete without its rest."""
    live = Registry([suite("a", add, Ask(), page_size=1)])
    async with connect(live.server()) as client:
        page = await client.request("tools/list")
        live.remove("a")
        with pytest.raises(ServerError, match="was removed"):
            await client.request("tools/list", {"cursor": page.next_cursor})
        assert list(await client.tools()) == []


# Over HTTP.


def served(endpoint: RegistryEndpoint) -> list[Starlette]:
    return [
        Starlette(routes=endpoint.routes("/mcp")),
        Starlette(routes=[Mount("/mcp", endpoint)]),
    ]


async def posted(app: Any, path: str, name: str = "add") -> httpx.Response:
    meta = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
    params = {"name": name, "arguments": {"a": 1, "b": 2}, "_meta": meta}
    headers = {
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call",
        "mcp-name": name,
    }
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
        return await http.post(path, json=body, headers=headers)


@pytest.mark.parametrize("mount", [0, 1])
async def test_registry_endpoint_serves_all_and_each(mount: int) -> None:
    """At the root with qualified names, below it each with its own."""
    live = registry()
    endpoint = RegistryEndpoint(live, heartbeat=30.0)
    app = served(endpoint)[mount]
    answers = [
        (await posted(app, path, name)).json()["result"]["content"][0]["text"]
        for path, name in (("/mcp/", "math/add"), ("/mcp/math", "add"), ("/mcp/art/", "add"))
    ]
    unknown = await posted(app, "/mcp/nobody")
    live.toggle("math", False)
    disabled = await posted(app, "/mcp/math")
    live.add(suite("art", add))
    again = await posted(app, "/mcp/art")
    await endpoint.aclose()

    assert answers == ["3", "3", "3"]
    assert (unknown.status_code, error_of(unknown)) == (404, "Unknown MCP server: nobody")
    assert (disabled.status_code, error_of(disabled)) == (404, "MCP server disabled: math")
    assert again.status_code == 200
    assert len(endpoint._endpoints) == 2  # that of the `art` before has been removed


async def test_registry_endpoint_ends_calls_of_removed_servers() -> None:
    """The calls that run there are cancelled once their grace is over."""
    hang = Hang()
    live = Registry([suite("math", add), suite("idle", hang)])
    endpoint = RegistryEndpoint(live, grace=0)
    async with asyncio.timeout(PATIENCE):
        call = asyncio.ensure_future(posted(served(endpoint)[0], "/mcp/idle", "hang"))
        await hang.begun.wait()
        await asyncio.to_thread(live.remove, "idle")
        await asyncio.wait((call,))
        assert [*endpoint._endpoints] == []
        await endpoint.aclose()
    live.set_servers([])  # is nothing to it any more


def error_of(response: httpx.Response) -> str:
    message: str = response.json()["error"]["message"]
    return message


async def test_registry_endpoint_forwards_other_scopes() -> None:
    """Those that are not requests, to the endpoint of all servers."""
    endpoint = RegistryEndpoint(Registry([suite("math", add)]))
    said: list[Any] = []

    async def send(message: Any) -> None:
        said.append(message)

    async def receive() -> Any:
        return {"type": "websocket.connect"}

    await endpoint({"type": "websocket"}, receive, send)
    await endpoint.aclose()

    assert said[0]["type"] == "websocket.close"
    assert repr(endpoint).startswith("<RegistryEndpoint of <Registry of math")


def test_registry_endpoint_rejects_invalid_options() -> None:
    """At construction, naming the option."""
    with pytest.raises(ConfigurationError, match="registry must be"):
        RegistryEndpoint(suite("math", add))  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="slash"):
        RegistryEndpoint(Registry()).routes("mcp")
