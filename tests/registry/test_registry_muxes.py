"""The life of a server's mux, and so of its tasks, while its registry changes."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from genmcp import Channel, Client, Mux, Registry, Suite, Tool, ToolRequest, tool
from genmcp.registry import RegistryEndpoint
from tests.support.asgi import PATIENCE, until
from tests.support.asgi import Client as Asgi

META = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {
        "extensions": {"io.modelcontextprotocol/tasks": {}}
    },
}


class Bake(Tool):
    """Bakes until it is done."""

    name = "bake"
    task = "always"

    def __init__(self) -> None:
        self.done = asyncio.Event()

    async def call(self, request: ToolRequest, channel: Channel) -> str:
        await self.done.wait()
        return "bread"


@tool
async def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def suite(name: str, *tools: Any) -> Suite:
    return Suite(name=name, version="1", tools=tools)


def message(method: str, **params: Any) -> Any:
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": META}}


async def begun(registry: Registry, server: str, **options: Any) -> str:
    """Return the id of a task that `bake` of *server* has become."""
    call = message("tools/call", name="bake", arguments={})
    answer = await registry.handle_message(server, call, **options)
    assert answer["result"]["resultType"] == "task"
    return str(answer["result"]["taskId"])


async def finished(registry: Registry, server: str, id: str) -> str:
    """Return the text of the result of the task *id*."""
    async with Client(registry.find(server)) as client:
        return (await client.task(id).wait(timeout=PATIENCE)).text


async def test_task_continues_after_its_handle() -> None:
    """However long it takes: `timeout` is for the answer, which is its handle."""
    bake = Bake()
    registry = Registry([suite("bakery", bake)])
    id = await asyncio.wait_for(begun(registry, "bakery", timeout=0.5), PATIENCE)
    bake.done.set()

    assert await finished(registry, "bakery", id) == "bread"
    await registry.aclose()


async def test_cancelled_caller_cancels_the_call() -> None:
    """It has no response yet, and would have no worker."""
    waits, cancelled = asyncio.Event(), asyncio.Event()

    @tool
    async def hang() -> None:
        waits.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()

    registry = Registry([suite("slow", hang)])
    calling = asyncio.ensure_future(registry.call_tool_by_name("hang"))
    await asyncio.wait_for(waits.wait(), PATIENCE)
    calling.cancel()
    await asyncio.wait([calling], timeout=PATIENCE)

    assert calling.cancelled()
    assert cancelled.is_set()


@pytest.mark.parametrize("change", ["set_servers", "register"])
async def test_kept_server_keeps_its_tasks(change: str) -> None:
    """It is the same mux, whichever servers are registered beside it."""
    bake = Bake()
    bakery = suite("bakery", bake)
    live = Registry([bakery])
    id = await begun(live, "bakery")
    if change == "set_servers":
        live.set_servers([suite("math", add), bakery])
    else:
        live.add(suite("math", add))
        live.add(bakery)
        live.add(bakery, name="second")
    bake.done.set()

    assert await finished(live, "bakery", id) == "bread"
    await live.aclose()


async def test_set_servers_keeps_the_error_of_a_known_server() -> None:
    """A new server of that name begins without an error. Both stay disabled."""
    math = suite("math", add)
    registry = Registry([math])
    registry.toggle("math", False)
    registry.failed("math", "no numbers")

    registry.set_servers([math])
    assert (await registry.status())["math"].error == "no numbers"
    registry.set_servers([suite("math", add)])
    assert (await registry.status())["math"].error is None
    assert [*registry.enabled] == []
    registry.add(math)
    assert [*registry.enabled] == ["math"]


def test_kept_server_keeps_its_name() -> None:
    """And is disabled there too, whichever way: by its mux, or by its server."""
    tools, others = suite("tools", add), suite("others", add)
    registry = Registry()
    registry.add(tools, name="mine")
    known = registry.find("mine")
    registry.toggle("mine", False)

    for stays in (tools, known):
        registry.set_servers([others, stays])
        assert registry.names == ["others", "mine"]
        assert [*registry.enabled] == ["others"]


def test_kept_server_keeps_its_mux() -> None:
    """Also if it is given by its server."""
    mux = Mux(suite("math", add))
    registry = Registry([mux])

    for stays in (mux, mux.server):
        registry.set_servers([stays])
        assert registry.find("math") is mux


class Closing(Mux):
    """Records that it is closed."""

    closed: Sequence[str] = ()

    async def aclose(self) -> None:
        self.closed = [*self.closed, "closed"]
        await super().aclose()


async def test_registry_closes_its_muxes() -> None:
    """Those of removed servers, too; a given mux may serve elsewhere."""
    given = Closing(suite("given", add))
    live = Registry([suite("a", add), suite("b", add), given], serve=Closing)
    made: Any = [live.find("a"), live.find("b")]
    live.remove("b")
    await live.aclose()

    assert [each.closed for each in made] == [["closed"]] * 2
    assert given.closed == ()


async def test_registry_ends_tasks_when_it_is_closed() -> None:
    """Muxes that were started without a transport: they have no other owner."""
    ended = [asyncio.Event(), asyncio.Event()]

    class Kneads(Tool):
        """Kneads until it is cancelled."""

        name = "bake"
        task = "always"

        def __init__(self, ended: asyncio.Event) -> None:
            self.ended = ended

        async def call(self, request: ToolRequest, channel: Channel) -> str:
            try:
                await asyncio.Event().wait()
            finally:
                self.ended.set()
            return ""

    given = Mux(suite("given", Kneads(ended[0])))
    live = Registry([given, suite("gone", Kneads(ended[1]))])
    for each in ("given", "gone"):
        await begun(live, each)
    live.remove("gone")
    await asyncio.wait_for(live.aclose(), PATIENCE)
    await given.aclose()

    assert all(each.is_set() for each in ended)


async def test_registry_endpoint_closes_mux_of_removed_server() -> None:
    """If it was made there, when all that was open at it has ended."""
    given = Closing(suite("given", add))
    live = Registry([suite("a", add), suite("b", add), given], serve=Closing)
    made: Any = [live.find(each) for each in ("a", "b")]
    endpoint = RegistryEndpoint(live)
    for each in ("a", "b", "given"):
        path = {"path": f"/{each}", "root_path": ""}
        client = await Asgi.begin(endpoint, **path)
        assert (await client.send(client.call("add", {"a": 1, "b": 2}))).status == 200
    live.set_servers([live.find("b")])
    await until(lambda: made[0].closed)
    await endpoint.aclose()

    assert (made[0].closed, made[1].closed, given.closed) == (["closed"], (), ())


async def test_registry_endpoint_closes_mux_called_as_composite() -> None:
    """Its own URL need not have been requested before."""
    live = Registry([suite("a", add), suite("b", add)], serve=Closing)
    made: Any = [live.find(each) for each in ("a", "b")]
    endpoint = RegistryEndpoint(live)
    client = await Asgi.begin(endpoint, path="/", root_path="")
    assert (await client.send(client.call("a/add", {"a": 1, "b": 2}))).status == 200
    live.remove("a")
    await until(lambda: made[0].closed)
    await endpoint.aclose()

    assert (made[0].closed, made[1].closed) == (["closed"], ())


async def test_slow_servers_are_listed_concurrently() -> None:
    """No server waits for another, and the status has the error of a list without an end."""
    asked = 0

    class Stuck(Suite):
        async def listed(self, method: str, cursor: str | None, channel: Channel) -> Any:
            nonlocal asked
            asked += 1
            await until(lambda: asked == 2)
            await asyncio.Event().wait()

    class Endless(Suite):
        async def listed(self, method: str, cursor: str | None, channel: Channel) -> Any:
            return replace(await super().listed(method, None, channel), next_cursor="on")

    stuck = [Stuck(name=name, version="1") for name in ("x", "y")]
    endless = Endless(name="endless", version="1", tools=[add])
    registry = Registry([*stuck, endless, suite("math", add)], list_timeout=0.05)
    status = await asyncio.wait_for(registry.status(), PATIENCE)
    asked = 0

    assert [each.name for each in await registry.tools()] == ["add"]
    assert "not listed within 0.05 s (list_timeout)" in str(status["x"].error)
    assert "not listed within 0.05 s (list_timeout)" in str(status["endless"].error)
    assert (status["math"].tools, status["math"].error) == (1, None)
