"""The proxy of `genmcp inspect`, in front of real servers of other kinds."""

import asyncio
import shlex
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from genmcp import Accepted, Client, ClientHandler, Endpoint, Suite
from genmcp.cli.inspect import inspect_server, proxied
from genmcp.cli.target import ResolvedTarget, parse_target
from genmcp.client.errors import ClientError
from genmcp.client.options import ClientOptions
from genmcp.errors import ConfigurationError
from tests.cli import shop
from tests.support.asgi import PATIENCE
from tests.support.serving import serve

Run = Callable[..., tuple[int, str, str]]

ROOT = Path(__file__).parents[2]
SHOP = "tests.cli.shop:suite"
STDIO = shlex.join([sys.executable, "-m", "genmcp", "serve", SHOP, "--stdio"])
OTHER = shlex.join([sys.executable, str(Path(__file__).with_name("other_sdk.py"))])


def resolved(target: str) -> ResolvedTarget:
    return ResolvedTarget(target=parse_target(target).target, options=ClientOptions())


@asynccontextmanager
async def inspected(target: str) -> AsyncIterator[str]:
    """The address of the console for *target*."""
    address: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    running: asyncio.Future[Any] = asyncio.create_task(
        inspect_server(resolved(target), address.set_result)
    )
    try:
        async with asyncio.timeout(PATIENCE * 2):
            await asyncio.wait({running, address}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
            yield address.result()
    finally:
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


@asynccontextmanager
async def served(kind: str) -> AsyncIterator[str]:
    """The shop as a target of one kind."""
    if kind == "url":
        async with serve(Endpoint(shop.suite)) as url:
            yield f"{url}/mcp"
    else:
        yield {"module": SHOP, "stdio": STDIO}[kind]


class Traveller(ClientHandler):
    """Answers the form of the shop."""

    async def handle_elicitation_create(self, message: str, schema: Any) -> Any:
        return Accepted({"name": "Ann", "meals": ["dinner"]})


@pytest.mark.parametrize("kind", ["module", "stdio", "url"])
async def test_inspect_serves_the_server_and_its_page(kind: str) -> None:
    """Names, texts and capabilities are those of the server; calls, progress, logs, questions."""
    logs: list[Any] = []
    steps: list[Any] = []

    class Handler(Traveller):
        async def handle_log(self, message: Any) -> None:
            logs.append(message.data)

    async def progress(done: float, total: float | None, message: str | None) -> None:
        steps.append((done, total, message))

    async with served(kind) as target, inspected(target) as url:
        async with httpx.AsyncClient() as http:
            page = await http.get(url, headers={"accept": "text/html"})
        options = ClientOptions(log_level="debug")
        async with Client(url, handler=Handler(), options=options) as client:
            info = client.server_info
            assert info is not None
            assert (info.name, info.version, client.instructions) == ("shop", "2", "Buy something.")
            names = [tool.name for tool in await client.tools()]
            result = await client.call("add", {"a": 1, "b": 2}, progress=progress)
            booked = await client.call("book")
            greeting = await client.read("greeting://Oslo")
            prompt = await client.prompt("greet", {"city": "Rome"})

    assert page.status_code == 200
    assert "<!doctype html>" in page.text.lower()
    assert names == ["add", "fail", "draw", "data", "plan", "book", "get_call_result"]
    assert result.data == 3
    assert steps == [(1, 2, "half")]
    assert "adding" in str(logs)
    assert booked.text == "Ann: dinner"
    assert "Hello Oslo" in str(greeting)
    assert "Greet Rome" in str(prompt)


async def test_inspect_serves_a_server_of_another_implementation() -> None:
    """One of the Python SDK over stdio, which has tools only."""
    async with inspected(OTHER) as url, Client(url, handler=Traveller()) as client:
        assert [tool.name for tool in await client.tools()] == ["shout"]
        assert (await client.call("shout", {"text": "hi"})).text == "HI"
        assert client.server_info is not None
        assert client.server_info.name == "other"


@pytest.mark.parametrize(
    ("change", "status"),
    [
        (lambda url, headers: (url.replace("/mcp", "x/mcp"), headers), 404),
        (lambda url, headers: (f"{url.rpartition('/')[0].rpartition('/')[0]}/mcp", headers), 404),
        (lambda url, headers: (url, {**headers, "host": "evil.example"}), 421),
        (lambda url, headers: (url, {**headers, "origin": "http://127.0.0.1:1"}), 403),
        (lambda url, headers: (url, {**headers, "origin": "null"}), 403),
    ],
)
async def test_inspect_refuses_strangers(
    change: Callable[[str, dict[str, str]], Any], status: int
) -> None:
    """Pages of other sites and ports, and clients without the token, get nothing."""
    async with inspected(SHOP) as url, httpx.AsyncClient() as http:
        changed, headers = change(url, {"accept": "text/html"})
        refused = await http.get(changed, headers=headers)
        posted = await http.post(changed, headers=headers, json={})
        token = url.split("/")[3]

    assert (refused.status_code, refused.content) == (status, b"")
    assert posted.status_code == status
    assert len(token) >= 32


async def test_inspect_has_a_new_token_in_each_run() -> None:
    """An address in a browser's history is of no use later."""
    async with inspected(SHOP) as first, inspected(SHOP) as second:
        assert first.split("/")[3] != second.split("/")[3]


async def test_inspect_reports_an_unreachable_server() -> None:
    """Before anything is served; a port in use, too."""
    with pytest.raises(ClientError):
        async with inspected("http://127.0.0.1:9/mcp"):
            pass
    async with inspected(SHOP) as url:
        port = int(url.split(":")[2].partition("/")[0])
        with pytest.raises(ConfigurationError, match=f"--port {port}"):
            await inspect_server(resolved(SHOP), lambda _: None, port=port)


async def test_inspect_notifies_of_changes() -> None:
    """A change of the server behind the proxy reaches the clients of the proxy."""
    suite = Suite(name="parts", version="1", tools=[shop.add])
    async with (
        serve(Endpoint(suite)) as url,
        proxied(resolved(f"{url}/mcp"), lambda _: None) as mux,
        Client(mux) as client,
        client.listen(tools=True) as changes,
    ):
        suite.add(shop.fail)
        async with asyncio.timeout(PATIENCE):
            assert (await anext(changes)).method.endswith("tools/list_changed")
        assert [tool.name for tool in await client.tools()] == ["add", "fail"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_inspect_command_ends_with_a_signal(number: int) -> None:
    """It writes the address, and its server's process ends with it; a page may be open."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "genmcp", "inspect", STDIO, "--no-browser"),
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE * 3):
            url = (await process.stdout.readline()).decode().strip()
            async with Client(url) as client, client.listen(tools=True):
                assert (await client.call("add", {"a": 1, "b": 2})).data == 3
                process.send_signal(number)
                _, noise = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    assert process.returncode == 0, noise
    assert b"Traceback" not in noise
    assert b"Ctrl-C ends this" in noise


def test_inspect_command_reports_an_unreachable_server(run: Run) -> None:
    """In the same words as other commands."""
    status, said, noise = run("inspect", "http://127.0.0.1:9/mcp", "--no-browser")

    assert (status, said) == (1, "")
    assert noise.startswith("genmcp: ")
    assert "127.0.0.1:9" in noise
    assert run("inspect", "no-such-command")[0] == 2
