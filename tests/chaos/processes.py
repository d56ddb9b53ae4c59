"""Server and worker processes that are killed and restarted."""

import asyncio
import os
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from itertools import cycle
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).parents[2]
CLOCK = Path(__file__).with_name("clock")
START = 40.0  # seconds for a process to start on a busy machine
PAUSE = 0.02  # seconds between two polls of the state of other processes

T = TypeVar("T")


async def until(look: Callable[[], T]) -> T:
    """Poll *look* until its result is true; return the result."""
    while True:
        if found := look():
            return found
        await asyncio.sleep(PAUSE)


class Life:
    """One run of a process. *killed* is set before the process is killed."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.killed = False

    @property
    def pid(self) -> int:
        return self.process.pid


class Place:
    """A command whose process may be killed and restarted."""

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], folder: Path
    ) -> None:
        self.name = name
        self.life: Life | None = None
        self.lives: list[Life] = []
        self._command = command
        self._environment = {**os.environ, **environment}
        self._log_file = folder / f"{name}.log"

    def __repr__(self) -> str:
        return f"<{self.name}, life {len(self.lives)}>"

    async def start(self) -> None:
        """Start the process, and wait until it is ready."""
        with self._log_file.open("ab") as logs:
            process = await asyncio.create_subprocess_exec(
                *self._command, cwd=ROOT, env=self._environment, stderr=logs
            )
        life = Life(process)
        self.lives.append(life)
        async with asyncio.timeout(START):
            await self._up(life)
        self.life = life

    async def _up(self, life: Life) -> None:
        """Wait until the process is ready. A worker gives no sign that it is."""

    async def kill(self) -> None:
        """Kill the process with SIGKILL."""
        life, self.life = self.lives[-1], None
        life.killed = True
        with suppress(ProcessLookupError):
            life.process.kill()
        await life.process.wait()

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process."""
        self.lives[-1].process.send_signal(number)

    def logs(self) -> str:
        """Return the log of all runs."""
        return self._log_file.read_text() if self._log_file.exists() else ""


class Server(Place):
    """A uvicorn server. Its loopback port stays reserved while it is down."""

    def __init__(
        self, name: str, before: Sequence[str], environment: Mapping[str, str], folder: Path
    ) -> None:
        # Bound without listening: this reserves the port, but uvicorn can still use it.
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind(("127.0.0.1", 0))
        self._port = self._reserved.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}/"
        options = ["--port", str(self._port), "--log-level", "warning"]
        command = [*before, sys.executable, "-m", "uvicorn", "tests.chaos.app:app", *options]
        super().__init__(name, command, environment, folder)

    async def _up(self, life: Life) -> None:
        while True:
            assert life.process.returncode is None, f"{self.name} ended: {self.logs()}"
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", self._port)
                writer.close()
                return
            await asyncio.sleep(PAUSE)

    def close(self) -> None:
        """Release the port."""
        self._reserved.close()


class Fleet:
    """Servers and workers over one store. *folder* has their notes and logs.

    Args:
        store: the SQLite file, unless *url* is given.
        url: the URL of the store.
        queues: the queues that the servers work on.
        before: a prefix for the command of a server.
    """

    def __init__(
        self,
        folder: Path,
        *,
        servers: int,
        workers: int,
        store: Path | None = None,
        url: str | None = None,
        queues: str = "default",
        before: Sequence[str] = (),
    ) -> None:
        self.store = store or folder / "store.db"
        self._folder = folder
        self.url = url or f"sqlite:///{self.store}"
        # Whether the server of the store is killed or suspended. Streams may then break, and are
        # resumed with the id of the last event.
        self.store_fails = False
        works = {"CHAOS": str(folder), "CHAOS_STORE": self.url}
        serves = {**works, "CHAOS_QUEUES": queues}
        self.servers = [
            Server(name, before, {**serves, **self._clock(name)}, folder)
            for name in (f"server {n}" for n in range(servers))
        ]
        command = [sys.executable, "-m", "genmcp", "worker", "tests.chaos.app:mux"]
        self.workers = [
            Place(name, command, {**works, **self._clock(name)}, folder)
            for name in (f"worker {n}" for n in range(workers))
        ]

    def _clock(self, name: str) -> Mapping[str, str]:
        return {"PYTHONPATH": str(CLOCK), "CHAOS_CLOCK": str(self._folder / f"{name}.clock")}

    def set_clocks(self, *offsets: float) -> None:
        """Shift the clock of each process by one of *offsets* seconds, in turn."""
        for place, offset in zip(self.places, cycle(offsets), strict=False):
            (self._folder / f"{place.name}.clock").write_text(str(offset))

    @property
    def places(self) -> list[Place]:
        """All servers and workers."""
        return [*self.servers, *self.workers]

    @property
    def up(self) -> list[Server]:
        """The running servers."""
        return [each for each in self.servers if each.life is not None]

    def notes(self) -> list[tuple[int, str, int]]:
        """Return the notes: the number of the call, the step, the id of the process."""
        file = self._folder / "noted"
        lines = file.read_text().splitlines() if file.exists() else []
        return [(int(n), what, int(pid)) for n, what, pid in (line.split(":") for line in lines)]

    async def noted(self, what: str, count: int = 1) -> list[Place]:
        """Wait for *count* notes of the step *what*; return their processes, in order."""
        places = {life.pid: place for place in self.places for life in place.lives}

        def found() -> list[Place]:
            noted = [places[pid] for _, each, pid in self.notes() if each == what]
            return noted if len(noted) >= count else []

        async with asyncio.timeout(START):
            return await until(found)

    @property
    def killed(self) -> set[int]:
        """The ids of all killed processes."""
        return {life.pid for place in self.places for life in place.lives if life.killed}

    def logs(self) -> str:
        """Return the end of each process's log."""
        return "\n".join(f"--- {each.name}\n{each.logs()[-6000:]}" for each in self.places)


@asynccontextmanager
async def running(fleet: Fleet) -> AsyncIterator[Fleet]:
    """Start the processes of *fleet*, and stop them at the end. A failure has their logs."""
    try:
        # The first one creates the file of the store.
        await fleet.places[0].start()
        await asyncio.gather(*(each.start() for each in fleet.places[1:]))
        yield fleet
        ended = [each for each in fleet.places if each.lives[-1].process.returncode is not None]
        assert not ended, f"ended by themselves: {ended}"
    except BaseException as error:
        error.add_note(fleet.logs())
        raise
    finally:
        for place in fleet.places:
            if place.lives:
                await place.kill()
        for server in fleet.servers:
            server.close()
