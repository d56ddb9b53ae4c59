"""A server that shuts down in good order hands its jobs to other processes, however mounted."""

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from pathlib import Path
from typing import Any

import httpx
import pytest

from genmcp import Channel, Endpoint, JobOptions, Mux, Suite, Tool, ToolRequest
from genmcp.tasks.worker import WorkerState
from tests.support.asgi import TASKS, Client, until
from tests.transports.handing_on import SECRET, mux

pytestmark = pytest.mark.slow

APPS = "tests.transports.handing_on"
ROOT = Path(__file__).parents[2]
START = 20.0  # seconds for a process to come up on a busy machine


@asynccontextmanager
async def running(
    folder: Path, *command: str, **environment: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        *command,
        cwd=ROOT,
        env={**os.environ, "FOLDER": str(folder), **environment},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def begin(url: str, folder: Path) -> str:
    """Call the tool once the server is up, and return the id of the task."""
    client = Client(None, capabilities=TASKS)
    message = client.call("work", {"folder": str(folder)})
    headers = {**client._headers(message), "host": "localhost"}
    async with asyncio.timeout(START), httpx.AsyncClient(timeout=START) as http:
        while True:
            with suppress(httpx.TransportError):
                answer = await http.post(url, json=message, headers=headers)
                id: str = answer.json()["result"]["taskId"]
                return id
            await asyncio.sleep(0.05)


async def seen(url: str) -> None:
    """Send a request, if the server is up."""
    client = Client(None)
    message = client.request("tools/list")
    headers = {**client._headers(message), "host": "localhost"}
    async with httpx.AsyncClient(timeout=START) as http:
        with suppress(httpx.TransportError):
            await http.post(url, json=message, headers=headers)
    await asyncio.sleep(0.05)


async def attempt(folder: Path, number: int) -> int:
    """Wait for an attempt at the job, and return the id of the process that makes it."""
    path = folder / f"attempt {number}"
    await until(lambda: path.exists() and path.read_text(), pause=0.02, bound=START)
    return int(path.read_text())


async def ended(process: asyncio.subprocess.Process) -> None:
    async with asyncio.timeout(START):
        await process.wait()


async def result(folder: Path, id: str) -> Any:
    """Let the job end in this process, and return the result of its call."""
    (folder / "go").touch()
    here = mux(folder)
    endpoint = Endpoint(here)
    client = Client(endpoint, capabilities=TASKS)
    async with asyncio.timeout(START):
        response = {"status": "working"}
        while response["status"] == "working":
            answer = await client.send(client.request("tasks/get", {"taskId": id}))
            response = answer.json["result"]
            await asyncio.sleep(0.02)
    await endpoint.aclose()
    await here.aclose()
    return response["result"]["content"][0]["text"]  # type: ignore[index]


UVICORN = [["uvicorn", f"{APPS}:{app}"] for app in ("routed", "bare", "twice")]
# Here the jobs have the five seconds that they have by default.
DEFAULT = [["uvicorn", f"{APPS}:of_suite", "--timeout-graceful-shutdown", "1"]]
COMMANDS = [
    ["genmcp", "serve", f"{APPS}:shared", "--path", "/"],
    ["genmcp", "serve", f"{APPS}:of_suite_alone", "--path", "/", "--grace", "0.1"],
]


@pytest.mark.parametrize(
    "command", [*UVICORN, *DEFAULT, *COMMANDS], ids=lambda command: " ".join(command[:2])
)
async def test_server_that_is_terminated_hands_on_its_jobs(
    command: list[str], tmp_path: Path, free_port: int
) -> None:
    """With the default of `on_worker_lost`, and before any lease of 60 s has run out."""
    async with running(tmp_path, *command, "--port", str(free_port)) as server:
        id = await begin(f"http://127.0.0.1:{free_port}/", tmp_path)
        assert server.pid == await attempt(tmp_path, 1)
        server.terminate()
        await ended(server)

    assert await result(tmp_path, id) == "attempt 2"


async def test_server_that_is_interrupted_hands_on_its_jobs(tmp_path: Path, free_port: int) -> None:
    """Ctrl-C is not a crash either."""
    async with running(tmp_path, *UVICORN[0], "--port", str(free_port)) as server:
        id = await begin(f"http://127.0.0.1:{free_port}/", tmp_path)
        assert server.pid == await attempt(tmp_path, 1)
        server.send_signal(signal.SIGINT)
        await ended(server)

    assert await result(tmp_path, id) == "attempt 2"


async def test_host_that_is_started_again_goes_on_with_its_jobs(
    tmp_path: Path, free_port: int
) -> None:
    """In the same process, with its first request."""
    async with running(tmp_path, APPS, PORT=str(free_port)) as server:
        url = f"http://127.0.0.1:{free_port}/"
        await begin(url, tmp_path)
        assert server.pid == await attempt(tmp_path, 1)
        server.send_signal(signal.SIGINT)
        async with asyncio.timeout(START):
            while not (tmp_path / "attempt 2").exists():
                await seen(url)
        assert server.pid == await attempt(tmp_path, 2)


async def test_jobs_go_on_while_another_endpoint_serves(tmp_path: Path) -> None:
    """Endpoints may share a mux: the first that is closed does not take the work along."""
    here = mux(tmp_path)
    first, second = Endpoint(here), Endpoint(here)
    clients = [Client(each, capabilities=TASKS) for each in (first, second)]
    await clients[1].send(clients[1].request("tools/list"))
    call = clients[0].call("work", {"folder": str(tmp_path)})
    id = (await clients[0].send(call)).json["result"]["taskId"]
    await attempt(tmp_path, 1)

    await first.aclose()
    (tmp_path / "go").touch()

    assert not here.tasks.worker.dormant
    response = await clients[1].send(clients[1].request("tasks/get", {"taskId": id}))
    assert response.json["result"]["status"] in ("working", "completed")
    assert await result(tmp_path, id) == "attempt 1"
    await second.aclose()
    assert here.tasks.worker.dormant
    await here.aclose()


class Long(Tool):
    """Runs until the test ends it, as a task."""

    name = "long"
    task = "always"

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def call(self, request: ToolRequest, channel: Channel) -> str:
        await self.go.wait()
        return "done"


async def test_call_that_is_a_task_keeps_its_grace(tmp_path: Path) -> None:
    """Jobs are handed on at once. Meanwhile the process is alive to others, which would take the
    calls that run in it for lost."""

    def serving(tool: Tool) -> Mux:
        return Mux(
            Suite(name="long", version="1", tools=[tool]),
            store=f"sqlite:///{tmp_path}/jobs.db",
            jobs=JobOptions(shutdown_grace=0.0),
            secret=SECRET,
        )

    here, there = serving(long := Long()), serving(Long())
    endpoint, elsewhere = Endpoint(here, grace=START), Endpoint(there)
    client, other = (Client(each, capabilities=TASKS) for each in (endpoint, elsewhere))

    async def response() -> Any:
        got = await other.send(other.request("tasks/get", {"taskId": id}))
        return got.json["result"]

    async with client.open(client.call("long")) as connection:
        await until(lambda: connection.complete, pause=0.01)
        id = connection.json["result"]["taskId"]
        await here.tasks.service.start()
        closing = asyncio.create_task(endpoint.aclose())
        await until(lambda: here.tasks.worker.state is WorkerState.STOPPING, pause=0.01)
        for _ in range(5):
            assert (await response())["status"] == "working"
            await asyncio.sleep(0.02)
        long.go.set()
        await closing

    assert (await response())["result"]["content"][0]["text"] == "done"
    for each in (here, there):
        await each.aclose()


class Server:
    """The attributes of a uvicorn server that concern its exit."""

    def __init__(self, limit: int | None) -> None:
        self.server_state = self
        self.config = self
        self.timeout_graceful_shutdown = limit
        self.tasks: set[asyncio.Task[None]] = set()


@pytest.mark.parametrize("closes", ["the endpoint", "the mux", "the mux, on another loop"])
async def test_exit_of_uvicorn_waits_for_the_jobs(
    closes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the first request on until they were handed on, or the mux was closed."""
    server = Server(3)
    monkeypatch.setattr("genmcp._transports.shutdown.uvicorn_server", lambda: server)
    endpoint = Endpoint(here := mux(tmp_path))
    client = Client(endpoint)
    for _ in range(2):
        await client.send(client.request("tools/list"))
        assert len(server.tasks) == 1
        match closes:
            case "the endpoint":
                await endpoint.aclose()
            case "the mux":
                await here.tasks.aclose()
            case _:
                await asyncio.to_thread(asyncio.run, here.tasks.aclose())
        await until(lambda: not server.tasks, pause=0.01)
    await here.aclose()


async def test_exit_of_uvicorn_waits_for_the_last_endpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Endpoints of one process delay it together, also with a mux each."""
    server = Server(3)
    monkeypatch.setattr("genmcp._transports.shutdown.uvicorn_server", lambda: server)
    muxes = [mux(tmp_path), mux(tmp_path)]
    endpoints = [Endpoint(each) for each in muxes]
    for _ in range(2):  # they can be used again
        for endpoint in endpoints:
            client = Client(endpoint)
            await client.send(client.request("tools/list"))
        assert len(server.tasks) == 2
        await endpoints[0].aclose()
        await until(lambda: len(server.tasks) == 1, pause=0.01)
        await endpoints[1].aclose()
        await until(lambda: not server.tasks, pause=0.01)
    for each in muxes:
        await each.aclose()


async def test_work_on_jobs_does_not_keep_the_first_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its context variables may refer to large objects, and nothing that lasts refers to them."""
    variable: ContextVar[str] = ContextVar("request")
    loop: Any = asyncio.get_running_loop()
    contexts: dict[asyncio.Task[Any], Context] = {}

    def recording(loop: Any, coro: Any, *, context: Context | None = None) -> asyncio.Task[Any]:
        context = copy_context() if context is None else context  # an empty one is falsy
        task = asyncio.Task(coro, loop=loop, context=context)
        contexts[task] = context
        return task

    async def first() -> None:
        variable.set("first")
        await client.send(client.request("tools/list"))

    server, endpoint = Server(3), Endpoint(here := mux(tmp_path))
    client = Client(endpoint)
    monkeypatch.setattr("genmcp._transports.shutdown.uvicorn_server", lambda: server)
    loop.set_task_factory(recording)
    await asyncio.create_task(first())
    loop.set_task_factory(None)

    lasting = [context for task, context in contexts.items() if not task.done()]
    lasting += [timer._context for timer in loop._scheduled if not timer.cancelled()]
    assert server.tasks
    lasting += [context for each in server.tasks for _, context in each._callbacks]
    assert not any(variable in context for context in lasting)
    await here.tasks.service.start()
    await endpoint.aclose()
    await here.aclose()
