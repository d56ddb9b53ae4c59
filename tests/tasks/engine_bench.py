"""An engine for tests: its broker, the store, workers of the engine, and services of genmcp."""

import os
import signal
import subprocess
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Final, TypeAlias

from genmcp.core.outcome import Outcome
from genmcp.core.task import Task
from genmcp.core.waiting import Finished
from genmcp.stores import open_store
from genmcp.stores.postgres import PostgresStore
from genmcp.tasks.heartbeats import ProcessName
from genmcp.tasks.service import TaskService
from tests.support.asgi import until
from tests.support.postgres_server import PostgresServer
from tests.support.redis_server import RedisServer
from tests.support.temporal_server import TemporalServer
from tests.tasks.bench import as_result
from tests.tasks.engine_apps import ENGINES, EngineApp, options_of, worker_command

BOUND: Final = 40.0
"""Seconds after which an expected event counts as missing: a worker of Celery starts slowly."""

Broker: TypeAlias = RedisServer | PostgresServer | TemporalServer


class EngineBench:
    """The engine *kind*, with its broker and a store. Its methods may be used in any event loop.

    *own_store*: whether the store survives `kill_broker`.
    """

    def __init__(self, kind: str, folder: Path, *, own_store: bool = False) -> None:
        self.kind = kind
        self._store: RedisServer | None = None
        self._folder = folder
        self.workers: list[subprocess.Popen[bytes]] = []
        self.broker: Broker
        match kind:
            case "celery" | "docket":
                self.broker = redis = RedisServer()
                self.broker_url, self.store_url = f"{redis.url}/1", redis.url
            case "procrastinate":
                self.broker = postgres = PostgresServer()
                self.broker_url, self.store_url = postgres.url, f"{postgres.url}?schema=genmcp"
            case _:
                self.broker = temporal = TemporalServer()
                self.broker_url, self.store_url = temporal.url, f"sqlite:///{folder}/store.db"
        if own_store and kind in ("celery", "docket"):
            self._store = RedisServer()
            self.store_url = self._store.url
        elif own_store:
            self.store_url = f"sqlite:///{folder}/store.db"

    async def open(self) -> None:
        """Start the broker, and prepare its database."""
        await self.broker.start()
        if self._store is not None:
            await self._store.start()
        if self.store_url.startswith("postgresql"):
            async with aclosing(PostgresStore(self.store_url)) as store:
                await store.migrate()
        if self.kind == "procrastinate":
            app = self.app().app
            async with app.open_async():
                await app.schema_manager.apply_schema_async()

    async def kill_broker(self) -> None:
        """Kill the broker, which keeps its data."""
        if (killing := self.broker.kill()) is not None:
            await killing

    def end(self) -> None:
        """Kill the workers and the broker."""
        for worker in [*self.workers]:
            self.kill_worker(worker)
        if isinstance(self.broker, PostgresServer):
            self.broker.remove()
        else:
            self.broker.end()
        if self._store is not None:
            self._store.end()

    def start_worker(self) -> None:
        """Start a worker of the engine, without waiting until it works."""
        self.workers.append(self.start(worker_command(self.kind, self.broker_url)))

    def start(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Start a process that imports `tests.tasks.engine_apps`."""
        settings = {
            "ENGINE": self.kind,
            "BROKER_URL": self.broker_url,
            "STORE_URL": self.store_url,
            "PYTHONPATH": str(Path.cwd()),
        }
        with (self._folder / "workers").open("ab") as output:
            return subprocess.Popen(
                command,
                env={**os.environ, **settings},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def kill_worker(self, worker: subprocess.Popen[bytes]) -> None:
        """Kill all processes of a worker (SIGKILL)."""
        self.workers.remove(worker)
        self.kill(worker)

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a process and its children (SIGKILL)."""
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop_worker(self, worker: subprocess.Popen[bytes]) -> None:
        """Ask a worker to stop (SIGTERM), and wait until it has."""
        worker.terminate()
        worker.wait(BOUND)
        self.kill_worker(worker)

    def app(self) -> EngineApp:
        """Return the application of the engine, for this process."""
        return ENGINES[self.kind](self.broker_url)

    @asynccontextmanager
    async def service(self, made: EngineApp) -> AsyncGenerator[TaskService, None]:
        """Run a process of the server in this one."""
        store = open_store(self.store_url)
        service = TaskService(
            store,
            process_name=ProcessName("server-"),
            resume=resume,
            options=options_of(made),
            namespace="engines",
        )
        try:
            yield service
        finally:
            await service.aclose()
            await store.aclose()

    def output(self) -> str:
        """Return what the workers have written."""
        return (self._folder / "workers").read_text(errors="replace")


async def resume(task: Task, call: bytes, outcome: Outcome) -> Finished:
    return as_result(outcome)


class JobLog:
    """The log that the jobs of one test write, in *folder*."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)
        self._path = folder / "log"
        self._path.touch()

    def lines(self, word: str) -> list[list[str]]:
        """Return the words behind *word* of the lines that begin with it."""
        lines = [line.split() for line in self._path.read_text().splitlines()]
        return [words[1:] for words in lines if words[0] == word]

    async def until(self, fits: Callable[["JobLog"], object], bound: float = BOUND) -> None:
        """Wait until the log *fits*."""
        try:
            await until(lambda: fits(self), pause=0.02, bound=bound)
        except (AssertionError, TimeoutError):
            raise AssertionError(f"the log is {self._path.read_text()!r}") from None

    def release(self) -> None:
        """Let the jobs of the test end that hold."""
        (Path(self.folder) / "go").touch()
