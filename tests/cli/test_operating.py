"""`genmcp serve` and `genmcp worker` in operation: probes, draining, and the death of a process."""

import asyncio
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from genmcp import Client
from tests.cli.studio import SECRET
from tests.support.asgi import PATIENCE, until

ROOT = Path(__file__).parents[2]


class Process:
    """A `genmcp` process, the URL that it logs, and its log, which is a file."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def log(self) -> str:
        return self._log.read_text()

    async def find(self, pattern: str) -> str:
        """Wait until the log has *pattern*, and return its first group."""

        def found() -> re.Match[str] | None:
            assert self.process.poll() is None or re.search(pattern, self.log), self.log
            return re.search(pattern, self.log)

        await until(found, pause=0.02, bound=PATIENCE * 2)
        match = found()
        assert match is not None
        return match[1]

    async def stop(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return await asyncio.to_thread(self.process.wait, PATIENCE * 2)


@contextmanager
def started(*options: str, folder: Path, module: str = "genmcp") -> Iterator[Process]:
    """Give a process over the store in *folder*, which is killed if it has not ended by then."""
    log = folder / f"{len(list(folder.glob('*.log')))}.log"
    environment = {**os.environ, "STUDIO": str(folder / "studio.db"), "LEASE": "60"}
    command = [sys.executable, "-m", module, *options]
    with (
        log.open("wb") as file,
        subprocess.Popen(
            command, cwd=ROOT, env=environment, stderr=file, stdout=file, start_new_session=True
        ) as process,
    ):
        try:
            yield Process(process, log)
        finally:
            with suppress(ProcessLookupError):  # its workers as well
                os.killpg(process.pid, signal.SIGKILL)


async def ready(http: httpx.AsyncClient, url: str) -> tuple[int, Any]:
    response = await http.get(f"{url}/ready")
    return response.status_code, response.json()


async def until_ready(http: httpx.AsyncClient, url: str) -> None:
    async with asyncio.timeout(PATIENCE * 2):
        while True:
            try:
                if (await ready(http, url))[0] == 200:
                    return
            except httpx.TransportError:
                pass  # it does not listen yet
            await asyncio.sleep(0.02)


async def test_server_drains_and_hands_over_its_jobs(tmp_path: Path) -> None:
    """After SIGTERM it is not ready, and serves requests until it is stopped.

    Its job is continued by a worker at once, although the lease is a minute.
    """
    options = ("tests.cli.studio:mux", "--port", "0", "--drain", "600", "--grace", "0.1")
    with started("serve", *options, folder=tmp_path) as server:
        url = await server.find(r"at (http://\S+)/mcp")
        assert "store: <SQLiteStore: '" in server.log
        assert "queues: studio" in server.log
        async with httpx.AsyncClient() as http, Client(f"{url}/mcp") as client:
            await until_ready(http, url)
            task = await client.call_task("count", {"folder": str(tmp_path)})
            await until((tmp_path / "attempt 1").exists, pause=0.02)

            server.process.send_signal(signal.SIGTERM)
            await until(lambda: "draining" in server.log, pause=0.02)
            assert await ready(http, url) == (
                503,
                {"status": "unavailable", "problems": {"process": "shutting down"}},
            )
            assert (await http.get(f"{url}/health")).status_code == 200
            assert (await client.tools())[0].name == "count"
            assert task.id is not None
            assert (await task.status()).status == "working"
            await server.stop()

        with started(
            "worker", "tests.cli.studio:mux", "--health", "127.0.0.1:0", folder=tmp_path
        ) as worker:
            probes = await worker.find(r"/ready at (http://\S+)")
            await until((tmp_path / "attempt 2").exists, pause=0.02)
            async with httpx.AsyncClient() as http:
                await until_ready(http, probes)
                assert (await http.get(f"{probes}/health")).json() == {"status": "ok"}
            (tmp_path / "go").touch()
            await worker.find(r"(worker of studio started, store: .* queues: studio)")
            assert await worker.stop() == 0

    assert SECRET not in server.log + worker.log


async def test_worker_is_not_ready_while_its_jobs_finish(tmp_path: Path) -> None:
    """And alive: a supervisor must not kill it within its grace."""
    addresses = ("--health", "127.0.0.1:0", "--metrics", "127.0.0.1:0")
    options = ("tests.cli.studio:mux", *addresses, "--grace", "600")
    with (
        started("serve", "tests.cli.studio:idle", "--port", "0", folder=tmp_path) as server,
        started("worker", *options, folder=tmp_path) as worker,
    ):
        url = await server.find(r"at (http://\S+)/mcp")
        probes = await worker.find(r"/health, /ready at (http://\S+)")
        measured = await worker.find(r"metrics at (http://\S+)")
        async with httpx.AsyncClient() as http, Client(f"{url}/mcp") as client:
            await until_ready(http, probes)
            task = await client.call_task("count", {"folder": str(tmp_path)})
            await until((tmp_path / "attempt 1").exists, pause=0.02)
            worker.process.send_signal(signal.SIGTERM)
            await until(lambda: "stopping" in worker.log, pause=0.02)
            assert (await ready(http, probes))[0] == 503
            assert (await http.get(f"{probes}/health")).status_code == 200
            metrics = (await http.get(measured)).text
            assert re.search(
                r'genmcp_job_wait_seconds_count\{.*job_name="studio.count".*\} 1', metrics
            )
            depth = r'genmcp_queue_depth\{genmcp_delivery_state="held",genmcp_queue="studio",.*\} 1'
            assert re.search(depth, metrics)
            (tmp_path / "go").touch()
            assert await asyncio.to_thread(worker.process.wait, PATIENCE) == 0
            assert "attempt 1" in str(await task.wait())


async def test_server_process_that_was_killed_is_replaced(tmp_path: Path, free_port: int) -> None:
    """With `--workers`; SIGTERM ends all of them."""
    options = ("tests.cli.studio:mux", "--port", str(free_port), "--workers", "2")
    url = f"http://127.0.0.1:{free_port}"
    with started("serve", *options, folder=tmp_path) as server:

        def processes() -> list[int]:
            found = re.findall(r"process (\d+) started, store: <SQLiteStore", server.log)
            return [*map(int, found)]

        await until(lambda: len(processes()) == 2, pause=0.05)
        os.kill(processes()[0], signal.SIGKILL)
        await until(lambda: len(processes()) == 3, pause=0.05)
        async with httpx.AsyncClient() as http:
            await until_ready(http, url)
        await server.stop()
        assert [pid for pid in processes() if runs(pid)] == []


@pytest.mark.parametrize("mode", [("--workers", "2"), ("--reload",)], ids=["workers", "reload"])
async def test_server_processes_end_after_their_parent_was_killed(
    mode: tuple[str, ...], tmp_path: Path, free_port: int
) -> None:
    """In good order: they would hold the port otherwise, and nothing would restart or stop them."""
    options = ("tests.cli.studio:mux", "--port", str(free_port), *mode)
    with started("serve", *options, folder=tmp_path) as server:
        count = 2 if "--workers" in mode else 1

        def processes() -> list[int]:
            return [*map(int, re.findall(r"process (\d+) started, store:", server.log))]

        await until(lambda: len(processes()) == count, pause=0.05, bound=PATIENCE * 2)
        async with httpx.AsyncClient() as http:
            await until_ready(http, f"http://127.0.0.1:{free_port}")
        server.process.kill()
        await until(lambda: not any(map(runs, processes())), pause=0.05, bound=PATIENCE * 2)

        assert server.log.count("has ended: stopping") == count
        assert server.log.count("Application shutdown complete") == count


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        # In a container, the process that adopts an orphan may never wait for it.
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (ProcessLookupError, FileNotFoundError):
        return False


async def test_metrics_are_served_for_prometheus(tmp_path: Path) -> None:
    """With the names that its exporter gives to those of the semantic conventions."""
    options = ("tests.cli.shop:suite", "--port", "0", "--metrics", "0")
    with started("serve", *options, folder=tmp_path) as server:
        url = await server.find(r"at (http://\S+)/mcp")
        measured = await server.find(r"metrics at (http://127.0.0.1:\d+)")
        async with httpx.AsyncClient() as http, Client(f"{url}/mcp") as client:
            await client.tools()
            response = await http.get(measured)
            assert (await http.get(f"{url}/metrics")).status_code == 404

    assert response.headers["content-type"].startswith("text/plain")
    assert re.search(
        r'mcp_server_operation_duration_seconds_count\{.*mcp_method_name="tools/list".*\} 1',
        response.text,
    )


@pytest.mark.parametrize(
    ("command", "options", "why"),
    [
        ("serve", ("--metrics", "1", "--workers", "2"), "--metrics cannot be combined"),
        ("serve", ("--metrics", "1", "--reload"), "--metrics cannot be combined"),
        ("serve", ("--metrics", "port"), "'port' is not HOST:PORT"),
        (
            "serve",
            ("--path", "/ready", "--workers", "2"),
            "'/ready' does not begin",
        ),
        ("serve", ("--path", "up"), "'up' does not begin with a slash"),
        ("worker", ("--metrics", "a:b"), "'a:b' is not HOST:PORT"),
        ("worker", ("--health", "127.0.0.1:1"), "--health 127.0.0.1:1: "),
    ],
)
def test_wrong_options_are_reported(
    command: str,
    options: tuple[str, ...],
    why: str,
    run: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before anything is served."""
    if why.endswith(": "):
        monkeypatch.setattr("socket.create_server", _refused)
        monkeypatch.setenv("GENMCP_STORE", f"sqlite:///{tmp_path}/test.db")
        monkeypatch.setenv("GENMCP_SECRET", SECRET)
    status, _, said = run(command, "tests.cli.shop:suite", *options)

    assert (status, why in said) == (2, True), said


def _refused(*_: Any, **__: Any) -> None:
    raise PermissionError("not allowed")


def test_missing_extra_is_named(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that installs it."""
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.prometheus", None)
    status, _, said = run("serve", "tests.cli.shop:suite", "--metrics", "9464")

    assert (status, 'pip install "genmcp[prometheus]"' in said) == (2, True), said
