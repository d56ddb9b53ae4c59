"""A hub of real processes: registered, used, killed, and connected to again."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from genmcp.client.errors import ConnectError, OutcomeUnknown, RequestTimeout
from genmcp.composite.errors import AlreadyRegistered, UnknownServer, UnknownTool
from genmcp.errors import ConfigurationError, ContractError
from genmcp.hub.config import Retry, ServerConfig
from genmcp.hub.hub import Hub
from genmcp.protocol.content import TextContent
from genmcp.protocol.resources import ReadResourceResult
from genmcp.protocol.tools import CallToolResult

pytestmark = pytest.mark.slow

TIME = 10.0
SERVER = str(Path(__file__).with_name("stdio_server.py"))


@pytest.fixture
async def hub() -> AsyncIterator[Hub]:
    """A hub that is stopped in the end."""
    async with Hub() as hub:
        yield hub


def config(
    name: str, folder: Path | None = None, *, retry: Retry | None = None, **env: str
) -> ServerConfig:
    """Return the configuration of one process of the server beside this file."""
    env = {"PYTHONPATH": os.pathsep.join(sys.path), **env}
    args = [SERVER, *([str(folder)] if folder else [])]
    return ServerConfig(name, command=sys.executable, args=args, env=env, retry=retry)


def text(result: CallToolResult) -> str:
    """Return the text of a result."""
    (content,) = result.content
    assert isinstance(content, TextContent)
    return content.text


async def pid_of(hub: Hub, name: str) -> int:
    """Return the id of a server's process."""
    return int(text(await hub.call(f"{name}/pid")))


async def until(true: Callable[[], bool]) -> None:
    """Wait until something is true."""
    async with asyncio.timeout(TIME):
        while not true():  # noqa: ASYNC110 - another process tells, and no event of this one
            await asyncio.sleep(0.01)


def is_running(pid: int) -> bool:
    """Whether a process with that id exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


class Slept:
    """Records delays instead of sleeping; waits for `may` if requested."""

    def __init__(self, *, waits: bool = False) -> None:
        self.delays: list[float] = []
        self.began = asyncio.Event()
        self.may = asyncio.Event()
        if not waits:
            self.may.set()

    async def __call__(self, delay: float) -> None:
        self.delays.append(delay)
        self.began.set()
        await self.may.wait()


async def test_hub_lists_components_of_its_servers(hub: Hub) -> None:
    """Tools by qualified names, resources and prompts."""
    await hub.add(config("one"))
    await hub.add(config("two", WHO="me"))

    assert hub.servers() == ["one", "two"]
    names = [(each.name, each.server_name, each.original_name) for each in hub.tools()]
    assert ("one/add", "one", "add") in names
    assert ("two/add", "two", "add") in names
    assert text(await hub.call("one/add", {"a": 1, "b": 2})) == "3"
    assert text(await hub.call("two/add", '{"a": 3, "b": 4}')) == "7"
    assert text(await hub.call("two/variable", {"name": "WHO"})) == "me"
    assert await pid_of(hub, "one") != await pid_of(hub, "two")

    note = hub.resources()[0]
    assert (note.uri, note.name, note.server_name) == ("note://today", "note", "one")
    read = await hub.read("note://today", server="two")
    assert isinstance(read, ReadResourceResult)
    assert str(await pid_of(hub, "two")) in str(read.contents)

    greet = hub.prompts()[0]
    assert (greet.name, greet.server_name, greet.original_name) == ("one/greet", "one", "greet")
    assert [(each.name, each.required) for each in greet.arguments] == [("name", True)]
    prompted = await hub.prompt("one/greet", {"name": "Ada"})
    assert prompted.messages[0].content == TextContent("Hello Ada.")


async def test_hub_returns_large_results(hub: Hub) -> None:
    """Complete, however many reads they take."""
    await hub.add(config("one"))

    assert len(text(await hub.call("one/large", {"size": 3_000_000}))) == 3_000_000


async def test_stop_ends_all_processes() -> None:
    """So does `unregister`, which removes the tools at once."""
    async with asyncio.timeout(30), Hub() as hub:
        await hub.add(config("one"))
        await hub.add(config("two"))
        one, two = await pid_of(hub, "one"), await pid_of(hub, "two")

        await hub.remove("one")

        assert not is_running(one)
        assert is_running(two)
        assert hub.servers() == ["two"]
        assert {each.server_name for each in hub.tools()} == {"two"}
        with pytest.raises(UnknownServer, match="Unknown MCP server: one"):
            await hub.remove("one")
    assert not is_running(two)


async def test_hub_rejects_unknown_names(hub: Hub) -> None:
    """And a name that is taken, and arguments that are not JSON."""
    await hub.add(config("one"))

    with pytest.raises(AlreadyRegistered, match="Server already registered: one"):
        await hub.add(config("one"))
    for name in ("one/nothing", "two/add", "add"):
        with pytest.raises(UnknownTool, match=f"Unknown tool: {name}"):
            await hub.call(name)
    for request in (hub.read("note://today", server="two"), hub.prompt("two/greet")):
        with pytest.raises(UnknownServer, match="two"):
            await request
    with pytest.raises(ContractError, match="object"):
        await hub.call("one/add", "[1, 2]")
    assert repr(hub) == "<Hub of one>"


async def test_process_that_does_not_start_is_not_added(hub: Hub, tmp_path: Path) -> None:
    """With the reason; nothing remains, and the name can be used."""
    (tmp_path / "broken").touch()
    with pytest.raises(ConnectError, match=r"cannot reach one: .*broken"):
        await hub.add(config("one", tmp_path))
    with pytest.raises(ConnectError, match="cannot reach one"):
        await hub.add(ServerConfig("one", command="no-such-command-here"))
    assert hub.servers() == []

    (tmp_path / "broken").unlink()
    await hub.add(config("one", tmp_path))
    assert hub.servers() == ["one"]


async def test_add_all_returns_errors_by_name(hub: Hub, tmp_path: Path) -> None:
    """Other servers are not affected."""
    (tmp_path / "broken").touch()
    servers = [config("a"), config("b", tmp_path), config("c"), config("a")]

    failed = await hub.add_all(servers)

    assert hub.servers() == ["a", "c"]
    assert {name: type(error) for name, error in failed.items()} == {
        "a": AlreadyRegistered,
        "b": ConnectError,
    }


async def test_killed_server_without_retry_is_evicted(
    hub: Hub, caplog: pytest.LogCaptureFixture
) -> None:
    """At once, not with the next call; other servers stay."""
    await hub.add(config("one"))
    await hub.add(config("two"))

    os.kill(await pid_of(hub, "one"), signal.SIGKILL)
    await until(lambda: hub.servers() == ["two"])

    assert {each.server_name for each in hub.tools()} == {"two"}
    with pytest.raises(UnknownTool, match=r"one/add .* its connection broke, and it has no retry"):
        await hub.call("one/add", {"a": 1, "b": 2})
    with pytest.raises(UnknownServer, match=r"one .*signal 9"):
        await hub.read("note://today", server="one")
    assert text(await hub.call("two/add", {"a": 1, "b": 2})) == "3"
    assert "server one is evicted: its connection broke, and it has no retry" in caplog.text


async def test_server_name_may_contain_slashes(hub: Hub) -> None:
    """Unless another server's name is its beginning."""
    await hub.add(config("io.example/one"))

    assert text(await hub.call("io.example/one/add", {"a": 1, "b": 2})) == "3"
    assert "io.example/one/add" in {each.name for each in hub.tools()}
    for name in ("io.example", "io.example/one/two"):
        with pytest.raises(AlreadyRegistered, match=f"io.example/one, .* as those of {name}$"):
            await hub.add(config(name))
    with pytest.raises(UnknownTool, match=r"Unknown MCP server: io\.example\)"):
        await hub.call("io.example/two/add")


async def test_add_rejects_other_types(hub: Hub) -> None:
    """The message names the type, and shows no secrets."""
    described: Any = {"command": "x", "env": {"KEY": "secret"}}
    with pytest.raises(ConfigurationError, match="a ServerConfig is needed, not a dict") as refused:
        await hub.add(described)
    with pytest.raises(ConfigurationError, match="ServerConfig"):
        await hub.add_all([config("one"), described])
    assert "secret" not in str(refused.value)
    assert hub.servers() == []


async def test_timeout_includes_the_wait_for_a_connection() -> None:
    """Nothing was sent."""
    slept = Slept(waits=True)
    async with asyncio.timeout(30), Hub(sleep=slept) as hub:
        await hub.add(config("one", retry=Retry(1)))
        os.kill(await pid_of(hub, "one"), signal.SIGKILL)
        await slept.began.wait()

        for request in (
            hub.call("one/pid", timeout=0.01),
            hub.read("note://today", timeout=0.01, server="one"),
            hub.prompt("one/greet", {"name": "Ada"}, timeout=0.01),
        ):
            with pytest.raises(RequestTimeout, match=r"longer than 0\.01 s") as late:
                await request
            assert not late.value.sent
        slept.may.set()
        assert text(await hub.call("one/add", {"a": 1, "b": 2}, timeout=TIME)) == "3"


async def test_crashed_server_is_reconnected(tmp_path: Path) -> None:
    """The running call has an unknown outcome; later ones get a new process and lists."""
    slept = Slept()
    async with asyncio.timeout(30), Hub(sleep=slept) as hub:
        await hub.add(config("one", tmp_path, retry=Retry(3, 0.5)))
        before = await pid_of(hub, "one")
        (tmp_path / "extra").touch()

        with pytest.raises(OutcomeUnknown):
            await hub.call("one/crash")

        assert await pid_of(hub, "one") != before
        assert not is_running(before)
        assert slept.delays == [0.5]
        assert text(await hub.call("one/extra")) == "here"


async def test_repeated_crashes_lengthen_the_wait() -> None:
    """A server that lives for seconds is not restarted at full speed."""
    slept = Slept()
    async with asyncio.timeout(30), Hub(sleep=slept) as hub:
        await hub.add(config("one", retry=Retry(2, 0.5)))
        for _ in range(3):
            with pytest.raises(OutcomeUnknown):
                await hub.call("one/crash")

        assert text(await hub.call("one/add", {"a": 1, "b": 1})) == "2"
        assert slept.delays == [0.5, 1.0, 2.0]


async def test_failed_attempts_lead_to_eviction(tmp_path: Path) -> None:
    """After 0.5, 1 and 2 s. Waiting calls get the reason, other servers stay."""
    slept = Slept(waits=True)
    async with asyncio.timeout(30), Hub(sleep=slept) as hub:
        await hub.add(config("one", tmp_path, retry=Retry(3, 0.5)))
        await hub.add(config("two"))
        (tmp_path / "broken").touch()
        os.kill(await pid_of(hub, "one"), signal.SIGKILL)
        await slept.began.wait()

        waiting = asyncio.ensure_future(hub.call("one/add", {"a": 1, "b": 2}))
        assert text(await hub.call("two/add", {"a": 1, "b": 2})) == "3"
        assert not waiting.done()
        slept.may.set()

        with pytest.raises(ConnectError, match=r"3 attempts to reconnect failed: .*broken"):
            await waiting
        assert slept.delays == [0.5, 1.0, 2.0]
        assert hub.servers() == ["two"]


async def test_slow_reconnection_does_not_delay_other_servers(tmp_path: Path) -> None:
    """A call waits for its own server only."""
    slept = Slept(waits=True)
    async with asyncio.timeout(30), Hub(sleep=slept) as hub:
        await hub.add(config("one", retry=Retry(1, 0.5)))
        await hub.add(config("two"))
        os.kill(await pid_of(hub, "one"), signal.SIGKILL)
        await slept.began.wait()

        late = asyncio.ensure_future(hub.call("one/add", {"a": 1, "b": 1}))
        assert text(await hub.call("two/add", {"a": 1, "b": 2})) == "3"
        slept.may.set()

        assert text(await late) == "2"


async def test_remove_during_reconnection() -> None:
    """The attempts end, and waiting calls fail."""
    slept = Slept(waits=True)
    async with asyncio.timeout(30), Hub(sleep=slept) as hub:
        await hub.add(config("one", retry=Retry(3, 0.5)))
        os.kill(await pid_of(hub, "one"), signal.SIGKILL)
        await slept.began.wait()
        waiting = asyncio.ensure_future(hub.call("one/pid"))
        await asyncio.sleep(0)

        await hub.remove("one")

        with pytest.raises(UnknownServer):
            await waiting


async def test_timeout_keeps_the_connection(hub: Hub, tmp_path: Path) -> None:
    """It does not show that the connection is broken."""
    await hub.add(config("one", tmp_path))
    before = await pid_of(hub, "one")

    with pytest.raises(RequestTimeout):
        await hub.call("one/hang", timeout=0.1)

    assert await pid_of(hub, "one") == before


async def test_changed_list_is_read_again(hub: Hub) -> None:
    """As soon as the server announces it."""
    await hub.add(config("one"))
    assert "one/extra" not in {each.name for each in hub.tools()}

    await hub.call("one/grow")
    await until(lambda: "one/extra" in {each.name for each in hub.tools()})

    assert text(await hub.call("one/extra")) == "here"
