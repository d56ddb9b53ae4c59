"""Where a client is in an event stream: what it passes on, and where it would go on."""

from genmcp.client.requester import Reply
from genmcp.client.transport import Sink
from genmcp.wire.jsonrpc import RequestId
from genmcp.wire.lines import OversizedMessage
from genmcp.wire.sse import EventReader

__all__ = ["EventPlace"]

_FIRST_DELAY = 0.5  # seconds before the first attempt, if the server does not say how many
_LONGEST_DELAY = 30.0
_LEAST_WAIT, _LONGEST_WAIT = 0.1, 300.0  # seconds, whatever the server says


class EventPlace:
    """A place in a stream of events, over all connections that brought some of it.

    last_id: what it is taken up with, empty if it cannot be. events: how many have come.
    """

    def __init__(self, max_message: int) -> None:
        self.last_id = ""
        self.events = 0
        self._retry: int | None = None
        self._max_message = max_message

    def delay(self, attempts: int) -> float:
        """Return how many seconds to wait after so many *attempts* in vain, in a row.

        2025-11-25, transports, "Sending Messages to the Server": `retry` is respected, as far as
        this side neither runs in circles nor waits for ever.
        """
        wanted = _FIRST_DELAY
        if self._retry is not None:
            wanted = min(max(self._retry / 1000, _LEAST_WAIT), _LONGEST_WAIT)
        backoff = _FIRST_DELAY * 2 ** (attempts - 1) if attempts else 0.0
        return max(wanted, min(backoff, _LONGEST_DELAY))

    async def follow(self, reply: Reply, sink: Sink, about: RequestId | None) -> bool:
        """Pass on the messages of *reply*, about a request if it has one, to their end.

        Return whether that request needs nothing more; what is left of the stream is then unread.

        Raises:
            ConnectionLost: the connection broke.
            ProtocolError: it is not HTTP what comes.
        """
        reader = EventReader(self._max_message)
        while chunk := await reply.chunk():
            answered = False
            for event in reader.feed(chunk):
                self.events += 1
                if isinstance(event, OversizedMessage):
                    answered |= sink.too_long(event.size, event.head, about)
                elif event.data and event.event == "message":
                    answered |= sink.received(event.data, about)
            self.last_id = reader.last_id or self.last_id
            self._retry = self._retry if reader.retry is None else reader.retry
            if answered and about is not None:
                return True
        return False
