"""A proxy that delivers late, as a network may."""

import asyncio
import ssl
from contextlib import suppress


class Delay:
    """A proxy that can hold back what a client has sent, also after that client has gone."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        self._port = port
        self._tls = tls  # for connections of clients
        self._open = asyncio.Event()
        self._open.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._clients: list[asyncio.StreamWriter] = []
        self._muted: set[asyncio.StreamWriter] = set()
        self.held = asyncio.Event()  # set when something is held back
        self.sent = asyncio.Event()  # set when what was held back has been sent

    async def __aenter__(self) -> "Delay":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)
        for writer in self._clients:
            writer.close()

    @property
    def url(self) -> str:
        return "redis://{}:{}".format(*self._server.sockets[0].getsockname())

    def hold(self) -> asyncio.Event:
        """Hold back what present clients send, until the event that is returned is set."""
        self._open = asyncio.Event()
        return self._open

    def mute(self) -> None:
        """Drop what the server sends to the present clients from now on."""
        self._muted.update(self._clients)

    def cut(self) -> None:
        """Close the connections to the present clients, but not those to the server."""
        self._open = asyncio.Event()
        self._open.set()
        for writer in self._clients:
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._clients.append(writer)
        there, back = await asyncio.open_connection("127.0.0.1", self._port)
        answers = asyncio.ensure_future(self._pass(there, writer))
        self._tasks.add(answers)
        try:
            while data := await reader.read(65536):
                opened = self._open
                if not opened.is_set():
                    self.held.set()
                    await opened.wait()
                    back.write(data)
                    await back.drain()
                    self.sent.set()
                    continue
                back.write(data)
        except OSError:
            pass
        finally:
            back.close()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(65536):
                if not writer.transport.is_closing() and writer not in self._muted:
                    writer.write(data)
