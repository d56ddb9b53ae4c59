"""The way to a server: what carries messages to it, and who is told what comes back."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import ClassVar, Protocol

from genmcp.client.errors import ClientError, MessageTooLarge
from genmcp.core.client.events import Send
from genmcp.wire.jsonrpc import RequestId

__all__ = ["Headers", "HttpRequester", "HttpResponse", "Transport", "TransportSink"]


class TransportSink(Protocol):
    """Who is told what comes from the server. Called in the event loop; it must not block.

    *about* is the request in whose own response something came, None where there is no such thing.
    What takes it returns whether that request needs nothing more: it is answered, it has failed,
    or nobody waits for it any more. A response that ends before that is taken up again where the
    revision lets it be, and is a failure otherwise.
    """

    def on_message(self, message: bytes, about: RequestId | None = None) -> bool:
        """Take one message as it came: it may be a batch, and it may be no JSON at all."""
        ...

    def on_oversized(self, size: int, head: bytes, about: RequestId | None = None) -> bool:
        """Learn that a message of *size* bytes or more was thrown away; *head* is how it began."""
        ...

    def on_failure(self, id: RequestId | None, error: ClientError) -> None:
        """Learn that request *id* will not be answered; with None: that the transport has ended.

        After the latter nothing more comes, and `send` raises the same error, until it is opened
        again: a server of the era before may end for what it is asked first.
        """
        ...

    def on_lost_notifications(self) -> None:
        """Learn that the server may have said something unasked that did not come."""
        ...

    def on_session_ended(self, error: ClientError) -> None:
        """Learn that the server does not know the session any more, of which it spoke unasked."""
        ...


class Transport(ABC):
    """Carries messages to one server, and what comes back to a sink.

    per_message: each request has a response of its own (HTTP). A request of 2026-07-28 is then
        cancelled by leaving its `send`, never by a notification.
    where: the server, for people: a URL, a command line.
    """

    per_message: ClassVar[bool] = False
    where: str

    @abstractmethod
    async def open(self, sink: TransportSink) -> None:
        """Get ready to send; anew, where it has ended of itself.

        Raises:
            ClientError: there is no server to talk to.
        """

    @abstractmethod
    async def send(self, message: Send) -> None:
        """Send a message; several may be under way at once.

        Without a response of its own this ends when the message is handed over. With one it ends
        when nothing more comes for the message, all of it told to the sink; leaving it earlier, by
        cancelling the task it runs in, gives up that response.

        The failure of a request is passed to `TransportSink.on_failure` and not raised.

        Raises:
            ClientError: a notification or an answer could not be delivered; or the transport is
                not open, or has ended.
        """

    async def hearing(self) -> None:  # noqa: B027  # there may be nothing to wait for
        """Wait until what the server says unasked is heard, or is not expected to be soon.

        Where one channel carries everything, it is.
        """

    @abstractmethod
    async def close(self) -> None:
        """End everything, at once where the server allows it; more than once does no harm.

        Nothing is told to the sink from then on.
        """


Headers = Iterable[tuple[bytes, bytes]]


class HttpResponse(ABC):
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


class HttpRequester(ABC):
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
        counts_against_limit: bool = True,
    ) -> HttpResponse:
        """Send a request and return the head of its response, whatever its status.

        path: with the query, as the request line has it. waits: whether it waits until fewer of
            those that wait are under way than `HttpOptions.max_connections`. What one under way
            may itself wait for, and what may last for ever, must not.

        Raises:
            ConnectError: no connection came about; nothing was sent.
            ConnectionLost: the connection broke before there was a response.
            ProtocolError: it is not HTTP what came.
        """

    @abstractmethod
    async def close(self) -> None:
        """Close all connections, those in use as well; more than once does no harm."""
