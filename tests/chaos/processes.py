"""Processes that serve and work, and are killed and started again."""

import asyncio
import os
import signal
import socket
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

ROOT = Path(__file__).parents[2]
START = 20.0  # seconds for a process to come up on a busy machine


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
                sys.executable, *self._command, cwd=ROOT, env=self._environment, stderr=said
            )
        life = Life(process)
        self.lives.append(life)
        async with asyncio.timeout(START):
            await self._up(life)
        self.life = life

    async def _up(self, life: Life) -> None:
        """Wait until it does what it is for; that a worker does shows in nothing."""

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
        """Return what it has written to its log."""
        return self._said.read_text()


class Server(Place):
    """uvicorn on a loopback port that stays its own while it is down."""

    def __init__(self, name: str, environment: Mapping[str, str], folder: Path) -> None:
        # Bound, and never listening: nobody else is given the port, and uvicorn may have it.
        self._reserved = socket.socket()
        self._reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._reserved.bind(("127.0.0.1", 0))
        self._port = self._reserved.getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}/"
        command = ["-m", "uvicorn", "tests.chaos.app:app", "--port", str(self._port)]
        super().__init__(name, [*command, "--log-level", "warning"], environment, folder)

    async def _up(self, life: Life) -> None:
        while True:
            assert life.process.returncode is None, f"{self.name} ended: {self.said()}"
            with suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", self._port)
                writer.close()
                return
            await asyncio.sleep(0.02)

    def close(self) -> None:
        """Let others have the port."""
        self._reserved.close()


class Fleet:
    """Servers and workers over one store."""

    def __init__(
        self, folder: Path, *, servers: int, workers: int, queues: str = "default"
    ) -> None:
        self._folder = folder
        environment = {"CHAOS": str(folder)}
        serving = {**environment, "CHAOS_QUEUES": queues}
        self.servers = [Server(f"server {n}", serving, folder) for n in range(servers)]
        command = ["-m", "tests.chaos.worker"]
        self.workers = [
            Place(f"worker {n}", command, environment, folder) for n in range(workers)
        ]

    @property
    def places(self) -> list[Place]:
        """All of them."""
        return [*self.servers, *self.workers]

    @property
    def up(self) -> list[Server]:
        """The servers that serve."""
        return [each for each in self.servers if each.life is not None]

    async def begun(self, count: int) -> list[Place]:
        """Wait until so many attempts at jobs have begun; return whose they are, in order."""
        file = self._folder / "begun"
        async with asyncio.timeout(START):
            while not file.exists() or len(lines := file.read_text().splitlines()) < count:
                await asyncio.sleep(0.02)
        places = {life.pid: place for place in self.places for life in place.lives}
        return [places[int(line.split()[-1])] for line in lines]

    @property
    def killed(self) -> set[int]:
        """The ids of all processes that were killed."""
        return {life.pid for place in self.places for life in place.lives if life.killed}

    def said(self) -> str:
        """Return what all of them have logged, the end of it."""
        return "\n".join(f"--- {each.name}\n{each.said()[-6000:]}" for each in self.places)


@asynccontextmanager
async def running(
    folder: Path, *, servers: int, workers: int, queues: str = "default"
) -> AsyncIterator[Fleet]:
    """Give a fleet that is up, and leave nothing of it; *queues* are those its servers work on."""
    fleet = Fleet(folder, servers=servers, workers=workers, queues=queues)
    try:
        # The first makes the file.
        await fleet.places[0].start()
        await asyncio.gather(*(each.start() for each in fleet.places[1:]))
        yield fleet
    finally:
        for place in fleet.places:
            if place.lives:
                await place.kill()
        for server in fleet.servers:
            server.close()
