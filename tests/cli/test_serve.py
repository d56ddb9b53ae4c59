"""`genmcp serve`: real processes, over HTTP and over standard streams."""

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import httpx
import pytest
from starlette.applications import Starlette

from genmcp import Endpoint, Mux, Suite
from genmcp.cli.command import main
from genmcp.cli.serve import ServeOptions, create_app, serve_http, serve_until_stopped
from genmcp.errors import StoreUnavailable
from tests.support.asgi import PATIENCE, until
from tests.support.pipes import line, modern
from tests.support.sockets import Connection, called

pytestmark = pytest.mark.slow

SHOP = """
print("imported")
import asyncio, sys
from genmcp import *

@tool
async def add(a: int, b: int) -> int:
    return a + b

from contextvars import ContextVar
marked = ContextVar("marked", default="unset")

@tool
async def mark() -> str:
    before = marked.get()
    marked.set("set")
    return before

@tool
async def hold() -> str:
    print("held", flush=True)
    try:
        await asyncio.Event().wait()
    finally:
        print("let go", flush=True)
    return ""

@tool
def stuck() -> str:
    import threading
    print("held", flush=True)
    threading.Event().wait()
    return ""

suite = Suite(name="shop", version="1", tools=[add, mark, hold, stuck])
mux = Mux(suite)
endpoint = Endpoint(mux)
"""

ENDPOINT = Endpoint(Suite(name="test", version="1"))
APPLICATION = Starlette()
BUILT = Endpoint(Suite(name="built", version="1"))


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP)
    return tmp_path


@contextmanager
def started(*options: str, cwd: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Give a server, a process of its own, which is killed if it has not ended by then.

    Its workers are killed as well.
    """
    command = [sys.executable, "-m", "genmcp", "serve", *options]
    environment = {"PYTHONPATH": str(Path(__file__).parents[2])}
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command,
        cwd=cwd,
        env={**os.environ, **environment},
        stdin=pipe,
        stdout=pipe,
        stderr=pipe,
        start_new_session=True,
    ) as process:
        try:
            yield process
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def call(name: str) -> bytes:
    return line(modern("tools/call", {"name": name, "arguments": {}}))


async def status_of(url: str, more: Mapping[str, str] | None = None) -> int:
    """Return the status of a listing with *more* headers, once the server responds."""
    headers = {
        **(more or {}),
        "accept": "application/json, text/event-stream",
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/list",
    }
    async with httpx.AsyncClient() as http, asyncio.timeout(PATIENCE * 2):
        while True:
            try:
                answer = await http.post(url, json=modern("tools/list"), headers=headers)
            except httpx.ConnectError:
                await asyncio.sleep(0.02)  # it has not started: there is no event for that
            else:
                return answer.status_code


@pytest.mark.parametrize(
    "options",
    [("shop:suite",), ("shop:endpoint", "--path", "/tools"), ("shop:mux", "--workers", "2")],
)
async def test_serve_serves_over_http(shop: Path, free_port: int, options: tuple[str, ...]) -> None:
    """A server, an endpoint, or a mux by several processes; SIGTERM ends them."""
    with started(*options, "--port", str(free_port), cwd=shop) as process:
        path = options[2] if "--path" in options else "/mcp"
        assert await status_of(f"http://127.0.0.1:{free_port}{path}") == 200
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=PATIENCE * 2)

    assert (b"GENMCP_STORE" in said) is ("--workers" in options)
    assert b"no secret" not in said
    # One format for all; one line a request, which names the method if genmcp makes the mux.
    dated = re.compile(rb"\d{4}-\d\d-\d\d [\d:,]+ (INFO|WARNING) |  ")
    assert all(map(dated.match, said.splitlines())), said
    assert (b"tools/list ended" in said) is (options == ("shop:suite",))
    assert (b'"POST ' in said) is (options != ("shop:suite",))


@pytest.mark.parametrize(
    ("options", "status"),
    [((), 421), (("--forwarded-allow-ips", "127.0.0.1"), 200)],
)
@pytest.mark.parametrize("workers", [(), ("--workers", "2")], ids=["one", "two"])
async def test_serve_ignores_forwarded_headers_by_default(
    shop: Path, free_port: int, options: tuple[str, ...], status: int, workers: tuple[str, ...]
) -> None:
    """A page that claims to be remote would get past the check of Host (DNS rebinding)."""
    if workers and not options:
        options = ("--host", "127.0.0.1")
    claim = {"x-forwarded-for": "203.0.113.5", "host": "evil.example"}
    with started("shop:mux", *options, *workers, "--port", str(free_port), cwd=shop):
        url = f"http://127.0.0.1:{free_port}/mcp"
        assert await status_of(url) == 200
        assert await status_of(url, claim) == status


async def test_serve_gives_pipelined_requests_contexts_of_their_own(
    shop: Path, free_port: int
) -> None:
    """A ContextVar that a hook sets is unset in the next request of the connection."""
    with started("shop:suite", "--port", str(free_port), cwd=shop):
        await status_of(f"http://127.0.0.1:{free_port}/mcp")
        async with await Connection.open(f"http://127.0.0.1:{free_port}") as connection:
            await connection.send(called("mark", {}, id=1) + called("mark", {}, id=2))
            answers = [await (await connection.response()).body() for _ in range(2)]
    assert [b"unset" in each for each in answers] == [True, True]


def test_serve_over_streams_redirects_output_of_imports(shop: Path) -> None:
    """Output of the module goes to stderr, and the process ends with its input."""
    with started("shop:suite", "--stdio", cwd=shop) as process:
        said, noise = process.communicate(line(modern("tools/list", id=7)), PATIENCE * 2)

    (answer,) = map(json.loads, said.splitlines())
    assert (answer["id"], answer["result"]["tools"][0]["name"]) == (7, "add")
    assert b"imported" in noise
    assert process.returncode == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_serve_over_streams_ends_on_a_signal(shop: Path, number: int) -> None:
    """Open requests are cancelled, and the exit status is 0."""
    with started("shop:suite", "--stdio", cwd=shop) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(call("hold"))
        process.stdin.flush()
        while b"held" not in process.stderr.readline():
            pass
        process.send_signal(number)
        noise = process.stderr.read()

        assert process.wait(PATIENCE) == 0
    assert b"let go" in noise


def test_serve_over_streams_ends_despite_a_thread(shop: Path) -> None:
    """A `def` hook cannot be cancelled; the process does not wait for it."""
    with started("shop:suite", "--stdio", cwd=shop) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(call("stuck"))
        process.stdin.flush()
        while b"held" not in process.stderr.readline():
            pass
        process.stdin.close()

        assert process.wait(PATIENCE * 2) == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["nowhere:mux"], "there is no module"),
        (["nowhere:mux", "--stdio"], "there is no module"),
        (["tests.cli.test_serve:SHOP"], "name a Mux"),
        (["shop:suite", "--path", "mcp"], "does not begin with a slash"),
        (["shop:suite", "--port", "x"], "'x' is not a valid integer"),
        (["shop:suite", "--port", "99999"], "is not in the range 0<=x<=65535"),
        (["shop:suite", "--workers", "0"], "0 is not in the range x>=1"),
        (
            ["shop:suite", "--workers", "2", "--reload"],
            "--reload cannot be combined",
        ),
        (["shop:suite", "--stdio", "--port", "80"], "--stdio cannot be combined"),
        (["tests.cli.test_serve:ENDPOINT", "--allowed-host", "a"], "is an Endpoint; set the hosts"),
        (
            ["tests.cli.test_serve:APPLICATION"],
            "; uvicorn tests.cli.test_serve:APPLICATION serves this application",
        ),
    ],
)
def test_serve_reports_configuration_errors(
    options: list[str], said: str, capfd: pytest.CaptureFixture[str]
) -> None:
    """With 2, on standard error."""
    with pytest.raises(SystemExit) as ended:
        main(["serve", *options])

    assert ended.value.code == 2
    assert said in capfd.readouterr().err


async def test_serve_closes_endpoint_and_mux(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker process gets its options from its environment."""
    monkeypatch.setenv("GENMCP_SERVE", '{"target":"tests.cli.shop:suite","path":"/tools"}')
    app = create_app()
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as http:
            assert (await http.get("/mcp")).status_code == 404
            assert (await http.post("/tools/", content=b"{}")).status_code != 404


def test_serve_passes_options_to_uvicorn(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Several processes make an application each, with the secret that was made for all."""
    run: list[Any] = []
    monkeypatch.setattr("uvicorn.run", lambda app, **options: run.append((app, options)))
    for name in ("GENMCP_SERVE", "GENMCP_SECRET"):
        monkeypatch.setenv(name, "")  # which is as good as none
    main(["serve", "tests.cli.shop:suite", "--workers", "3", "--port", "1234"])
    secret = os.environ["GENMCP_SECRET"]
    main(["serve", "tests.cli.shop:suite", "--reload", "--host", "0.0.0.0"])

    (many, together), (again, alone) = run
    assert {many, again} == {"genmcp.cli.serve:create_app"}
    assert (together["workers"], together["host"], together["port"]) == (3, "127.0.0.1", 1234)
    assert (alone["reload"], alone["host"], alone["port"]) == (True, "0.0.0.0", 8000)
    assert "the 3 workers do not share" in caplog.text
    assert len(secret) > 32


@pytest.mark.parametrize(("error", "status"), [(KeyboardInterrupt(), 0), (SystemExit(3), 1)])
def test_serve_ends_with_a_status_of_its_own(
    error: BaseException, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """0 after an interrupt; 1 if uvicorn cannot serve."""

    def run(self: Any) -> None:
        self.started = not status
        raise error

    monkeypatch.setattr("uvicorn.Server.run", run)

    assert status == serve_http(ServeOptions(target="tests.cli.shop:suite"))


@pytest.mark.parametrize("options", [(), ("--workers", "2"), ("--reload",)])
def test_serve_that_cannot_listen_fails(options: tuple[str, ...]) -> None:
    """With the same status, however many processes there were to be."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = ["serve", "tests.cli.shop:suite", "--port", port, *options]
        ended = subprocess.run(
            [sys.executable, "-m", "genmcp", *command],
            stderr=subprocess.PIPE,
            check=False,
            timeout=PATIENCE,
        )

    assert ended.returncode == 1
    assert b"already in use" in ended.stderr


def test_serve_over_streams_needs_streams(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A closed stream is reported."""
    monkeypatch.setattr("sys.stdout", None)
    with pytest.raises(SystemExit):
        main(["serve", "tests.cli.shop:suite", "--stdio"])

    assert capfd.readouterr().err == "genmcp: --stdio: standard output is closed\n"


async def test_serve_logs_its_url_once_it_listens(shop: Path) -> None:
    """With the port it got; from then on requests are served. SIGINT is not a failure."""
    with started("shop:suite", "--port", "0", cwd=shop) as process:
        assert process.stderr is not None
        while not (found := re.search(rb"serving shop:suite at (\S+)", process.stderr.readline())):
            pass
        async with httpx.AsyncClient() as http:
            assert (await http.post(found[1].decode(), content=b"{")).status_code == 415
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE * 2)

    assert process.returncode == 0


@pytest.mark.parametrize("workers", ["1", "2"])
def test_serve_fails_where_it_cannot_listen(workers: str, shop: Path) -> None:
    """With 1, and the option that helps."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        options = ("--port", port, "--workers", workers)
        with started("shop:suite", *options, cwd=shop) as process:
            _, said = process.communicate(timeout=PATIENCE * 2)

    assert process.returncode == 1
    assert b"address already in use" in said.lower()
    assert b"choose another address with --port or --host" in said
    assert b"serving" not in said


async def test_serve_starts_anew_when_a_file_changes(shop: Path) -> None:
    """With --reload."""
    starts: list[bytes] = []

    def read(lines: IO[bytes]) -> None:
        for each in lines:
            if b"startup complete" in each:
                starts.append(each)  # noqa: PERF401 - one at a time, as they come

    def changed() -> bool:
        if len(starts) == 1:  # there is no event for the start of the file watch
            (shop / "shop.py").write_text(SHOP.replace("imported", "changed"))
        return len(starts) > 1

    with started("shop:suite", "--port", "0", "--reload", cwd=shop) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        reading = threading.Thread(target=read, args=(process.stderr,))
        reading.start()
        # Longer than a start on a busy machine, which a further change would interrupt.
        await until(changed, pause=3.0, bound=30.0)
        process.send_signal(signal.SIGTERM)
        reading.join(PATIENCE * 2)

        assert b"changed" in process.stdout.read()


async def test_serve_answers_to_the_hosts_that_are_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """And to no other."""
    monkeypatch.setenv(
        "GENMCP_SERVE", '{"target":"tests.cli.shop:suite","allowed_hosts":["a.example"]}'
    )
    app = create_app()
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app)) as http,
    ):
        assert (await http.post("http://a.example/mcp", content=b"{")).status_code == 415
        assert (await http.post("http://b.example/mcp", content=b"{")).status_code == 421


@pytest.mark.parametrize("target", ["tests.cli.shop:suite", "tests.cli.test_serve:BUILT"])
@pytest.mark.parametrize(("option", "status"), [("true", 200), ("false", 405)])
async def test_serve_has_a_page_for_browsers_if_asked(
    target: str, option: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is off by default, since it shows strangers what the server offers."""
    monkeypatch.setattr(BUILT, "console", False)
    monkeypatch.setenv("GENMCP_SERVE", f'{{"target":"{target}","console":{option}}}')
    app = create_app()
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app)) as http,
    ):
        answer = await http.get("http://127.0.0.1/mcp", headers={"accept": "text/html"})

    assert answer.status_code == status


@pytest.mark.parametrize("told", [False, True])
async def test_serve_over_streams_closes_the_mux(told: bool, tmp_path: Path) -> None:
    """Whether its input ends or a signal stops it. A closed mux has closed its store."""
    its_input, to_server = os.pipe()
    store, secret = f"sqlite:///{tmp_path / 'test.db'}", "a secret of at least 16 bytes"
    mux = Mux(Suite(name="test", version="1"), store=store, secret=secret)
    assert await mux.store.get("key") is None
    serving = asyncio.create_task(serve_until_stopped(mux, (its_input, its_input)))
    try:
        await asyncio.sleep(0)
        if told:
            signal.raise_signal(signal.SIGTERM)
        else:
            os.close(to_server)
        await asyncio.wait_for(serving, PATIENCE)
    finally:
        if told:
            os.close(to_server)
        os.close(its_input)
    with pytest.raises(StoreUnavailable):
        await mux.store.get("key")
