"""A real server for the tests that need one."""

import asyncio
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import uvicorn
from starlette.types import ASGIApp

PATIENCE = 10  # seconds for a server to start, and to stop


class Server(uvicorn.Server):
    """A uvicorn server in a thread. `settled` is set once it listens, or has failed."""

    def __init__(self, config: uvicorn.Config, listener: socket.socket) -> None:
        super().__init__(config)
        self.listener = listener
        self.settled = threading.Event()
        self.thread = threading.Thread(target=self.serve_to_the_end, daemon=True)

    def serve_to_the_end(self) -> None:
        # A failed start raises SystemExit.
        with suppress(SystemExit):
            self.run(sockets=[self.listener])
        self.settled.set()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.settled.set()


@asynccontextmanager
async def serve(app: ASGIApp, port: int = 0, **options: Any) -> AsyncIterator[str]:
    """Serve an app on a loopback port (0: a free one); yield its URL without a trailing slash.

    `options` are uvicorn's. The server has an event loop and a thread of its own, so that the
    test and the server cannot block each other. At the end it
    stops as after a signal: open connections are closed after a second.

    Raises:
        RuntimeError: the server did not start; the reason is in the captured log.
    """
    settings: dict[str, Any] = {"log_level": "warning", "timeout_graceful_shutdown": 1, **options}
    with socket.socket() as listener:
        # As asyncio does with its own sockets: otherwise a response may wait 40 ms for an ACK.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listener.bind(("127.0.0.1", port))
        server = Server(uvicorn.Config(app, **settings), listener)
        server.thread.start()
        try:
            await asyncio.to_thread(server.settled.wait, PATIENCE)
            if not server.started:
                raise RuntimeError("the server did not start")
            yield "http://{}:{}".format(*listener.getsockname())
        finally:
            server.should_exit = True
            await asyncio.to_thread(server.thread.join, PATIENCE)
            if server.thread.is_alive():
                raise RuntimeError("the server did not stop")
