"""The way to a server: what carries messages to it, and who is told what comes back."""

from abc import ABC, abstractmethod
from typing import ClassVar, Protocol

from genmcp.client.errors import ClientError
from genmcp.core.client_events import Send
from genmcp.wire.jsonrpc import RequestId

__all__ = ["Sink", "Transport"]


class Sink(Protocol):
    """Who is told what comes from the server. Called in the event loop; it must not block.

    *about* is the request in whose own response something came, None where there is no such thing.
    What takes it returns whether that request needs nothing more: it is answered, it has failed,
    or nobody waits for it any more. A response that ends before that is taken up again where the
    revision lets it be, and is a failure otherwise.
    """

    def received(self, message: bytes, about: RequestId | None = None) -> bool:
        """Take one message as it came: it may be a batch, and it may be no JSON at all."""
        ...

    def too_long(self, size: int, head: bytes, about: RequestId | None = None) -> bool:
        """Learn that a message of *size* bytes or more was thrown away; *head* is how it began."""
        ...

    def failed(self, id: RequestId | None, error: ClientError) -> None:
        """Learn that request *id* will not be answered; with None: that the transport has ended.

        After the latter nothing more comes, and `send` raises the same error, until it is opened
        again: a server of the era before may end for what it is asked first.
        """
        ...

    def missed(self) -> None:
        """Learn that the server may have said something unasked that did not come."""
        ...

    def session_ended(self, error: ClientError) -> None:
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
    async def open(self, sink: Sink) -> None:
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

        A request that cannot be sent or answered is told to `Sink.failed`, and only there.

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
