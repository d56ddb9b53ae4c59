"""The one connection a client has at a time, whoever opens and closes it."""

from collections.abc import Callable

from genmcp.client.errors import ClientClosed
from genmcp.client.session import ClientSession

__all__ = ["Current"]


class Current:
    """Opens what *make* makes, one after the other; *where* says what to."""

    def __init__(self, make: Callable[[], ClientSession], where: str) -> None:
        self._make = make
        self._where = where
        self._opened: ClientSession | None = None
        self._closes = 0

    @property
    def is_open(self) -> bool:
        """Whether there is a connection, and it is not over."""
        return self._opened is not None and self._opened.connection.is_open

    @property
    def abandoned_calls(self) -> int:
        """How many calls were given up that the server has not answered."""
        return 0 if self._opened is None else len(self._opened.connection.left)

    @property
    def now(self) -> ClientSession:
        """The connection; it may be over, but was not closed.

        Raises:
            ClientClosed: there is none.
        """
        if self._opened is None:
            raise ClientClosed(self._where, state="not open: use `async with`, or `open`")
        if self._opened.connection.is_closed:
            raise ClientClosed(self._where)
        return self._opened

    async def open(self) -> None:
        """Open a connection, or wait until the one that is being opened is open.

        Raises:
            ClientClosed: `close` was called meanwhile.
            ClientError: there is no server, or none that can be talked to.
        """
        closes = self._closes
        while (opened := self._opened) is not None:
            await opened.settled()
            if closes == self._closes and opened.connection.is_open:
                return
            await opened.close()
            if closes != self._closes:
                raise ClientClosed(self._where)
            if self._opened is opened:
                break  # nobody else has opened another
        self._opened = self._make()
        await self._opened.open()

    async def close(self) -> None:
        """Close the connection, and return when it is over; see `Connection.close`."""
        self._closes += 1
        if self._opened is not None:
            await self._opened.close()
