"""The client and the hub with npm servers over stdio: called, killed, and reconnected."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from genmcp import Accepted
from genmcp.client.client import Client
from genmcp.client.errors import OutcomeUnknown, ProcessExited
from genmcp.client.handler import ClientHandler
from genmcp.client.options import Command
from genmcp.hub.config import Retry, ServerConfig
from genmcp.hub.hub import Hub
from genmcp.protocol.client_features import CreateMessageRequestParams
from genmcp.protocol.content import ImageContent, TextContent
from genmcp.protocol.prompts import PromptReference, ResourceTemplateReference
from tests.support.npm import npm_servers

# The first run installs them.
pytestmark = [
    pytest.mark.peers,
    pytest.mark.e2e,
    pytest.mark.timeout(300),
]
ADA = {"name": "Ada", "entityType": "person", "observations": ["kind"]}
GRAPH = "memory://knowledge-graph"


@pytest.fixture(scope="session")
def npm() -> Callable[[str], list[str]]:
    """Return a function from the name of a server to its command."""
    return npm_servers()


class Host(ClientHandler):
    """Responds to every request of the servers."""

    def __init__(self, root: Path) -> None:
        self.root = root

    async def handle_list_roots(self) -> Any:
        return [self.root]

    async def handle_create_message(self, params: CreateMessageRequestParams) -> Any:
        return {
            "role": "assistant",
            "content": {"type": "text", "text": "Rain, likely."},
            "model": "none",
        }

    async def handle_elicitation_create(self, *_: Any) -> Any:
        return Accepted({"name": "Ada"})


@asynccontextmanager
async def connected(
    command: list[str],
    *args: str,
    handler: Host | None = None,
    env: Mapping[str, str] | None = None,
) -> AsyncIterator[Client]:
    target = Command(command[0], [*command[1:], *args], env)
    async with asyncio.timeout(30), Client(target, handler=handler) as client:
        yield client


async def test_client_uses_everything(npm: Callable[[str], list[str]], tmp_path: Path) -> None:
    """Tools, progress, resources, prompts, completions, and requests from the server."""
    command = npm("server-everything")
    async with connected(command, "stdio", handler=Host(tmp_path)) as client:
        assert client.server_info is not None
        assert client.server_info.name == "mcp-servers/everything"
        assert client.revision == "2025-11-25"
        names = {each.name for each in await client.tools()}
        assert {"echo", "get-sum", "trigger-sampling-request", "get-roots-list"} <= names
        assert (await client.call("echo", {"message": "Zürich\u2028"})).text == "Echo: Zürich\u2028"
        structured = (await client.call("get-structured-content", {"location": "Chicago"})).data
        assert structured["conditions"] == "Light rain / drizzle"
        image = (await client.call("get-tiny-image")).content[1]
        assert isinstance(image, ImageContent)
        assert image.data.startswith("iVBORw0KGgo")
        assert (await client.call("get-sum", {"a": "none"})).is_error

        reports: list[Any] = []
        await client.call(
            "trigger-long-running-operation",
            {"duration": 0.1, "steps": 3},
            progress=lambda *report: reports.append(report),
        )
        assert reports == [(1, 3, None), (2, 3, None), (3, 3, None)]

        assert (
            "Rain, likely."
            in (await client.call("trigger-sampling-request", {"prompt": "Weather?"})).text
        )
        assert "Name: Ada" in (await client.call("trigger-elicitation-request")).text
        assert tmp_path.as_uri() in (await client.call("get-roots-list")).text

        assert len(await client.resources()) > 5
        assert "demo://resource/dynamic/text/{resourceId}" in {
            each.uri_template for each in await client.templates()
        }
        (held,) = (await client.read("demo://resource/dynamic/text/7")).contents
        assert (held.text or "").startswith("Resource 7")
        (message,) = (await client.prompt("args-prompt", {"city": "Rome"})).messages
        assert message.content == TextContent("What's weather in Rome?")
        found = await client.complete(PromptReference("completable-prompt"), "department", "S")
        assert found.values == ["Sales", "Support"]
        template = ResourceTemplateReference("demo://resource/dynamic/text/{resourceId}")
        assert (await client.complete(template, "resourceId", "3")).values == ["3"]
        await client.log_level("error")
        await client.ping()


async def test_client_uses_the_filesystem(npm: Callable[[str], list[str]], tmp_path: Path) -> None:
    """Files are written, listed and read below the root only."""
    async with connected(npm("server-filesystem"), str(tmp_path)) as client:
        path = str(tmp_path / "note.txt")
        await client.call("write_file", {"path": path, "content": "Rain.\n" * 50_000})
        assert (tmp_path / "note.txt").read_text() == "Rain.\n" * 50_000
        listed = await client.call("list_directory", {"path": str(tmp_path)})
        assert listed.structured == {"content": "[FILE] note.txt"}
        assert (await client.call("read_text_file", {"path": path})).text == "Rain.\n" * 50_000
        assert (await client.call("read_text_file", {"path": "/etc/hostname"})).is_error


async def test_client_uses_the_memory(npm: Callable[[str], list[str]], tmp_path: Path) -> None:
    """The next process can read what another has stored."""
    command, env = npm("server-memory"), {"MEMORY_FILE_PATH": str(tmp_path / "memory.jsonl")}
    async with connected(command, env=env) as client:
        await client.call("create_entities", {"entities": [ADA]})
    async with connected(command, env=env) as client:
        assert (await client.call("read_graph")).structured == {"entities": [ADA], "relations": []}
        (held,) = (await client.read(GRAPH)).contents
        assert '"Ada"' in (held.text or "")


class Pids:
    """The ids of the processes that a command has started, newest last."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def config(self, name: str, command: list[str], **more: Any) -> ServerConfig:
        """Return *command* as a server of a hub that records the ids of its processes."""
        args = ["-c", 'echo $$ >> "$0"; exec "$@"', str(self.path), *command]
        return ServerConfig(name, command="/bin/sh", args=args, **more)

    def kill(self) -> int:
        """Kill the newest process, and return how many there were."""
        pids = self.path.read_text().split()
        os.kill(int(pids[-1]), signal.SIGKILL)
        return len(pids)

    def count(self) -> int:
        return len(self.path.read_text().split())


async def test_client_reports_that_a_server_was_killed(
    npm: Callable[[str], list[str]], tmp_path: Path
) -> None:
    """The running call has an unknown outcome, the next one fails; a new connection works."""
    pids = Pids(tmp_path / "pids")
    config = pids.config("it", [*npm("server-everything"), "stdio"])
    assert config.command is not None
    reported = asyncio.Event()
    async with asyncio.timeout(30), Client(Command(config.command, config.args)) as client:
        operation = client.call(
            "trigger-long-running-operation",
            {"duration": 60, "steps": 600},
            progress=lambda *_: reported.set(),
        )
        call = asyncio.create_task(operation)
        await reported.wait()
        pids.kill()
        with pytest.raises(OutcomeUnknown, match="signal 9"):
            await call
        with pytest.raises(ProcessExited, match="signal 9"):
            await client.call("echo", {"message": "a"})
        await client.open()
        assert (await client.call("echo", {"message": "a"})).text == "Echo: a"
        assert pids.count() == 2


async def test_hub_works_with_servers_from_npm(
    npm: Callable[[str], list[str]], tmp_path: Path
) -> None:
    """Register, list, call, read and prompt. While one is reconnected, others stay usable."""
    pids = Pids(tmp_path / "pids")
    waiting, go_on = asyncio.Event(), asyncio.Event()
    memory = str(tmp_path / "memory.jsonl")

    async def sleep(delay: float) -> None:
        waiting.set()
        await go_on.wait()

    configs = [
        pids.config("all", [*npm("server-everything"), "stdio"], retry=Retry(3)),
        of("files", npm("server-filesystem"), str(tmp_path)),
        of("memory", npm("server-memory"), env={"MEMORY_FILE_PATH": memory}),
    ]
    async with asyncio.timeout(60), Hub(sleep=sleep) as hub:
        assert await hub.add_all(configs) == {}
        assert hub.servers() == ["all", "files", "memory"]
        names = {each.name for each in hub.tools()}
        assert {"all/echo", "files/read_text_file", "memory/read_graph"} <= names
        assert GRAPH in {each.uri for each in hub.resources()}
        assert "args-prompt" in {each.original_name for each in hub.prompts()}
        await hub.call("memory/create_entities", {"entities": [ADA]})
        assert '"Ada"' in ((await hub.read(GRAPH, server="memory")).contents[0].text or "")
        prompted = await hub.prompt("all/args-prompt", {"city": "Rome"})
        assert prompted.messages[0].content == TextContent("What's weather in Rome?")

        call = asyncio.create_task(
            hub.call("all/trigger-long-running-operation", {"duration": 60, "steps": 600})
        )
        await hub.call("all/echo", {"message": "it is under way"})
        assert pids.kill() == 1
        with pytest.raises(OutcomeUnknown, match="signal 9"):
            await call
        await waiting.wait()
        listed = await hub.call("files/list_directory", {"path": str(tmp_path)})
        assert "[FILE] pids" in listed.text  # calls of other servers succeed in the meantime
        go_on.set()
        assert (await hub.call("all/echo", '{"message": "again"}')).text == "Echo: again"
        assert pids.count() == 2


async def test_hub_server_forwards_updates_of_a_server_from_npm(
    npm: Callable[[str], list[str]],
) -> None:
    """The hub subscribes for its own subscribers."""
    uri = "demo://resource/dynamic/text/1"
    async with asyncio.timeout(60), Hub() as hub:
        await hub.add(of("all", npm("server-everything"), "stdio"))
        async with Client(hub.server()) as client, client.subscribe(uri) as changes:
            assert changes.honored.resource_subscriptions == [uri]
            await client.call("all/toggle-subscriber-updates")
            assert (await anext(changes)).params.uri == uri


def of(name: str, command: list[str], *args: str, **more: Any) -> ServerConfig:
    """Return a command as a server of a hub."""
    return ServerConfig(name, command=command[0], args=[*command[1:], *args], **more)
