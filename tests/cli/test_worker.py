"""`genmcp worker`: processes that run jobs, killed and stopped."""

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from genmcp import ConfigurationError, Endpoint, JobOptions, Mux, Suite
from genmcp.cli.command import main
from genmcp.cli.target import load_attribute, load_mux
from genmcp.cli.worker import run_lifespan, run_worker
from genmcp.errors import StoreUnavailable
from genmcp.stores.sqlite.store import SQLiteStore
from tests.cli.studio import SECRET, studio
from tests.support.asgi import PATIENCE, Client, Connection, until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
LEGACY = "2025-11-25"


@contextmanager
def started(*options: str, cwd: Path, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    """Give a worker, a process of its own, which is killed if it has not ended by then."""
    command = [sys.executable, "-m", "genmcp", "worker", *options]
    with subprocess.Popen(command, cwd=cwd, env={**os.environ, **environment}) as process:
        try:
            yield process
        finally:
            process.kill()


class Bench:
    """A server in this process, and workers beside it, over one file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._processes = ExitStack()

    @property
    def path(self) -> Path:
        return self.folder / "studio.db"

    def worker(self, *options: str, lease: float = 60.0) -> subprocess.Popen[bytes]:
        worker = started(
            "tests.cli.studio:mux", *options, cwd=ROOT, STUDIO=str(self.path), LEASE=str(lease)
        )
        return self._processes.enter_context(worker)

    async def attempt(self, number: int) -> int:
        """Wait for an attempt at the job, and return the id of the process that makes it."""
        path = self.folder / f"attempt {number}"
        await until(lambda: path.exists() and path.read_text(), pause=0.01)
        return int(path.read_text())

    def go(self) -> None:
        """Let the job end."""
        (self.folder / "go").touch()

    @asynccontextmanager
    async def called(self, *, lease: float = 60.0) -> AsyncIterator[Connection]:
        """Call the tool; the response is held until its job is done."""
        mux = studio(self.path, "none", lease=lease)
        try:
            client = await Client.begin(Endpoint(mux), LEGACY)
            async with client.open(client.call("count", {"folder": str(self.folder)})) as call:
                yield call
        finally:
            await mux.aclose()

    def close(self) -> None:
        self._processes.close()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    bench = Bench(tmp_path)
    yield bench
    bench.close()


async def text(call: Connection) -> str:
    """Return the text of the answer."""
    await call.over()
    found: str = call.messages[-1]["result"]["content"][0]["text"]
    return found


async def exit_code(process: subprocess.Popen[bytes]) -> int:
    return await asyncio.to_thread(process.wait, PATIENCE)


async def test_job_of_a_worker_that_was_killed_is_done_by_another(bench: Bench) -> None:
    """The process that dies sends nothing: its lease expires."""
    first = bench.worker(lease=1.0)
    async with bench.called(lease=1.0) as call:
        assert first.pid == await bench.attempt(1)
        first.kill()
        second = bench.worker(lease=1.0)
        assert second.pid == await bench.attempt(2)
        bench.go()

        assert await text(call) == "counted: attempt 2"


async def test_worker_returns_jobs_when_stopped(bench: Bench) -> None:
    """After its grace it exits with 0, and another continues before the lease expires."""
    first = bench.worker("--grace", "0.1")
    async with bench.called() as call:
        await bench.attempt(1)
        first.send_signal(signal.SIGTERM)
        assert await exit_code(first) == 0

        second = bench.worker()
        assert second.pid == await bench.attempt(2)
        bench.go()

        assert await text(call) == "counted: attempt 2"


async def test_worker_finishes_jobs_when_stopped(bench: Bench) -> None:
    """Within the grace nothing is cancelled, and the result is that of the first attempt."""
    worker = bench.worker("--grace", "30")
    async with bench.called() as call:
        await bench.attempt(1)
        worker.send_signal(signal.SIGINT)
        bench.go()

        assert await text(call) == "counted: attempt 1"
        assert await exit_code(worker) == 0


async def test_worker_leaves_a_thread_that_cannot_be_cancelled(tmp_path: Path) -> None:
    """Its job was returned; the process ends although the thread is still running."""
    (tmp_path / "shop.py").write_text(
        "import threading, time\n"
        "from pathlib import Path\n"
        "from genmcp import *\n"
        "@job\n"
        "def stubborn(run: Run) -> None:\n"
        "    Path('begun').touch()\n"
        "    time.sleep(600)\n"
        "class Works(Tool):\n"
        '    """Works."""\n'
        "    name = 'works'\n"
        "    def call(self, request, channel):\n"
        "        return Continue('done', stubborn.job())\n"
        "    def continue_(self, tag, outcome, channel):\n"
        "        return str(outcome)\n"
        "async def app(scope, receive, send):\n"
        "    from tests.support.asgi import Client\n"
        "    await receive()\n"
        "    client = await Client.begin(Endpoint(mux), '2025-11-25')\n"
        "    async with client.open(client.call('works')) as call:\n"
        "        await send({'type': 'lifespan.startup.complete'})\n"
        "        await receive()\n"
        "        call.task.cancel()\n"
        "    await send({'type': 'lifespan.shutdown.complete'})\n"
        f"mux = Mux(Suite(name='shop', version='1', tools=[Works]),\n"
        f"    store='sqlite:///shop.db', secret={SECRET!r})\n"
    )
    options = ["shop:mux", "--lifespan", "shop:app", "--grace", "0"]
    with started(*options, cwd=tmp_path, PYTHONPATH=str(ROOT)) as worker:
        await until((tmp_path / "begun").exists, pause=0.01)
        worker.send_signal(signal.SIGTERM)

        assert await exit_code(worker) == 0


class App:
    """An ASGI application that records the events of its lifespan."""

    def __init__(self, *answers: dict[str, Any]) -> None:
        self.answers = list(answers)
        self.told: list[str] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        assert scope["type"] == "lifespan"
        while self.answers:
            self.told.append((await receive())["type"])
            await send(self.answers.pop(0))


STARTED = {"type": "lifespan.startup.complete"}
STOPPED = {"type": "lifespan.shutdown.complete"}


async def test_worker_works_within_a_lifespan(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The application starts first and stops last, and the options are applied."""
    caplog.set_level(logging.INFO, "genmcp")
    mux = studio(tmp_path / "studio.db", "studio")
    app = App(STARTED, STOPPED)
    options: dict[str, Any] = {"queues": ["a", "b"], "concurrency": 3, "shutdown_grace": 0.0}
    before = signal.getsignal(signal.SIGTERM)
    async with asyncio.timeout(PATIENCE):
        working = asyncio.create_task(run_worker(mux, app, **options))
        await until(lambda: "worker of studio started" in caplog.text)
        assert app.told == ["lifespan.startup"]
        os.kill(os.getpid(), signal.SIGTERM)
        await working

    assert app.told == ["lifespan.startup", "lifespan.shutdown"]
    state = f"store: {mux.store!r}, queues: a, b"
    assert state in caplog.text
    applied = mux.tasks.service.worker.options
    assert (applied.concurrency, applied.shutdown_grace) == (3, 0.0)
    assert before is signal.getsignal(signal.SIGTERM)
    with pytest.raises(StoreUnavailable):
        await mux.store.get("key")


async def test_worker_process_ends_after_a_defect(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process exits, so that its supervisor starts another."""
    caplog.set_level(logging.INFO, logger="genmcp")
    store = SQLiteStore(tmp_path / "studio.db")
    options = JobOptions(lease=1.0)
    mux = Mux(Suite(name="studio", version="1"), store=store, secret=SECRET, jobs=options)

    async def touch(key: str, ttl: float) -> bool:
        raise AttributeError("a defect")

    async with asyncio.timeout(PATIENCE):
        working = asyncio.create_task(run_worker(mux))
        await until(lambda: "worker of studio started" in caplog.text)
        monkeypatch.setattr(store, "touch", touch)
        with pytest.raises(RuntimeError, match="the worker ended unexpectedly"):
            await working
    assert "a defect" in caplog.text


async def broken(scope: Any, receive: Any, send: Any) -> None:
    raise OSError("no disk")


@pytest.mark.parametrize(
    "app", [App({"type": "lifespan.startup.failed", "message": "no disk"}), broken]
)
async def test_lifespan_startup_failure_is_reported(
    app: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """The log has the message of the application."""
    with pytest.raises(ConfigurationError, match="the application did not start"):
        async with run_lifespan(app):
            raise AssertionError("never entered")
    assert "no disk" in caplog.text


async def test_lifespan_shutdown_failure_is_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It does not keep the worker from ending; nor does one that is over already."""
    async with run_lifespan(App(STARTED, {"type": "lifespan.shutdown.failed", "message": "busy"})):
        pass
    assert "busy" in caplog.text
    caplog.clear()

    early = App(STARTED)
    async with run_lifespan(early):
        await asyncio.sleep(0)
    assert not caplog.text


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, without its modules after the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    known = {*sys.modules}
    yield tmp_path
    for name in {*sys.modules} - known:
        del sys.modules[name]


def test_target_may_be_mux_endpoint_or_server(folder: Path) -> None:
    """A Mux and an Endpoint have theirs; a server gets a new one, configured by the environment."""
    (folder / "targets.py").write_text(
        "from genmcp import Endpoint, Mux, Suite\n"
        "suite = Suite(name='shop', version='1')\n"
        "mux = Mux(suite)\n"
        "class shop:\n"
        "    endpoint = Endpoint(mux)\n"
        "number = 7\n"
    )

    mux = load_attribute("targets:mux")
    assert mux is load_mux("targets:mux")
    assert mux is load_mux("targets:shop.endpoint")
    assert load_attribute("targets:suite") is load_mux("targets:suite").server
    with pytest.raises(ConfigurationError, match="is a int: name a Mux"):
        load_mux("targets:number")


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["shop"], "'shop' is neither a file nor module:attribute"),
        ([".shop:mux"], "is neither a file nor"),
        (["shop:"], "is neither a file nor"),
        (["no_such:mux"], "there is no module 'no_such' in"),
        (["json.no_such:mux"], "there is no module 'json.no_such'"),
        (["broken:mux"], "broken:mux: Suite: name must be a text"),
        (["json:mux"], "there is no 'mux' in json"),
        (["json:dumps"], "is a function: name a Mux"),
        (["good:suite"], "give the Mux a store that the servers share"),
        (["good:suite", "--lifespan", "good:name"], "good:name is not an ASGI application: 'shop'"),
        (["good:suite", "--concurrency", "0"], "0 is not in the range x>=1"),
        (["good:suite", "--grace", "soon"], "'soon' is not a valid float"),
        (["good:suite", "--grace", "-1"], "-1.0 is not in the range"),
        (["good:suite", "--health", "127.0.0.1:70000"], "is not HOST:PORT"),
        (["good:suite", "--health", ":8081"], "':8081' is not HOST:PORT"),
    ],
)
def test_worker_reports_configuration_errors(
    arguments: list[str], why: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before it begins: with 2, on standard error."""
    (folder / "broken.py").write_text("from genmcp import Suite\nSuite(name='', version='1')")
    (folder / "good.py").write_text(
        "from genmcp import Suite\nname = 'shop'\nsuite = Suite(name=name, version='1')"
    )

    with pytest.raises(SystemExit) as ended:
        main(["worker", *arguments])

    assert ended.value.code == 2
    assert why in " ".join(capsys.readouterr().err.split())


ENDS_ITSELF = f"""
import os, signal, threading
from genmcp import *
free = threading.Event()
mux = Mux(Suite(name="shop", version="1"), store="sqlite:///shop.db", secret={SECRET!r})
async def app(scope, receive, send):
    await receive()
    os.kill(os.getpid(), signal.SIGTERM)
    await send({{"type": "lifespan.startup.complete"}})
    await receive()
    threading.Thread(target=free.wait).start()
    await send({{"type": "lifespan.shutdown.complete"}})
"""


def test_worker_exits_after_a_signal(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal during startup stops the worker; a running thread is abandoned."""
    (folder / "itself.py").write_text(ENDS_ITSELF)
    left: list[int] = []
    monkeypatch.setattr("genmcp.cli.command.os._exit", left.append)

    main(["worker", "itself:mux", "--lifespan", "itself:app", "--concurrency", "2"])
    load_attribute("itself:free").set()

    assert left == [0]


@pytest.mark.parametrize(
    ("code", "first", "last"),
    [
        ("import no_such_module", "line 1, in <module>", "ModuleNotFoundError: No module named"),
        ("import json\njson.loads('{')", "line 2, in <module>", "JSONDecodeError: Expecting"),
        ("def (", "line 1", "SyntaxError: invalid syntax"),
    ],
)
def test_worker_shows_where_a_module_fails(
    code: str, first: str, last: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """From its own first line on; a missing import is not reported as a missing module."""
    (folder / "lacking.py").write_text(code)
    with pytest.raises(SystemExit) as ended:
        main(["worker", "lacking:mux"])

    assert ended.value.code == 1
    said = capsys.readouterr().err.replace("Traceback (most recent call last):\n", "").splitlines()
    # Not always the first line: packages that other tests import have import hooks.
    assert f'  File "{folder / "lacking.py"}", {first}' in said
    assert not [line for line in said if "/genmcp/" in line]
    assert last in said[-2]
    assert said[-1] == "genmcp: lacking cannot be imported"


def test_worker_rejects_a_class(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It cannot be served."""
    (folder / "classes.py").write_text("from genmcp import Suite\nclass Shop(Suite): pass")
    for target in ("classes:Shop", "classes.py:Shop"):
        with pytest.raises(SystemExit):
            main(["worker", target])
        assert f"{target} is the class Shop: name an instance" in capsys.readouterr().err
