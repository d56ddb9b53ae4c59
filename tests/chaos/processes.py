"""Processes that serve and work, and are killed and started again."""

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
START = 40.0  # seconds for a process to come up on a busy machine
PAUSE = 0.02  # seconds between two polls of the state of other processes

T = TypeVar("T")


async def until(look: Callable[[], T]) -> T:
    """Return the result of *look* as soon as it is true."""
    while True:
        if found := look():
            return found
        await asyncio.sleep(PAUSE)


class Life:
    """A process from its start to its end; *killed* is known before the process is."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.killed = False

    @property
    def pid(self) -> int:
        return self.process.pid


class Place:
    """A process that may be started again once it was killed, under the same command."""

    def __init__(
        self, name: str, command: Sequence[str], environment: Mapping[str, str], folder: Path
    ) -> None:
        self.name = name
        self.life: Life | None = None
        self.lives: list[Life] = []
        self._command = command
        self._environment = {**os.environ, **environment}
        self._said = folder / f"{name}.log"

    def __repr__(self) -> str:
        return f"<{self.name}, life {len(self.lives)}>"

    async def start(self) -> None:
        """Start it, and return when it is up."""
        with self._said.open("ab") as said:
            process = await asyncio.create_subprocess_exec(
                *self._command, cwd=ROOT, env=self._environment, stderr=said
            )
        life = Life(process)
        self.lives.append(life)
        async with asyncio.timeout(START):
            await self._up(life)
        self.life = life

    async def _up(self, life: Life) -> None:
        """Wait until the process is ready; a worker does not show that it is."""

    async def kill(self) -> None:
        """End it without a warning."""
        life, self.life = self.lives[-1], None
        life.killed = True
        with suppress(ProcessLookupError):
            life.process.kill()
        await life.process.wait()

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.lives[-1].process.send_signal(number)

    def said(self) -> str:
        """Return the process's log."""
        return self._said.read_text() if self._said.exists() else ""


class Server(Place):
    """uvicorn on a loopback port that stays its own while it is down."""

    def __init__(
        self, name: str, before: Sequence[str], environment: Mapping[str, str], folder: Path
    ) -> None:
        # Bound without listening: the port is reserved, and uvicorn may still use it.
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
            assert life.process.returncode is None, f"{self.name} ended: {self.said()}"
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", self._port)
                writer.close()
                return
            await asyncio.sleep(PAUSE)

    def close(self) -> None:
        """Let others have the port."""
        self._reserved.close()


class Fleet:
    """Servers and workers over one store; *folder* has their notes and logs.

    store: the SQLite file, unless *url* is given. url: the store. queues: those that the servers
    work on. before: a prefix for the command of a server.
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
        # Whether the server of the store is killed or suspended: a stream may then break, and is
        # resumed with the id of its last event.
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
        """Let the clock of each process be wrong by one of *offsets* seconds, in turn."""
        for place, offset in zip(self.places, cycle(offsets), strict=False):
            (self._folder / f"{place.name}.clock").write_text(str(offset))

    @property
    def places(self) -> list[Place]:
        """All of them."""
        return [*self.servers, *self.workers]

    @property
    def up(self) -> list[Server]:
        """The servers that serve."""
        return [each for each in self.servers if each.life is not None]

    def notes(self) -> list[tuple[int, str, int]]:
        """Return the notes: number of the call, step, id of the process."""
        file = self._folder / "noted"
        lines = file.read_text().splitlines() if file.exists() else []
        return [(int(n), what, int(pid)) for n, what, pid in (line.split(":") for line in lines)]

    async def noted(self, what: str, count: int = 1) -> list[Place]:
        """Wait for the given number of notes of *what*; return the processes, in order."""
        places = {life.pid: place for place in self.places for life in place.lives}

        def found() -> list[Place]:
            noted = [places[pid] for _, each, pid in self.notes() if each == what]
            return noted if len(noted) >= count else []

        async with asyncio.timeout(START):
            return await until(found)

    @property
    def killed(self) -> set[int]:
        """The ids of all processes that were killed."""
        return {life.pid for place in self.places for life in place.lives if life.killed}

    def said(self) -> str:
        """Return the end of the logs of all processes."""
        return "\n".join(f"--- {each.name}\n{each.said()[-6000:]}" for each in self.places)


@asynccontextmanager
async def running(fleet: Fleet) -> AsyncIterator[Fleet]:
    """Start all of *fleet* and stop it at the end. A failure reports its logs."""
    try:
        # The first makes the file.
        await fleet.places[0].start()
        await asyncio.gather(*(each.start() for each in fleet.places[1:]))
        yield fleet
        ended = [each for each in fleet.places if each.lives[-1].process.returncode is not None]
        assert not ended, f"ended by themselves: {ended}"
    except BaseException as error:
        error.add_note(fleet.said())
        raise
    finally:
        for place in fleet.places:
            if place.lives:
                await place.kill()
        for server in fleet.servers:
            server.close()
