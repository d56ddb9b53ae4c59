"""Whether requests can be sent to a server, and who waits for that."""

import asyncio

from genmcp.client.errors import ClientClosed, ClientError, said
from genmcp.client.pending import BackgroundSender
from genmcp.core.client.dispatch import ClientDispatch

__all__ = ["Readiness"]


class Readiness:
    """Lets requests wait until they can be sent, of one connection.

    renewed: how often its session was begun anew.
    """

    def __init__(self, machine: ClientDispatch, background: BackgroundSender, where: str) -> None:
        self.renewed = 0
        self._machine = machine
        self._background = background
        self._where = where
        self._connected: asyncio.Future[None] | None = None

    @property
    def is_open(self) -> bool:
        """Whether there is anything to wait for: between `open` and `close`."""
        return self._connected is not None

    def open(self) -> None:
        """Let requests wait from now on."""
        self._connected = asyncio.get_running_loop().create_future()

    def close(self) -> None:
        """Let no request wait any more."""
        self.fail(ClientClosed(self._where))
        self._connected = None

    def connect(self) -> None:
        """Take note that the server is connected to."""
        if self._connected is not None and not self._connected.done():
            self._connected.set_result(None)

    def renew(self) -> None:
        """Take note that the server is not connected to any more, but will be."""
        self.renewed += 1
        self.open()

    def fail(self, error: ClientError) -> None:
        """Take note that it never will be."""
        if self._connected is not None and not self._connected.done():
            self._connected.set_exception(error)
            self._connected.exception()  # nobody need wait for it

    async def wait(self) -> None:
        """Wait until requests can be sent.

        Raises:
            ClientError: they never will be.
        """
        while (connected := self._connected) is not None:
            # What was waited for need not hold any more when the wait is over: all is looked at
            # again.
            if not connected.done():
                await asyncio.shield(connected)
            elif (reason := self._machine.reason) is not None:
                connected.result()
                raise said(reason, "the connection", self._where)
            elif self._background.is_greeting:
                # 2025-11-25, lifecycle, "Initialization": nothing is sent before it.
                await self._background.greeted()
            else:
                return
        raise ClientClosed(self._where)
