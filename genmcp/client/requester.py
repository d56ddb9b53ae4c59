"""How HTTP requests are made: the interface that `HttpTransport` stands on."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping

from genmcp.client.errors import MessageTooLarge

__all__ = ["Headers", "Reply", "Requester"]

Headers = Iterable[tuple[bytes, bytes]]


class Reply(ABC):
    """An HTTP response, whose body is still to be read.

    status, headers: its head; the names are in lower case.
    """

    status: int
    headers: Mapping[str, str]

    def __init__(self, where: str) -> None:
        self.where = where

    @abstractmethod
    async def chunk(self) -> bytes:
        """Return the next piece of the body as soon as there is one, empty at its end.

        Raises:
            ConnectionLost: the connection broke before the body was whole.
            ProtocolError: it is not HTTP what comes.
        """

    @abstractmethod
    async def close(self) -> None:
        """Leave it, read or not; more than once does no harm.

        A connection on which everything was read is used again, any other is closed.
        """

    async def read(self, most: int) -> bytes:
        """Return the whole body, or what is left of it.

        Raises:
            MessageTooLarge: it has more than *most* bytes.
            ConnectionLost, ProtocolError: as for `chunk`.
        """
        pieces = []
        size = 0
        while data := await self.chunk():
            size += len(data)
            if size > most:
                raise MessageTooLarge(self.where, size, most)
            pieces.append(data)
        return b"".join(pieces)


class Requester(ABC):
    """Makes HTTP requests to one origin, as many at once as is asked of it.

    where: the server, as errors name it.
    """

    where: str

    @abstractmethod
    async def request(
        self,
        method: str,
        path: str,
        headers: Headers,
        body: bytes | None = None,
        *,
        waits: bool = True,
    ) -> Reply:
        """Send a request and return the head of its response, whatever its status.

        path: with the query, as the request line has it. waits: whether it waits until fewer of
            those that wait are under way than `HttpOptions.connections`. What something under way
            may itself wait for, and what may last for ever, must not.

        Raises:
            ConnectError: no connection came about; nothing was sent.
            ConnectionLost: the connection broke before there was a response.
            ProtocolError: it is not HTTP what came.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close all connections, those in use as well; more than once does no harm."""
