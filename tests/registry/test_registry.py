"""Registries: servers of this process by name, called without a transport."""

import asyncio
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from genmcp import Access, Channel, ConfigurationError, Image, Mux, Provider, Suite, ToolError, tool
from genmcp.composite.errors import (
    RegistrySessionNotFound,
    ServerDisabled,
    UnknownServer,
    UnknownTool,
)
from genmcp.errors import McpError, StoreUnavailable
from genmcp.registry.registry import GLOBAL, Registry, SessionRegistries, Status
from genmcp.server import Server
from tests.support.asgi import PATIENCE


@tool
async def add(a: int, b: int, channel: Channel) -> int:
    """Adds two numbers."""
    await channel.log("info", "adding")
    return a + b


@tool
async def draw() -> Image:
    """Draws."""
    return Image(b"\x89PNG\r\n\x1a\n")


@tool
async def fail(how: str) -> None:
    """Fails."""
    if how == "told":
        raise ToolError("out of paper")
    if how == "exit":
        raise SystemExit(1)
    raise ValueError("a secret")


@tool
async def hang() -> None:
    """Never ends."""
    await asyncio.Event().wait()


def suite(name: str, *tools: Any, version: str = "1.0.0") -> Suite:
    return Suite(name=name, version=version, tools=tools)


def call(name: str, **arguments: Any) -> dict[str, Any]:
    params = {"name": name, "arguments": arguments}
    return {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}


# A. The value.


def test_registry_changes() -> None:
    """An unknown name is removed without an error."""
    registry = Registry()
    assert registry.names == []

    registry.add(suite("math", add))
    registry.remove("nobody")
    assert (registry.names, [*registry.enabled]) == (["math"], ["math"])
    registry.toggle("math", False)
    assert (registry.names, [*registry.enabled]) == (["math"], [])
    registry.remove("math")
    assert len(registry) == 0


def test_registry_replaces_a_server_of_the_same_name() -> None:
    """The last one counts."""
    registry = Registry([suite("math", add), suite("math", draw, version="2.0")])

    assert len(registry) == 1
    assert registry.find("math").server.info.version == "2.0"


def test_registry_takes_muxes_and_other_names() -> None:
    """A mux keeps its settings; a name may be given."""
    mux = Mux(suite("math", add))
    registry = Registry([mux])
    registry.add(mux, name="more")

    assert registry.names == ["math", "more"]
    assert registry.find("more") is mux
    assert "more" in registry
    assert repr(registry) == "<Registry of math, more>"


@pytest.mark.parametrize("name", ["", "a/b"])
def test_registry_rejects_ambiguous_names(name: str) -> None:
    """A slash ends the server's name in that of a tool."""
    with pytest.raises(ConfigurationError, match="added as"):
        Registry().add(suite("math", add), name=name)


def test_registry_names_its_servers_for_agents() -> None:
    """For a command line, and for a handshake."""
    registry = Registry([suite("math", add), suite("art", draw)])

    assert registry.servers_for_init() == ["math", "art"]
    assert registry.servers_for_cli() == {
        "mcpServers": {
            "math": {"type": "sdk", "name": "math"},
            "art": {"type": "sdk", "name": "art"},
        }
    }


async def test_registry_lists_tools_of_enabled_servers() -> None:
    """In the order of the servers, on all their pages."""
    paged = Suite(name="art", version="1", tools=[draw, hang, fail], page_size=1)
    registry = Registry([suite("math", add), paged])

    assert [each.name for each in await registry.tools()] == ["add", "draw", "hang", "fail"]
    registry.toggle("art", False)
    assert [each.name for each in await registry.tools()] == ["add"]


async def test_registry_calls_the_first_server_that_has_the_tool() -> None:
    """One that is disabled has none."""

    @tool(name="add")
    async def other(a: int, b: int) -> str:
        """Does not add."""
        return "other"

    registry = Registry([suite("math", add), suite("other", other)])
    found = await registry.call_tool_by_name("add", {"a": 1, "b": 2})
    registry.toggle("math", False)
    second = await registry.call_tool_by_name("add", {"a": 1, "b": 2})

    assert (found.text, second.text) == ("3", "other")
    with pytest.raises(UnknownTool, match="nobody"):
        await registry.call_tool_by_name("nobody")


class Plugins(Provider):
    """Has the given tools, but lists them late."""

    def __init__(self, *tools: Any) -> None:
        self.given = tools

    def tools(self, access: Access | None, assigns: Mapping[str, Any]) -> Any:
        return self.given


async def test_registry_calls_tools_of_providers() -> None:
    """A server without the tool does not hide the next one."""
    first = Suite(name="first", version="1", tools=[], providers=[Plugins(draw)])
    registry = Registry([first, suite("math", add)])

    assert (await registry.call_tool_by_name("add", {"a": 1, "b": 2})).text == "3"
    assert (await registry.call_tool_by_name("draw")).text == ""
    with pytest.raises(UnknownTool):
        await registry.call_tool_by_name("nobody")


async def test_registry_call_returns_all_kinds_of_content() -> None:
    """An image is an image."""
    result = await Registry([suite("art", draw)]).call_tool_by_name("draw")

    assert result.content[0].mime_type == "image/png"  # type: ignore[union-attr]


# A. Messages.


async def test_registry_answers_messages_of_every_revision() -> None:
    """Each stands for itself; a notification gets no answer."""
    registry = Registry([suite("math", add)])
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {}}
    hello["clientInfo"] = {"name": "test", "version": "1"}
    begin = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    listing = {"jsonrpc": "2.0", "id": "x", "method": "tools/list"}

    welcome = await registry.handle_message("math", begin)
    told = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    nothing = await asyncio.wait_for(registry.handle_message("math", told), PATIENCE)
    listed = await registry.handle_message("math", listing)
    answer = await registry.handle_message("math", call("add", a=1, b=2))
    text = await registry.handle_message("math", '{"jsonrpc":"2.0","id":1,"method":"ping"}')

    assert welcome["result"]["protocolVersion"] == "2025-06-18"
    assert nothing is None
    assert (listed["id"], listed["result"]["tools"][0]["name"]) == ("x", "add")
    assert answer["result"]["content"] == [{"type": "text", "text": "3"}]
    assert text["result"] == {}


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ({"jsonrpc": "2.0", "id": 1, "method": "nothing"}, -32601),
        ({"jsonrpc": "2.0", "id": 1, "method": "subscriptions/listen"}, -32601),
        (call("nobody"), -32602),
        (b"garbage", -32700),
        ("[]", -32600),
    ],
)
async def test_registry_answers_with_errors(message: Any, code: int) -> None:
    """Faults of a message are errors in the response."""
    answer = await Registry([suite("math", add)]).handle_message("math", message)

    assert code == answer["error"]["code"]


@pytest.mark.parametrize("method", ["nothing", "subscriptions/listen"])
async def test_registry_names_a_method_that_it_lacks(method: str) -> None:
    """In `data`, as an endpoint does."""
    message = {"jsonrpc": "2.0", "id": 1, "method": method}

    answer = await Registry([suite("math", add)]).handle_message("math", message)

    assert answer["error"]["data"] == {"method": method}


async def test_registry_rejects_unknown_and_disabled_servers() -> None:
    """The message names the cause."""
    registry = Registry([suite("math", add)])
    registry.toggle("math", False)

    with pytest.raises(UnknownServer, match="Unknown MCP server: art"):
        await registry.handle_message("art", call("draw"))
    with pytest.raises(ServerDisabled, match="MCP server disabled: math"):
        await registry.handle_message("math", call("add"))


@pytest.mark.parametrize(("how", "text"), [("told", "out of paper"), ("exit", "unexpectedly")])
async def test_registry_isolates_failures(how: str, text: str) -> None:
    """Whatever a hook raises, the response is an `isError` result."""
    registry = Registry([suite("art", fail)])
    answer = await registry.handle_message("art", call("fail", how=how))
    result = await registry.call_tool_by_name("fail", {"how": "error"})

    assert answer["result"]["isError"]
    assert text in answer["result"]["content"][0]["text"]
    assert result.is_error
    assert "a secret" not in result.text


async def test_registry_cancels_a_slow_call() -> None:
    """Its asyncio.Task is cancelled, and the response states it."""
    registry = Registry([suite("slow", hang)])
    async with asyncio.timeout(PATIENCE):
        answer = await registry.handle_message("slow", call("hang"), timeout=0.01)
        result = await registry.call_tool_by_name("hang", timeout=0.01)

    assert answer["result"]["isError"]
    assert result.text == "Tool handler timed out after 0.01 seconds"


async def test_registry_list_times_out() -> None:
    """With an error: only the result of a call can have `isError`."""

    class Stuck(Suite):
        async def listed(self, method: str, cursor: str | None, channel: Channel) -> Any:
            await asyncio.Event().wait()

    registry = Registry([Stuck(name="stuck", version="1", tools=[add])])
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    answer = await registry.handle_message("stuck", message, timeout=0.01)

    assert "timed out after 0.01 seconds" in answer["error"]["message"]


async def test_registry_call_raises_protocol_errors() -> None:
    """With code and message of the server."""

    class Broken(Suite):
        async def handle(self, request: Any, channel: Channel) -> Any:
            raise McpError("not today", code=-32050)

    registry = Registry([Broken(name="broken", version="1", tools=[add])])
    with pytest.raises(McpError, match="not today") as raised:
        await registry.call_tool_by_name("add")

    assert raised.value.code == -32050


# B. While it runs.


async def test_registry_status() -> None:
    """Name, version, number of tools, whether it is enabled, its error; `reconnect` clears it."""
    registry = Registry([suite("math", add, fail), suite("art", draw, version="2")])
    registry.toggle("art", False)
    registry.failed("art", "no paint")

    assert await registry.status() == {
        "math": Status("math", "1.0.0", 2, True),
        "art": Status("art", "2", 1, False, "no paint"),
    }
    registry.reconnect("art")
    assert (await registry.status())["art"] == Status("art", "2", 1, True)
    assert await Registry().status() == {}


async def test_registry_leaves_out_a_failing_server() -> None:
    """Its status has the error, unless there is one already."""

    class Broken(Suite):
        async def listed(self, method: str, cursor: str | None, channel: Channel) -> Any:
            raise McpError("no list today", code=-32051)

    registry = Registry([Broken(name="broken", version="1"), suite("math", add)])

    assert [each.name for each in await registry.tools()] == ["add"]
    assert await registry.status() == {
        "broken": Status("broken", "1", 0, True, "no list today"),
        "math": Status("math", "1.0.0", 1, True),
    }
    registry.failed("broken", "no paint")
    assert (await registry.status())["broken"].error == "no paint"


def test_set_servers_keeps_servers_disabled() -> None:
    """Absent ones are dropped, new ones are enabled."""
    registry = Registry([suite("a", add), suite("b", add), suite("c", add)])
    registry.toggle("b", False)
    registry.set_servers([suite("b", draw), suite("d", add)])

    assert registry.names == ["b", "d"]
    assert list(registry.enabled) == ["d"]
    registry.set_servers([])
    assert registry.names == []


def test_registry_rejects_changes_of_unknown_servers() -> None:
    """Each change names the unknown server."""
    registry = Registry()
    with pytest.raises(UnknownServer, match="x"):
        registry.toggle("x", True)
    with pytest.raises(UnknownServer, match="x"):
        registry.reconnect("x")
    with pytest.raises(UnknownServer, match="x"):
        registry.failed("x", "y")


async def test_registry_closes_the_muxes_it_made(tmp_path: Path) -> None:
    """A closed mux has closed its store. A mux that was given stays open."""
    made: list[Mux] = []

    def serve(server: Server) -> Mux:
        store = f"sqlite:///{tmp_path / server.info.name}.db"
        made.append(Mux(server, store=store, secret="a secret of at least 16 bytes"))
        return made[-1]

    own = serve(suite("own", add))
    registry = Registry([suite("math", add), own], serve=serve)
    await registry.call_tool_by_name("add", {"a": 1, "b": 2})
    await registry.aclose()

    closed = [mux for mux in made if mux is not own]
    assert len(closed) == 1
    with pytest.raises(StoreUnavailable):
        await closed[0].store.get("key")
    assert await own.store.get("key") is None
    await own.aclose()


# C, D, E. Registries that change.


def test_registry_is_thread_safe() -> None:
    """No change is lost, also of a composite server that follows them."""
    registry = Registry()
    together = registry.server()

    def register(start: int) -> None:
        for number in range(start, start + 5):
            registry.add(suite(f"s{number}", add))

    threads = [threading.Thread(target=register, args=(5 * each,)) for each in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)

    assert {f"s{number}" for number in range(20)} == set(registry.names)
    assert all(together.find("tools/call", f"s{number}/add") for number in range(20))


def test_failed_change_is_undone() -> None:
    """Those before it in the same update, too."""
    registry = Registry([suite("math", add)])

    def change(registry: Registry) -> None:
        registry.add(suite("art", draw))
        registry.toggle("nobody", False)

    with pytest.raises(UnknownServer):
        registry.update(change)

    assert registry.names == list(registry.enabled) == ["math"]


def test_global_registry() -> None:
    """One per process; registering again replaces, unregistering twice is not an error."""
    try:
        GLOBAL.add(suite("math", add))
        GLOBAL.add(suite("math", add, draw))
        GLOBAL.set_servers([suite("math", add), suite("art", draw)])
        assert GLOBAL.names == ["math", "art"]
        GLOBAL.remove("art")
        GLOBAL.remove("art")
        assert GLOBAL.names == ["math"]
    finally:
        GLOBAL.set_servers([])
    assert GLOBAL.names == []


async def test_session_registries_are_kept_apart() -> None:
    """Any hashable value is a session."""
    sessions = SessionRegistries()
    sessions.set("a", Registry([suite("math", add)]))
    sessions.set(("b", 1), Registry([suite("art", draw)]))
    sessions.set("c", None)
    sessions.get("a").update(lambda registry: registry.toggle("math", False))

    assert len(sessions) == 2
    assert list(sessions.get(("b", 1)).enabled) == ["art"]
    assert not (await sessions.status("a"))["math"].enabled
    assert await sessions.status("c") == {}
    sessions.remove("a")
    sessions.remove("a")
    for session in ("a", "c"):
        with pytest.raises(RegistrySessionNotFound, match="No registry for session"):
            sessions.get(session)


async def test_session_registries_take_descriptions_of_servers() -> None:
    """One without a name is called unnamed."""
    sessions = SessionRegistries()
    sessions.add_server("a", {"tools": [add]})
    sessions.add_server("a", suite("art", draw))
    with pytest.raises(ConfigurationError, match="takes a server"):
        sessions.add_server("a", "art")  # type: ignore[arg-type]

    assert (await sessions.status("a"))["unnamed"] == Status("unnamed", "1.0.0", 1, True)
    assert sessions.get("a").names == ["unnamed", "art"]


async def test_server_may_be_removed_during_status() -> None:
    """The status is that of the servers when it was requested."""

    class Leaving(Suite):
        async def listed(self, method: str, cursor: str | None, channel: Channel) -> Any:
            registry.remove("leaving")
            return await super().listed(method, cursor, channel)

    registry = Registry([Leaving(name="leaving", version="1"), suite("math", add)])

    assert [*await registry.status()] == ["leaving", "math"]
    assert [*await registry.status()] == ["math"]
