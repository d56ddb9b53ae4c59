"""Servers over standard streams, and over other pipes."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

from genmcp import (
    Accepted,
    Channel,
    Continue,
    Done,
    Limits,
    Mux,
    Resource,
    Suite,
    Tool,
    ToolRequest,
    elicit,
    tool,
)
from genmcp._transports.pipe import PipedCall
from genmcp._transports.stdio import DescriptorReader, DescriptorWriter, serve_stdio
from genmcp.errors import StoreUnavailable
from genmcp.stores.memory import MemoryStore
from genmcp.stores.store import Delete, Op, Put
from tests.support.asgi import PATIENCE, TASKS, until
from tests.support.held_loop import MAX_HELD, HeldLoop
from tests.support.pipes import Wires, cancelled, line, modern, piped, piped_mux, request

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
SERVER = [sys.executable, "-m", "tests.transports.stdio_server"]
#: Output before the server starts, at the level of the file descriptor, cannot be redirected.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}


@tool
async def echo(text: str, channel: Channel) -> str:
    """Returns its argument."""
    await channel.progress(1, 2)
    await channel.log("info", f"saying {text}")
    return text


@tool
async def fill(size: int, channel: Channel) -> str:
    """Returns a large text."""
    for step in range(50):
        await channel.progress(step)
    await channel.log("info", "x" * size)
    return "y" * size


class Wait(Tool):
    """Waits until it is cancelled."""

    name = "wait"

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.cancelled = asyncio.Event()

    async def call(self, request: ToolRequest, channel: Channel) -> str:
        self.begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await channel.log("info", "late")
            self.cancelled.set()
        return ""


class Ask(Tool):
    """Asks before it answers."""

    name = "ask"

    async def call(self, request: ToolRequest, channel: Channel) -> Any:
        return Continue("asked", elicit("Go on?", {"type": "object", "properties": {}}))

    async def continue_(self, tag: str, outcome: Any, channel: Channel) -> str:
        match outcome:
            case Done(Accepted()):
                return "went on"
        return "stopped"


class Slow(Tool):
    """Becomes a task at once."""

    name = "slow"
    task = "always"

    async def call(self, request: ToolRequest, channel: Channel) -> str:
        return "done slowly"


def text_of(answer: Any) -> str:
    found: str = answer["result"]["content"][0]["text"]
    return found


def socket_pair() -> tuple[int, int]:
    first, second = socket.socketpair()
    return first.detach(), second.detach()


def read_exactly(descriptor: int, size: int) -> None:
    while size:
        size -= len(os.read(descriptor, size))


async def seen(event: asyncio.Event) -> None:
    await asyncio.wait_for(event.wait(), PATIENCE)


# Real processes.


@pytest.mark.parametrize(("mode", "version"), [("auto", "2026-07-28"), ("legacy", "2025-11-25")])
async def test_stdio_serves_the_official_client(mode: Any, version: str) -> None:
    """Of both eras: calls, progress, log messages, a tool that prints."""
    received: list[Any] = []
    logged: list[Any] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:
        received.append(progress)

    async def log(params: Any) -> None:
        logged.append(params.data)

    server = StdioServerParameters(command=SERVER[0], args=SERVER[1:], cwd=ROOT)
    options: Any = {"mode": mode, "logging_callback": log, "log_level": "info"}
    async with Client(stdio_client(server), **options) as client:
        tools = (await client.list_tools()).tools
        result = await client.call_tool("count", {"to": 3}, progress_callback=report)
        spoken = client.session.protocol_version

    assert [each.name for each in tools] == ["count", "hold"]
    assert result.content[0].text == "3"  # type: ignore[union-attr]
    assert version == spoken
    assert received == [1, 2, 3]
    assert logged == ["counting"]


def test_stdio_keeps_its_output_to_itself() -> None:
    """Output of `print`, or of a tool's subprocess, goes to stderr; standard input is empty."""
    done = subprocess.run(
        SERVER,
        input=line(modern("tools/call", {"name": "count", "arguments": {"to": 1}})),
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        timeout=PATIENCE * 4,
        check=True,
    )

    said = [json.loads(each) for each in done.stdout.splitlines()]
    assert [each["id"] for each in said if "id" in each] == [1]
    for noise in (b"before", b"printed", b"child", b"written", b"stdin: ''"):
        assert noise in done.stderr


def test_stdio_cancels_what_is_open_when_its_input_ends() -> None:
    """It ends with 0, soon, and a hook that waits is cancelled."""
    done = subprocess.run(
        SERVER,
        input=line(modern("tools/call", {"name": "hold", "arguments": {}})),
        cwd=ROOT,
        env=ENVIRONMENT,
        capture_output=True,
        timeout=PATIENCE * 4,
        check=True,
    )

    assert done.stdout == b""
    assert b"hold was cancelled" in done.stderr


def test_stdio_reads_files_and_writes_files(tmp_path: Path) -> None:
    """Neither can be waited for as a pipe can."""
    asked = tmp_path / "asked"
    asked.write_bytes(line(modern("server/discover")) * 3)
    with asked.open() as its_input, (tmp_path / "said").open("wb") as its_output:
        subprocess.run(
            SERVER,
            stdin=its_input,
            stdout=its_output,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            env=ENVIRONMENT,
            timeout=PATIENCE * 4,
            check=True,
        )

    said = [json.loads(each) for each in (tmp_path / "said").read_bytes().splitlines()]
    assert [
        each["result"]["_meta"]["io.modelcontextprotocol/serverInfo"]["name"] for each in said
    ] == ["test"] * 3


# Both eras on one pipe.


async def test_stdio_serves_both_eras_at_once() -> None:
    """Each request with a version in `_meta` is modern, also within a legacy session."""
    async with piped(echo) as wires:
        welcome = await wires.initialize("2025-06-18")
        wires.send(request("tools/call", {"name": "echo", "arguments": {"text": "a"}}, id=1))
        legacy = await wires.answer(1)
        current = await wires.ask("tools/call", {"name": "echo", "arguments": {"text": "b"}}, id=2)

    assert welcome["result"]["protocolVersion"] == "2025-06-18"
    assert legacy["result"].keys() == {"content"}
    assert (current["result"]["resultType"], text_of(current)) == ("complete", "b")


async def test_stdio_allows_only_pings_before_initialization() -> None:
    """2025-11-25, lifecycle, "Initialization"."""
    async with piped(echo) as wires:
        wires.send(request("ping", id=1), request("tools/list", id=2))
        answers = {
            answer["id"]: answer for answer in (await wires.receive(), await wires.receive())
        }

    pong, refused = answers[1], answers[2]
    assert pong == {"jsonrpc": "2.0", "id": 1, "result": {}}
    assert (refused["id"], refused["error"]["code"]) == (2, -32600)
    assert "initialize" in refused["error"]["message"]


async def test_stdio_begins_anew_when_it_is_initialized_again() -> None:
    """The last negotiated revision counts; changes are announced once."""
    suite = Suite(name="test", version="1", tools=[echo])
    async with piped_mux(Mux(suite)) as wires:
        await wires.initialize("2025-03-26")
        await wires.initialize("2025-11-25")
        wires.send([request("ping")])
        refused = await wires.receive()

    assert "2025-11-25 has no batches" in refused["error"]["message"]


@pytest.mark.parametrize(
    ("sent", "code", "id"),
    [
        (b"garbage\n", -32700, None),
        (b'{"jsonrpc":"2.0","id":3,"method":5}\n', -32600, 3),
        (line(modern("nothing/here", id=4)), -32601, 4),
        (line(modern("tools/call", {"name": "nobody"}, id=5)), -32602, 5),
        (line([modern("ping", id=6)]), -32600, None),
        (b'{"jsonrpc":"2.0","id":"7","method":"x","params":"%b"}\n' % (b"x" * 2000), -32600, "7"),
        (b'{"jsonrpc":"2.0","params":{"id":8,"x":"%b"},"id":9}\n' % (b"x" * 2000), -32600, None),
        (line({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}), -32602, 1),
    ],
)
async def test_stdio_refuses_and_goes_on(sent: bytes, code: int, id: Any) -> None:
    """Every message that is wrong costs itself only; one too large is named if its id was seen."""
    async with piped(echo, max_body_bytes=1000) as wires:
        wires.send(sent)
        refused = await wires.receive()
        fine = await wires.ask("server/discover", id="fine")

    assert (code, id) == (refused["error"]["code"], refused.get("id"))
    assert fine["id"] == "fine"


async def test_stdio_null_params_are_absent_ones() -> None:
    """On a pipe as over HTTP, for requests and notifications."""
    async with piped(echo) as wires:
        wires.send(line({"jsonrpc": "2.0", "method": "notifications/initialized", "params": None}))
        wires.send(line({"jsonrpc": "2.0", "id": 1, "method": "ping", "params": None}))
        answer = await wires.receive()

    assert answer == {"jsonrpc": "2.0", "id": 1, "result": {}}


async def test_stdio_names_an_unknown_method() -> None:
    """In `data` too, for programs, as over HTTP."""
    async with piped(echo) as wires:
        wires.send(line(modern("nothing/here", id=4)))
        refused = await wires.receive()

    assert refused["error"]["data"] == {"method": "nothing/here"}


async def test_stdio_ignores_what_asks_for_nothing() -> None:
    """Responses to nothing, unknown notifications, malformed and late cancellations."""
    async with piped(echo) as wires:
        wires.send(
            {"jsonrpc": "2.0", "id": 1, "result": {}},
            {"jsonrpc": "2.0", "method": "notifications/initialized"},
            cancelled(77),
            cancelled({}),
            {"jsonrpc": "2.0", "method": "notifications/none"},
        )
        await wires.initialize()
        wires.send({"jsonrpc": "2.0", "id": 1, "result": {}})
        await wires.ask("server/discover", id=2)

    assert [each["id"] for each in wires.received] == ["hello", 2]


async def test_stdio_reads_split_lines_and_a_last_one_without_newline() -> None:
    """Bytes arrive as they like."""
    async with piped(echo) as wires:
        for byte in line(modern("server/discover", id=1)):
            wires.send(bytes([byte]))
        await wires.answer(1)
        wires.send(line(modern("server/discover", id=2))[:-1])
        wires.hang_up()
        assert (await wires.answer(2))["id"] == 2


async def test_stdio_answers_a_batch_in_one_message() -> None:
    """2025-03-26, basic, "Batching": faulty members are answered too, notifications are not."""
    call = {"name": "echo", "arguments": {"text": "a"}}
    async with piped(echo) as wires:
        await wires.initialize("2025-03-26")
        wires.send(
            [
                request("tools/call", call, id=1),
                request("nothing", id=2),
                {},
                cancelled(5),
            ],
            [cancelled(6)],
        )
        while not isinstance(answers := await wires.receive(), list):
            assert "id" not in answers

    assert {each.get("id") for each in answers} == {1, 2, None}
    assert next(text_of(each) for each in answers if each.get("id") == 1) == "a"


async def test_stdio_batch_has_a_bound() -> None:
    """Past 100 messages nothing of it runs; a few requests run at a time."""
    async with piped(echo, max_result_bytes=3000) as wires:
        await wires.initialize("2025-03-26")
        wires.send([request("ping", id=number) for number in range(101)])
        while "error" not in (refused := await wires.receive()):
            pass
        text = {"name": "echo", "arguments": {"text": "x" * 1500}}
        wires.send([request("tools/call", text, id=number) for number in range(3)])
        while not isinstance(answers := await wires.receive(), list):
            assert "method" in answers

    assert "more than 100 messages" in refused["error"]["message"]
    first, *others = sorted(answers, key=lambda each: each["id"])
    assert text_of(first) == "x" * 1500
    assert len(others) == 2
    assert all(
        "3000 bytes (limit: max_result_bytes)" in each["error"]["message"] for each in others
    )


# Calls.


async def test_stdio_cancels_a_call_which_then_says_nothing_more() -> None:
    """2026-07-28, stdio, "Cancellation": MUST NOT send any further messages for it."""
    wait = Wait()
    level = {"io.modelcontextprotocol/logLevel": "debug"}
    async with piped(wait) as wires:
        wires.send(modern("tools/call", {"name": "wait"}, id=1, **level))
        await seen(wait.begun)
        wires.send(cancelled(1))
        await seen(wait.cancelled)
        await wires.ask("server/discover", id=2)

    assert [each.get("id") for each in wires.received] == [2]


async def test_stdio_cancels_a_call_that_has_not_begun() -> None:
    """Both come in one go: its hook never runs."""
    wait = Wait()
    async with piped(wait) as wires:
        await wires.initialize()
        wires.send(line(request("tools/call", {"name": "wait"}, id=1)) + line(cancelled(1)))
        await wires.ask("server/discover", id=2)
        wires.hang_up()
        await wires.serving

    assert not wait.begun.is_set()
    assert [each.get("id") for each in wires.received] == ["hello", 2]


@pytest.mark.parametrize("version", ["2024-11-05", "2025-11-25"])
async def test_stdio_cancels_what_is_open_at_the_end(version: str) -> None:
    """After the end of the input no client reads the response, in any revision."""
    wait = Wait()
    async with piped(wait) as wires:
        await wires.initialize(version)
        wires.send(request("tools/call", {"name": "wait"}, id=1))
        await seen(wait.begun)
        wires.hang_up()
        await seen(wait.cancelled)


async def test_stdio_asks_a_legacy_client_by_a_request() -> None:
    """2025-11-25: the question is a line, and so is its answer."""
    async with piped(Ask()) as wires:
        await wires.initialize(elicitation={})
        wires.send(request("tools/call", {"name": "ask"}, id=1))
        asked = await wires.receive()
        answer = {"action": "accept", "content": {}}
        wires.send({"jsonrpc": "2.0", "id": asked["id"], "result": answer})
        answered = await wires.answer(1)

    assert asked["method"] == "elicitation/create"
    assert text_of(answered) == "went on"


async def test_stdio_withdraws_the_question_of_a_cancelled_call() -> None:
    """A question of a cancelled call is withdrawn."""
    async with piped(Ask()) as wires:
        await wires.initialize(elicitation={})
        wires.send(request("tools/call", {"name": "ask"}, id=1))
        asked = await wires.receive()
        wires.send(cancelled(1))
        told = await wires.receive()

    assert told["method"] == "notifications/cancelled"
    assert asked["id"] == told["params"]["requestId"]


async def test_stdio_asks_a_modern_client_in_rounds() -> None:
    """2026-07-28: the question is a result, the answer comes with the request sent again."""
    able: dict[str, Any] = {"elicitation": {}}
    async with piped(Ask()) as wires:
        wires.send(modern("tools/call", {"name": "ask"}, id=1, capabilities=able))
        asked = (await wires.answer(1))["result"]
        (key,) = asked["inputRequests"]
        again = {
            "name": "ask",
            "requestState": asked["requestState"],
            "inputResponses": {key: {"action": "accept", "content": {}}},
        }
        wires.send(modern("tools/call", again, id=2, capabilities=able))
        answered = await wires.answer(2)

    assert asked["resultType"] == "input_required"
    assert text_of(answered) == "went on"


async def test_stdio_gives_a_handle_of_a_task() -> None:
    """A client with the extension polls, over the same pipe."""
    async with piped(Slow()) as wires:
        wires.send(modern("tools/call", {"name": "slow"}, id=1, capabilities=TASKS))
        task = (await wires.answer(1))["result"]
        async with asyncio.timeout(PATIENCE):
            while True:
                wires.send(modern("tasks/get", {"taskId": task["taskId"]}, 2, TASKS))
                found = (await wires.answer(2))["result"]
                if found["status"] != "working":
                    break

    assert task["resultType"] == "task"
    assert found["result"]["content"][0]["text"] == "done slowly"


async def test_stdio_promotes_a_call_that_takes_long() -> None:
    """Its client gets a handle; from then on only `tasks/cancel` reaches it."""

    class Patient(Wait):
        promote_after = 0.01

    wait = Patient()
    async with piped(wait) as wires:
        wires.send(modern("tools/call", {"name": "wait"}, id=1, capabilities=TASKS))
        task = (await wires.answer(1))["result"]
        wires.send(cancelled(1))
        found = {"taskId": task["taskId"]}
        wires.send(modern("tasks/get", found, 2, TASKS))
        working = (await wires.answer(2))["result"]["status"]
        assert not wait.cancelled.is_set()
        wires.send(modern("tasks/cancel", found, 3, TASKS))
        await wires.answer(3)
        await seen(wait.cancelled)

    assert (task["resultType"], working) == ("task", "working")
    assert [each["id"] for each in wires.received if "id" in each] == [1, 2, 3]


async def test_stdio_gives_up_a_task_with_its_client() -> None:
    """A call that has become one is stopped too: its process ends."""

    class Patient(Wait):
        promote_after = 0.01

    wait = Patient()
    mux = Mux(Suite(name="test", version="1", tools=[wait]))
    async with piped_mux(mux) as wires:
        wires.send(modern("tools/call", {"name": "wait"}, id=1, capabilities=TASKS))
        task = (await wires.answer(1))["result"]
        wires.hang_up()
        await seen(wait.cancelled)
        await wires.serving
        record = await mux.tasks.service.get(task["taskId"], None)

    assert record.status == "failed"


async def test_stdio_bounds_the_calls_that_run() -> None:
    """Past the limit an error names it; lists are still served."""
    wait = Wait()
    async with piped(wait, max_waiting_calls=1) as wires:
        wires.send(modern("tools/call", {"name": "wait"}, id=1))
        await seen(wait.begun)
        refused = await wires.ask("tools/call", {"name": "wait"}, id=2)
        listed = await wires.ask("tools/list", id=3)

    assert "limit: max_waiting_calls" in refused["error"]["message"]
    assert listed["result"]["tools"][0]["name"] == "wait"


async def test_stdio_lets_a_slow_reader_wait_without_growing() -> None:
    """Unread progress is replaced by newer; all other messages are sent, in order."""
    size = 300_000
    level = {"io.modelcontextprotocol/logLevel": "debug"}
    call = {"name": "fill", "arguments": {"size": size}}
    async with piped(fill, write_buffer_bytes=1000) as wires:
        wires.send(*(modern("tools/call", call, id, **level, progressToken=id) for id in range(5)))
        answers = [await wires.answer(id) for id in range(5)]

    assert [size] * 5 == [len(text_of(each)) for each in answers]
    logs = [each for each in wires.received if each.get("method") == "notifications/message"]
    assert len(logs) == 5


async def test_stdio_gives_up_a_client_that_reads_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """After `Limits.write_timeout` seconds: it ends as at the end of the input, with a warning."""
    wait = Wait()
    call = {"name": "fill", "arguments": {"size": 300_000}}
    async with piped(fill, wait, write_timeout=0.2) as wires:
        wires.send(modern("tools/call", {"name": "wait"}, id=1))
        wires.send(modern("tools/call", call, id=2))
        await asyncio.wait_for(asyncio.shield(wires.serving), PATIENCE)

    assert wait.cancelled.is_set()
    assert "nothing for 0.2 seconds (limit: write_timeout)" in caplog.text


def read_to_the_end(descriptor: int) -> int:
    size = 0
    while part := os.read(descriptor, 65_536):
        size += len(part)
    return size


async def test_stdio_writes_nothing_into_a_file_opened_later(tmp_path: Path) -> None:
    """A file may get the number of the output while the thread of a write still waits."""
    call = {"name": "fill", "arguments": {"size": 300_000}}
    async with piped(fill, write_timeout=0.2) as wires:
        kept = os.dup(wires.from_server)  # the client goes on later
        wires.send(modern("tools/call", call, id=1))
        await asyncio.wait_for(asyncio.shield(wires.serving), PATIENCE)
    with ExitStack() as opened:
        files = [tmp_path / str(n) for n in range(8)]
        for each in files:
            opened.enter_context(each.open("wb"))
        async with asyncio.timeout(PATIENCE):
            assert await asyncio.to_thread(read_to_the_end, kept) > 0
        os.close(kept)

    assert [each.stat().st_size for each in files] == [0] * 8


async def test_stdio_keeps_a_client_that_reads_slowly() -> None:
    """It reads something in each `Limits.write_timeout`, although a message takes longer."""
    call = {"name": "fill", "arguments": {"size": 300_000}}
    async with piped(fill, write_timeout=1.0) as wires:
        wires.send(modern("tools/call", call, id=1))
        answer = b""
        while not answer.endswith(b"\n"):
            await asyncio.sleep(0.1)  # the pace of the client
            assert not wires.serving.done(), "the server has closed the connection"
            part = await asyncio.to_thread(os.read, wires.from_server, 16_384)
            assert part, "the server has hung up"
            answer += part

    assert len(text_of(json.loads(answer.split(b"\n")[-2]))) == 300_000


async def test_stdio_ends_when_nobody_reads_its_output() -> None:
    """The client has closed its end: messages are dropped."""
    async with piped(echo) as wires:
        os.close(wires.from_server)
        wires.send(modern("server/discover"))
        await asyncio.wait_for(asyncio.shield(wires.serving), PATIENCE)
        wires.send(modern("server/discover"))
        wires.from_server = os.dup(wires.to_server)  # released when the pipe is closed


# Notifications without a subscription.


async def test_stdio_streams_what_a_modern_client_listens_for() -> None:
    """Each notification names its subscription; after its cancellation none is sent."""
    suite = Suite(name="test", version="1", tools=[echo])
    async with piped_mux(Mux(suite)) as wires:
        for id in (1, 2):
            wanted = {"notifications": {"toolsListChanged": True}}
            wires.send(modern("subscriptions/listen", wanted, id=id))
            begun = await wires.receive()
            assert begun["method"] == "notifications/subscriptions/acknowledged"
        wires.send(cancelled(1))
        await wires.ask("server/discover", id=3)
        suite.add(fill)
        changed = await wires.receive()
        wires.hang_up()
        ended = await wires.answer(2)

    named = {"io.modelcontextprotocol/subscriptionId": 2}
    assert changed["method"] == "notifications/tools/list_changed"
    assert named == changed["params"]["_meta"]
    assert named.items() <= ended["result"]["_meta"].items()


async def test_stdio_tells_a_legacy_client_of_changes() -> None:
    """Once it has sent `notifications/initialized`."""
    suite = Suite(name="test", version="1", tools=[echo])
    mux = Mux(suite)
    async with piped_mux(mux) as wires:
        await wires.initialize()
        wires.send(request("ping", id=1))
        await wires.answer(1)
        await until(lambda: mux.subscriptions._listeners)
        suite.add(fill)
        changed = await wires.receive()

    assert changed["method"] == "notifications/tools/list_changed"


async def test_stdio_refuses_a_stream_too_many() -> None:
    """`Limits.max_streams` counts here too."""
    wanted = {"notifications": {"toolsListChanged": True}}
    async with piped(echo, max_streams=1) as wires:
        wires.send(modern("subscriptions/listen", wanted, id=1))
        await wires.receive()
        refused = await wires.ask("subscriptions/listen", wanted, id=2)

    assert "limit: max_streams" in refused["error"]["message"]


async def test_stdio_survives_a_store_that_cannot_be_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A stream gets an error, as over HTTP; requests that need no store get their results."""
    mux = Mux(Suite(name="test", version="1", tools=[echo]))

    async def fail(*operations: Any, **options: Any) -> Any:
        raise StoreUnavailable("no store")

    monkeypatch.setattr(mux.store, "apply", fail)
    monkeypatch.setattr(mux.store, "read", fail)
    async with piped_mux(mux) as wires:
        await wires.initialize()
        wanted = {"notifications": {"toolsListChanged": True}}
        ended = await wires.ask("subscriptions/listen", wanted, id=2)
        fine = await wires.ask("server/discover", id=3)

    assert {ended["id"], fine["id"]} == {2, 3}
    assert ended["error"]["code"] == -32603
    assert "result" in fine


async def test_stdio_ends_the_session_before_another_one() -> None:
    """Its subscriptions are deleted at once: no client can end a session of a pipe by itself."""

    class Keeping(MemoryStore):
        async def apply(self, *ops: Op) -> None:
            await super().apply(*ops)
            kept.update(each.key for each in ops if isinstance(each, Put))
            kept.difference_update(each.key for each in ops if isinstance(each, Delete))

    kept: set[str] = set()
    suite = Suite(name="test", version="1", resources=[Resource("note://today", content="Rain.")])
    async with piped_mux(Mux(suite, store=Keeping())) as wires:
        await wires.initialize()
        wires.send(request("resources/subscribe", {"uri": "note://today"}, id=1))
        await wires.answer(1)
        (subscribed,) = (each for each in kept if each.endswith("#resources"))
        await wires.initialize()
        await until(lambda: subscribed not in kept)


@pytest.mark.parametrize("again", ["notifications/initialized", "resources/subscribe"])
async def test_stdio_notifications_resume_after_a_store_fault(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, again: str
) -> None:
    """A session over a pipe lives as long as its process: it has no stream to open anew."""
    suite = Suite(name="test", version="1", resources=[Resource("note://today", content="Rain.")])
    mux = Mux(suite)

    async def fail(*operations: Any, **options: Any) -> Any:
        raise StoreUnavailable("no store")

    async with piped_mux(mux) as wires:
        with monkeypatch.context() as fault:
            fault.setattr(mux.store, "apply", fail)
            await wires.initialize()
            await until(lambda: "a session gets no more notifications" in caplog.text)
        if again == "resources/subscribe":
            wires.send(request(again, {"uri": "note://today"}, id=1))
            await wires.answer(1)
        else:
            wires.send({"jsonrpc": "2.0", "method": again})
        await until(lambda: mux.subscriptions._listeners)
        suite.add(echo)
        changed = await wires.receive()

    assert changed["method"] == "notifications/tools/list_changed"


# Over descriptors of every kind.


async def test_streams_may_be_files(tmp_path: Path) -> None:
    """Which an event loop cannot wait for."""
    asked, said = tmp_path / "asked", tmp_path / "said"
    asked.write_bytes(line(modern("server/discover", id=1)) + line(modern("tools/list", id=2)))
    with asked.open("rb") as its_input, said.open("wb") as its_output:
        streams = its_input.fileno(), its_output.fileno()
        await serve_stdio(Suite(name="test", version="1", tools=[echo]), streams=streams)

    assert [json.loads(each)["id"] for each in said.read_bytes().splitlines()] == [1, 2]


async def test_streams_may_be_sockets_that_are_reset() -> None:
    """That is an end like any other."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        streams = theirs.fileno(), theirs.fileno()
        serving = asyncio.create_task(serve_stdio(Suite(name="t", version="1"), streams=streams))
        ours.send(line(modern("server/discover", id=1)))
        assert b'"id":1' in await asyncio.to_thread(ours.recv, 1 << 16)
        ours.close()
        await asyncio.wait_for(serving, PATIENCE)


@pytest.mark.parametrize("kind", [os.pipe, socket_pair])
async def test_streams_may_be_such_as_do_not_block(kind: Any) -> None:
    """The parent process shares them, and may rely on their mode: no output is lost."""
    its_input, to_server = kind()
    from_server, its_output = kind()
    for each in (its_input, its_output):
        os.set_blocking(each, False)
    serving = asyncio.create_task(
        serve_stdio(Suite(name="test", version="1", tools=[fill]), streams=(its_input, its_output))
    )
    wires = Wires(to_server, from_server, serving)
    try:
        call = {"name": "fill", "arguments": {"size": 1_000_000}}
        wires.send(modern("tools/call", call, id=1))
        for id in range(2, 40):  # more than the pipe has room for, in small pieces
            wires.send(modern("server/discover", id=id))
        answered = [await wires.receive() for _ in range(39)]
        wires.hang_up()
        await asyncio.wait_for(serving, PATIENCE)
    finally:
        for each in (its_input, from_server, its_output):
            os.close(each)

    (filled,) = (each for each in answered if each["id"] == 1)
    assert text_of(filled) == "y" * 1_000_000


async def test_stdio_flood_of_short_lines_leaves_others_their_turns() -> None:
    """However many a client sends at once, the server reads some, and other tasks run."""
    async with piped() as wires:
        await wires.ask("server/discover")
        async with HeldLoop.watch() as loop:
            wires.send(b"0\n" * 20_000)
            await wires.ask("server/discover", id=2)

    assert len(wires.received) == 20_002
    assert loop.longest < MAX_HELD


async def test_stdio_wait_for_room_ends_when_there_is_some() -> None:
    """Also if the buffer has become full while an earlier part of it was written."""
    ours, theirs = os.pipe()
    limits = Limits(write_buffer_bytes=100_000)
    writer = DescriptorWriter(theirs, limits, on_drain=lambda: None, on_close=lambda: None)
    writing = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(ours, writing.set)
    try:
        writer.put(b"x" * 90_000)  # more than the pipe has room for
        await seen(writing)
        writer.put(b"x" * 90_000)
        assert writer.full
        loop.remove_reader(ours)
        reading = asyncio.to_thread(read_exactly, ours, 180_002)
        async with asyncio.timeout(PATIENCE):
            await asyncio.gather(writer.room(), reading)
        await writer.finish(PATIENCE)
    finally:
        for each in (ours, theirs):
            os.close(each)


async def test_streams_read_by_another_process_are_not_at_their_end() -> None:
    """Two processes that share a non-blocking pipe are both woken for data of one of them."""
    first, to_both = os.pipe()
    second = os.dup(first)
    os.set_blocking(first, False)
    try:
        reading = [asyncio.ensure_future(DescriptorReader(each).read()) for each in (first, second)]
        await asyncio.sleep(0)
        os.write(to_both, b"one")
        await asyncio.wait(reading, timeout=PATIENCE, return_when=asyncio.FIRST_COMPLETED)
        os.write(to_both, b"two")
        read = await asyncio.wait_for(asyncio.gather(*reading), PATIENCE)
    finally:
        for each in (first, second, to_both):
            os.close(each)

    assert sorted(read) == [b"one", b"two"]


async def test_streams_that_cannot_be_read_are_at_their_end(tmp_path: Path) -> None:
    """A file that is only written to, for one."""
    with (tmp_path / "said").open("wb") as file:
        streams = file.fileno(), file.fileno()
        await asyncio.wait_for(
            serve_stdio(Suite(name="test", version="1"), streams=streams), PATIENCE
        )


class Faulty(Suite):
    """Cannot find anything."""

    def find(self, method: str, key: str) -> Any:
        raise ValueError("a defect")


async def test_stdio_survives_a_server_that_finds_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """An exception costs one request, and is only in the log."""
    call = {"name": "echo", "arguments": {}}
    async with piped_mux(Mux(Faulty(name="test", version="1", tools=[echo]))) as wires:
        failed = await wires.ask("tools/call", call, id=1)
        await wires.initialize("2025-03-26")
        wires.send([request("tools/call", call, id=2), request("ping", id=3)])
        answers = await wires.receive()

    assert [each["error"]["code"] for each in (failed, answers[0])] == [-32603, -32603]
    assert "a defect" not in str([failed, answers])
    assert "a defect" in caplog.text
    assert answers[1]["result"] == {}


async def test_stdio_tells_of_a_defect_by_a_reference(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It costs one request."""

    async def fail(call: PipedCall) -> None:
        raise ValueError("a defect")

    async with piped(echo) as wires:
        with monkeypatch.context() as patched:
            patched.setattr(PipedCall, "run", fail)
            failed = await wires.ask("tools/list", id=1)
        fine = await wires.ask("tools/list", id=2)

    assert failed["error"]["data"]["reference"] in caplog.text
    assert "a defect" not in failed["error"]["message"]
    assert fine["result"]["tools"][0]["name"] == "echo"


async def test_partial_result_is_sent_before_on_cancel() -> None:
    """A client that has closed its side still reads, and `on_cancel` may take longer than that."""
    waits, cleaning = asyncio.Event(), asyncio.Event()

    class Partial(Tool):
        """Returns a partial result when it is cancelled."""

        name = "partial"

        async def call(self, request: Any, channel: Channel) -> str:
            waits.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                return "half of it"
            return "unreachable"

        async def on_cancel(self, channel: Channel) -> None:
            cleaning.set()
            await asyncio.sleep(30)

    async with piped(Partial(), grace=0.01) as wires:
        wires.send(modern("tools/call", {"name": "partial"}))
        await waits.wait()
        wires.hang_up()
        response = await wires.answer(1)

    assert response["result"]["content"][0]["text"] == "half of it"
    assert cleaning.is_set()
