"""Shutdown: open calls, streams and sessions end in order."""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from genmcp import Channel, Tool, ToolRequest, tool
from genmcp._transports import shutdown
from genmcp._transports.shutdown import Shutdown
from genmcp._transports.timers import TICK
from tests.support.asgi import Client, serving, until

pytestmark = pytest.mark.slow

SERVER = '''
import asyncio
import json
import signal
import sys

import uvicorn
from sse_starlette.sse import AppStatus  # as a host with event streams of its own imports it
from starlette.applications import Starlette

from genmcp import Channel, Endpoint, Suite, tool


@tool
async def work(seconds: float, channel: Channel, stream: bool = True) -> str:
    """Works."""
    if stream:
        channel.start_stream()
    print("working", flush=True)
    await asyncio.sleep(seconds)
    return f"done {AppStatus.should_exit}"


class Server(uvicorn.Server):
    async def startup(self, sockets=None):
        await super().startup(sockets)
        print("ready", flush=True)


port, grace, runs = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
options = json.loads(sys.argv[4])
suite = Suite(name="test", version="1", tools=[work])
for _ in range(runs):
    routes = [Endpoint(suite, grace=grace).route(path) for path in ("/mcp", "/other")]
    try:
        app = Starlette(routes=routes)
        Server(uvicorn.Config(app, port=port, log_level="error", **options)).run()
    except KeyboardInterrupt:
        pass
print("over", flush=True)
'''


class Process:
    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self.process = process
        self.url = f"http://127.0.0.1:{port}"

    async def says(self, word: str) -> None:
        assert self.process.stdout is not None
        async with asyncio.timeout(20):
            assert f"{word}\n".encode() == await self.process.stdout.readline()

    async def ended(self) -> bytes:
        """Wait for the end, and return the output on stderr."""
        assert self.process.stderr is not None
        async with asyncio.timeout(20):
            await self.process.wait()
            return await self.process.stderr.read()


@asynccontextmanager
async def running(port: int, grace: float, runs: int = 1, **options: Any) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        SERVER,
        *map(str, (port, grace, runs)),
        json.dumps(options),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    found = Process(process, port)
    try:
        await found.says("ready")
        yield found
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


def headers(client: Client, message: Any) -> dict[str, str]:
    return {**client._headers(message), "host": "localhost"}


async def call(http: httpx.AsyncClient, url: str, **arguments: Any) -> httpx.Response:
    client = Client(None)
    message = client.call("work", arguments)
    return await http.post(url, json=message, headers=headers(client, message))


async def listening(http: httpx.AsyncClient, url: str) -> httpx.Response:
    client = Client(None, "2025-11-25")
    message = client.initialize()
    begun = await http.post(url, json=message, headers=headers(client, message))
    client.session = begun.headers["mcp-session-id"]
    request = http.build_request("GET", url, headers=headers(client, None))
    return await http.send(request, stream=True)


RELOADED = '''
from genmcp import Endpoint, Suite, tool


@tool
async def version() -> str:
    """Tells which code runs."""
    return "{version}"


app = Endpoint(Suite(name="test", version="1", tools=[version]), grace=10)
'''


async def test_shutdown_for_a_reload_ends_streams_and_serves_new_code(
    free_port: int, tmp_path: Path
) -> None:
    """`uvicorn --reload`: an open stream does not hold it up, and its client comes back."""
    module = tmp_path / "reloaded.py"
    module.write_text(RELOADED.format(version="old"), encoding="utf-8")
    command = ["-m", "uvicorn", "reloaded:app", "--reload", "--port", str(free_port)]
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        cwd=tmp_path,
        stderr=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    url = f"http://127.0.0.1:{free_port}/"

    async def told(http: httpx.AsyncClient) -> str:
        client = Client(None)
        message = client.call("version")
        answer = await http.post(url, json=message, headers=headers(client, message))
        return str(answer.json()["result"]["content"][0]["text"])

    async def until_served(http: httpx.AsyncClient, version: str) -> None:
        async with asyncio.timeout(20):
            while True:
                with suppress(httpx.ConnectError, httpx.RemoteProtocolError, httpx.ReadError):
                    if version == await told(http):
                        return
                await asyncio.sleep(0.05)

    try:
        async with httpx.AsyncClient(timeout=20) as http:
            await until_served(http, "old")
            listener = await listening(http, url)
            ended = asyncio.create_task(listener.aread())
            async with asyncio.timeout(20):
                while True:  # the reloader may not look yet
                    # Of another length: within one second, bytecode is outdated by that alone.
                    module.write_text(RELOADED.format(version="newer"), encoding="utf-8")
                    if (await asyncio.wait({ended}, timeout=0.5))[0]:
                        break

            assert ended.result() == b""  # to its last chunk, or httpx would raise
            await until_served(http, "newer")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        await process.communicate()


async def test_shutdown_ends_listeners_at_once_and_lets_calls_finish(free_port: int) -> None:
    """SIGTERM: idle streams end properly, calls get the grace period, the process exits."""
    async with running(free_port, grace=10) as server, httpx.AsyncClient(timeout=20) as http:
        listeners = [await listening(http, f"{server.url}{path}") for path in ("/mcp", "/other")]
        held = [
            asyncio.create_task(call(http, f"{server.url}{path}", seconds=2.0, stream=stream))
            for path, stream in (("/mcp", True), ("/other", False))
        ]
        await server.says("working")
        await server.says("working")
        began = time.monotonic()
        server.process.send_signal(signal.SIGTERM)

        for listener in listeners:
            assert await listener.aread() == b""  # to its last chunk, or httpx would raise
        ended = time.monotonic() - began
        answers = [await each for each in held]
        errors = await server.ended()

    assert ended < 1.9
    assert all("done" in answer.text for answer in answers)
    assert time.monotonic() - began < 8
    assert errors == b""


async def test_shutdown_past_its_grace_answers_with_an_error(free_port: int) -> None:
    """A call that does not finish in time ends with an error its client can read."""
    async with running(free_port, grace=0.2) as server, httpx.AsyncClient(timeout=20) as http:
        held = [
            asyncio.create_task(call(http, f"{server.url}/mcp", seconds=600, stream=stream))
            for stream in (True, False)
        ]
        await server.says("working")
        await server.says("working")
        server.process.send_signal(signal.SIGTERM)
        streamed, plain = [await each for each in held]
        errors = await server.ended()

    assert streamed.status_code == 200
    assert "shutting down" in streamed.text
    assert (plain.status_code, plain.headers["retry-after"]) == (503, "1")
    assert plain.json()["error"]["code"] == -32603
    assert errors == b""


async def test_server_after_one_that_exited_streams(free_port: int) -> None:
    """The exit concerns one server, although sse-starlette has one state for the process."""
    async with running(free_port, grace=0, runs=2) as server:
        async with httpx.AsyncClient(timeout=20) as http:
            listener = await listening(http, f"{server.url}/mcp")
            server.process.send_signal(signal.SIGINT)
            await listener.aread()
        await server.says("ready")
        async with httpx.AsyncClient(timeout=20) as http:
            answer = await call(http, f"{server.url}/mcp", seconds=1.5)
            again = asyncio.create_task(call(http, f"{server.url}/mcp", seconds=600))
            await server.says("working")
            await server.says("working")
            server.process.send_signal(signal.SIGINT)
            ended = await again
        await server.says("over")

    assert "done True" in answer.text  # the flag, which is not ours to reset
    assert "shutting down" in ended.text


async def test_server_that_served_its_last_request_exits(free_port: int) -> None:
    """uvicorn's `limit_max_requests`, with which gunicorn renews workers, sends no signal."""
    async with (
        running(free_port, grace=0, limit_max_requests=2) as server,
        httpx.AsyncClient(timeout=20) as http,
    ):
        listener = await listening(http, f"{server.url}/mcp")
        await call(http, f"{server.url}/mcp", seconds=0, stream=False)
        assert await listener.aread() == b""
        await server.ended()

    assert server.process.returncode == 0


class Held(Tool):
    """Waits until it is released."""

    name = "held"

    def __init__(self) -> None:
        self.waits = asyncio.Event()
        self.go = asyncio.Event()

    async def call(self, request: ToolRequest, channel: Channel) -> str:
        self.waits.set()
        await self.go.wait()
        return "done"


async def test_aclose_does_the_same_without_a_signal() -> None:
    """Listeners end at once, a call finishes, and then aclose returns."""
    held = Held()
    endpoint = serving(held)
    client = await Client.begin(endpoint, "2025-11-25")
    async with client.listen() as listener, client.open(client.call("held")) as connection:
        await listener.started()
        await held.waits.wait()
        closing = asyncio.create_task(endpoint.aclose())
        await listener.over()
        assert not closing.done()
        held.go.set()
        await connection.over()
        await closing

    assert listener.complete
    assert connection.json["result"]["content"][0]["text"] == "done"
    await endpoint.aclose()  # a second time, nothing is open


@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
async def test_aclose_past_its_grace_ends_calls(version: str) -> None:
    """With an error that names the shutdown, on every revision."""
    held = Held()
    endpoint = serving(held, grace=0)
    client = await Client.begin(endpoint, version)
    async with client.open(client.call("held")) as connection:
        await held.waits.wait()
        await endpoint.aclose()
        await connection.over()

    assert connection.status == (503 if version == "2026-07-28" else 200)
    assert connection.json["error"]["code"] == -32603


async def test_aclose_of_a_call_whose_client_left_keeps_the_error() -> None:
    """Who comes back for the answer reads that the server went away."""

    @tool
    async def held(channel: Channel) -> str:
        await channel.log("error", "begun")
        await asyncio.Event().wait()
        return ""

    endpoint = serving(held, grace=0)
    client = await Client.begin(endpoint, "2025-11-25")
    async with client.open(client.call("held")) as connection:
        await connection.message()
        connection.disconnect()
        await endpoint.aclose()
        await connection.over()

    async with client.listen(after=connection.ids[-1]) as resumed:
        await resumed.over()

    (error,) = resumed.messages
    assert error["error"]["code"] == -32603
    assert "shutting down" in error["error"]["message"]


class Item:
    """An open resource, which ends when the test decides."""

    stopped = False

    def stop(self) -> None:
        self.stopped = True


async def test_what_opens_while_the_server_ends_is_ended_too() -> None:
    """An idle stream at once; a call when the time of all calls is over."""
    found = Shutdown(grace=0.05)
    first, late, call, last = Item(), Item(), Item(), Item()
    found.add(first.stop)
    ending = asyncio.create_task(found.stop())
    await asyncio.sleep(0)

    found.add(late.stop, idle=True)
    found.add(call.stop)
    assert (late.stopped, call.stopped) == (True, False)
    await until(lambda: call.stopped, pause=0.01)
    found.add(last.stop)
    assert (first.stopped, last.stopped) == (True, True)
    for item in (first, late, call, last):
        found.discard(item.stop)
    await ending


def test_loops_that_died_are_forgotten() -> None:
    """A resource of a loop that was closed is not kept."""
    found = Shutdown(grace=1)

    def run(step: Callable[[], None]) -> None:
        loop = asyncio.new_event_loop()
        loop.call_soon(step)
        loop.call_soon(loop.stop)
        loop.run_forever()
        loop.close()

    run(lambda: found.add(Item().stop, idle=True))
    run(lambda: found.add(Item().stop, idle=True))

    assert len(found._loops) == 1


class Server:
    """The attributes of a uvicorn server that show its exit."""

    def __init__(self) -> None:
        self.should_exit = False
        self.looks = 0

    @property
    def servers(self) -> list[asyncio.Server]:
        self.looks += 1
        return []


async def test_server_is_watched_only_while_something_is_open(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The watch ends with the last open response, and a second response starts it again."""
    server = Server()
    monkeypatch.setattr(shutdown, "_POLL", 0.001)
    monkeypatch.setattr(shutdown, "uvicorn_server", lambda: server)
    found = Shutdown(grace=10)
    one, two = Item(), Item()

    found.add(one.stop, idle=True)
    await until(lambda: server.looks > 2, pause=0.001)
    found.discard(one.stop)
    looks, server.should_exit = server.looks, True
    for _ in range(10):
        await asyncio.sleep(0.001)
    assert (looks, False) == (server.looks, one.stopped)

    found.add(two.stop, idle=True)
    await until(lambda: two.stopped, pause=0.001)
    found.discard(two.stop)


def test_handler_of_another_library_is_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host may handle SIGTERM itself, by a function or by a method of anything."""
    for handler in (signal.SIG_DFL, print, asyncio.Event().set, None):
        monkeypatch.setattr(signal, "getsignal", lambda _, handler=handler: handler)
        assert shutdown.uvicorn_server() is None
    assert not shutdown.is_exiting(None)


async def test_lifespan_ends_what_is_open() -> None:
    """Where the host forwards its lifespan, that announces the end."""
    said: list[str] = []
    asked = ["lifespan.startup", "lifespan.shutdown"]

    @tool
    async def nothing() -> None:
        """Does nothing."""

    async def receive() -> Any:
        return {"type": asked.pop(0)}

    async def send(message: Any) -> None:
        said.append(message["type"])

    await serving(nothing)({"type": "lifespan"}, receive, send)

    assert said == ["lifespan.startup.complete", "lifespan.shutdown.complete"]


async def test_shutdown_ends_a_body_that_its_client_does_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An open call may answer with one JSON body; `write_timeout` would hold the exit for 60 s."""
    monkeypatch.setattr("genmcp._transports.request.LAST_WORDS", 0.01)

    @tool
    async def outlasts_a_tick() -> str:
        """Waits until its call is open."""
        await asyncio.sleep(2 * TICK)
        return "done"

    client = Client(serving(outlasts_a_tick, grace=0))
    async with client.open(client.call("outlasts_a_tick")) as connection:
        connection.reading.clear()
        await until(lambda: len(client.app.mux.waiting_calls) == 1)
        await until(lambda: len(client.app.mux.waiting_calls) == 0)

        await client.app.aclose()
        await connection.over()

    assert not connection.complete


async def test_shutdown_ends_a_stream_that_its_client_does_not_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names the shutdown as the reason, not `Limits.write_timeout`."""
    monkeypatch.setattr("genmcp._transports.request.LAST_WORDS", 0.01)
    caplog.set_level("INFO", "genmcp")

    @tool
    async def never_returns(channel: Channel) -> str:
        """Begins its stream."""
        channel.start_stream()
        await asyncio.Event().wait()
        return ""

    client = Client(serving(never_returns, grace=0))
    async with client.open(client.call("never_returns")) as connection:
        await connection.started()
        connection.reading.clear()

        await client.app.aclose()
        await connection.over()

    assert "has read nothing (shutdown)" in caplog.text


async def test_host_does_not_wait_for_a_client_that_cancelled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The stream of a cancelled call has no response, but an end, which its client does not read.

    `Limits.write_timeout` would hold the host for 60 s.
    """
    monkeypatch.setattr("genmcp._transports.request.LAST_WORDS", 0.01)
    cancelled = asyncio.Event()

    @tool
    async def cleans_up(channel: Channel) -> str:
        """Begins its stream, and cleans up for ever when it is cancelled."""
        channel.start_stream()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            await asyncio.Event().wait()
        return ""

    client = await Client.begin(serving(cleans_up), "2025-11-25")
    async with client.open(client.call("cleans_up", id=7)) as connection:
        await connection.started()
        connection.reading.clear()
        await client.send(client.notification("notifications/cancelled", requestId=7))
        await cancelled.wait()
        connection.task.cancel()
        await asyncio.wait([connection.task])

    assert connection.task.cancelled()
